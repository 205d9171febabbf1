//! F101: what only looks at an image that is in use says who uses it, or looks by force. F102: locks that are asked for,
//! left out, or not there. F103: ours and qemu's keep each other out, whoever comes first.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkring_engine::{Cache, LockError, LockMode, OpenError as FileError, OpenOptions, Storage};
use blkring_qcow2::{CreateOptions, ImageOptions, OpenError};
use blkring_tests::beside::run;
use blkring_tests::holder::Holder;
use blkring_tests::images::{Opened, backing, create, queue, try_open};
use blkring_tests::program;
use blkring_tests::report::{Skip, or_skip};
use blkring_tests::tools::{self, find, missing};

/// A directory with an image of each format, an image over another, and the program under the names of qemu's.
struct Ground {
    directory: tempfile::TempDir,
}

impl Ground {
    fn new() -> Option<Self> {
        if missing("qemu-io") || missing("qemu-img") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        for name in ["qemu-io", "qemu-img"] {
            symlink(program::blkring(), directory.path().join(name)).unwrap();
        }
        let ground = Self { directory };
        let plain = || CreateOptions::new(1 << 20);
        create(&ground.path("image.qcow2"), &plain());
        create(&ground.path("base.qcow2"), &plain());
        let backing = backing("base.qcow2", "qcow2");
        create(&ground.path("top.qcow2"), &plain().backing(backing));
        std::fs::write(ground.path("image.raw"), vec![0; 1 << 20]).unwrap();
        Some(ground)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The program under test and the installed one, which are called alike.
    fn both(&self, name: &str) -> [PathBuf; 2] {
        [self.path(name), find(name).unwrap()]
    }
}

/// Options of qemu-io, the bytes that a holder of a qcow2 image locks with them, and those of a raw one.
const MODES: [(&[&str], &[u32], &[u32]); 3] = [
    (&[], &[100, 101, 103, 201, 203], &[100, 101]),
    (&["-r"], &[100, 201, 203], &[100]),
    (&["-r", "-U"], &[100], &[100]),
];

const WRITE: Option<&str> = Some("Failed to get \"write\" lock");
const SHARED_WRITE: Option<&str> = Some("Failed to get shared \"write\" lock");

/// What the second is told, by the mode of the first and its own.
const QCOW2: [[Option<&str>; 3]; 3] =
    [[WRITE, SHARED_WRITE, None], [WRITE, None, None], [None, None, None]];
const RAW: [[Option<&str>; 3]; 3] = [[None; 3]; 3];

fn f103(format: &str, name: &str, answers: [[Option<&str>; 3]; 3]) {
    let Some(ground) = Ground::new() else { return };
    let dir = ground.directory.path();
    for first in ground.both("qemu-io") {
        for ((options, qcow2, raw), answers) in MODES.into_iter().zip(answers) {
            let arguments = [&["-f", format], options, &[name][..]].concat();
            let bytes = if format == "raw" { raw } else { qcow2 };
            let holder = Holder::start(&first, dir, &arguments, bytes);
            for second in ground.both("qemu-io") {
                for ((options, ..), answer) in MODES.into_iter().zip(answers) {
                    let tried = [&["-f", format], options, &["-c", "length", name][..]].concat();
                    let what = format!(
                        "{} {arguments:?}, {} {tried:?}",
                        first.display(),
                        second.display()
                    );
                    let run = run(&second, dir, &tried);
                    let complaint = answer.map_or_else(String::new, |answer| {
                        format!(
                            "can't open device {name}: {answer}\nIs another process using the image [{name}]?\n"
                        )
                    });
                    assert_eq!(run.stderr, complaint, "{what}");
                    let code = if answer.is_some() { 1 } else { 0 };
                    assert_eq!(run.code, Some(code), "{what}");
                }
            }
            // Those who came second, and the end of the first, leave nothing behind.
            assert_eq!(holder.bytes(), bytes.iter().copied().collect(), "{arguments:?}");
            drop(holder);
            for second in ground.both("qemu-io") {
                let tried = ["-f", format, "-c", "length", name];
                assert_eq!(run(&second, dir, &tried).code, Some(0), "{arguments:?}");
            }
        }
    }
}

#[test]
fn f103_ours_and_qemu_io_exclude_each_other_on_qcow2() {
    f103("qcow2", "image.qcow2", QCOW2);
}

#[test]
fn f103_ours_and_qemu_io_share_raw_images_alike() {
    f103("raw", "image.raw", RAW);
}

/// Every command on an image that somebody writes, or reads, or whose backing file somebody writes, beside the
/// installed program: the same words and exit codes, and nothing is changed.
#[test]
fn f103_every_command_answers_as_qemus_does() {
    let Some(ground) = Ground::new() else { return };
    let dir = ground.directory.path();
    let qemu_img: &[&[&str]] = &[
        &["info", "image.qcow2"],
        &["info", "--output=json", "image.qcow2"],
        &["info", "-U", "image.qcow2"],
        &["info", "-f", "raw", "image.qcow2"],
        &["check", "image.qcow2"],
        &["check", "-U", "image.qcow2"],
        &["create", "-f", "qcow2", "image.qcow2", "2M"],
        &["create", "-f", "raw", "image.qcow2", "2M"],
        &["create", "-q", "-f", "qcow2", "-b", "image.qcow2", "-F", "qcow2", "over.qcow2"],
        &["bench", "-w", "-c", "1", "-f", "qcow2", "image.qcow2"],
        &["bench", "-w", "-c", "1", "-U", "-f", "qcow2", "image.qcow2"],
        &["bench", "-w", "-c", "1", "-f", "raw", "image.qcow2"],
    ];
    let qemu_io: &[&[&str]] = &[
        &["-f", "raw", "-c", "length", "image.qcow2"],
        &["-r", "-f", "raw", "-c", "length", "image.qcow2"],
        &["-U", "-f", "qcow2", "-c", "length", "image.qcow2"],
        &["-f", "qcow2", "-c", "length", "top.qcow2"],
        &["-r", "-f", "qcow2", "-c", "length", "top.qcow2"],
        &["-r", "-U", "-f", "qcow2", "-c", "length", "top.qcow2"],
        &["--image-opts", "-c", "length", "driver=qcow2,file.filename=image.qcow2"],
        &["--image-opts", "-c", "length", "driver=qcow2,file.filename=image.qcow2,file.locking=on"],
        &[
            "--image-opts",
            "-c",
            "length",
            "driver=qcow2,file.filename=image.qcow2,file.locking=off",
        ],
        &["--image-opts", "-c", "length", "driver=qcow2,file.filename=image.qcow2,file.locking=so"],
    ];
    let writer = &["-f", "qcow2"][..];
    for (options, bytes, name) in [
        (writer, MODES[0].1, "image.qcow2"),
        (&["-r", "-f", "qcow2"], MODES[1].1, "image.qcow2"),
        (&["-r", "-U", "-f", "qcow2"], MODES[2].1, "image.qcow2"),
        (writer, MODES[0].1, "base.qcow2"),
    ] {
        let holder =
            Holder::start(&ground.path("qemu-io"), dir, &[options, &[name]].concat(), bytes);
        for (tool, commands) in [("qemu-img", qemu_img), ("qemu-io", qemu_io)] {
            for arguments in commands {
                let before = std::fs::read(ground.path("image.qcow2")).unwrap();
                let runs = ground.both(tool).map(|program| run(&program, dir, arguments));
                let what = format!("{tool} {arguments:?} while {options:?} holds {name}");
                let [ours, theirs] = runs;
                assert_eq!((&ours.stderr, ours.code), (&theirs.stderr, theirs.code), "{what}");
                if theirs.code != Some(0) {
                    assert_eq!(ours.stdout, theirs.stdout, "{what}");
                    let after = std::fs::read(ground.path("image.qcow2")).unwrap();
                    assert!(before == after, "{what}: the image was changed");
                } else {
                    std::fs::write(ground.path("image.qcow2"), before).unwrap();
                }
            }
        }
        drop(holder);
    }
}

#[test]
fn f101_the_message_names_the_holder_and_force_share_looks_all_the_same() {
    let Some(ground) = Ground::new() else { return };
    let dir = ground.directory.path();
    let (ours, theirs) = (program::blkring(), find("qemu-io").unwrap());
    let arguments = ["-f", "qcow2", "image.qcow2"];
    for (program, command) in [(theirs.as_path(), "qemu-io"), (&ground.path("qemu-io"), "qemu-io")]
    {
        let holder = Holder::start(program, dir, &arguments, MODES[0].1);
        for looking in
            [&["info"][..], &["check"], &["io", "-r", "-c", "length"], &["bench", "-c", "1"]]
        {
            let refused = run(ours, dir, &[looking, &arguments].concat());
            let expected = format!(
                "Could not open 'image.qcow2': Failed to get shared \"write\" lock\n\
                 Is another process using the image [image.qcow2]?\n\
                 It is held by {command} (process {}).\n",
                holder.pid()
            );
            assert_eq!((refused.stderr, refused.code), (expected, Some(1)), "{looking:?}");
            for force in ["-U", "--force-share"] {
                let forced = run(ours, dir, &[looking, &[force], &arguments].concat());
                assert_eq!((forced.stderr.as_str(), forced.code), ("", Some(0)), "{looking:?}");
            }
        }
        let refused = run(ours, dir, &["create", "-q", "-f", "qcow2", "image.qcow2", "1M"]);
        let named = format!("It is held by {command} (process {}).\n", holder.pid());
        assert!(refused.stderr.ends_with(&named), "{}", refused.stderr);
    }
}

/// A program of ours that finds no locks, as on some network file systems.
fn without_locks(ground: &Ground, locking: &str, first: u32) -> std::process::Output {
    let image = format!("driver=qcow2,file.filename=image.qcow2,file.locking={locking}");
    let mut command = Command::new(find("strace").unwrap());
    command.args(["-qq", "-f", "-o/dev/null", "-etrace=fcntl"]);
    command.arg(format!("-einject=fcntl:error=ENOLCK:when={first}+"));
    command.arg(program::blkring()).args(["--trace", "blkring_engine=debug"]);
    match first {
        1 => command.args(["info", "--image-opts", &image]),
        _ => command.args(["io", "-c", "length", "--image-opts", &image]),
    };
    command.current_dir(ground.directory.path()).output().unwrap()
}

#[test]
fn f102_where_there_are_no_locks_auto_goes_on_and_on_explains() {
    let Some(ground) = Ground::new() else { return };
    let traced = tools::run("strace", &["-f", "-e", "trace=none", "true"]);
    let traced = traced.map_err(|error| Skip::new(format!("strace cannot follow: {error}")));
    if or_skip(traced).is_none() {
        return;
    }
    // A storage takes O_NONBLOCK off its file first, by two calls.
    for first in [1, 3] {
        let told = |output: &std::process::Output| {
            String::from_utf8_lossy(&output.stderr).matches("no image locks here").count()
        };
        let auto = without_locks(&ground, "auto", first);
        assert!(auto.status.success(), "{auto:?}");
        assert_eq!(told(&auto), 1, "{auto:?}");
        let off = without_locks(&ground, "off", first);
        assert!(off.status.success(), "{off:?}");
        assert_eq!(told(&off), 0, "{off:?}");
        let on = without_locks(&ground, "on", first);
        assert_eq!(on.status.code(), Some(1), "{on:?}");
        let text = String::from_utf8_lossy(&on.stderr);
        for part in ["image locks are not possible here: No locks available", "Lock mode auto"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn f102_locks_are_taken_when_asked_for_and_left_out_when_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, [0; 512]).unwrap();
    let open = |mode| Storage::open(&path, &OpenOptions::new().lock(mode)).unwrap().is_locked();
    assert_eq!([LockMode::On, LockMode::Auto, LockMode::Off].map(open), [true, true, false]);
}

fn refused(path: &Path) -> LockError {
    let mut queue = queue();
    let opened = try_open(&mut queue, path, Cache::Cached, ImageOptions::new().writable());
    match opened.err() {
        Some(OpenError::Storage(FileError::Lock(error))) => error,
        other => panic!("{other:?}"),
    }
}

/// Images in one process: the top is its writer's alone, what lies below is for readers; until the image is closed,
/// although it is not dropped, or dropped, although its queue goes on.
#[test]
fn images_in_one_process_exclude_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    create(&path("base"), &CreateOptions::new(1 << 20));
    for name in ["one", "two"] {
        let backing = backing("base", "qcow2");
        create(&path(name), &CreateOptions::new(1 << 20).backing(backing));
    }
    for _ in 0..2 {
        let one = Opened::writable(&path("one"), Cache::Cached);
        let two = Opened::writable(&path("two"), Cache::Cached);
        for name in ["one", "two", "base"] {
            let LockError::Conflict { holder, .. } = refused(&path(name)) else { panic!("{name}") };
            assert_eq!(holder.unwrap().pid, std::process::id());
        }
        let image = one.image.clone();
        one.close();
        Opened::writable(&path("one"), Cache::Cached).close();
        assert!(matches!(refused(&path("base")), LockError::Conflict { .. }), "two reads it");
        drop(image);
        // Not closed: its reservation is found again by the next who opens it.
        let Opened { mut queue, disk, image, .. } = two;
        drop((disk, image));
        queue.turn().unwrap();
        Opened::writable(&path("two"), Cache::Cached).close();
        Opened::writable(&path("base"), Cache::Cached).close();
    }
}
