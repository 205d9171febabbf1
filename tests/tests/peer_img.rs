//! The program through links named qemu-img and qemu-io says, byte for byte, what the installed programs say.

use std::fs;

use blkring_tests::links::{Links, Whose};

const SETUP: &[&str] = &[
    "qemu-img create -q -f qcow2 t 1M; qemu-img create -q r 1M; mkdir d",
    "qemu-img create -q -f qcow2 -u -b nosuch -F raw o1 1M",
    "qemu-img create -q -f qcow2 -u -b o1 -F qcow2 o2 1M",
    "qemu-img create -q -f qcow2 -u -b nosuch -F raw d/o1 1M",
    "qemu-img create -q -f qcow2 -u -b r -F qcow2 o3 1M",
    "qemu-img create -q -f qcow2 -u -b l2 -F qcow2 l1 1M",
    "qemu-img create -q -f qcow2 -u -b l1 -F qcow2 l2 1M",
    "qemu-img create -q -f qcow2 -b ../t -F qcow2 d/b; qemu-img create -q -f qcow2 -b d/b -F qcow2 top",
    "qemu-img create -q -f qcow2 old -o compat=0.10 3G",
    "qemu-img create -q -f qcow2 -b t -F qcow2 s; qemu-img snapshot -c a s; qemu-img snapshot -c üx s",
    "qemu-img create -q -f qcow2 dirty 1M; printf '\\1' | dd of=dirty bs=1 seek=79 conv=notrunc status=none",
    "qemu-img create -q -f qcow2 leak 1M; printf '\\0\\2' | dd of=leak bs=1 seek=131072 conv=notrunc status=none",
    "qemu-img create -q -f qcow2 bad 1M; printf '\\0\\0' | dd of=bad bs=1 seek=131072 conv=notrunc status=none",
    "truncate -s 1000 odd",
];

#[track_caller]
fn compare(lines: &[&str]) {
    let Some(links) = Links::new(SETUP) else { return };
    if links.same_words() {
        lines.iter().for_each(|line| links.compare(line));
    }
}

#[test]
fn command_lines_are_read_as_getopt_reads_them() {
    compare(&[
        "qemu-img",
        "qemu-img foo",
        "qemu-img --foo",
        "qemu-img -Z",
        "qemu-img help",
        "qemu-img info",
        "qemu-img info a b",
        "qemu-img info --foo x",
        "qemu-img info -Z x",
        "qemu-img info -f",
        "qemu-img info --format",
        "qemu-img info -U -f",
        "qemu-img info --fo qcow2 t",
        "qemu-img info --fo=qcow2 t",
        "qemu-img info --force-share=x t",
        "qemu-img info --output=foo t",
        "qemu-img info --out json t",
        "qemu-img info t --output json",
        "qemu-img info -f raw -f qcow2 t",
        "qemu-img check",
        "qemu-img check --output=foo t",
        "qemu-img check -r foo t",
        "qemu-img check -T foo t",
        "qemu-img create",
        "qemu-img create x -1",
        "qemu-img create x 1M 2M",
        "qemu-img bench",
        "qemu-img bench -c 1 r r",
        "qemu-img bench -c x -f raw r",
        "qemu-img bench -c 1 -f raw -t foo r",
    ]);
}

#[test]
fn info_tells_the_same() {
    compare(&[
        "qemu-img info t",
        "qemu-img info r",
        "qemu-img info -U t",
        "qemu-img info --output=json r",
        "qemu-img info odd; qemu-img info --output=json odd",
        "qemu-img info old; qemu-img info --output=json old",
        "qemu-img info s; qemu-img info --output=json s",
        "qemu-img info dirty; qemu-img info --output=json dirty",
        "qemu-img info o1; qemu-img info o2; qemu-img info o3",
        "qemu-img info d/b; qemu-img info --output=json d/b",
        "qemu-img info --backing-chain t",
        "qemu-img info --backing-chain top",
        "qemu-img info --backing-chain --output=json top",
        "qemu-img info --backing-chain --output=json r",
        "qemu-img info --backing-chain o2",
        "qemu-img info --backing-chain l1; qemu-img info l1",
        "ln -s t link; qemu-img info link",
        "qemu-img info $PWD/top | sed s,$PWD,,",
        "cd d; qemu-img info ../top; qemu-img info o1",
    ]);
}

#[test]
fn images_are_named_in_the_same_ways() {
    compare(&[
        "qemu-img info file:t",
        "qemu-img info a:b",
        "qemu-img info --image-opts driver=qcow2,file.filename=t",
        "qemu-img info --image-opts file.filename=t",
        "qemu-img info --image-opts driver=qcow2,file.driver=file,file.filename=nosuch",
        "qemu-img info --image-opts driver=qcow2,file.filename=t,foo=1",
        "qemu-img info --image-opts driver=qcow2,file.filename=t,file.foo=1",
        "qemu-img info --image-opts t",
        "qemu-img info --image-opts filename=t",
        "qemu-img info --image-opts driver=qcow2,filename=t",
        "qemu-img info --image-opts driver=foo,file.filename=t",
        "qemu-img info --image-opts driver=qcow2,file.filename=t,cache.direct=x",
        "qemu-img info -f qcow2 --image-opts driver=qcow2,file.filename=t",
        "qemu-img info 'json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"t\"}}'",
        "qemu-img info 'json:{\"driver\":\"qcow2\",\"file.filename\":\"t\"}'",
        "qemu-img info 'json:{\"driver\":'",
        "qemu-img info 'json:{}'",
        "qemu-img check --image-opts driver=qcow2,file.filename=t",
        "qemu-img bench --image-opts driver=raw,file.filename=r -c 1",
        "qemu-io --image-opts driver=qcow2 -c length",
        "qemu-io --image-opts driver=qcow2,file.filename=no -c length",
    ]);
}

#[test]
fn what_cannot_be_opened_is_told_in_the_same_words() {
    compare(&[
        "qemu-img info nosuch",
        "qemu-img info -f raw nosuch",
        "qemu-img info -f foo nosuch",
        "qemu-img info -f qcow2 r",
        "qemu-img info -f raw .",
        "qemu-img check nosuch",
        "qemu-img check -f qcow2 r",
        "qemu-img check o1; qemu-img check o2",
        "qemu-img bench -c 1 o1",
        "qemu-img bench -c 1 o2",
        "qemu-img bench -c 1 d/o1",
        "qemu-img bench -c 1 o3",
        "qemu-img bench -c 1 -f foo r",
        "qemu-img bench -c 1 -f raw nosuch",
        "qemu-io -c length nosuch",
        "qemu-io -f foo t -c length",
        "qemu-io -c length o1",
        "qemu-io -c length o2",
    ]);
}

/// Each a place in the header, and bytes to put there.
#[test]
fn headers_are_refused_in_the_same_words() {
    let pokes = [
        (4, "\\0\\0\\0\\5"),
        (20, "\\0\\0\\0\\50"),
        (20, "\\0\\0\\0\\3"),
        (24, "\\177\\0\\0\\0\\0\\0\\0\\0"),
        (35, "\\5"),
        (36, "\\0\\0\\0\\0"),
        (36, "\\10\\0\\0\\0"),
        (47, "\\1"),
        (55, "\\1"),
        (56, "\\0\\0\\0\\0"),
        (56, "\\10\\0\\0\\0"),
        (72, "\\200"),
        (72, "\\0\\0\\0\\0\\0\\0\\0\\10"),
        (99, "\\7"),
        (100, "\\0\\0\\0\\4"),
        (100, "\\0\\1\\0\\4"),
        (104, "\\1"),
        (104, "\\7"),
        (112, "\\1\\2\\3\\4\\0\\1\\0\\0"),
        (112, "\\342\\171\\52\\312\\0\\0\\0\\40"),
    ];
    let lines = pokes.map(|(at, bytes)| {
        format!(
            "printf '{bytes}' | dd of=t bs=1 seek={at} conv=notrunc status=none; qemu-img info t"
        )
    });
    compare(&lines.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn checks_tell_the_same() {
    compare(&[
        "qemu-img check t; qemu-img check -q t",
        "qemu-img check --output=json t",
        "qemu-img check -U -f qcow2 -T none t",
        "qemu-img check r",
        "qemu-img check --output=json r",
        "qemu-img check leak",
        "qemu-img check --output=json leak",
        "qemu-img check -q leak",
        "qemu-img check bad",
        "qemu-img check --output=json bad",
        "qemu-img check old",
        "qemu-img check s",
    ]);
}

/// A raw image whose format was probed: the warning, and what may be written to its first sector.
#[test]
fn probed_raw_images_are_guarded_alike() {
    let mut lines = vec![
        "qemu-img bench -c 1 r".to_owned(),
        "qemu-img bench -w -c 1 r".to_owned(),
        "qemu-io -r -c length r".to_owned(),
        "qemu-io -c 'write -P 0x51 0 512' -c 'write -s t 0 512' -c 'write -s t 512 512' r"
            .to_owned(),
        "qemu-io -c 'write -s t 0 4096' -c 'write -z 0 512' r; cksum r".to_owned(),
        "printf 'QFI' > q; qemu-io -c 'write -s q 0 3' -c 'write -P 0xfb 3 1' r; cksum r"
            .to_owned(),
    ];
    for mark in [
        "QED\\0",
        "KDMV\\0\\0\\0\\1",
        "vhdxfile",
        "conectix",
        "LUKS\\272\\276\\0\\1",
        "KDM",
        "QFI\\373",
    ] {
        lines.push(format!("printf '{mark}' > mark; qemu-io -c 'write -s mark 0 8' r"));
    }
    compare(&lines.iter().map(String::as_str).collect::<Vec<_>>());
}

/// A whole session, from an image's making to what is known of it.
#[test]
fn a_session_says_the_same() {
    compare(&["qemu-img create -f qcow2 x 128M; \
        qemu-io -c 'write -P 0xa 0 128k' -c 'read -P 0xa 0 128k' x; \
        qemu-img check x; qemu-img map --output=json x; qemu-img info x"]);
}

/// Of any version: what images hold and what a check says of them.
#[test]
fn images_are_exchanged() {
    let Some(links) = Links::new(SETUP) else { return };
    for options in ["", "-o cluster_size=512", "-o compat=0.10", "-o refcount_bits=1"] {
        let line = format!("qemu-img create -q -f qcow2 {options} new 8M");
        let said = links.run(Whose::Ours, &line);
        assert_eq!(said.code, Some(0), "{said:?}");
        let ours = fs::read(links.place(Whose::Ours).join("new")).expect("made above");
        let check = links.run(Whose::Theirs, &format!("{line}; qemu-img check new"));
        assert_eq!(check.code, Some(0), "{check:?}");
        let theirs = fs::read(links.place(Whose::Theirs).join("new")).expect("made above");
        assert!(ours == theirs, "{options}: the images differ");
    }
}
