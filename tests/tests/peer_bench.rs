//! `blkring bench FILE` beside `qemu-img bench`: the same lines, exit codes and bytes.

use std::fs::{self, File};
use std::path::Path;

use blkring_tests::beside::{Run, run};
use blkring_tests::{program, tools};

const SIZE: u64 = 8 << 20;

fn blkring(dir: &Path, arguments: &[&str]) -> Run {
    run(program::blkring(), dir, arguments)
}

fn image(dir: &Path, name: &str, size: u64) {
    let file = File::create(dir.join(name)).expect("the directory is writable");
    file.set_len(size).expect("a file may have holes");
}

/// A run with everything taken out in which two programs differ: their name and the time they took.
fn comparable(run: Run) -> (Vec<String>, String, Option<i32>) {
    let lines = run.stdout.lines().map(|line| match line.strip_prefix("Run completed in ") {
        Some(rest) => {
            let seconds = rest.strip_suffix(" seconds.").expect("ends as it should");
            let (whole, thousandths) = seconds.split_once('.').expect("has a fraction");
            assert!(whole.parse::<u64>().is_ok() && thousandths.len() == 3, "{line}");
            "Run completed".to_owned()
        }
        None => line.to_owned(),
    });
    let stderr = run.stderr.replace("qemu-img: ", "").replace("blkring: ", "");
    (lines.collect(), stderr, run.code)
}

#[test]
fn lines_and_exit_codes_are_those_of_qemu_img() {
    if tools::missing("qemu-img") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    image(dir, "disk.raw", SIZE);
    let lines = [
        "-c 1000",
        "-c 1000 -q",
        "-c 1000 -d 1",
        "-c 0x10 -d 3 -s 1k -S 4k -o 64k",
        "-c 4000 -S 0",
        "-c 300 -w",
        "-c 300 -w --pattern 65 -S 64k",
        "-c 300 -w --pattern 0x41 --flush-interval 100",
        "-c 300 -w --flush-interval 64 --no-drain",
        "-c 300 -w --flush-interval 0 --no-drain",
        "-c 50 -w -t writethrough",
        "-c 50 -w -t unsafe --flush-interval 64",
        "-c 50 -i threads -U",
        "-c 50 -i io_uring -t writeback",
        "-c 3 -o 9M",
        "-c 3 -o 8388607",
        "-c 100000 -S 3000",
        "-s 512M -c 2 -d 2",
        "--flush-interval 100",
        "-w --flush-interval 10",
        "-c 0",
        "-c -1",
        "-c x",
        "-c 1k",
        "-d 0",
        "-d x",
        "-s 0",
        "-s 3G",
        "-s x",
        "-S 3G",
        "-S x",
        "-o -1",
        "-o x",
        "-w --pattern 256",
        "-w --pattern x",
        "-w --flush-interval x",
        "-i foo",
        "-t foo",
    ];
    for line in lines {
        let arguments = || "bench -f raw".split(' ').chain(line.split(' ')).chain(["disk.raw"]);
        let arguments: Vec<&str> = arguments().collect();
        let theirs = comparable(run(Path::new("qemu-img"), dir, &arguments));
        let ours = comparable(blkring(dir, &arguments));
        assert_eq!(ours, theirs, "{line}");
    }
}

#[test]
fn the_same_bytes_are_written() {
    if tools::missing("qemu-img") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    for line in [
        "-c 77 -w --pattern 7",
        "-c 3000 -w --pattern 9 -s 3000 -S 5000 -o 1045000 -d 1",
        "-c 64 -d 8 -w --pattern 0xfe -t directsync -s 512 -S 20000",
    ] {
        // The size is a multiple of every step and of a sector, so that no request straddles the end.
        for (program, name) in [("qemu-img", "a.raw"), ("blkring", "b.raw")] {
            image(dir, name, 1024 * 5000);
            let arguments: Vec<&str> = "bench -f raw".split(' ').chain(line.split(' ')).collect();
            let arguments = [&arguments[..], &[name]].concat();
            let run = match program {
                "blkring" => blkring(dir, &arguments),
                other => run(Path::new(other), dir, &arguments),
            };
            assert_eq!(run.code, Some(0), "{program} {line}: {}", run.stderr);
        }
        let (theirs, ours) = (fs::read(dir.join("a.raw")), fs::read(dir.join("b.raw")));
        let (theirs, ours) = (theirs.expect("made above"), ours.expect("made above"));
        assert!(theirs == ours, "{line}");
        assert!(ours.iter().any(|byte| *byte != 0), "{line}: something was written");
    }
}
