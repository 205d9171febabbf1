//! Copies between formats and programs: F41, F42, F76, F77, F95, F98 and F99.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use blkring_tests::program;
use blkring_tests::report::{Skip, or_skip};
use blkring_tests::twins::Twins;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// F41: a copy of an overlay stands alone.
#[test]
fn f41_a_copy_of_an_overlay_is_flat() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("base.raw", 4 * MIB, &[(0, 4 << 20)]);
    twins.theirs("create -q -f qcow2 -b base.raw -F raw overlay.q");
    twins.io("", "overlay.q", &["write -P 7 1M 64k"]);
    for target in ["raw", "qcow2"] {
        twins.ours(&format!("convert -O {target} overlay.q flat"));
        let info = twins.theirs("info flat");
        assert!(!info.contains("backing file"), "{info}");
        twins.theirs("compare overlay.q flat");
    }
    fs::remove_file(twins.path("base.raw")).unwrap();
    twins.theirs("check -q flat");
    twins.ours("convert -O raw flat again");
    twins.theirs("compare flat again");
}

/// F42: sets of options, there and back.
#[test]
fn f42_images_of_twelve_kinds_go_there_and_back() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("source.raw", 9 * MIB + 512, &[(0, 1 << 20), (3 << 20, 100_000), (9 << 20, 512)]);
    twins.raw("base.raw", 9 * MIB + 512, &[(1 << 20, 3 << 20)]);
    let both = [
        "-O raw",
        "-O raw -S 0",
        "-O qcow2",
        "-O qcow2 -S 0",
        "-O qcow2 -o cluster_size=512",
        "-O qcow2 -o cluster_size=4k",
        "-O qcow2 -o cluster_size=2M",
        "-O qcow2 -o lazy_refcounts=on",
        "-O qcow2 -o compat=1.1,refcount_bits=16",
        "-O qcow2 -W -m 16",
        "-O qcow2 -B base.raw -F raw",
        "-O qcow2 -t writethrough -o cluster_size=64k",
        "-O qcow2 -c",
        "-O qcow2 -c -o compression_type=zstd",
        "-O qcow2 -o compat=0.10",
        "-O qcow2 -o refcount_bits=1",
        "-O qcow2 -o refcount_bits=64",
        "-O qcow2 -o preallocation=metadata",
    ];
    for options in both {
        twins.theirs(&format!("convert -f raw {options} source.raw theirs"));
        twins.ours("convert -O raw theirs back.raw");
        assert!(same(&twins, "source.raw", "back.raw"), "{options}: theirs to ours");
    }
    for options in both {
        twins.ours(&format!("convert -f raw {options} source.raw ours"));
        twins.theirs("convert -O raw ours back.raw");
        assert!(same(&twins, "source.raw", "back.raw"), "{options}: ours to theirs");
        if options.contains("qcow2") {
            twins.theirs("check -q -f qcow2 ours");
        }
    }
}

/// F42: a backing file whose format nobody says is not guessed.
#[test]
fn f42_a_backing_file_of_unknown_format_is_refused() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("base.raw", MIB, &[(0, 4096)]);
    twins.raw("source.raw", MIB, &[(0, 1 << 20)]);
    for line in [
        "convert -f raw -O qcow2 -B base.raw source.raw OUT",
        "convert -f raw -O qcow2 -o backing_file=base.raw source.raw OUT",
        "create -q -f qcow2 -b base.raw OUT",
    ] {
        let ended = twins.same(line);
        assert_eq!(ended.code, Some(1), "{line}: {ended:?}");
        assert!(ended.stderr.contains("backing format"), "{line}: {ended:?}");
        assert!(!twins.path("ours").exists(), "{line}");
    }
}

/// What the threads of a copy say at their end: the numbers behind these names, by thread.
fn threads(twins: &Twins, line: &str, names: &[&str]) -> Vec<u64> {
    let ended = Command::new(program::blkring())
        .args(["--trace", "blkring=debug"])
        .args(line.split(' '))
        .current_dir(twins.dir())
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let text = String::from_utf8(ended.stderr).unwrap();
    let ends = text.lines().filter(|line| line.contains(" ends "));
    let number = |word: &str| {
        let (name, value) = word.split_once('=')?;
        names.contains(&name).then(|| value.parse::<u64>().unwrap())
    };
    let numbers = ends.map(|line| line.split(' ').filter_map(number).collect::<Vec<_>>());
    numbers.filter(|of_one| !of_one.is_empty()).map(|of_one| of_one.iter().sum()).collect()
}

/// F76: what is compressed is read by several threads, each cluster by one of them, and so it is written.
#[test]
fn f76_threads_share_the_work_of_compression() {
    let Some(twins) = Twins::new() else { return };
    const CLUSTERS: u64 = 600;
    let lines = (0..CLUSTERS << 12).map(|number| format!("{number:14}.\n"));
    fs::write(twins.path("text.raw"), lines.collect::<String>()).unwrap();
    twins.theirs("convert -c -f raw -O qcow2 text.raw text.q");
    let read = threads(&twins, "convert -O raw text.q back.raw", &["bytes"]);
    assert!(same(&twins, "text.raw", "back.raw"));
    assert_eq!(read.iter().sum::<u64>(), CLUSTERS << 16, "{read:?}");
    assert!(read.iter().filter(|&&bytes| bytes > 0).count() > 1, "{read:?}");
    for options in ["", "-W -m 16", "-o compression_type=zstd"] {
        let options = options.split(' ').map(|word| format!("{word} ")).collect::<String>();
        let line = format!("convert -c -O qcow2 {}text.q again.q", options.trim_start());
        let packed = threads(&twins, &line, &["compressed", "plain"]);
        assert_eq!(packed.iter().sum::<u64>(), CLUSTERS, "{packed:?}");
        let cores = std::thread::available_parallelism().unwrap().get();
        let busy = packed.iter().filter(|&&clusters| clusters > 0).count();
        assert_eq!(packed.len(), cores, "{packed:?}");
        assert!(busy >= cores.min(2), "{packed:?}");
        twins.theirs("compare -f qcow2 -F raw again.q text.raw");
        twins.theirs("check -q again.q");
    }
}

/// A signal asks once, and is answered once.
#[test]
fn a_signal_asks_for_progress() {
    use std::io::Read;
    use std::process::Stdio;
    let Some(twins) = Twins::new() else { return };
    twins.raw("source.raw", 8 * MIB, &[(0, 8 << 20)]);
    let mut copy = Command::new(program::blkring())
        .args(["convert", "-p", "-r", "4M", "-f", "raw", "-O", "raw", "source.raw", "copy.raw"])
        .current_dir(twins.dir())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first that is told comes when signals are heard.
    let mut told = [0; 20];
    copy.stdout.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(str::from_utf8(&told).unwrap(), "    (0.00/100%)\r    ");
    let pid = copy.id().to_string();
    assert!(Command::new("kill").args(["-USR1", &pid]).status().unwrap().success());
    let ended = copy.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let text = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("    (") && text.ends_with("/100%)\n"), "{text}");
    assert!(same(&twins, "source.raw", "copy.raw"));
}

fn same(twins: &Twins, one: &str, other: &str) -> bool {
    fs::read(twins.path(one)).unwrap() == fs::read(twins.path(other)).unwrap()
}

/// F77: a limit of memory far below the size of the image, and a target that takes its time.
#[test]
fn f77_a_small_memory_and_a_slow_target_are_enough() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("source.raw", 300 * MIB, &[(0, 300 << 20)]);
    let Some(group) = or_skip(Group::new(128 * MIB)) else { return };
    group.slow_down(twins.dir(), 60 * MIB);
    for options in ["-O qcow2 -W -m 16", "-O raw -t none -T none -m 16", "-O qcow2 -c -W -m 16"] {
        let ended = group.run(&twins, &format!("convert -f raw {options} source.raw target"));
        assert!(ended.status.success(), "{options}: {ended:?}");
        twins.theirs("compare -f raw source.raw target");
    }
}

/// F77: the same with compressed clusters. What is compressed and what is decompressed lies in memory besides, most
/// with the largest clusters.
#[test]
fn f77_a_small_memory_is_enough_for_compressed_clusters() {
    let Some(twins) = Twins::new() else { return };
    let Some(group) = or_skip(Group::new(128 * MIB)) else { return };
    // A part of it cannot be made much smaller.
    let pieces: Vec<(u64, usize)> = (0..160).map(|piece| (piece << 20, 600 << 10)).collect();
    twins.raw("source.raw", 160 * MIB, &pieces);
    twins.theirs("convert -c -f raw -O qcow2 -o cluster_size=2M source.raw source.q");
    group.slow_down(twins.dir(), 60 * MIB);
    for options in [
        "-f raw -o compression_type=zstd source.raw",
        "-f qcow2 -W -m 16 source.q",
        "-f qcow2 -m 16 -o cluster_size=2M source.q",
        "-f qcow2 -W -m 16 -o cluster_size=2M,compression_type=zstd source.q",
    ] {
        let ended = group.run(&twins, &format!("convert -c -O qcow2 {options} target"));
        assert!(ended.status.success(), "{options}: {ended:?}");
        twins.theirs("compare -f raw source.raw target");
        twins.theirs("check -q target");
    }
}

/// A control group with a limit of memory. It is removed at the end.
struct Group {
    memory: PathBuf,
    /// The one for block devices, where that is another.
    block: Option<PathBuf>,
}

impl Group {
    fn new(limit: u64) -> Result<Self, Skip> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("blkring-test-{}-{number}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let one = |file: &str, controller: &str| {
            let path = root.join(controller).join(&name);
            let made =
                fs::create_dir(&path).and_then(|()| fs::write(path.join(file), limit.to_string()));
            match made {
                Ok(()) => Ok(path),
                Err(error) => {
                    drop(fs::remove_dir(&path));
                    Err(Skip::new(format!("no control group with a limit of memory: {error}")))
                }
            }
        };
        match one("memory.limit_in_bytes", "memory") {
            Ok(memory) => {
                let block = root.join("blkio").join(&name);
                let block = fs::create_dir(&block).is_ok().then_some(block);
                Ok(Group { memory, block })
            }
            Err(_) => one("memory.max", "").map(|memory| Group { memory, block: None }),
        }
    }

    /// Lets writes to the device of `dir` be no faster than `rate` bytes in a second, if the kernel can.
    fn slow_down(&self, dir: &Path, rate: u64) {
        let device = fs::metadata(dir).unwrap().dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let set = match &self.block {
            Some(block) => {
                let file = block.join("blkio.throttle.write_bps_device");
                fs::write(file, format!("{major}:{minor} {rate}"))
            }
            None => fs::write(self.memory.join("io.max"), format!("{major}:{minor} wbps={rate}")),
        };
        if let Err(error) = set {
            eprintln!("the device is not slowed down: {error}");
        }
    }

    fn run(&self, twins: &Twins, line: &str) -> Output {
        let groups = [Some(&self.memory), self.block.as_ref()].into_iter().flatten();
        let join: String =
            groups.map(|group| format!("echo $$ > {}/cgroup.procs && ", group.display())).collect();
        Command::new("timeout")
            .args(["120", "sh", "-c", &format!("{join} exec \"$0\" \"$@\"")])
            .arg(program::blkring())
            .args(line.split(' '))
            .current_dir(twins.dir())
            .output()
            .unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for group in [Some(&self.memory), self.block.as_ref()].into_iter().flatten() {
            drop(fs::remove_dir(group));
        }
    }
}

/// F95: a thousand small copies, each with its own number of pieces in flight, order, clusters and processor.
#[test]
fn f95_a_thousand_copies_end() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("source.raw", 3 * MIB, &[(0, 100_000), (1 << 20, 9), (2_097_151, 2), (3 << 19, 700)]);
    twins.theirs("convert -f raw -O qcow2 -o cluster_size=4k source.raw source.q");
    let expected = fs::read(twins.path("source.raw")).unwrap();
    let mut seed = 95u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for round in 0..1000 {
        let mut line = vec!["convert".to_owned(), format!("-m{}", 1 + random(16))];
        line.extend((random(2) == 0).then(|| "-W".to_owned()));
        line.push(format!("-S{}", [0, 512, 4096, 65536][random(4) as usize]));
        let raw = random(2) == 0;
        line.push(if raw { "-Oraw".into() } else { "-Oqcow2".into() });
        if !raw {
            line.push(format!("-ocluster_size={}", 512 << random(13)));
        }
        line.push(["source.raw", "source.q"][random(2) as usize].to_owned());
        line.push("target".to_owned());
        let processor = random(2).to_string();
        let nice = random(20).to_string();
        let mut command = Command::new("timeout");
        command.args(["60", "nice", "-n", &nice]);
        if round % 3 == 0 && blkring_tests::tools::find("taskset").is_ok() {
            command.args(["taskset", "-c", if processor == "1" { "0,1" } else { "0" }]);
        }
        command.arg(program::blkring()).args(&line).current_dir(twins.dir());
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{round}: {line:?}: {ended:?}");
        if raw {
            assert!(fs::read(twins.path("target")).unwrap() == expected, "{round}: {line:?}");
        } else if round % 20 == 0 {
            twins.theirs("compare source.raw target");
            twins.theirs("check -q target");
        }
    }
}

/// F98: progress for programs, on a descriptor of theirs.
#[test]
fn f98_progress_is_lines_of_json_on_a_descriptor() {
    let Some(twins) = Twins::new() else { return };
    twins.raw("source.raw", 64 * MIB, &[(0, 32 << 20), (48 << 20, 1000)]);
    for (form, redirection, file) in
        [("json:7", "7>progress", "progress"), ("json", "2>errors", "errors")]
    {
        let script = format!("exec \"$0\" \"$@\" {redirection}");
        let ended = Command::new("sh")
            .args(["-c", &script])
            .arg(program::blkring())
            .args(["convert", &format!("--progress={form}"), "-f", "raw", "-O", "qcow2"])
            .args(["source.raw", "target"])
            .current_dir(twins.dir())
            .output()
            .unwrap();
        assert!(ended.status.success() && ended.stdout.is_empty(), "{form}: {ended:?}");
        let text = fs::read_to_string(twins.path(file)).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let done: Vec<u64> = lines.iter().map(|line| line["done"].as_u64().unwrap()).collect();
        assert!(lines.len() > 5 && done.is_sorted(), "{form}: {text}");
        assert_eq!(done[0], 0);
        let last = lines.last().unwrap();
        assert_eq!((&last["done"], last["percent"].as_f64()), (&last["total"], Some(100.0)));
    }
    let ended = twins.ours_ends("convert --progress=json:77 -f raw source.raw target");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("descriptor 77"), "{ended:?}");
}

/// F99: an error says which file, what was done with it, where, and what the kernel said.
#[test]
fn f99_errors_have_a_form_for_programs() {
    use std::os::unix::fs::FileExt;
    let Some(twins) = Twins::new() else { return };
    twins.theirs("create -q -f qcow2 bad.q 1M");
    twins.io("", "bad.q", &["write -P 1 0 1M"]);
    let file = fs::File::options().read(true).write(true).open(twins.path("bad.q")).unwrap();
    let number = |offset| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset).unwrap();
        u64::from_be_bytes(bytes)
    };
    let table = number(number(40)) & 0x00ff_ffff_ffff_fe00;
    file.write_all_at(&(number(table + 24) + 512).to_be_bytes(), table + 24).unwrap();
    let error = |line: &str| {
        let ended = Command::new(program::blkring())
            .args(line.split(' '))
            .current_dir(twins.dir())
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["error"].clone()
    };
    let found = error("convert --error-format=json -O raw bad.q out");
    assert_eq!((found["kind"].as_str(), found["path"].as_str()), (Some("io"), Some("bad.q")));
    assert_eq!((found["operation"].as_str(), found["errno"].as_i64()), (Some("map"), Some(5)));
    assert_eq!(found["offset"].as_u64(), Some(3 << 16));
    assert_eq!(found["source_offset"].as_u64(), Some(3 << 16));
    assert!(found["message"].as_str().unwrap().contains("Input/output error"));
    let found = error("--error-format json convert -O raw no-such-file out");
    assert_eq!(
        (found["kind"].as_str(), found["path"].as_str()),
        (Some("open"), Some("no-such-file"))
    );
    let found = error("convert --error-format=json --no-such-option");
    assert_eq!(found["kind"].as_str(), Some("usage"));
}
