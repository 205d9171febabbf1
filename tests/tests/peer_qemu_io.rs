//! The program through a link named qemu-io beside the installed qemu-io: the same lines, messages and exit codes, for
//! whatever may be typed.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use blkring_tests::beside::{Run, run_with_input, without_times};
use blkring_tests::{program, tools};
use tempfile::TempDir;

/// Each is run alone, on a qcow2 image, on a raw one and on none.
const COMMANDS: &[&str] = &[
    "write -p 0 512",
    "read -p 0 512",
    "write -r 0 512",
    "read -a 0 512",
    "write -zP 1 0 512",
    "write -s src -P 1 0 512",
    "write -s empty 0 512",
    "write -s nofile 0 512",
    "write -s src 0 512",
    "write -z -r 0 512",
    "aio_write -z -r 0 512",
    "aio_read -i 0 512",
    "aio_write -zu 0 512",
    "aio_write -z -P 2 0 512",
    "write -b -f 0 512",
    "write -b 1 5",
    "read -b 0 1",
    "write -b x 512",
    "write -c 100 512",
    "write -c 0 100",
    "writev -z 0 512",
    "write -c 0 64k",
    "write -c 64k 128k",
    "write -c -P 7 0 1M",
    "write -c 0 0",
    "write -c 512 512",
    "write -c 64k 512",
    "write -c 0 65k",
    "write -c 960k 128k",
    "write -c 1M 64k",
    "write -c -q 0 64k",
    "write -c -C 0 64k",
    "write -cz 0 64k",
    "write -c -s src 0 64k",
    "write -c 1023k 512",
    "write -c 2M 0",
    "write -c 100k 0",
    "write 0 0",
    "discard 0 0",
    "readv 0 0 0",
    "read 1M 0",
    "read 2M 0",
    "write 2M 0",
    "discard 2M 0",
    "write -z 2M 0",
    "read 1M 1",
    "write 0 2G",
    "write -z 0 2G",
    "write -z 0 2147483136",
    "discard 0 2G",
    "discard 0 2147483136",
    "read 8191P 1",
    "read 7E 1",
    "discard 512 512",
    "discard 512k 1M",
    "map",
    "alloc 0",
    "alloc 0 2M",
    "alloc 1M",
    "alloc 2M 512",
    "alloc -1",
    "alloc 64k 1 2",
    "alloc 1x",
    "alloc 0 x",
    "length",
    "info",
    "m",
    "q",
    "f",
    "t",
    "o",
    "c",
    "d",
    "s",
    "help foo",
    "help alloc map",
    "sleep",
    "sleep 1x",
    "sleep -1",
    "sleep 010",
    "sleep 1.5",
    "break a b",
    "resume a",
    "remove_break a",
    "break a",
    "zone_report 0 1",
    "zone_open x 1",
    "zone_report 0 x",
    "zone_append 0 1",
    "zone_append x 512 1",
    "sigraise 0",
    "sigraise x",
    "sigraise 15",
    "sigraise 99",
    "sigraise 65",
    "sigraise",
    "abort",
    "read  0  512 ",
    "read 0 512 512",
    "read -P 0x1g 0 512",
    "read -P 0400 0 512",
    "read -P 010 0 512",
    "read -P -0 0 512",
    "read -P 0X1 0 512",
    "read -P 09 0 512",
    "read -P 1 -l 0 0 512",
    "read -P 1 -s 512 0 512",
    "read -P 0 -s x 0 512",
    "read -P 0 -l x 0 512",
    "read -s 1 -l 1 0 512",
    "read -P 1 -l 513 0 512",
    "read -P 1 -s 10 -l 5 0 512",
    "read -vq 0 16",
    "read -vC 0 16",
    "read -qC 0 16",
    "read -v -P 1 0 16",
    "read 0x 1",
    "read 0 -1",
    "read -- -1 512",
    "read 9223372036854775807 1",
    "read 9223372036854775807 512",
    "read 9223372036854775808 512",
    "read 1e3 1",
    "read 1KB 1",
    "read 1.1b 1",
    "read 0x1k 1",
    "read 0.k 1",
    "read 1.k 1",
    "read .5k 1",
    "read +1 1",
    "readv 0 512 x",
    "readv 0 2G",
    "readv 0 1G 1G",
    "writev 0 1G 1G 1G",
    "aio_write 0 x",
    "aio_write -z 0 3G",
    "aio_write 0 3G",
    "discard 0 1 2",
    "discard -x 0 1",
    "discard -Cq 0 512",
    "aio_write 0 512 512 -z",
    "aio_write 0 512 512 -z -P 3",
    "writev 0 512 -P 3",
    "readv -P 4 0 512",
    "aio_read -P 4 0 512",
    "alloc 100 1000",
    "alloc 0 0",
    "truncate -m",
    "truncate -m off",
    "truncate",
    "truncate 1 2 3 4",
    "truncate -- -1",
    "truncate -m foo 2M",
    "truncate 1x -m off",
    "truncate 8E",
    "help -x",
    "length -x",
    "quit x",
    "write -n 0 0",
    "write -nz 0 2G",
    "write -n 0 3G",
    "write -nz 0 1M",
    "write -s",
    "write -sX 0 1",
    "write -s src",
    "write -z -P x 0 1",
    "write -zb 0 512",
    "write -fb -n 0 512",
    "write -uc 0 64k",
    "open a b",
    "open a.qcow2",
    "open -x a",
    "open -t foo a",
    "open -d foo a",
    "open -i foo a",
    "reopen -r -w",
    "reopen -r x",
    "reopen -c foo",
    "reopen -c",
    "reopen -o foo=bar",
    "reopen -o file.filename=b",
    "reopen -c writeback -o cache.no-flush=on",
    "reopen -r -o read-only=off",
    "reopen -o read-only=x",
    "reopen -o discard=foo",
    "aio_read 0 512",
    "aio_read 0",
    "foo",
    "wait_break",
    "remove_break",
];

/// Words of the command line, in one text, and the standard input, its lines parted by semicolons.
const LINES: &[(&str, &str)] = &[
    ("", ""),
    ("a.qcow2", "read 0 512;foo;write 0;quit;foo"),
    ("nofile", ""),
    ("nofile", "length"),
    ("-f foo a.qcow2", "length"),
    (
        "",
        "open -r a.qcow2;write 0 1;reopen -w;write 0 1;reopen -r;write 0 1;close;close;open a.qcow2;open a.qcow2",
    ),
    (
        "",
        "open -o driver=raw a.raw;info;open a b;close;open a b;open nofile;length;open -r -n a.raw;info",
    ),
    ("", ";  ;length; open a.qcow2  ; l ;length\t;\tlength;length x;#foo;q"),
    (
        "o.qcow2",
        "map;write 64k 64k;map;alloc 0 2M;alloc 64k 64k;write -z 256k 128k;map;discard 64k 64k;map;write 1000 3;map;info",
    ),
    (
        "--alloc-policy=per-allocation a.qcow2",
        "map;write 64k 64k;map;alloc 0 2M;alloc 64k 64k;write -z 256k 128k;map;discard 64k 64k;map;write 1000 3;map;info",
    ),
    (
        "-f raw a.raw",
        "truncate 100;length;map;truncate -m full 1M;length;map;truncate -m falloc 2M;map;truncate -m metadata 3M;alloc 0 2M;truncate 0;map;alloc 0;read 0 0",
    ),
    (
        "-r -f raw a.raw",
        "truncate 100;write 0 1;discard 0 1;write -z 0 1;aio_write 0 1;flush;length",
    ),
    ("-f raw a.raw", "truncate 2M;length;truncate 3000;length;read -v 3000 20"),
    (
        "-f raw source",
        "length;read -v 0 20;read 0 513;write 500 12;write 10 10;read -v 0 512;length",
    ),
    ("a.raw", "truncate 2M;write -P 0x51 0 1;write 0 512;length"),
    (
        "-i foo a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-t foo a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-d foo a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-k a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-k -n a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-i native a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-i io_uring a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-i threads a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-r -C a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-U a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-U -r a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-m a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-m -t none a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-n a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-s a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-r -s a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-d off a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-d unmap a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-t directsync a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-t writethrough a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-t unsafe a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "--cache=none a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "--aio io_uring a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "--read-only a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-rn a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "--snap a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-nU a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "-rnC a.qcow2",
        "length;write -P 3 100 70000;read -P 3 100 70000;map;discard 0 64k;read -P 0 0 64k;map",
    ),
    (
        "a.qcow2",
        "write 0 64k;write -c 0 64k;write -c 64k 64k;write -c 64k 64k;write -P 9 64k 512;read -P 9 64k 512;write -c 0 128k;map;write -c 128k 128k;map",
    ),
    ("o.qcow2", "write -c 0 64k;write -c 64k 192k;read -P 0xcd 0 256k;map;info"),
    (
        "-C o.qcow2",
        "read -q 0 512;map;read -q 512k 1;map;read -q 500k 100k;map;write -q -P 9 300k 1;read -q 0 1M;map",
    ),
    ("-f qcow2 --image-opts driver=qcow2,file.filename=a.qcow2", "length"),
    ("--image-opts driver=qcow2,file.filename=a.qcow2", "length"),
    ("--image-opts", "open driver=qcow2,file.filename=a.qcow2;length"),
    ("--image-opts driver=qcow2,file.filename=a.qcow2,read-only=on", "write 0 1"),
    ("--image-opts -r driver=qcow2,file.filename=a.qcow2,read-only=off", "write 0 1"),
    (
        "",
        "open -r -o read-only=off a.qcow2;open -o driver=qcow2 -r a.qcow2;close;open -o foo=bar a.qcow2;open -U a.qcow2;open -rU a.qcow2;close;open -k a.qcow2;open -nk a.qcow2;close;open -i io_uring a.qcow2;close;open -o driver=qcow2,file.filename=a.qcow2;length;close;open -t none -o cache.direct=off a.qcow2;info",
    ),
    ("", "open -r;open --;open -- a.qcow2;length;close;open a.qcow2 -r;write 0 1"),
    ("", "open -s a.qcow2;write -P 77 0 512;read -P 77 0 512;close;open a.qcow2;read -P 77 0 512"),
    ("-f raw", "open a.raw;length"),
    ("-r", "open a.qcow2;write 0 1"),
    (
        "a.qcow2",
        "reopen;reopen -r;reopen -c writethrough;write 0 1;reopen -w;write 0 1;reopen -o lazy-refcounts=off,cache.direct=on;write 0 1",
    ),
    ("a.raw", "length"),
    ("-r a.raw", "length"),
    ("a.raw", "write 0 512;write -P 0x51 0 1"),
    ("-- a.qcow2", "length"),
    ("-s -f raw a.raw", "map;length;write 1M 512;write -P 3 0 512;read -P 3 0 512"),
    ("-s a.raw", "map;length"),
    ("--cmd length --cmd=l -cl a.qcow2", ""),
    (
        "a.qcow2",
        "aio_write -q -P 1 0 64k;aio_flush;read -P 1 0 64k;aio_read -P 2 0 1k;aio_flush;quit",
    ),
];

/// Images as they are before each run: `o` lies over `a`.
fn images() -> &'static Path {
    static IMAGES: OnceLock<TempDir> = OnceLock::new();
    let dir = IMAGES.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).expect("the directory is writable");
        };
        write("src", "abc");
        write("source", "0123456789abc");
        write("empty", "");
        let raw = File::create(dir.path().join("a.raw")).expect("the directory is writable");
        raw.set_len(1 << 20).expect("a file may have holes");
        for words in ["create -f qcow2 a.qcow2 1M", "create -f qcow2 -b a.qcow2 -F qcow2 o.qcow2"] {
            let mut command = Command::new("qemu-img");
            tools::run_ok(command.args(words.split(' ')).current_dir(dir.path()));
        }
        dir
    });
    dir.path()
}

fn copy_of_images() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for entry in fs::read_dir(images()).expect("made above") {
        let entry = entry.expect("nobody changes it");
        fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("there is room");
    }
    dir
}

/// What a run gave. Times are left out, and so are the words after the dashes of a line that says how a command is
/// called: each program has its own.
fn comparable(run: &Run) -> (String, String, Option<i32>) {
    let plain = without_times(&run.stdout);
    let lines = plain.lines().map(|line| match line.split_once(" -- ") {
        Some((usage, _)) if !line.contains("Parsing error") => format!("{usage}\n"),
        _ => format!("{line}\n"),
    });
    (lines.collect(), run.stderr.clone(), run.code)
}

fn compare(words: &[&str], input: &str) {
    let run_with = |program: &Path, skip: &str| {
        let dir = copy_of_images();
        let words: Vec<&str> = words.iter().copied().filter(|word| *word != skip).collect();
        comparable(&run_with_input(program, dir.path(), &words, input))
    };
    // Only the installed one has no such option: it is what it does.
    let theirs = run_with(Path::new("qemu-io"), "--alloc-policy=per-allocation");
    let ours = run_with(&program::called("qemu-io"), "");
    assert_eq!(ours, theirs, "{words:?} {input:?}");
}

#[test]
fn every_command_is_answered_as_qemu_io_answers_it() {
    if tools::missing("qemu-io") {
        return;
    }
    for command in COMMANDS {
        compare(&["-c", command, "a.qcow2"], "");
        compare(&["-c", command, "-f", "raw", "a.raw"], "");
        compare(&["-c", command], "");
    }
}

#[test]
fn command_lines_and_sessions_are_answered_as_qemu_io_answers_them() {
    if tools::missing("qemu-io") {
        return;
    }
    for (words, input) in LINES {
        let words: Vec<&str> = words.split_whitespace().collect();
        let input = if input.is_empty() { String::new() } else { input.replace(';', "\n") + "\n" };
        compare(&words, &input);
    }
}
