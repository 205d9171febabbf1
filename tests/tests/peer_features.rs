//! Images with features that other programs use are told of as qemu-img tells of them, those too that are not read
//! here.

use blkring_tests::links::{Links, Whose};
use blkring_tests::tools;

/// Bitmaps in images that are read and written here.
const BITMAPS: &[&str] = &[
    "qemu-img create -q -f qcow2 b 10M; qemu-img bitmap --add b first; qemu-img bitmap --add -g 4096 b second",
    "qemu-img bitmap --disable b second; qemu-io -c 'write -P 3 0 1M' b >/dev/null",
    "qemu-img create -q -f qcow2 -o cluster_size=512 small 3M; qemu-img bitmap --add -g 512 small x",
    "qemu-io -c 'write 0 3M' small >/dev/null; qemu-img snapshot -c s small",
    "qemu-img create -q -f qcow2 large 100G; qemu-img bitmap --add -g 512 large a-longer-name",
    "qemu-img create -q -f qcow2 -b b -F qcow2 over",
    // As if a program had been killed: both are in use.
    "cp b used; at=$(LC_ALL=C grep -abo first used | head -1 | cut -d: -f1); \
     printf '\\3' | dd of=used bs=1 seek=$((at - 9)) conv=notrunc status=none",
];

#[test]
fn images_with_bitmaps_are_told_of_read_and_checked() {
    let Some(links) = Links::new(BITMAPS) else { return };
    if !links.same_words() {
        return;
    }
    for image in ["b", "small", "large", "over", "used"] {
        for line in [
            "qemu-img info",
            "qemu-img info --output=json",
            "qemu-img info --backing-chain --output=json",
            "qemu-img check",
            "qemu-img check --output=json",
            "qemu-img map",
            "qemu-img measure",
            "qemu-img measure -O qcow2",
            "qemu-img measure -O qcow2 --output=json -o cluster_size=512",
            "qemu-img measure -O qcow2 -o cluster_size=2M,compat=1.1",
            "qemu-img measure -O qcow2 -o compat=0.10",
            "qemu-io -r -c info -f qcow2",
        ] {
            links.compare(&format!("{line} {image}"));
        }
    }
    links.compare("qemu-img convert -O qcow2 b copy && qemu-img compare b copy && qemu-img info copy | grep -c b");
    links.compare("qemu-img convert -O raw small copy && qemu-img compare small copy");
}

/// Bitmaps lie where they may be damaged like anything else.
#[test]
fn damage_of_bitmaps_is_found() {
    let Some(links) = Links::new(BITMAPS) else { return };
    if !links.same_words() {
        return;
    }
    // The table of the first bitmap, named by the directory: 24 bytes before its name.
    let table = "at=$(LC_ALL=C grep -abo first b | head -1 | cut -d: -f1); \
                 table=$((0x$(od -An -tx1 -j $((at - 24)) -N 8 b | tr -d ' ')))";
    let poke = |bytes: &str, at: &str| {
        format!("printf '{bytes}' | dd of=b bs=1 seek=$(({at})) conv=notrunc status=none")
    };
    for (bytes, at) in [
        // Reserved bits; data behind the end; an unaligned offset; the cluster of something else.
        ("\\177", "table"),
        ("\\0\\0\\0\\1\\0\\0\\0\\0", "table"),
        ("\\0\\0\\0\\0\\0\\4\\2\\0", "table"),
        ("\\0\\0\\0\\0\\0\\1\\0\\0", "table"),
        ("\\0\\0\\0\\0\\0\\0\\0\\0", "table"),
        // A table of many more clusters than there are.
        ("\\0\\1", "at - 16"),
    ] {
        let line = format!(
            "cp b was; {table}; {}; qemu-img check b 2>errors; echo $?; cp was b",
            poke(bytes, at)
        );
        links.compare(&line);
    }
}

#[test]
fn images_that_are_not_read_here_are_told_of() {
    let luks = "--object secret,id=s,data=abc -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let aes = "--object secret,id=s,data=abc -o encrypt.format=aes,encrypt.key-secret=s";
    let cipher = "encrypt.cipher-alg=serpent-128,encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,\
                  encrypt.ivgen-hash-alg=sha256,encrypt.hash-alg=sha1";
    let made = [
        "qemu-img create -q -f qcow2 base 10M".to_owned(),
        "qemu-img create -q -f qcow2 -o data_file=data1 data 10M".to_owned(),
        "qemu-img create -q -f qcow2 -o data_file=data2,data_file_raw=on raw-data 10M".to_owned(),
        "qemu-img create -q -f qcow2 -o extended_l2=on extended 10M".to_owned(),
        format!("qemu-img create -q -f qcow2 {luks} luks 1M"),
        format!("qemu-img create -q -f qcow2 {luks},{cipher} -b base -F qcow2 other-luks 1M"),
        format!("qemu-img create -q -f qcow2 {luks},data_file=data3 both 1M"),
        format!("qemu-img create -q -f qcow2 {aes} aes 1M"),
        format!("qemu-img create -q -f qcow2 {aes},compat=0.10 old-aes 1M"),
        "cp aes unknown; printf '\\3' | dd of=unknown bs=1 seek=35 conv=notrunc status=none"
            .to_owned(),
    ];
    let made: Vec<&str> = made.iter().map(String::as_str).collect();
    let Some(links) = Links::new(&made) else { return };
    if !links.same_words() {
        return;
    }
    for image in
        ["data", "raw-data", "extended", "luks", "other-luks", "both", "aes", "old-aes", "unknown"]
    {
        links.compare(&format!("qemu-img info {image}"));
        links.compare(&format!("qemu-img info --output=json {image}"));
        links.compare(&format!("qemu-img info --backing-chain {image}"));
    }
}

/// Whoever writes an image and does not keep its bitmaps up to date says so; to the other one they are gone then.
#[test]
fn a_write_leaves_the_bitmaps_behind() {
    let Some(links) = Links::new(BITMAPS) else { return };
    if !links.same_words() {
        return;
    }
    let installed = tools::find("qemu-img").unwrap();
    let write = "qemu-io -c 'write -P 7 2M 64k' -c 'read -P 3 0 1M' b >/dev/null";
    let said = [installed.to_str().unwrap(), "qemu-img"].map(|program| {
        let said = links.run(
            Whose::Ours,
            &format!("{write} || exit 9; {program} check b; {program} info b 2>/dev/null"),
        );
        said.stdout
    });
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("leaked clusters") && !said[0].contains("errors were"), "{}", said[0]);
    assert!(!said[0].contains("bitmaps"), "{}", said[0]);
}

/// Two snapshots, the second with the id of the first for a name; then the disk grew.
const SNAPSHOTS: &[&str] = &[
    "qemu-img create -q -f qcow2 s 4M; qemu-io -c 'write -P 1 0 1M' s >/dev/null; qemu-img snapshot -c first s",
    "qemu-io -c 'write -P 2 512k 3M' s >/dev/null; qemu-img snapshot -c 1 s; qemu-img resize -q s 8M",
    "qemu-io -c 'write -P 3 0 8M' s >/dev/null; qemu-img create -q r 1M",
    "qemu-img create -q -f qcow2 -b s -F qcow2 over; qemu-io -c 'write -P 4 0 64k' over >/dev/null",
    "qemu-img snapshot -c mine over; qemu-io -c 'write -P 5 0 128k' over >/dev/null",
];

#[test]
fn snapshots_are_copied_and_measured() {
    let Some(links) = Links::new(SNAPSHOTS) else { return };
    if !links.same_words() {
        return;
    }
    for key in [
        "first",
        "1",
        "2",
        "nosuch",
        "''",
        "snapshot.id=1",
        "snapshot.name=1",
        "snapshot.id=2,snapshot.name=1",
        "snapshot.id=1,snapshot.name=1",
        "snapshot.foo=1",
    ] {
        links.compare(&format!("qemu-img convert -l {key} -O raw s t && md5sum t"));
        links.compare(&format!("qemu-img measure -l {key} -O qcow2 s"));
    }
    for line in [
        "qemu-img convert -l first -O qcow2 s t && qemu-img convert -O raw t u && md5sum u",
        "qemu-img convert -c -W -l 2 -O qcow2 s t && qemu-img convert -O raw t u && md5sum u",
        "qemu-img convert -l mine -O raw over t && md5sum t",
        "qemu-img convert -l first -O raw r t",
        "qemu-img convert -l first -O raw s r t",
        "qemu-img measure -l first r",
        "qemu-img measure -l first --size 1M",
    ] {
        links.compare(line);
    }
}

#[test]
fn options_that_change_nothing_here_are_taken() {
    let Some(links) = Links::new(SNAPSHOTS) else { return };
    if !links.same_words() {
        return;
    }
    for line in [
        "qemu-img convert -O qcow2 -o help | head -1",
        "qemu-img convert -O qcow2 -o help s t | head -1; ls t",
        "qemu-img convert -O foo -o help",
        "qemu-img measure -O qcow2 -o extended_l2=on s",
        "qemu-img measure -O qcow2 -o extended_l2=on,cluster_size=32k --size 1T",
        "qemu-img measure -O qcow2 -o extended_l2=on,cluster_size=8k s",
        "qemu-img measure -O qcow2 -o data_file=x,data_file_raw=on s",
        "qemu-img measure -O qcow2 -o backing_file=s,backing_fmt=qcow2 over",
        "qemu-io -c 'reopen -o lazy-refcounts=on' -c 'write 0 64k' s; qemu-img check s",
        "qemu-io -c 'reopen -o lazy-refcounts=x' s",
        "qemu-io -c 'open -o lazy-refcounts=on,overlap-check=all s' -c 'read 0 64k'",
        "qemu-img bench -c 1 -i native s",
        "qemu-img bench -c 1 -n -f raw r",
        "qemu-img bench -c 1 -n -t none s",
    ] {
        links.compare(line);
    }
}

/// The files below an image that is checked are not written meanwhile.
#[test]
fn a_check_locks_the_chain() {
    let Some(links) = Links::new(SNAPSHOTS) else { return };
    if !links.same_words() {
        return;
    }
    let held = |image: &str, checks: &str| {
        // The one who holds it says when it does, and ends with its input.
        format!(
            "qemu-img create -q -f qcow2 -b over -F qcow2 top; mkfifo go; : >said; qemu-io {image} <go >>said & exec 3>go; \
             echo length >&3; until grep -q iB said; do sleep 0.02; done; {checks}; exec 3>&-; wait"
        )
    };
    links.compare(&held(
        "s",
        "qemu-img check over; qemu-img check -U over; qemu-img check top; qemu-img map top",
    ));
    links.compare(&held("-r s", "qemu-img check top"));
    links.compare(&held("over", "qemu-img check s; qemu-img check top"));
    links.compare(&held("top", "qemu-img check over; qemu-img check s"));
}
