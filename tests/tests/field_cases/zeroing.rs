//! F19: a fallocate that fails is the answer, one that is not there is a reason to try another way. F25: which
//! fallocates are made, and what they leave. F35: where the calls are missing, zero-writes and discards succeed all the
//! same. F36: offsets and lengths at the end of what numbers can say.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blkring_engine::sim::{Fault, Matcher, OpKind, Rule, SimDisk, SimOptions, World};
use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenOptions, Queue, QueueOptions, RawDisk, Request, Result,
    Storage,
};
use blkring_qcow2::AllocPolicy;
use blkring_tests::fallocate_trace::{FallocateTrace, Mode};
use blkring_tests::fs::Fs;
use blkring_tests::image_world::Setup;
use blkring_tests::images::queue;
use blkring_tests::loop_device::LoopDevice;
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

const MIB: u64 = 1 << 20;

/// A request on a raw disk of sevens in a simulated file whose fallocates fail with `errno`, if any.
fn on_failing(errno: Option<i32>, request: Request) -> (i32, Vec<u8>) {
    let disk = SimDisk::default();
    disk.create_file("a", &[7; 65536]);
    let raw = RawDisk::new(disk.storage("a", SimOptions::aligned(512)));
    for kind in [OpKind::ZeroRange, OpKind::PunchHole, OpKind::Grow] {
        let fault = errno.map(|errno| Rule::new(Matcher::kind(kind), Fault::Error(errno)).always());
        fault.into_iter().for_each(|rule| disk.inject(rule));
    }
    let mut world = World::new(1, &disk);
    let queue = world.add_queue(QueueOptions::default());
    let handle = world.queue(queue).attach(&raw).unwrap();
    handle.queue(request, 1).unwrap();
    world.drain().done();
    let answers: Vec<_> = world.queue(queue).completions().collect();
    assert_eq!(answers.len(), 1);
    (answers[0].code(), disk.contents("a"))
}

#[test]
fn f19_an_error_of_fallocate_is_the_answer() {
    for flags in [Flags::empty(), Flags::MAY_UNMAP, Flags::NO_FALLBACK, Flags::FUA] {
        let zero = Request::write_zeroes(4096, 8192).with(flags);
        for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EPERM, libc::ETXTBSY] {
            let (code, content) = on_failing(Some(errno), zero.clone());
            assert_eq!(code, -errno, "{flags:?}");
            assert_eq!(content, [7; 65536], "nothing was written instead");
        }
        let expected = if flags == Flags::NO_FALLBACK { -libc::ENOTSUP } else { 0 };
        let (code, content) = on_failing(Some(libc::EOPNOTSUPP), zero);
        assert_eq!(code, expected, "{flags:?}");
        let zeros = if code == 0 { 8192 } else { 0 };
        assert_eq!(content.iter().filter(|&&byte| byte == 0).count(), zeros);
    }
    let discard = Request::discard(4096, 8192);
    assert_eq!(on_failing(Some(libc::EIO), discard.clone()).0, -libc::EIO);
    assert_eq!(on_failing(Some(libc::EOPNOTSUPP), discard.clone()), (0, vec![7; 65536]));
    assert_eq!(on_failing(None, discard).0, 0);
}

/// An image whose zeroing fails says so, and goes on when the disk does.
#[test]
fn f19_an_image_survives_an_error_of_fallocate() {
    for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
        let mut w = Setup::new(16).policy(policy).make();
        let fails = Rule::new(Matcher::kind(OpKind::ZeroRange), Fault::Error(libc::EIO)).always();
        w.disk.inject(fails);
        let answers: Vec<_> = (0..8).map(|cluster| w.write(0, cluster, 1..3, 0x11)).collect();
        w.world.drain().done();
        let failed = answers.iter().filter(|answer| answer.result().is_err()).count();
        assert!(failed > 0 || w.disk.count(OpKind::ZeroRange) == 0, "{policy:?}: errors are lost");
        let errors = answers.iter().filter_map(|answer| answer.result().err());
        errors.for_each(|error| assert_eq!(error.errno, libc::EIO, "{policy:?}: {error}"));
        w.disk.clear_faults();
        for cluster in 0..8 {
            let again = w.write(0, cluster, 1..3, 0x22);
            w.world.drain().done();
            again.result().unwrap();
            w.reads_as(cluster, 0..3, &[0, 0x22]).unwrap();
        }
        let closed = w.close(0);
        w.finish(&closed);
        assert!(w.crash(|_| false).check().is_clean(), "{policy:?}");
    }
}

fn open(path: &Path, cache: Cache) -> std::result::Result<Storage, blkring_engine::OpenError> {
    Storage::open(path, &OpenOptions::new().access(Access::ReadWrite).cache(cache))
}

/// Runs one request of a raw disk.
fn run(queue: &mut Queue, storage: &std::sync::Arc<RawDisk>, request: Request) -> Result<()> {
    let disk = queue.attach(storage).unwrap();
    queue.block_on(disk.request(request)).unwrap()
}

#[test]
fn f25_fallocate_is_called_with_exactly_these_arguments() {
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, 64)) else { return };
    let path = mount.path().join("image");
    std::fs::write(&path, vec![7; 4 << 20]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let Some(trace) = or_skip(FallocateTrace::new(&path.metadata().unwrap())) else { return };
    let mut queue = queue();
    let raw = RawDisk::new(open(&path, Cache::Direct).unwrap());
    let punch = |offset, len| (Mode::PunchHole, offset, len);
    let zero = |offset, len| (Mode::ZeroRange, offset, len);
    let space = || path.metadata().unwrap().blocks() * 512;
    for (request, expected, freed) in [
        (Request::discard(MIB, MIB), punch(MIB, MIB), MIB),
        (Request::write_zeroes(0, 65536), zero(0, 65536), 0),
        (Request::write_zeroes(2 * MIB, MIB).with(Flags::MAY_UNMAP), punch(2 * MIB, MIB), MIB),
        // Ends within a block are the file system's to zero.
        (Request::write_zeroes(100_000, 1000), zero(100_000, 1000), 0),
        (Request::discard(3 * MIB + 100, 65536), punch(3 * MIB + 100, 65536), 61440),
        (Request::write_zeroes(65536, 512).with(Flags::NO_FALLBACK), zero(65536, 512), 0),
    ] {
        let before = space();
        trace.begin().unwrap();
        run(&mut queue, &raw, request.clone()).unwrap();
        assert_eq!(trace.end().unwrap(), [expected], "{request:?}");
        assert_eq!(before - space(), freed, "{request:?}");
        assert_eq!(path.metadata().unwrap().len(), 4 * MIB, "{request:?}");
    }
    trace.begin().unwrap();
    let lane = queue.lane();
    queue.block_on(raw.storage().grow(&lane, 5 * MIB)).unwrap().unwrap();
    let beyond = raw.storage().write_zeroes(&lane, 5 * MIB, MIB, Flags::MAY_UNMAP);
    queue.block_on(beyond).unwrap().unwrap();
    let plain = (Mode::Plain, 4 * MIB, MIB);
    assert_eq!(trace.end().unwrap(), [plain, zero(5 * MIB, MIB)], "both make it longer");
    assert_eq!(path.metadata().unwrap().len(), 6 * MIB);
    let content = std::fs::read(&path).unwrap();
    assert!(content[4 << 20..].iter().all(|&byte| byte == 0));
    let content = &content[..4 << 20];
    let mut expected = vec![7; 4 << 20];
    for (start, end) in [
        (0, 65536 + 512),
        (100_000, 101_000),
        (1 << 20, 3 << 20),
        ((3 << 20) + 100, (3 << 20) + 100 + 65536),
    ] {
        expected[start..end].fill(0);
    }
    assert!(content == expected, "other bytes than those were changed");
}

/// Every request that takes a ladder, on a file or device of 4 MiB of sevens.
fn all_succeed(path: &Path) {
    for cache in [Cache::Cached, Cache::Direct] {
        let Ok(storage) = open(path, cache) else { continue };
        let raw = RawDisk::new(storage);
        let mut queue = queue();
        let fill = Request::write(0, IoMem::from(vec![7; 4 << 20]));
        run(&mut queue, &raw, fill).unwrap();
        let mut expected = vec![7; 4 << 20];
        for (offset, len, flags) in [
            (0, 4096, Flags::empty()),
            (8192, 100_000, Flags::MAY_UNMAP),
            (MIB + 1, 513, Flags::empty()),
            (MIB + 70_000, 70_001, Flags::MAY_UNMAP | Flags::FUA),
            (4 * MIB - 512, 512, Flags::FUA),
        ] {
            run(&mut queue, &raw, Request::write_zeroes(offset, len).with(flags)).unwrap();
            expected[offset as usize..(offset + len) as usize].fill(0);
        }
        run(&mut queue, &raw, Request::discard(2 * MIB, MIB)).unwrap();
        run(&mut queue, &raw, Request::discard(3 * MIB + 5, 1000)).unwrap();
        // What was discarded may read as anything, and its neighbours as before.
        let mem = IoMem::from(vec![0; 4 << 20]);
        run(&mut queue, &raw, Request::read(0, mem.clone())).unwrap();
        let content = mem.to_vec();
        assert!(content[..2 << 20] == expected[..2 << 20], "{}: {cache:?}", path.display());
        assert!(
            content[3 << 20..][..5] == [7; 5]
                && content[(3 << 20) + 1005..] == expected[(3 << 20) + 1005..]
        );
        run(&mut queue, &raw, Request::flush()).unwrap();
    }
}

#[test]
fn f35_zeros_and_discards_succeed_where_calls_are_missing() {
    let Some(mount) = or_skip(Mount::new(Fs::Tmpfs, SectorSize::S512, 64)) else { return };
    let file = mount.path().join("image");
    std::fs::write(&file, vec![7; 4 << 20]).unwrap();
    all_succeed(&file);
    std::fs::remove_file(&file).unwrap();
    // A device whose backing file has no ZERO_RANGE: the kernel writes the zeros.
    let backing = mount.path().join("backing");
    let Some(device) = or_skip(LoopDevice::over(&backing, SectorSize::S512, 4)) else { return };
    all_succeed(device.path());
    drop(device);
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(device) = or_skip(LoopDevice::new(sector, 4)) else { return };
        all_succeed(device.path());
    }
}

#[test]
fn f36_the_last_sector_that_a_number_can_name_is_an_error() {
    let sectors = (u64::MAX / 512, u64::from(u32::MAX));
    let offset = sectors.0 * 512;
    let length = sectors.1 * 512;
    let memory = || RawDisk::new(Storage::in_memory("memory", vec![7; 65536], 1 << 20));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; 65536]).unwrap();
    let mut disks = vec![memory(), RawDisk::new(open(file.path(), Cache::Cached).unwrap())];
    if let Some(device) = or_skip(LoopDevice::new(SectorSize::S512, 4)) {
        disks.push(RawDisk::new(open(device.path(), Cache::Direct).unwrap()));
        asked_beyond(&disks, offset, length);
        disks.clear();
    }
}

fn asked_beyond(disks: &[std::sync::Arc<RawDisk>], offset: u64, length: u64) {
    let mut queue = queue();
    for disk in disks {
        let size = disk.storage().size();
        for at in [offset, i64::MAX as u64 / 512 * 512, size - 512, u64::MAX] {
            let mem = IoMem::from(vec![0; 1024]);
            for request in [
                Request::read(at, mem.clone()),
                Request::write(at, mem.clone()),
                Request::write_zeroes(at, length),
                Request::write_zeroes(at, length).with(Flags::all()),
                Request::discard(at, length),
                Request::discard(at, u64::MAX),
                Request::write_zeroes(at, u64::MAX - at),
            ] {
                let asked = format!("{request:?} of {}", disk.storage().path());
                if at == u64::MAX && request.is_empty() {
                    continue;
                }
                let error = run(&mut queue, disk, request).unwrap_err();
                assert_eq!(error.errno, libc::EIO, "{asked}");
            }
            // The storage itself has no guest to be told of: EFBIG where no file reaches.
            let (storage, lane) = (disk.storage(), queue.lane());
            if i64::try_from(at).is_err() {
                let zeroed = storage.write_zeroes(&lane, at, length, Flags::empty());
                assert_eq!(queue.block_on(zeroed).unwrap().unwrap_err().errno, libc::EFBIG);
                let given = storage.discard(&lane, at, length);
                assert_eq!(queue.block_on(given).unwrap().unwrap_err().errno, libc::EFBIG);
            }
        }
        assert_eq!(disk.storage().size(), size, "nothing became longer");
    }
}
