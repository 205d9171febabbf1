//! `blkring bench` without FILE: the main job.

mod support;

use std::process::Command;

use support::{Scratch, blkring, blkring_ok};

const SMALL: &str =
    "bench --size 8M --queues 3 --overwrites 3000 --reads 1000 -d 16 --flush-interval 64";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn last(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn the_job_verifies_what_it_wrote_and_leaves_nothing() {
    for options in [
        "",
        "-f raw",
        "-t writeback",
        "-t directsync",
        "-t writethrough",
        "--policy per-allocation",
        "--seed 7",
    ] {
        let scratch = Scratch::new();
        let output = Command::new(env!("CARGO_BIN_EXE_blkring"))
            .args(words(SMALL))
            .args(words(options))
            .env("TMPDIR", scratch.dir())
            .output()
            .expect("the program is there");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{options}: {printed}");
        assert_eq!(last(&printed), "8388608 bytes verified");
        for (phase, requests) in
            [("fill", 128), ("overwrite", 3000), ("read", 1000), ("verify", 32)]
        {
            let line = printed.lines().find(|line| words(line).first() == Some(&phase));
            let line = line.unwrap_or_else(|| panic!("no line of {phase}: {printed}"));
            assert_eq!(words(line)[1], requests.to_string(), "{line}");
        }
        let durable = |phase| {
            let line = printed.lines().find(|line| words(line).first() == Some(&phase));
            words(line.expect("found above"))[10].parse::<u64>().expect("a count")
        };
        let through = ["-t directsync", "-t writethrough"].contains(&options);
        assert_eq!(durable("overwrite"), if through { 3000 } else { 0 }, "{options}: {printed}");
        assert_eq!((durable("read"), durable("verify")), (0, 0), "{options}: {printed}");
        let checked = printed.contains("check: no errors, 128 of 128 clusters allocated\n");
        assert_eq!(checked, options != "-f raw", "{printed}");
        let left = scratch.dir().read_dir().expect("the directory is there").count();
        assert_eq!(left, 0, "the temporary directory is removed");
    }
}

#[test]
fn a_flipped_byte_of_a_kept_image_is_found() {
    for format in ["raw", "qcow2"] {
        let scratch = Scratch::new();
        let line = format!("{SMALL} -f {format} --keep image");
        let printed = blkring_ok(scratch.dir(), &words(&line));
        assert!(last(&printed).contains("verified"));
        let verify = format!("bench -f {format} --verify image");
        let printed = blkring_ok(scratch.dir(), &words(&verify));
        assert!(last(&printed).contains("8388608 bytes verified"), "{printed}");
        for offset in [0, 100, 4096, 1_234_567, 8_388_607] {
            let io = |command: &str| {
                let all = ["io", "-f", format, "image", "-c", command];
                blkring_ok(scratch.dir(), &all)
            };
            let printed = io(&format!("read -v {offset} 1"));
            let byte = words(&printed)[1];
            let byte = u8::from_str_radix(byte, 16).expect("a dump has bytes");
            io(&format!("write -q -P {} {offset} 1", byte ^ 1));
            let run = blkring(scratch.dir(), &words(&verify));
            let start = format!("blkring: image: guest offset {offset} holds {:#04x} ", byte ^ 1);
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
            assert!(run.stderr.starts_with(&start), "{offset}: {}", run.stderr);
            io(&format!("write -q -P {byte} {offset} 1"));
        }
        blkring_ok(scratch.dir(), &words(&verify));
    }
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let scratch = Scratch::new();
    scratch.file("there", 4096);
    for (line, message) in [
        ("bench --keep there", "there: File exists"),
        ("bench --size 1000", "a size of 1000 bytes is not a multiple of 65536"),
        ("bench --queues 16", "16 queues are not from 1 to 15"),
        ("bench -f raw --verify there", "there: block 0 holds no label of a finished run"),
        ("bench --verify there", "Could not open 'there': Image is not in qcow2 format"),
        ("bench --verify nothing", "Could not open 'nothing': No such file or directory"),
        ("bench -c 10", "the following required arguments were not provided"),
        ("bench --seed 1 there", "the argument '--seed <SEED>' cannot be used with '[FILE]...'"),
    ] {
        let run = blkring(scratch.dir(), &words(line));
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{line}: {}", run.stderr);
        assert!(run.stderr.starts_with(&format!("blkring: {message}")), "{line}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{line}: {}", run.stderr);
    }
    assert_eq!(scratch.bytes("there"), [0; 4096]);
}

/// The events of the driver are there when they are asked for, and only then.
#[test]
fn events_are_traced() {
    let scratch = Scratch::new();
    let line = format!("{SMALL} --trace blkring_qcow2=debug --keep image");
    let run = blkring(scratch.dir(), &words(&line));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("cut"), "a flush is a cut: {}", run.stderr);
    assert!(!run.stderr.contains('\u{1b}'), "no colours where nobody looks");
}

#[test]
fn an_interrupted_job_leaves_nothing() {
    for signal in ["INT", "TERM"] {
        let scratch = Scratch::new();
        let mut child = Command::new(env!("CARGO_BIN_EXE_blkring"))
            .args(words("bench --size 64M --overwrites 50000000"))
            .env("TMPDIR", scratch.dir())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the program is there");
        let entries = || scratch.dir().read_dir().expect("the directory is there").count();
        while entries() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let pid = child.id().to_string();
        let sent = Command::new("bash").args(["-c", &format!("kill -{signal} {pid}")]).status();
        assert!(sent.expect("there is a shell").success());
        assert_eq!(child.wait().expect("it was started").code(), Some(130), "{signal}");
        assert_eq!(entries(), 0, "{signal}");
    }
}

#[test]
fn a_place_that_does_not_do_is_told() {
    let run = |directory: &std::path::Path, line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_blkring"))
            .args(words(line))
            .env("TMPDIR", directory)
            .output()
            .expect("the program is there");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let nowhere = std::path::Path::new("/no/such/place");
    let printed = run(nowhere, "bench");
    assert_eq!(
        printed,
        "blkring: no directory can be made in '/no/such/place' (TMPDIR): No such file or directory\n"
    );
    let scratch = Scratch::new();
    let printed = run(scratch.dir(), "bench --size 8T");
    assert!(printed.contains(" free, and the job takes up to 8 TiB"), "{printed}");
}
