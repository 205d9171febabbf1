//! `blkring bench FILE`: what is sent, and what errors look like. Beside qemu-img: `peer_bench` of the tests crate.

mod support;

use support::{Scratch, blkring, blkring_ok};

const SIZE: u64 = 8 << 20;

/// The queue's own counts are what the options mean.
#[test]
fn statistics_count_what_was_sent() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", SIZE);
    let entries = |options: &str| {
        let arguments = "bench -f raw --stats disk.raw".split(' ').chain(options.split(' '));
        let printed = blkring_ok(scratch.dir(), &arguments.collect::<Vec<_>>());
        let line = printed.lines().find(|line| line.starts_with("entries: "));
        line.expect("printed with --stats").to_owned()
    };
    assert_eq!(
        entries("-c 500"),
        "entries: 500 (500 reads, 0 writes, 0 fdatasyncs, 0 fallocates, 0 ftruncates)"
    );
    assert_eq!(
        entries("-c 500 -w --flush-interval 100"),
        "entries: 505 (0 reads, 500 writes, 5 fdatasyncs, 0 fallocates, 0 ftruncates)"
    );
    assert_eq!(
        entries("-c 500 -w --flush-interval 100 -t unsafe"),
        "entries: 500 (0 reads, 500 writes, 0 fdatasyncs, 0 fallocates, 0 ftruncates)"
    );
}

#[test]
fn what_was_asked_for_does_the_io() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", SIZE);
    for (asked, said) in [
        ("-i threads", "aio: threads, 32 of them (threads was asked for)"),
        ("-i io_uring", "aio: io_uring (io_uring was asked for)"),
        ("-i native -t none", "aio: io_uring (native was asked for)"),
        ("-d 8", "aio: io_uring"),
    ] {
        let arguments =
            "bench -f raw --stats -w -c 500 disk.raw".split(' ').chain(asked.split(' '));
        let printed = blkring_ok(scratch.dir(), &arguments.collect::<Vec<_>>());
        let has = |wanted: &str| printed.lines().any(|line| line == wanted);
        assert!(has(said), "{asked}: {printed}");
        let sent = "entries: 500 (0 reads, 500 writes, 0 fdatasyncs, 0 fallocates, 0 ftruncates)";
        assert!(has(sent), "{asked}: {printed}");
        assert_eq!(printed.contains("ring: "), !asked.contains("threads"), "{asked}: {printed}");
    }
    // The session of `io` begins another queue for an image that is opened in another way.
    let script =
        ["-c", "open -i threads -o driver=raw disk.raw", "-c", "write -P 7 0 4k", "-c", "close"];
    let again = ["-c", "open -i io_uring -o driver=raw disk.raw", "-c", "read -P 7 0 4k"];
    let line = [&["io"][..], &script, &again].concat();
    let printed = blkring_ok(scratch.dir(), &line);
    assert!(printed.contains("read 4096/4096 bytes at offset 0"), "{printed}");
}

#[test]
fn errors_are_one_line() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", SIZE);
    for (line, message) in [
        ("bench -f raw nothing", "Could not open 'nothing': No such file or directory"),
        (
            "bench -f raw .",
            "Could not open '.': it is a directory, and only regular files and block devices can be opened",
        ),
        ("bench -f cow disk.raw", "Could not open 'disk.raw': Unknown driver 'cow'"),
        ("bench -f raw -Z disk.raw", "unexpected argument '-Z' found"),
        ("bench -f raw disk.raw -c 1 --trace a=b=c", "Invalid trace filter"),
    ] {
        let run = blkring(scratch.dir(), &line.split(' ').collect::<Vec<_>>());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{line}");
        assert!(run.stderr.starts_with(&format!("blkring: {message}")), "{line}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{line}: {}", run.stderr);
    }
}
