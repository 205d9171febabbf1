//! `blkring create`, `info`, `check` and `io` on images of both formats, without another program.

mod support;

use std::os::unix::fs::FileExt;

use support::{Scratch, blkring, blkring_ok};

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn an_image_is_made_written_read_and_checked() {
    for options in ["-f raw", "-f qcow2", "-f qcow2 -o cluster_size=512"] {
        let scratch = Scratch::new();
        let format = if options.contains("raw") { "raw" } else { "qcow2" };
        blkring_ok(scratch.dir(), &words(&format!("create -q {options} image 8M")));
        let io = |commands: &[&str]| {
            let commands = commands.iter().flat_map(|command| ["-c", command]);
            let all = ["io", "-f", format, "image"].into_iter().chain(commands);
            blkring_ok(scratch.dir(), &all.collect::<Vec<_>>())
        };
        io(&["write -q -P 7 100k 200k", "write -q -z 128k 3000", "write -q -f -P 9 8388607 1"]);
        let printed = io(&[
            "read -q -P 0 0 100k",
            "read -q -P 7 100k 28k",
            "read -q -P 0 128k 3000",
            "read -q -P 7 134072 173128",
            "read -q -P 9 8388607 1",
            "length",
        ]);
        assert_eq!(printed, "8 MiB\n");
        if format == "qcow2" {
            let printed = blkring_ok(scratch.dir(), &words("check image"));
            assert!(printed.starts_with("No errors were found on the image.\n"), "{printed}");
        }
    }
}

#[test]
fn check_has_an_exit_code_for_each_result() {
    let scratch = Scratch::new();
    blkring_ok(scratch.dir(), &words("create -q -f qcow2 image 8M"));
    let write = ["io", "-f", "qcow2", "image", "-c", "write -q 0 64k"];
    blkring_ok(scratch.dir(), &write);
    let code = || blkring(scratch.dir(), &words("check -f qcow2 image")).code;
    assert_eq!(code(), Some(0));
    let file = std::fs::File::options().write(true).open(scratch.dir().join("image"));
    let file = file.expect("made above");
    // The refcount block of a new image lies in cluster 2.
    file.write_all_at(&[0, 2], 0x2_0000).expect("made above");
    assert_eq!(code(), Some(3), "the header counted twice is a leak");
    file.write_all_at(&[0, 0], 0x2_0000).expect("made above");
    assert_eq!(code(), Some(2), "the header not counted is a corruption");
    file.write_all_at(b"xxxx", 0).expect("made above");
    assert_eq!(code(), Some(1), "what is no image cannot be checked");
    assert_eq!(blkring(scratch.dir(), &words("check -f raw image")).code, Some(63));
}

#[test]
fn info_opens_no_other_file() {
    let scratch = Scratch::new();
    let line = "create -q -f qcow2 -u -b no-such-file -F raw image 1M";
    blkring_ok(scratch.dir(), &words(line));
    let printed = blkring_ok(scratch.dir(), &words("info image"));
    assert!(
        printed.contains("backing file: no-such-file\nbacking file format: raw\n"),
        "{printed}"
    );
    let run = blkring(scratch.dir(), &["io", "-f", "qcow2", "image", "-c", "length"]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.stderr.contains("no-such-file") || run.stderr.contains("No such file"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

/// A raw file whose format was not given is written, but not so that it looks like an image of another format.
#[test]
fn the_first_sector_of_a_probed_raw_image_is_guarded() {
    let scratch = Scratch::new();
    scratch.file("image", 4096);
    std::fs::write(scratch.dir().join("mark"), b"QFI\xfb\0\0\0\x03").unwrap();
    std::fs::write(scratch.dir().join("begin"), b"QFI").unwrap();
    let io = |commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        blkring(scratch.dir(), &["io", "image"].into_iter().chain(commands).collect::<Vec<_>>())
    };
    let run = io(&["write -q -P 7 0 4k", "write -q -s mark 512 8", "write -q -z 0 4k"]);
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    assert!(run.stderr.starts_with("WARNING: Image format was not specified for 'image' and "));
    // At once, as a part of more, from unaligned pieces, and with zeros where zeros belong.
    let pieces =
        ["write -q -P 3 7 1", "write -q -P 1 4 3", "write -q -P 0xfb 3 1", "write -q -s begin 0 3"];
    for commands in [&["write -q -s mark 0 8"][..], &["write -q -s mark 0 4k"], &pieces] {
        let run = io(commands);
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (Some(1), "write failed: Operation not permitted\n")
        );
    }
    let run = io(&[
        "write -q -P 3 0 8",
        "write -q -s begin 0 3",
        "write -q -P 0xfb 3 1",
        "write -q -z 0 3",
    ]);
    assert_eq!(run.stdout, "write failed: Operation not permitted\n", "the third");
    assert_eq!(scratch.bytes("image")[..8], [0, 0, 0, 3, 3, 3, 3, 3]);
    let run = blkring(scratch.dir(), &["io", "-f", "raw", "image", "-c", "write -q -s mark 0 8"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "raw was given");
    let run = blkring(scratch.dir(), &["info", "image"]);
    assert!(run.stderr.contains("image"), "a header is needed: {}", run.stderr);
}

#[test]
fn no_image_is_made_over_its_own_backing_file() {
    let scratch = Scratch::new();
    blkring_ok(scratch.dir(), &words("create -q -f qcow2 image 1M"));
    let before = std::fs::read(scratch.dir().join("image")).unwrap();
    std::os::unix::fs::symlink("image", scratch.dir().join("link")).unwrap();
    for backing in ["image", "./image", "link"] {
        let words = ["create", "-f", "qcow2", "-b", backing, "-F", "qcow2", "image"];
        let output = blkring(scratch.dir(), &words);
        assert_eq!(output.code, Some(1), "{backing}");
    }
    assert_eq!(std::fs::read(scratch.dir().join("image")).unwrap(), before);
}
