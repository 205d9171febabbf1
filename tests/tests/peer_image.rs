//! `blkring create`, `info`, `check` and `io` on qcow2 images beside qemu-img and qemu-io.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use blkring_tests::beside::{Run, run};
use blkring_tests::{program, tools};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn qemu_img(dir: &Path, line: &str) -> Run {
    run(Path::new("qemu-img"), dir, &line.split_whitespace().collect::<Vec<_>>())
}

fn blkring(dir: &Path, line: &str) -> Run {
    run(program::blkring(), dir, &line.split_whitespace().collect::<Vec<_>>())
}

fn qemu_io(dir: &Path, image: &str, commands: &[&str]) -> Run {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let all: Vec<&str> = ["-f", "qcow2"].into_iter().chain(commands).chain([image]).collect();
    run(Path::new("qemu-io"), dir, &all)
}

fn blkring_io(dir: &Path, image: &str, commands: &[&str]) -> Run {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let all: Vec<&str> = ["io", "-f", "qcow2"].into_iter().chain(commands).chain([image]).collect();
    run(program::blkring(), dir, &all)
}

#[track_caller]
fn good(run: &Run) {
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{}", run.stdout);
}

/// A directory with what images are made on.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let base = File::create(dir.path().join("base.raw")).expect("the directory is writable");
    base.set_len(5 * MIB).expect("a file may have holes");
    base.write_all_at(&[0xaa; 100_000], 12345).expect("the directory is writable");
    fs::create_dir(dir.path().join("sub")).expect("the directory is writable");
    dir
}

#[test]
fn create_says_and_makes_the_same() {
    if tools::missing("qemu-img") {
        return;
    }
    for line in [
        "-f qcow2 x 10M",
        "-f qcow2 -q x 1G",
        "-f qcow2 -o cluster_size=512,lazy_refcounts=on x 10M",
        "-f qcow2 -o cluster_size=4k -o lazy_refcounts=on x 1M",
        "-f qcow2 -o size=1.5M x",
        "-f qcow2 -b base.raw -F raw x",
        "-f qcow2 -b base.raw -F raw x 1M",
        "-f qcow2 -b ../base.raw -F raw sub/x",
        "-f qcow2 -o backing_file=base.raw,backing_fmt=raw x",
        "-f qcow2 -u -b none -F raw x 1M",
        "-f qcow2 x 1P",
        "-f raw x 1000",
        "x 1M",
        "-f qcow2 x",
        "-f qcow2 -u -b none -F raw x",
        "-f qcow2 -o foo=3 x 1M",
        "-f raw -o cluster_size=3 x 1M",
        "-f qcow2 -o cluster_size=3 x 1M",
        "-f qcow2 -o cluster_size=4M x 1M",
        "-f qcow2 -o lazy_refcounts=maybe x 1M",
        "-f qcow2 x x",
        "-f qcow2 x 9E",
        "-f raw -b base.raw -F raw x 1M",
        "-f qcow2 nothing/x 1M",
    ] {
        let (ours, theirs) = (directory(), directory());
        let our_run = blkring(ours.path(), &format!("create {line}"));
        assert_eq!(our_run, qemu_img(theirs.path(), &format!("create {line}")), "{line}");
        for name in ["x", "sub/x"] {
            let bytes = |dir: &tempfile::TempDir| fs::read(dir.path().join(name)).ok();
            assert!(bytes(&ours) == bytes(&theirs), "{line}: {name} differs");
        }
    }
}

/// Makes images of all kinds, with the names given back.
fn images(dir: &Path) -> Vec<&'static str> {
    let images = [
        ("fresh", "-f qcow2 fresh 10M"),
        ("small", "-f qcow2 -o cluster_size=512,lazy_refcounts=on small 10M"),
        ("overlay", "-f qcow2 -b base.raw -F raw overlay"),
        ("sub/overlay", "-f qcow2 -b ../base.raw -F raw sub/overlay"),
        ("upper", "-f qcow2 -b overlay -F qcow2 upper 20M"),
        ("full", "-f qcow2 full 10M"),
        ("leaking", "-f qcow2 leaking 10M"),
        ("corrupt", "-f qcow2 corrupt 10M"),
        ("marked", "-f qcow2 marked 10M"),
        ("plain", "-f raw plain 3M"),
    ];
    for (_, line) in images {
        good(&qemu_img(dir, &format!("create -q {line}")));
    }
    let io = ["write -q 0 300k", "write -q 5M 1k", "write -q -z 6M 64k"];
    for name in ["full", "corrupt"] {
        good(&qemu_io(dir, name, &io));
    }
    let patch = |name: &str, offset: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(dir.join(name)).expect("made above");
        file.write_all_at(bytes, offset).expect("made above");
    };
    // The refcount block of a new image lies in cluster 2; these are the counts of clusters 20 and 5.
    patch("leaking", 0x2_0000 + 2 * 20, &[0, 1]);
    patch("leaking", 30 * 65536, &[0]);
    patch("corrupt", 0x2_0000 + 2 * 5, &[0, 0]);
    // The corrupt bit.
    patch("marked", 79, &[2]);
    images.map(|(name, _)| name).to_vec()
}

#[test]
fn info_and_check_say_the_same() {
    if tools::missing("qemu-img") || tools::missing("qemu-io") {
        return;
    }
    let dir = directory();
    let dir = dir.path();
    let mut codes = Vec::new();
    for name in images(dir) {
        for command in ["info", "check"] {
            let line = format!("{command} {name}");
            let (ours, theirs) = (blkring(dir, &line), qemu_img(dir, &line));
            assert_eq!((&ours.stdout, ours.code), (&theirs.stdout, theirs.code), "{line}");
            let line = format!("{command} --output json {name}");
            let (ours, theirs) = (blkring(dir, &line), qemu_img(dir, &line));
            let json = |run: &Run| serde_json::from_str::<Value>(&run.stdout).ok();
            assert_eq!((json(&ours), ours.code), (json(&theirs), theirs.code), "{line}");
            codes.push(ours.code);
        }
    }
    for code in [0, 2, 3, 63] {
        assert!(codes.contains(&Some(code)), "some image gives {code}");
    }
    for line in ["check -q leaking", "check -q corrupt", "check -q fresh", "info -f qcow2 plain"] {
        let (ours, theirs) = (blkring(dir, line), qemu_img(dir, line));
        assert_eq!((&ours.stdout, ours.code), (&theirs.stdout, theirs.code), "{line}");
    }
}

/// What one program writes, the other one reads; both see the same in `info`.
#[test]
fn io_on_qcow2_images_is_that_of_qemu_io() {
    if tools::missing("qemu-img") || tools::missing("qemu-io") {
        return;
    }
    let writes = [
        "write -q -P 1 0 4k",
        "write -q -P 2 100k 300k",
        "write -q -P 3 1000 100",
        "write -q -f -P 4 5M 1",
        "write -q -z 128k 64k",
        "write -q -zu 256k 100k",
        "aio_write -q -P 5 7M 1000 2000 3000",
        "aio_write -q -P 6 8M 64k",
        "aio_flush",
        "discard -q 320k 64k",
        "flush",
        "write -q -P 7 9M 64k",
    ];
    let reads =
        ["read -v 0 512k", "read -v 5M 512", "read -v 7M 8k", "read -P 6 8M 64k", "info", "length"];
    let printed = |run: &Run| -> Vec<String> {
        good(run);
        run.stdout.lines().filter(|line| !line.contains(" ops; ")).map(str::to_owned).collect()
    };
    for options in
        ["-o cluster_size=64k", "-o cluster_size=512", "-o cluster_size=2M", "-b base.raw -F raw"]
    {
        let dir = directory();
        let dir = dir.path();
        for name in ["a", "b"] {
            good(&qemu_img(dir, &format!("create -q -f qcow2 {options} {name} 10M")));
        }
        good(&blkring_io(dir, "a", &writes));
        good(&qemu_io(dir, "b", &writes));
        for name in ["a", "b"] {
            let seen = printed(&blkring_io(dir, name, &reads));
            assert_eq!(seen, printed(&qemu_io(dir, name, &reads)), "{options}: {name}");
            good(&qemu_img(dir, &format!("check {name}")));
            good(&blkring(dir, &format!("check {name}")));
        }
        good(&qemu_img(dir, "compare -f qcow2 -F qcow2 a b"));
    }
}
