//! F27: growth of a file beside writes beyond its end, on real file systems.
//!
//! A kernel that loses such writes is not to be had here; on the old kernel of the simulated disk the same requests do
//! lose data when the rule is broken (see `main.rs`). This is the other half: the rule costs nothing and hurts nothing
//! where the kernel is sound.

use std::sync::Arc;

use blkring_engine::sim::Rng;
use blkring_engine::{Access, Cache, Flags, IoMem, OpenOptions, Storage};
use blkring_tests::duo::{Gate, duo};
use blkring_tests::fs::Fs;
use blkring_tests::images::queue;
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

/// How far the file grows in a round, in bytes.
const STEP: u64 = 256 << 10;

/// What is written, in bytes.
const PIECE: u64 = 4096;

/// After so many rounds the file is cut back to nothing.
const LAP: u64 = 64;

/// What makes the file larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// A zero-write from the end on; the other one writes behind it.
    Zeroes,
    /// Allocation; the other one writes into it.
    Grow,
    /// Truncation to a larger size; the other one writes into it.
    Resize,
}

/// Rounds of each kind: `BLKRING_F27_ROUNDS`, 200000 in the long run.
fn rounds() -> u64 {
    std::env::var("BLKRING_F27_ROUNDS").map_or(500, |text| text.parse().unwrap())
}

/// Where a round begins in the file: its end at that time.
fn end(round: u64) -> u64 {
    round % LAP * 2 * STEP
}

/// Where the other one writes.
fn target(growth: Growth, round: u64) -> u64 {
    let within = Rng::new(round).below(STEP / PIECE) * PIECE;
    match growth {
        Growth::Zeroes => end(round) + STEP + within,
        Growth::Grow | Growth::Resize => end(round) + within,
    }
}

fn grows(storage: &Storage, growth: Growth, mut gate: Gate<'_>) {
    let mut queue = queue();
    let lane = queue.lane();
    for round in 0..rounds() {
        let begin = end(round);
        if begin == 0 {
            queue.block_on(storage.resize(&lane, 0)).unwrap().unwrap();
        }
        gate.pass();
        queue
            .block_on(async {
                match growth {
                    Growth::Zeroes => {
                        storage.write_zeroes(&lane, begin, STEP, Flags::empty()).await
                    }
                    Growth::Grow => storage.grow(&lane, begin + STEP).await,
                    Growth::Resize => storage.resize(&lane, begin + STEP).await,
                }
            })
            .unwrap()
            .unwrap();
        gate.pass();
        // The other one looks at what it has written; then the file is as long as the next round expects.
        gate.pass();
        queue.block_on(storage.resize(&lane, begin + 2 * STEP)).unwrap().unwrap();
    }
}

fn writes(storage: &Storage, growth: Growth, mut gate: Gate<'_>) {
    let mut queue = queue();
    let lane = queue.lane();
    for round in 0..rounds() {
        let at = target(growth, round);
        let bytes = vec![round as u8 | 1; PIECE as usize];
        gate.pass();
        let mem = IoMem::aligned(&bytes);
        queue.block_on(storage.write(&lane, at, &mem, Flags::empty())).unwrap().unwrap();
        gate.pass();
        let back = IoMem::aligned_zeroed(PIECE as usize);
        queue.block_on(storage.read(&lane, at, &back)).unwrap().unwrap();
        assert!(back.to_vec() == bytes, "{growth:?}, round {round}: what was written is lost");
        let size = std::fs::metadata(&**storage.path()).unwrap().len();
        assert_eq!(size, storage.size(), "{growth:?}, round {round}");
        assert!(size >= (at + PIECE).max(end(round) + STEP), "{growth:?}, round {round}: {size}");
        gate.pass();
    }
}

fn f27(fs: Fs) {
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 512)) else { return };
    let path = mount.path().join("file");
    for growth in [Growth::Zeroes, Growth::Grow, Growth::Resize] {
        std::fs::write(&path, b"").unwrap();
        let options = OpenOptions::new().access(Access::ReadWrite).cache(Cache::Direct);
        let storage = Arc::new(Storage::open(&path, &options).unwrap());
        duo(|gate| grows(&storage, growth, gate), |gate| writes(&storage, growth, gate));
        let statistics = storage.statistics();
        println!("F27 on {fs}, {growth:?}: {} rounds, {} waits", rounds(), statistics.waited);
        assert!(statistics.waited > 0, "no request ever had to wait for growth");
    }
}

#[test]
fn f27_on_xfs() {
    f27(Fs::Xfs);
}

#[test]
fn f27_on_ext4() {
    f27(Fs::Ext4);
}
