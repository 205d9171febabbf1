//! File names that are no UTF-8, files that may not grow, and programs that are ended: what is printed and what is
//! left is what the installed programs print and leave.

use blkring_tests::links::{Links, Whose};

#[test]
fn names_are_bytes() {
    let Some(links) = Links::new(&["truncate -s 1M $'raw\\xff,x'"]) else { return };
    if !links.same_words() {
        return;
    }
    for line in [
        "qemu-img info $'N'; qemu-img info --output=json $'N'; qemu-img check $'N'",
        "qemu-img convert -O raw $'N' $'out\\xfe' && qemu-img compare $'N' $'out\\xfe'; ls | od -c",
        "qemu-img resize $'N' 2M; qemu-img dd if=$'N' of=$'d\\xff'; qemu-img measure $'N'; ls | od -c",
        "qemu-img create -f qcow2 -b $'N' -F qcow2 $'o\\xfd'; qemu-img info --backing-chain $'o\\xfd'; qemu-img check $'o\\xfd'",
        "qemu-img create -f qcow2 -o backing_file=$'N',backing_fmt=qcow2 o; qemu-img convert -O raw o t && ls t",
        "qemu-img convert -O qcow2 -B $'N' -F qcow2 $'N' t; qemu-img info t | grep backing",
        "qemu-img info --image-opts driver=qcow2,file.filename=$'N'",
        "qemu-img info --image-opts driver=raw,file.filename=$'raw\\xff,,x'",
        "qemu-img create -q -f qcow2 -o backing_file=$'none\\xff',backing_fmt=raw t 1M",
        "qemu-io -c $'open N' -c 'write 0 512' -c length",
        "printf 'open N\\nwrite 0 512\\nlength\\n' | qemu-io",
        "printf 'read 0 \\xff\\nlength\\n' | qemu-io $'N'",
        "qemu-img info $'none\\xff'; qemu-io $'none\\xff'; qemu-img resize $'none\\xff' 1M",
        // What stands for such bytes inside is a name as well.
        "qemu-img create -q -f qcow2 $'\\xf4\\x8f\\xbf\\xbf' 1M; qemu-img info $'\\xf4\\x8f\\xbf\\xbf'; ls | od -c",
    ] {
        let line = line.replace('N', "n\\xff\\xc3.q");
        links.compare(&format!("qemu-img create -q -f qcow2 $'n\\xff\\xc3.q' 1M; {line}"));
    }
}

#[test]
fn a_file_that_may_not_grow_is_an_error() {
    let Some(links) = Links::new(&["truncate -s 2M r; qemu-img create -q -f qcow2 q 8M"]) else {
        return;
    };
    if !links.same_words() {
        return;
    }
    for line in [
        "qemu-img create -q -f raw t 10M",
        "qemu-img create -q -f raw -o preallocation=full t 10M",
        "qemu-img create -q -f raw -o preallocation=falloc t 10M",
        "qemu-io -c 'write 3M 1M' -c 'read 0 512' q; qemu-img check -q q",
    ] {
        links.compare(&format!("ulimit -f 1000; {line}; echo $?"));
    }
    // The others leave more of what they could not make.
    for line in [
        "create -q -f raw t 10M",
        "create -q -f qcow2 -o preallocation=full t 10M",
        "create -q -f qcow2 -o preallocation=metadata,cluster_size=512 t 900M",
        "convert -f raw -O raw -S 0 r t",
    ] {
        let said =
            links.run(Whose::Ours, &format!("ulimit -f 1000; qemu-img {line}; echo $?; ls t"));
        assert_eq!(said.stdout, "1\n", "{line}: {said:?}");
        assert!(said.stderr.contains("t: "), "{line}: {said:?}");
        // What was there stays.
        let line = format!("touch t; ulimit -f 1000; qemu-img {line} 2>/dev/null; echo $?; ls t");
        assert_eq!(links.run(Whose::Ours, &line).stdout, "1\nt\n", "{line}");
    }
}

/// What is read and not looked at takes no more memory than its buffer.
#[test]
fn a_buffer_is_there_once() {
    let Some(links) = Links::new(&["truncate -s 256M r"]) else { return };
    let line = "ulimit -v 420000; qemu-io -f raw -c 'read 0 256M' r >/dev/null; echo $?";
    assert_eq!(links.run(Whose::Ours, line).stdout, "0\n");
}

/// Whoever is ended leaves no lock and no other file than the one that it was to make.
#[test]
fn who_is_ended_leaves_what_the_others_leave() {
    let Some(links) =
        Links::new(&["head -c 64M /dev/urandom > r; qemu-img create -q -f qcow2 q 64M"])
    else {
        return;
    };
    let exists = |file: &str| format!("until test -s {file}; do sleep 0.01; done");
    for signal in ["INT", "TERM", "HUP"] {
        for (command, wait) in [
            ("qemu-img convert -r 4M -f raw -O qcow2 r t", exists("t")),
            ("qemu-img convert -r 4M -c -f raw -O qcow2 r t", exists("t")),
            ("qemu-io -c 'write 0 1M' -c 'sleep 9000' q >/dev/null", "sleep 0.5".to_owned()),
        ] {
            // A shell without a terminal starts what it puts aside deaf to SIGINT.
            let line = format!(
                "env --default-signal {command} & {wait}; kill -{signal} $!; wait $! 2>/dev/null; echo $?; ls"
            );
            let theirs = links.run(Whose::Theirs, &line);
            let image = if command.ends_with('t') { "t" } else { "q" };
            let after = format!(
                "{line}; qemu-img check {image} >/dev/null 2>&1; case $? in 0|3) ;; *) echo damaged;; esac; \
                 qemu-io -c 'write 0 64k' {image} >/dev/null || echo not writable"
            );
            let ours = links.run(Whose::Ours, &after);
            assert_eq!(ours.stdout, theirs.stdout, "{line}: {ours:?} {theirs:?}");
        }
    }
}
