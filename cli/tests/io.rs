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

/// A write takes from a file what it writes, not all that the file would give.
#[test]
fn a_pattern_may_come_from_a_file_without_an_end() {
    let scratch = Scratch::new();
    scratch.file("disk.raw", 1 << 20);
    let commands = ["write -q -P 1 0 64k", "write -q -s /dev/zero 0 32k", "read -q -P 0 0 32k"];
    let run = io(&scratch, &[], &commands);
    assert_eq!((run.stdout.as_str(), run.stderr.as_str(), run.code), ("", "", Some(0)));
}

/// Nobody can read what the program says; it does its work to the end, and closes the image.
#[test]
fn a_full_output_loses_what_is_said_and_nothing_else() {
    let scratch = Scratch::new();
    blkring_ok(scratch.dir(), &["create", "-q", "-f", "qcow2", "disk.qcow2", "64M"]);
    let program = |arguments: &[&str]| {
        let full = || std::fs::File::create("/dev/full").expect("there is such a device");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_blkring"));
        command.args(arguments).current_dir(scratch.dir()).stdout(full()).stderr(full());
        command.status().expect("the program is there").code()
    };
    let writes = ["io", "-c", "write -P 7 0 1M", "-c", "write -P 7 1M 1M", "disk.qcow2"];
    assert_eq!(program(&writes), Some(0));
    for arguments in ["info disk.qcow2", "check disk.qcow2", "map disk.qcow2", "--help"] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        assert_eq!(program(&arguments), Some(0), "{arguments:?}");
    }
    assert_eq!(program(&["info", "nothing"]), Some(1));
    blkring_ok(scratch.dir(), &["io", "-c", "read -q -P 7 0 2M", "disk.qcow2"]);
    let report = blkring_ok(scratch.dir(), &["check", "disk.qcow2"]);
    assert!(report.starts_with("No errors were found on the image."), "{report}");
}
