//! Faults on purpose and logs of writes, by the program through a link named qemu-io and by the installed qemu-io.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use blkring_tests::beside::{Run, run, without_times};
use blkring_tests::write_log::{self, DISCARD, FLUSH, MARK};
use blkring_tests::{program, tools};
use tempfile::TempDir;

/// Options that open the image with faults, all but the rules.
const FAULTY: &str = "driver=qcow2,file.driver=blkdebug,file.image.filename=a.qcow2";

/// Options of the image, rules behind `FAULTY` where they begin with a comma; then commands.
const RULES: &[(&str, &str)] = &[
    (",file.inject-error.0.event=read_aio", "read 0 4k;read 0 4k;write 0 4k"),
    (",file.inject-error.0.event=read_aio,file.inject-error.0.once=on", "read 0 4k;read 0 4k"),
    (
        ",file.inject-error.0.event=read_aio,file.inject-error.0.errno=28,file.inject-error.0.once=yes,\
         file.inject-error.0.immediately=on",
        "read 0 4k;read 0 4k;write 0 4k;flush",
    ),
    (",file.inject-error.event=read_aio,file.inject-error.errno=0", "read 0 4k"),
    (
        ",file.inject-error.0.event=read_aio,file.inject-error.0.iotype=write",
        "read 0 4k;write 0 4k;write 0 4k",
    ),
    (",file.inject-error.0.event=read_aio,file.inject-error.0.iotype=flush", "read 0 4k;read 0 4k"),
    (
        ",file.inject-error.0.event=write_aio,file.inject-error.0.iotype=write,file.inject-error.0.sector=640",
        "read 0 4k;write 0 4k;write 4k 4k;write 0 4k",
    ),
    (
        ",file.inject-error.0.event=read_aio,file.inject-error.0.state=2,file.set-state.0.event=read_aio,\
         file.set-state.0.state=1,file.set-state.0.new_state=2",
        "read 0 4k;read 0 4k;read 0 4k",
    ),
    (
        ",file.inject-error.0.event=read_aio,file.inject-error.0.state=2,file.inject-error.0.once=on,\
         file.set-state.0.event=read_aio,file.set-state.0.state=1,file.set-state.0.new_state=2",
        "read 0 4k;read 0 4k;read 0 4k;read 0 4k",
    ),
    (",file.inject-error.0.event=l2_load,file.inject-error.0.once=on", "read 0 4k;read 0 4k"),
    (",file.inject-error.0.event=pwritev,file.inject-error.0.once=on", "write 0 4k;write 0 4k"),
    (",file.inject-error.0.event=foo", "read 0 4k"),
    (",file.inject-error.0.event=read_aio,file.inject-error.0.errno=x", "read 0 4k"),
    (",file.inject-error.0.event=read_aio,file.inject-error.0.foo=x", "read 0 4k"),
    (",file.inject-error.0.event=read_aio,file.inject-error.0.iotype=foo", "read 0 4k"),
    (",file.inject-error.0.event=read_aio,file.inject-error.0.once=foo", "read 0 4k"),
    (",file.inject-error.0.errno=5", "read 0 4k"),
    (",file.set-state.0.event=read_aio", "read 0 4k"),
    (",file.set-state.0.new_state=2", "read 0 4k"),
    (",file.inject-error.1.event=read_aio", "read 0 4k"),
    (",file.foo=1", "read 0 4k"),
    (",file.config=once.conf", "read 0 4k;read 0 4k"),
    (",file.config=nofile", "read 0 4k"),
    ("driver=qcow2,file.driver=blkdebug", "read 0 4k"),
    ("driver=qcow2,file.driver=blkdebug,file.image=a.qcow2", "read 0 4k"),
    (
        "driver=qcow2,file.driver=blkdebug,file.image.driver=file,file.image.filename=a.qcow2",
        "read 0 4k",
    ),
    (
        "driver=raw,file.driver=blkdebug,file.image.filename=a.raw",
        "break pwritev A;aio_write 0 4k;wait_break A;resume A;aio_flush",
    ),
    (
        "driver=raw,file.driver=blkdebug,file.image.filename=a.raw,file.inject-error.0.event=none,file.inject-error.0.iotype=discard",
        "write 0 4k;write -z 4k 4k;discard 0 4k;flush;read 0 4k",
    ),
    (
        "driver=raw,file.driver=blkdebug,file.image.filename=a.raw,file.inject-error.0.event=none,file.inject-error.0.iotype=write-zeroes",
        "write 0 4k;write -z 4k 4k;discard 0 4k;flush;read 0 4k",
    ),
    (
        "driver=raw,file.driver=blkdebug,file.image.filename=a.raw,file.inject-error.0.event=none,file.inject-error.0.sector=8,file.inject-error.0.iotype=read",
        "write 0 8k;read 0 4k;read 4k 512;read 4608 512;read 0 8k",
    ),
    (
        "driver=raw,file.driver=blkdebug,file.image.filename=a.raw,file.inject-error.0.event=write_aio,file.inject-error.0.once=on",
        "write 0 4k;write 0 4k;read 0 4k",
    ),
    ("driver=raw,file.driver=blkdebug,file.image.filename=nofile", "read 0 4k"),
    (
        "driver=blkdebug,image.driver=qcow2,image.file.filename=a.qcow2,inject-error.0.event=none,inject-error.0.iotype=write",
        "read 0 4k;write 0 4k;discard 0 64k;write -z 0 64k;flush",
    ),
    (
        "driver=blkdebug,image.driver=qcow2,image.file.filename=a.qcow2,inject-error.0.event=pwritev,inject-error.0.once=on,inject-error.0.errno=28",
        "read 0 4k;write 0 4k;write 0 4k",
    ),
    (
        "driver=blkdebug,image.driver=raw,image.file.filename=a.raw",
        "break pwritev A;aio_write 0 4k;wait_break A;read 4k 4k;resume A;aio_flush",
    ),
    ("driver=blkdebug", "read 0 4k"),
];

/// Commands on `blkdebug::a.qcow2`, whose first two clusters are allocated.
const BREAKS: &[&str] = &[
    "break foo A",
    "break none A;break pwritev A;remove_break A",
    "break write_aio A;aio_write 0 64k;wait_break A;resume A;aio_flush",
    "break write_aio A;aio_write 0 64k;wait_break A;length;resume A;resume A;aio_flush",
    "break write_aio A;aio_write 0 64k;wait_break A;remove_break A;aio_flush",
    "break write_aio A;remove_break A;write 0 64k",
    "remove_break A;resume A",
    "break write_aio A;break write_aio B;aio_write 0 64k;wait_break A;resume A;length;resume B;aio_flush",
    "read 0 4k;break write_aio A;aio_write 0 4k;wait_break A;write 64k 64k;read 64k 4k;resume A;aio_flush;read -P 0xcd 0 4k",
    "break read_aio A;aio_read 0 4k;wait_break A;write -P 7 64k 4k;resume A;aio_flush",
    "break l2_load A;aio_read 0 4k;wait_break A;resume A;aio_flush;read 0 4k",
    "break pwritev A;aio_write 0 4k;wait_break A;resume A;aio_flush",
    "break pwritev_done A;aio_write 0 4k;wait_break A;resume A;aio_flush",
    "break",
    "break read_aio",
    "break read_aio A B",
    "wait_break",
    "resume A B",
    "help wait_break x",
];

/// File names of the image; each is read twice.
const NAMES: &[&str] = &[
    "blkdebug::a.qcow2",
    "blkdebug:once.conf:a.qcow2",
    "blkdebug:state.conf:a.qcow2",
    "blkdebug:nofile:a.qcow2",
    "blkdebug:a.qcow2",
    "blkdebug::nofile",
    "blkdebug:foo.conf:a.qcow2",
    "blkdebug:group.conf:a.qcow2",
    "blkdebug:nogroup.conf:a.qcow2",
    "blkdebug:option.conf:a.qcow2",
    "blkdebug:errno.conf:a.qcow2",
    "json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"blkdebug\",\"image\":{\"driver\":\"file\",\"filename\":\"a.qcow2\"},\
     \"inject-error\":[{\"event\":\"read_aio\",\"errno\":5,\"once\":true}]}}",
];

const FILES: &[(&str, &str)] = &[
    (
        "once.conf",
        "# a comment\n\n[inject-error]\nevent = \"read_aio\"\nerrno = \"28\"\nonce = \"on\"\n",
    ),
    (
        "state.conf",
        "[set-state]\nevent = \"read_aio\"\nnew_state = \"2\"\n\n[inject-error]\nevent = \"read_aio\"\nstate = \"2\"\n",
    ),
    ("foo.conf", "[inject-error]\nevent = \"foo\"\n"),
    ("group.conf", "[inject-errors]\nevent = \"read_aio\"\n"),
    ("nogroup.conf", "event = \"read_aio\"\n"),
    ("option.conf", "[inject-error]\nevent = \"read_aio\"\nfoo = \"1\"\n"),
    ("errno.conf", "[inject-error]\nerrno = \"x\"\nevent = \"read_aio\"\n"),
];

fn make(dir: &Path) {
    let qemu_img = tools::find("qemu-img").unwrap();
    for (name, format) in [("a.qcow2", "qcow2"), ("a.raw", "raw")] {
        let path = dir.join(name);
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        tools::run_ok(
            Command::new(&qemu_img).args(["create", "-q", "-f", format]).arg(&path).arg("1M"),
        );
        let qemu_io = tools::find("qemu-io").unwrap();
        tools::run_ok(Command::new(qemu_io).args(["-f", format, "-c", "write 0 128k"]).arg(&path));
    }
    FILES.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
}

/// Seconds.
const LIMIT: &str = "60";

/// Without the name of the program, and without what cannot be written at the end because nothing can.
fn without_closing(stderr: &str) -> String {
    let text = stderr.replace("qemu-io: ", "");
    let closing = ["Failed to flush the ", "Could not close the image: "];
    let lines = text.lines().filter(|line| !closing.iter().any(|start| line.starts_with(start)));
    lines.map(|line| format!("{line}\n")).collect()
}

/// One command line by both programs, each on images of its own. Says whether they did the same.
fn same(arguments: &[&str], failures: &mut Vec<String>) {
    let runs = [tools::find("qemu-io").unwrap(), program::called("qemu-io")].map(|program| {
        let directory = TempDir::new().unwrap();
        make(directory.path());
        // A breakpoint that is never met would be waited for without end.
        let program = program.to_str().unwrap();
        let all: Vec<&str> = [LIMIT, program].iter().chain(arguments).copied().collect();
        let Run { stdout, stderr, code } = run(Path::new("timeout"), directory.path(), &all);
        Run { stdout: without_times(&stdout), stderr: without_closing(&stderr), code }
    });
    let [theirs, ours] = runs;
    if theirs != ours {
        failures.push(format!("{arguments:?}\ntheirs: {theirs:#?}\nours: {ours:#?}"));
    }
}

fn arguments<'a>(before: &[&'a str], commands: &'a str, behind: &[&'a str]) -> Vec<&'a str> {
    let commands = commands.split(';').flat_map(|command| ["-c", command]);
    before.iter().copied().chain(commands).chain(behind.iter().copied()).collect()
}

fn told(failures: &[String]) {
    assert!(failures.is_empty(), "{} differ\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn rules_do_what_theirs_do() {
    if tools::missing("qemu-io") {
        return;
    }
    let mut failures = Vec::new();
    for (rules, commands) in RULES {
        let all =
            if rules.starts_with(',') { format!("{FAULTY}{rules}") } else { (*rules).to_owned() };
        same(&arguments(&["--image-opts"], commands, &[&all]), &mut failures);
    }
    told(&failures);
}

#[test]
fn breakpoints_do_what_theirs_do() {
    if tools::missing("qemu-io") {
        return;
    }
    let mut failures = Vec::new();
    for commands in BREAKS {
        same(&arguments(&[], commands, &["blkdebug::a.qcow2"]), &mut failures);
    }
    // An image without faults.
    let commands = "break write_aio A;remove_break A;resume A";
    same(&arguments(&[], commands, &["a.qcow2"]), &mut failures);
    told(&failures);
}

#[test]
fn file_names_do_what_theirs_do() {
    if tools::missing("qemu-io") {
        return;
    }
    let mut failures = Vec::new();
    for name in NAMES {
        same(&arguments(&[], "read 0 4k;read 0 4k", &[name]), &mut failures);
    }
    told(&failures);
}

#[test]
fn programs_end_as_theirs_do() {
    if tools::missing("qemu-io") {
        return;
    }
    let mut failures = Vec::new();
    for commands in
        ["abort", "sigraise 15", "sigraise 9", "sigraise 0;length", "sigraise 66", "sigraise x"]
    {
        same(&arguments(&[], commands, &["blkdebug::a.qcow2"]), &mut failures);
    }
    told(&failures);
}

/// What changes, byte for byte; flushes and marks are where each program puts them.
#[test]
fn logs_have_what_theirs_have() {
    if tools::missing("qemu-io") {
        return;
    }
    const COMMANDS: &str = "write -P 1 0 64k;flush;write -z 64k 64k;discard 0 64k;write -f -P 3 1k 1k;write -P 4 100 10;\
                            write -z -u 128k 64k;write -P 5 200k 1000";
    let logs = [tools::find("qemu-io").unwrap(), program::called("qemu-io")].map(|program| {
        let directory = TempDir::new().unwrap();
        make(directory.path());
        let log = directory.path().join("log");
        File::create(&log).unwrap();
        let options =
            "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw,file.log.filename=log";
        let ended =
            run(&program, directory.path(), &arguments(&["--image-opts"], COMMANDS, &[options]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let log = write_log::read(&log);
        assert!(log.entries.iter().any(|entry| entry.flags & FLUSH != 0));
        let mut entries = log.entries;
        entries.retain(|entry| entry.is_change() && entry.flags & MARK == 0);
        // A durable write is one with a flush behind it there, and has a flag here.
        entries.iter_mut().for_each(|entry| entry.flags &= DISCARD);
        (log.sector, entries)
    });
    let [theirs, ours] = logs;
    assert_eq!(theirs, ours);
}

/// A log that does not exist is not made, as theirs; one is gone on with.
#[test]
fn logs_are_begun_as_theirs() {
    if tools::missing("qemu-io") {
        return;
    }
    let mut failures = Vec::new();
    for options in [
        "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw,file.log.filename=nolog",
        "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw",
        "driver=raw,file.driver=blklogwrites,file.log.filename=once.conf",
        "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw,file.log.filename=once.conf,file.log-append=on,file.log-sector-size=512",
        "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw,file.log.filename=once.conf,file.log-sector-size=1000",
        "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw,file.log.filename=once.conf,file.log-sector-size=4096",
    ] {
        same(
            &arguments(&["--image-opts"], "write 0 4k;read -P 0xcd 0 4k", &[options]),
            &mut failures,
        );
    }
    told(&failures);
    let directory = TempDir::new().unwrap();
    make(directory.path());
    let log = directory.path().join("log");
    File::create(&log).unwrap();
    let options =
        "driver=raw,file.driver=blklogwrites,file.file.filename=a.raw,file.log.filename=log";
    let mut counts = Vec::new();
    for (program, append) in
        [("qemu-io", ""), ("blkring", ",file.log-append=on"), ("qemu-io", ",file.log-append=on")]
    {
        let program = match program {
            "blkring" => program::called("qemu-io"),
            theirs => tools::find(theirs).unwrap(),
        };
        let options = format!("{options}{append}");
        let ended = run(
            &program,
            directory.path(),
            &arguments(&["--image-opts"], "write 0 4k", &[&options]),
        );
        assert_eq!(ended.code, Some(0), "{ended:?}");
        counts.push(write_log::read(&log).entries.iter().filter(|entry| entry.is_change()).count());
    }
    assert_eq!(counts, [1, 2, 3], "each goes on where the other stopped");
}
