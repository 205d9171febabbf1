//! `resize` and `dd` beside the installed qemu-img.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

use blkring_tests::fs::Fs;
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::program;
use blkring_tests::report::or_skip;
use blkring_tests::twins::Twins;

const MIB: u64 = 1 << 20;

#[test]
fn raw_files_change_as_with_qemu_img() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("one.raw", MIB, &[(0, 1 << 20)]);
    twins.raw("odd.raw", 1000, &[(0, 1000)]);
    for image in ["one.raw", "odd.raw"] {
        for line in [
            "-f raw OUT 2M",
            "-f raw OUT +512",
            "-f raw OUT 500",
            "-f raw --shrink OUT 500",
            "-f raw --shrink OUT -512",
            "-f raw OUT -512",
            "-f raw OUT +1000",
            "-f raw OUT +1",
            "-f raw -q OUT 2M",
            "-f raw OUT 2M -q",
            "-f raw OUT x",
            "-f raw OUT +x",
            "-f raw OUT",
            "-f raw",
            "-f raw OUT 1M 1M",
            "-f raw OUT 1020",
            "-f raw OUT 1024",
            "-f raw --preallocation=falloc OUT 4M",
            "-f raw --preallocation=full OUT 4M",
            "-f raw --preallocation=metadata OUT 4M",
            "-f raw --preallocation=foo OUT 4M",
            "-f raw --shrink --preallocation=falloc OUT 512",
            "-f raw OUT -8M",
            "-f raw --shrink OUT -8M",
            "-f raw --shrink OUT 0",
            "-f raw OUT +0",
            "-f raw OUT 8E",
            "-f raw OUT +9223372036854775807",
            "-f raw -X OUT 3",
            "-f foo OUT 2M",
            "-f raw no-such-file 2M",
            "OUT 2M",
        ] {
            twins.same_after(&format!("resize {line}"), |out| {
                fs::copy(twins.path(image), out).expect("room for it");
            });
            let [theirs, ours] = ["theirs", "ours"].map(|name| twins.path(name));
            let blocks = [&theirs, &ours].map(|path| fs::metadata(path).unwrap().blocks());
            assert_eq!(blocks[0], blocks[1], "{line}");
            assert!(fs::read(theirs).unwrap() == fs::read(ours).unwrap(), "{line}");
        }
    }
}

#[test]
fn qcow2_images_grow_as_with_qemu_img() {
    let Some(twins) = Twins::new() else { return };
    for line in [
        "OUT 2M",
        "OUT +512",
        "OUT +1000",
        "-q OUT 3T",
        "OUT 1M",
        "OUT 512k",
        "OUT -1M",
        "--preallocation=metadata OUT 4M",
        "--preallocation=falloc OUT 4M",
        "--preallocation=full OUT 4M",
        "--preallocation=foo OUT 4M",
        "--preallocation=full OUT 1M",
    ] {
        let ended = twins.same_after(&format!("resize {line}"), |out| {
            let name = out.file_name().unwrap().to_str().unwrap();
            twins.theirs(&format!("create -q -f qcow2 {name} 1M"));
            twins.io("", name, &["write -P 7 1000k 24k"]);
        });
        if ended.code == Some(0) {
            twins.copies_agree(line);
            if line.contains("preallocation") {
                let [theirs, ours] = ["theirs", "ours"].map(|name| {
                    let told = twins.theirs(&format!("check {name}"));
                    told.lines().find(|line| line.contains("allocated")).map(str::to_owned)
                });
                let allocated = |line: &str| line.split(',').next().map(str::to_owned);
                assert_eq!(ours.as_deref().map(allocated), theirs.as_deref().map(allocated));
            }
        }
    }
    // Not there yet, and said so.
    twins.theirs("create -q -f qcow2 image 1M");
    let ended = twins.ours_ends("resize --shrink image 512k");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("not supported"), "{ended:?}");
}

#[test]
fn parts_are_copied_as_qemu_img_copies_them() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("data.raw", 9 * MIB, &[(0, 3 << 20), (7 << 20, 100)]);
    twins.raw("odd.raw", 1000, &[(0, 1000)]);
    twins.theirs("convert -f raw -O qcow2 data.raw data.q");
    for line in [
        "if=data.raw of=OUT",
        "if=data.raw of=OUT bs=1M count=3",
        "-f raw -O qcow2 if=data.raw of=OUT bs=1M count=3 skip=1",
        "-f raw if=data.raw of=OUT bs=1000 count=3",
        "-f raw if=data.raw of=OUT bs=1000 skip=9437",
        "-f raw if=data.raw of=OUT bs=1M skip=100",
        "-f raw -O qcow2 if=data.raw of=OUT bs=1M skip=300",
        "-f raw if=data.raw of=OUT bs=1M count=1 skip=3",
        "-f raw if=data.raw of=OUT bs=0",
        "-f raw if=data.raw of=OUT bs=-1",
        "-f raw if=data.raw of=OUT bs=x",
        "-f raw if=data.raw of=OUT bs=3G",
        "-f raw if=data.raw of=OUT count=x",
        "-f raw if=data.raw of=OUT count=1k bs=1M",
        "-f raw if=data.raw of=OUT count=18446744073709551615",
        "-f raw if=data.raw of=OUT count=0",
        "-f raw if=data.raw of=OUT skip=x",
        "-f raw if=data.raw of=OUT foo=3",
        "-f raw if=data.raw of=OUT foo",
        "-f raw if=data.raw of=OUT isize=1",
        "-f raw if=data.raw",
        "-f raw if=no-such-file of=OUT",
        "-f raw if=data.raw of=no/such/place",
        "-f raw -O foo if=data.raw of=OUT",
        "-f foo if=data.raw of=OUT",
        "-n -f raw if=data.raw of=OUT",
        "-f raw if=data.raw of=OUT bs=1 count=7",
        "-f raw if=odd.raw of=OUT bs=1k",
        "-f raw if=odd.raw of=OUT bs=700",
        "-f raw -O qcow2 if=odd.raw of=OUT bs=700",
        "-f raw if=odd.raw of=OUT bs=500 skip=2",
        "-f raw if=odd.raw of=OUT bs=500 skip=3",
        "if=data.q of=OUT bs=100k skip=7",
        "-U -O qcow2 if=data.q of=OUT bs=4k skip=7 count=1000",
    ] {
        let ended = twins.same(&format!("dd {line}"));
        if ended.code == Some(0) {
            twins.copies_agree(line);
            let blocks =
                ["theirs", "ours"].map(|name| fs::metadata(twins.path(name)).unwrap().blocks());
            assert!(blocks[1] <= blocks[0] + 2048, "{line}: {blocks:?}");
        }
    }
}

/// The installed one destroys its input here.
#[test]
fn no_part_is_copied_over_its_own_image() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("data.raw", MIB, &[(0, 1 << 20)]);
    let before = fs::read(twins.path("data.raw")).unwrap();
    let ended = twins.ours_ends("dd -f raw if=data.raw of=./data.raw count=1");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("the target is the source"), "{ended:?}");
    assert!(fs::read(twins.path("data.raw")).unwrap() == before);
}

#[test]
fn what_was_made_ready_goes_back_when_there_is_no_room() {
    let Some(mount) = or_skip(Mount::new(Fs::Tmpfs, SectorSize::S512, 6)) else { return };
    let run = |line: &str| -> Output {
        let mut program = Command::new(program::blkring());
        program.args(line.split(' ')).current_dir(mount.path()).output().unwrap()
    };
    assert!(run("create -q -f qcow2 t 1M").status.success());
    for preallocation in ["falloc", "full"] {
        let ended = run(&format!("resize --preallocation={preallocation} t 30M"));
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let checked = run("check t");
        assert_eq!(checked.status.code(), Some(0), "{preallocation}: {checked:?}");
    }
}
