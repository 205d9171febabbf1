//! `blkring io` by itself. Beside qemu-io: `peer_io` of the tests crate.

mod support;

use support::{Scratch, blkring, blkring_ok};

fn io(scratch: &Scratch, options: &[&str], commands: &[&str]) -> support::Run {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let all = ["io", "-f", "raw"].into_iter().chain(options.iter().copied()).chain(commands);
    blkring(scratch.dir(), &all.chain(["disk.raw"]).collect::<Vec<_>>())
}

#[test]
fn what_is_written_is_read_and_a_wrong_pattern_is_a_failure() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", 1 << 20);
    let good = ["write -q -P 0x41 1000 3000", "read -q -P 0x41 1000 3000", "read -q -P 0 0 1000"];
    let run = io(&scratch, &[], &good);
    assert_eq!((run.stdout.as_str(), run.stderr.as_str(), run.code), ("", "", Some(0)));
    let run = io(&scratch, &[], &["read -q -P 0x41 999 3000", "length"]);
    assert_eq!(run.stdout, "Pattern verification failed at offset 999, 3000 bytes\n1 MiB\n");
    assert_eq!(run.code, Some(1));
    let expected = |at: usize| if (1000..4000).contains(&at) { 0x41 } else { 0 };
    let bytes = scratch.bytes("disk.raw");
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

#[test]
fn requests_begun_and_not_waited_for_end_before_the_program_does() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", 4 << 20);
    let commands: Vec<String> =
        (0..600).map(|i| format!("aio_write -q -P 7 {} 4k", i * 4096)).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    assert_eq!(io(&scratch, &["-n"], &commands).code, Some(0));
    let bytes = scratch.bytes("disk.raw");
    assert!(
        bytes.iter().enumerate().all(|(at, byte)| *byte == if at < 600 * 4096 { 7 } else { 0 })
    );
}

#[test]
fn help_knows_every_command() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", 512);
    let arguments = ["io", "-f", "raw", "-c", "help", "disk.raw"];
    let printed = blkring_ok(scratch.dir(), &arguments);
    for name in ["read ", "writev ", "aio_flush ", "discard ", "quit "] {
        assert!(printed.lines().any(|line| line.starts_with(name)), "{name}: {printed}");
    }
}

#[test]
fn a_missing_image_or_command_is_one_line() {
    let scratch = Scratch::new();
    let run = io(&scratch, &[], &["length"]);
    let line = "blkring: Could not open 'disk.raw': No such file or directory\n";
    assert_eq!((run.stderr.as_str(), run.code), (line, Some(1)));
    let run = io(&scratch, &[], &[]);
    assert_eq!((run.stderr.lines().count(), run.code), (1, Some(1)), "{}", run.stderr);
}
