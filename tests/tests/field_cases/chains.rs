//! F37: an overlay that is longer than its backing file. F40: chains that lead back to themselves, or nowhere near
//! an end.

use std::path::Path;
use std::time::Duration;

use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{CreateOptions, ImageOptions, OpenError};
use blkring_tests::crowd::same;
use blkring_tests::deadline::within;
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, backing, create, queue, try_open};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools::{missing, qemu_img};

const GIB: u64 = 1 << 30;

/// How long an image that cannot be opened may take to say so.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A base of one GiB, an overlay of two; the base may end within a cluster and within a sector.
fn f37(fs: Fs, sector: SectorSize) {
    use std::os::unix::fs::FileExt;
    if missing("qemu-img") {
        return;
    }
    let Some(mount) = or_skip(Mount::new(fs, sector, 4096)) else { return };
    let path = mount.path().join("top.qcow2");
    for base_size in [GIB, GIB + 4096 + 512, GIB - 777] {
        let base = std::fs::File::create(mount.path().join("base.raw")).unwrap();
        base.set_len(base_size).unwrap();
        base.write_all_at(&[0xAA; 200_000], base_size - 200_000).unwrap();
        let backing = backing("base.raw", "raw");
        create(&path, &CreateOptions::new(2 * GIB).backing(backing));
        // Read a window around the border, then write into the border cluster, on both sides and across.
        let (start, len) = (GIB - (256 << 10), 512 << 10);
        let mut window = vec![0; len];
        window[(base_size - 200_000 - start) as usize..(base_size - start) as usize].fill(0xAA);
        let mut opened = Opened::writable(&path, Cache::Direct);
        same(&opened.read(start, len), &window, start).unwrap();
        let disk = opened.disk.clone();
        for (at, size, byte) in
            [(base_size - 3000, 700, 1u8), (base_size + 9000, 900, 2), (base_size - 50, 100, 3)]
        {
            let mem = IoMem::from(vec![byte; size]);
            opened.run(disk.write(at, mem, Flags::empty())).unwrap();
            window[(at - start) as usize..][..size].fill(byte);
            same(&opened.read(start, len), &window, start).unwrap();
        }
        opened.close();
        let expected = std::fs::File::create(mount.path().join("expected.raw")).unwrap();
        expected.set_len(2 * GIB).unwrap();
        expected.write_all_at(&window, start).unwrap();
        let paths = [mount.path().join("expected.raw"), path.clone()];
        let args = ["compare", "-fraw", "-Fqcow2"].map(str::to_owned).into_iter();
        let args: Vec<_> = args.chain(paths.map(|path| path.display().to_string())).collect();
        qemu_img(&args).unwrap_or_else(|error| panic!("{error}"));
        qemu_img(&["check", &args[4]]).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn f37_on_xfs_4096() {
    f37(Fs::Xfs, SectorSize::S4096);
}

#[test]
fn f37_on_ext4() {
    f37(Fs::Ext4, SectorSize::S512);
}

/// An image of no great size over `below`.
fn link(directory: &Path, name: &str, below: &str) {
    let backing = backing(below, "qcow2");
    let options = CreateOptions::new(1 << 20).cluster_size(512).backing(backing);
    create(&directory.join(name), &options);
}

fn refused(path: &Path) -> OpenError {
    let mut queue = queue();
    let what = path.display().to_string();
    let opened = within(AT_ONCE, &what, || {
        try_open(&mut queue, path, Cache::Cached, ImageOptions::new().writable())
    });
    opened.err().unwrap_or_else(|| panic!("{what} was opened"))
}

#[test]
fn f40_loops_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    link(directory, "self", "self");
    link(directory, "one", "two");
    link(directory, "two", "one");
    link(directory, "head", "one");
    link(directory, "linked", "other-name");
    std::os::unix::fs::symlink("linked", directory.join("other-name")).unwrap();
    for name in ["self", "one", "two", "head", "linked"] {
        let error = refused(&directory.join(name));
        assert!(matches!(error, OpenError::Loop { .. }), "{name}: {error}");
        assert!(error.to_string().contains(directory.to_str().unwrap()), "{error}");
    }
}

#[test]
fn f40_a_chain_of_ten_thousand_is_refused() {
    const DEPTH: usize = 10_000;
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for number in 0..DEPTH {
        link(directory, &number.to_string(), &(number + 1).to_string());
    }
    create(&directory.join(DEPTH.to_string()), &CreateOptions::new(1 << 20));
    let error = refused(&directory.join("0"));
    assert!(matches!(error, OpenError::TooDeep { .. }), "{error}");
    // The end of it is near enough.
    let path = directory.join((DEPTH - 150).to_string());
    let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
    assert_eq!(opened.read(0, 4096), vec![0; 4096]);
}
