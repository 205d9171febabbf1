//! F103, the commands that copy: which locks they take and mind, beside the installed programs.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use blkring_tests::beside::run;
use blkring_tests::holder::Holder;
use blkring_tests::program;
use blkring_tests::tools::find;
use blkring_tests::twins::Twins;

const MIB: u64 = 1 << 20;

/// How qemu-io holds an image, and the bytes that it locks of a qcow2 and of a raw one.
const MODES: [(&str, &[u32], &[u32]); 3] = [
    ("", &[100, 101, 103, 201, 203], &[100, 101]),
    ("-r", &[100, 201, 203], &[100]),
    ("-r -U", &[100], &[100]),
];

#[test]
fn f103_commands_that_copy_mind_the_same_locks() {
    let Some(twins) = Twins::new() else { return };
    let refused = |format: &str, name: &str, holder: usize| {
        let (options, qcow2, raw) = MODES[holder];
        let bytes = if format == "raw" { raw } else { qcow2 };
        let words: Vec<&str> =
            ["-f", format].into_iter().chain(options.split_whitespace()).collect();
        // The one who is asked is told who holds it, by this name.
        let link = twins.path("qemu-io");
        let held = Holder::start(&link, twins.dir(), &[&words[..], &[name]].concat(), bytes);
        let mut refused = Vec::new();
        for line in [
            format!("convert -f {format} -O raw {name} out"),
            format!("convert -U -f {format} -O raw {name} out"),
            format!("convert -f raw -O {format} other.raw {name}"),
            format!("convert -n -f raw -O {format} other.raw {name}"),
            format!("dd -f {format} -O raw if={name} of=out"),
            format!("dd -U -f {format} -O raw if={name} of=out"),
            format!("compare -f {format} -F raw {name} other.raw"),
            format!("compare -U -f {format} -F raw {name} other.raw"),
            format!("map -f {format} {name}"),
            format!("map -U -f {format} {name}"),
            format!("measure -f {format} -O raw {name}"),
            format!("resize -q -f {format} {name} 2M"),
        ] {
            twins.raw("other.raw", MIB, &[(0, 1 << 20)]);
            let [theirs, ours] =
                [find("qemu-img").unwrap(), twins.path("qemu-img")].map(|program| {
                    prepare(&twins, format, name);
                    let ended = run(&program, twins.dir(), &line.split(' ').collect::<Vec<_>>());
                    (ended.stderr, ended.code)
                });
            assert_eq!(ours, theirs, "left is ours: {line} while {words:?} holds {name}");
            if ours.0.contains(" lock") {
                refused.push(line);
            }
        }
        drop(held);
        refused.len()
    };
    for name in ["qemu-io", "qemu-img"] {
        std::os::unix::fs::symlink(program::blkring(), twins.path(name)).unwrap();
    }
    prepare(&twins, "raw", "held.raw");
    prepare(&twins, "qcow2", "held.q");
    assert_eq!([0, 1, 2].map(|mode| refused("raw", "held.raw", mode)), [1, 0, 0]);
    assert_eq!([0, 1, 2].map(|mode| refused("qcow2", "held.q", mode)), [8, 3, 0]);
}

/// The image as it was, in the same file.
fn prepare(twins: &Twins, format: &str, name: &str) {
    let fresh = if format == "raw" {
        vec![0; 1 << 20]
    } else {
        if !twins.path("fresh.q").exists() {
            twins.theirs("create -q -f qcow2 fresh.q 1M");
        }
        fs::read(twins.path("fresh.q")).unwrap()
    };
    fs::write(twins.path(name), fresh).unwrap();
}

/// A raw image that is being converted stays as it is, whoever converts it; others may read it.
#[test]
fn f103_a_raw_image_is_not_written_while_it_is_converted() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("source.raw", 64 * MIB, &[(0, 64 << 20)]);
    let qemu_io = find("qemu-io").unwrap();
    for program in [find("qemu-img").unwrap().as_path(), program::blkring()] {
        let mut copy = Command::new(program)
            .arg0("qemu-img")
            .args(["convert", "-p", "-r", "1M", "-f", "raw", "-O", "raw", "source.raw", "copy.raw"])
            .current_dir(twins.dir())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The first that is told comes when the images are open.
        copy.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        let tried = |program: &Path, options: &[&str]| {
            let words = [options, &["-f", "raw", "-c", "length", "source.raw"]].concat();
            run(program, twins.dir(), &words).stderr
        };
        assert!(tried(&qemu_io, &[]).contains("Failed to get \"write\" lock"));
        assert!(tried(&program::called("qemu-io"), &[]).contains("Failed to get \"write\" lock"));
        assert_eq!(tried(&qemu_io, &["-r"]), "");
        copy.kill().unwrap();
        copy.wait().unwrap();
        assert_eq!(tried(&qemu_io, &[]), "");
    }
}
