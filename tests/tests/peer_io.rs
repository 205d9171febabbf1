//! `blkring io` beside `qemu-io`: the same lines, exit codes and bytes.

use std::fs::{self, File};
use std::path::Path;

use blkring_tests::beside::{Run, run};
use blkring_tests::{program, tools};

/// Scripts: options, then commands, one in each element.
const SCRIPTS: &[(&str, &[&str])] = &[
    ("", &["read 0 4k", "r 512 512", "read 0 1.5k", "read 0x200 1K", "read .5k 1", "read 010 +5"]),
    ("", &["write -P 0x41 0 64k", "read -P 0x41 0 64k", "read -P 0x42 0 64k", "read -v 0 40"]),
    ("", &["write -P 1 100 100", "read -v 96 110", "read -P 1 -s 4 -l 100 96 110"]),
    ("", &["read -P 1 -s 512 -l 512 0 4k", "read -P 1 -s 4 -l 4 -s 8 0 512"]),
    ("", &["readv 0 512 512 1k", "writev -P 7 0 512 1k", "readv -v 0 16 16", "readv -P 7 0 1 2 3"]),
    (
        "",
        &[
            "write -z 0 4k",
            "write -zu 0 4k",
            "write -z -n 0 4k",
            "write -f -P 3 0 4k",
            "w -zfq 1 2",
        ],
    ),
    (
        "",
        &["aio_read 0 4k", "aio_flush", "aio_write -P 3 0 512 512", "aio_flush", "read -v 1020 8"],
    ),
    (
        "",
        &["aio_write -z 0 4k", "aio_flush", "aio_read -P 9 0 4k", "aio_flush", "aio_read -qv 0 9"],
    ),
    ("", &["aio_write -q -P 5 0 4k", "aio_write -q -P 6 4k 4k", "aio_flush", "read -v 4090 12"]),
    ("", &["flush", "f", "length", "l", "info", "i", "sleep 10", "sleep 0x1", "q", "length"]),
    ("", &["write -P 9 0 128k", "discard 0 64k", "d 0 512", "discard -q 0 1", "read -P 9 64k 64k"]),
    ("", &["read -C 0 4k", "write -C 0 4k", "discard -C 0 4k", "read 0 0", "read 0 4k -q"]),
    ("", &["read 1M 512", "write 4M 512", "write -z 4M 512", "writev 4M 1 1", "readv 4M 1"]),
    ("", &["aio_write 4M 512", "aio_flush", "aio_read 4M 1", "aio_flush", "discard 4M 1"]),
    ("", &["aio_write 4M 512", "aio_flush"]),
    ("-r", &["write 0 512", "discard 0 512", "aio_write 0 512", "read 0 512", "flush"]),
    ("-t none", &["write -P 1 0 1000", "read -P 1 0 1000", "write -z 5 100", "read -v 0 128"]),
    ("-n", &["read 3 5", "writev -P 2 1 2 3 4", "read -v 0 16"]),
    ("-t directsync", &["write 0 512"]),
    ("-t writethrough", &["write 0 512", "flush"]),
    ("-t unsafe", &["write 0 512", "flush"]),
    ("-t foo", &["length"]),
    ("", &[""]),
    ("", &["foo", "length"]),
    ("", &["write 0", "readv 0", "aio_read", "discard 0", "length 1", "sleep", "sleep 1 2"]),
    ("", &["read -P 300 0 512", "write -P -1 0 512", "write -P 1k 0 512", "writev -P x 0 512"]),
    ("", &["read 0 x", "read -- -1 5", "read 1.5 1", "read 0x 1", "read 9E 1", "read 0 1q"]),
    ("", &["write -n 0 4k", "write -u 0 4k", "write -z -P 3 0 4k", "aio_write -u 0 512"]),
    ("", &["aio_write -z 0 512 512", "read -P 1 -s 600 0 512", "read 0 3G", "s 1", "sleep -5"]),
    ("", &["write -s nothing 0 5", "write -s source 3 2000", "read -v 0 64", "help a b"]),
];

/// Without what depends on time.
fn comparable(run: Run) -> (Vec<String>, String, Option<i32>) {
    let lines =
        run.stdout.lines().map(|line| match (line.split_once("; "), line.split_once(':')) {
            // "4 KiB, 1 ops; 00.00 sec (47.247 MiB/sec and 12095.1160 ops/sec)"
            (Some((size, rest)), _) if rest.ends_with(" ops/sec)") => {
                assert!(rest.contains("/sec and "), "{line}");
                size.to_owned()
            }
            // "4096,1,0:00:00.00,1354229.106,330.622"
            (None, Some((counts, rest))) if rest.matches(',').count() == 2 => {
                counts.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
            }
            _ => line.to_owned(),
        });
    (lines.collect(), run.stderr, run.code)
}

#[test]
fn lines_exit_codes_and_bytes_are_those_of_qemu_io() {
    if tools::missing("qemu-io") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    fs::write(dir.join("source"), "0123456789abc").expect("the directory is writable");
    for (options, commands) in SCRIPTS {
        let run_on = |program: &Path, first: &[&str], name: &str| {
            let file = File::create(dir.join(name)).expect("the directory is writable");
            file.set_len(1 << 20).expect("a file may have holes");
            let options = ["-f", "raw"].into_iter().chain(options.split_whitespace());
            let commands = commands.iter().flat_map(|command| ["-c", command]);
            let all: Vec<&str> =
                first.iter().copied().chain(options).chain(commands).chain([name]).collect();
            let run = comparable(run(program, dir, &all));
            (run, fs::read(dir.join(name)).expect("made above"))
        };
        let theirs = run_on(Path::new("qemu-io"), &[], "a.raw");
        let ours = run_on(program::blkring(), &["io"], "b.raw");
        assert_eq!(ours.0, theirs.0, "{options} {commands:?}");
        assert!(ours.1 == theirs.1, "{options} {commands:?}: the images differ");
    }
}
