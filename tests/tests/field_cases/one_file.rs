//! F62: to look at an image is to open one file, whatever it names.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use blkring_qcow2::CreateOptions;
use blkring_tests::images::{backing, create};
use blkring_tests::program;
use blkring_tests::report::{Skip, or_skip};
use blkring_tests::tools::{self, find};

/// What any program opens, whatever it does.
const SYSTEM: [&str; 6] = ["/etc/", "/lib", "/usr/", "/proc/", "/sys/", "/dev/null"];

/// The files that a call of the program opens, of its own or by the dynamic linker for it, without those of the system.
fn opened(directory: &Path, arguments: &[&str]) -> BTreeSet<String> {
    let log = directory.join("calls");
    let mut command = Command::new(find("strace").unwrap());
    command.args(["-f", "-s", "4096", "-e", "trace=open,openat,openat2,creat,connect"]);
    command.arg("-o").arg(&log).arg(program::blkring()).args(arguments).current_dir(directory);
    // Whoever runs the tests has the linker look in many places.
    let output = command.env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let calls = std::fs::read_to_string(&log).unwrap();
    assert!(calls.contains("openat("), "{arguments:?}: {calls}");
    assert!(!calls.contains("connect("), "{arguments:?}: {calls}");
    let paths = calls.lines().filter_map(|line| line.split('"').nth(1));
    let own = paths.filter(|path| !SYSTEM.iter().any(|system| path.starts_with(system)));
    own.map(str::to_owned).collect()
}

#[test]
fn f62_info_and_check_open_one_file() {
    let traced = tools::run("strace", &["-f", "-e", "trace=none", "true"]);
    let traced = traced.map_err(|error| Skip::new(format!("strace cannot follow: {error}")));
    if or_skip(traced).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("base.raw"), [7; 65536]).unwrap();
    let secret = directory.join("secret");
    std::fs::write(&secret, [7; 65536]).unwrap();
    let secret = secret.to_str().unwrap();
    let json = format!("json:{{\"driver\":\"raw\",\"file.filename\":\"{secret}\"}}");
    let names = ["base.raw", secret, &json, "nbd://localhost/disk", "/dev/stdin", "missing"];
    for (number, name) in names.iter().enumerate() {
        let image = format!("{number}.qcow2");
        let backing = backing(name, "raw");
        create(&directory.join(&image), &CreateOptions::new(65536).backing(backing));
        for command in [&["info"][..], &["info", "--output=json"], &["check"]] {
            let arguments = [command, &[&image]].concat();
            let found = opened(directory, &arguments);
            assert_eq!(found, BTreeSet::from([image.clone()]), "{arguments:?} over {name}");
        }
    }
    // One that has to follow the name is seen to do so.
    let found = opened(directory, &["map", "0.qcow2"]);
    assert!(found.len() == 2 && found.iter().any(|path| path.ends_with("base.raw")), "{found:?}");
}
