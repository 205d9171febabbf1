//! Images on XFS, ext4, btrfs and tmpfs, driven by several queues, judged by a model in memory and by the installed qemu programs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};

use blkring_engine::Cache;
use blkring_engine::sim::Rng;
use blkring_qcow2::{AllocPolicy, CreateOptions, ImageOptions};
use blkring_tests::crowd::{Crowd, noise, same};
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools::{missing, qemu_img, qemu_io};

/// Sizes of clusters, with the size of the disk: room for enough units, and a last cluster that is not whole.
const SIZES: [(u64, u64); 4] = [
    (512, (3 << 20) + 512),
    (4096, (12 << 20) + 1536),
    (65536, (48 << 20) + 1536),
    (2 << 20, (60 << 20) + 512),
];

/// Room on the mounted file system, in MiB.
const ROOM: u64 = 2048;

/// What lies under the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    Nothing,
    /// A raw file that ends before the disk does, within a cluster.
    ShortRaw,
    /// A qcow2 image that is longer than the disk, over a short raw file.
    LongQcow2,
}

const BELOW: [Below; 3] = [Below::Nothing, Below::ShortRaw, Below::LongQcow2];

/// One place to test in.
struct Ground {
    mount: Mount,
    cache: Cache,
}

impl Ground {
    fn new(fs: Fs, sector: SectorSize, cache: Cache) -> Option<Self> {
        if missing("qemu-img") || missing("qemu-io") {
            return None;
        }
        Some(Self { mount: or_skip(Mount::new(fs, sector, ROOM))?, cache })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Makes an image of `size` bytes over `below`; what the guest sees of it.
    fn create(&self, name: &str, (cluster_size, size): (u64, u64), below: Below) -> Vec<u8> {
        let mut contents = vec![0; size as usize];
        let short = size / 2 + 1000;
        let raw: Vec<u8> = (0..short).map(|at| noise(at / 3000, at)).collect();
        let named = match below {
            Below::Nothing => None,
            Below::ShortRaw | Below::LongQcow2 => {
                std::fs::write(self.path("base.raw"), &raw).unwrap();
                contents[..raw.len()].copy_from_slice(&raw);
                backing("base.raw", "raw")
            }
        };
        let plain = CreateOptions::new(size).cluster_size(cluster_size);
        if below == Below::LongQcow2 {
            let middle = self.path("middle.qcow2");
            let options = CreateOptions::new(size + (1 << 20)).cluster_size(65536).backing(named);
            create(&middle, &options);
            let mut middle = Opened::writable(&middle, self.cache);
            for at in (0..size - 5000).step_by(700_001) {
                let bytes: Vec<u8> = (at..at + 4321).map(|at| noise(9, at)).collect();
                let write = middle.disk.clone();
                let write = write.write(at, bytes.clone().into(), Default::default());
                middle.queue.block_on(write).unwrap().unwrap();
                contents[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            middle.close();
            create(&self.path(name), &plain.clone().backing(backing("middle.qcow2", "qcow2")));
        } else {
            create(&self.path(name), &plain.clone().backing(named));
        }
        contents
    }

    /// Everybody agrees on what the image holds, and that it is clean.
    fn judge(&self, path: &Path, contents: &[u8]) {
        check_clean(path);
        let mut reading = Opened::new(path, self.cache, ImageOptions::new());
        let found = reading.read(0, contents.len());
        same(&found, contents, 0).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        drop(reading);
        let expected = self.path("expected.raw");
        std::fs::write(&expected, contents).unwrap();
        qemu_img(&[
            "compare".as_ref(),
            "-fraw".as_ref(),
            "-Fqcow2".as_ref(),
            expected.as_os_str(),
            path.as_os_str(),
        ])
        .unwrap_or_else(|error| panic!("{error}"));
    }

    fn crowd(&self, sizes: (u64, u64), policy: AllocPolicy, below: Below, seed: u64) {
        let path = self.path("top.qcow2");
        let contents = self.create("top.qcow2", sizes, below);
        let mut options = ImageOptions::new().writable().policy(policy);
        if seed.is_multiple_of(2) {
            // One slice, reservations of a few clusters, one buffer.
            options = options.cache_bytes(1).reserve_bytes(4 * sizes.0).buffer_bytes(1);
        }
        let opened = Opened::new(&path, self.cache, options);
        let crowd = Crowd {
            queues: 3,
            lanes: 4,
            rounds: 40 * rounds(),
            fine: 512 << (seed % 6),
            coarse: (2 * sizes.0).clamp(4096, 2 << 20),
            seed,
        };
        let ended = crowd.run(&opened.image, contents);
        let statistics = opened.image.statistics();
        println!(
            "{} {:?}, clusters of {}, {policy:?}, {below:?}: {} requests, {} met one of another queue, {} any other, {} waits",
            self.mount.fs(),
            self.cache,
            sizes.0,
            ended.requests,
            ended.together,
            statistics.together,
            statistics.image_tracker.waited,
        );
        assert!(ended.together > 0, "no two queues were in the driver at once");
        assert!(statistics.together >= ended.together / 2, "{statistics:?}");
        opened.close();
        self.judge(&path, &ended.contents);
    }

    /// Every size and policy, over one of the three things below; which one, `shift` decides. The long run takes all.
    fn crowds(&self, shift: usize) {
        for (i, sizes) in SIZES.into_iter().enumerate() {
            for (j, policy) in
                [AllocPolicy::Ahead, AllocPolicy::PerAllocation].into_iter().enumerate()
            {
                for (k, below) in BELOW.into_iter().enumerate() {
                    if rounds() > 1 || (i + j + k + shift).is_multiple_of(3) {
                        self.crowd(sizes, policy, below, (6 * i + 3 * j + k + shift) as u64);
                    }
                }
            }
        }
    }
}

/// What qemu-io is asked to do to an image: writes of one byte, zeros, discards, at many places.
struct Strokes {
    rng: Rng,
    cluster: u64,
    size: u64,
}

impl Strokes {
    /// Paints with qemu-io, and on `contents` as well.
    fn paint(&mut self, path: &Path, contents: &mut [u8], count: usize) {
        let mut args = vec!["-f".to_owned(), "qcow2".to_owned()];
        for _ in 0..count {
            let at = self.rng.below(self.size / 512) * 512;
            let len = (1 + self.rng.below(3 * self.cluster.min(64 << 10) / 512)) * 512;
            let mut range = at..(at + len).min(self.size / 512 * 512);
            let byte = 1 + self.rng.below(255) as u8;
            let (verb, byte) = match self.rng.below(6) {
                0 => ("write -z".to_owned(), 0),
                1 => ("write -z -u".to_owned(), 0),
                2 => {
                    // Whole clusters only: what becomes of others is qemu's choice.
                    let start = (range.start / self.cluster * self.cluster).min(self.size / 2);
                    range = start / self.cluster * self.cluster..start + self.cluster;
                    range.end = range.end / self.cluster * self.cluster;
                    ("discard".to_owned(), 0)
                }
                _ => (format!("write -P {byte}"), byte),
            };
            let (start, len) = (range.start, range.end - range.start);
            if len == 0 {
                continue;
            }
            args.extend(["-c".to_owned(), format!("{verb} {start} {len}")]);
            contents[start as usize..range.end as usize].fill(byte);
        }
        args.push(path.to_str().unwrap().to_owned());
        qemu_io(&args).unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Ground {
    /// An image and its backing file made and painted by qemu; ours read it, write it; qemu paints again.
    fn in_turns(&self, (cluster, size): (u64, u64), base: (&str, u64), seed: u64) {
        let mut strokes = Strokes { rng: Rng::new(seed), cluster, size };
        let path = self.path("theirs.qcow2");
        let (format, base_size) = base;
        let base = self.path(&format!("theirs-base.{format}"));
        let option = format!("-ocluster_size={cluster}");
        let below = format!("-b{}", base.display());
        let sizes = [base_size.to_string(), size.to_string()];
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        qemu_img(&["create", "-q", "-f", format, &text(&base), &sizes[0]]).unwrap();
        let paint = format!("write -P 0xAA 0 {}", base_size / 512 * 512);
        qemu_io(&["-f", format, "-c", &paint, &text(&base)]).unwrap();
        let mut contents = vec![0; size as usize];
        let covered = base_size.min(size) as usize;
        contents[..covered].fill(0xAA);
        let create = ["create", "-q", "-fqcow2", &option, &below, "-F", format];
        qemu_img(&[&create[..], &[&text(&path), &sizes[1]]].concat()).unwrap();
        strokes.paint(&path, &mut contents, 40);
        self.judge(&path, &contents);
        let opened = Opened::writable(&path, self.cache);
        let crowd = Crowd {
            queues: 2,
            lanes: 3,
            rounds: 30 * rounds(),
            fine: 4096,
            coarse: (2 * cluster).clamp(4096, 2 << 20),
            seed,
        };
        let ended = crowd.run(&opened.image, contents);
        assert!(ended.together > 0, "no two queues were in the driver at once");
        opened.close();
        self.judge(&path, &ended.contents);
        let mut contents = ended.contents;
        strokes.paint(&path, &mut contents, 40);
        self.judge(&path, &contents);
    }

    fn peers(&self) {
        for (seed, (cluster, size)) in SIZES.into_iter().enumerate() {
            let format = if seed.is_multiple_of(2) { "raw" } else { "qcow2" };
            let other = if seed.is_multiple_of(2) { "qcow2" } else { "raw" };
            self.in_turns((cluster, size), (format, size / 3 / 512 * 512), seed as u64);
            self.in_turns((cluster, size), (other, size + (1 << 20)), seed as u64 + 10);
        }
    }
}

#[test]
fn ours_and_qemu_in_turns_on_xfs() {
    let ground = Ground::new(Fs::Xfs, SectorSize::S512, Cache::Direct);
    ground.iter().for_each(Ground::peers);
}

#[test]
fn ours_and_qemu_in_turns_on_ext4_4096() {
    let ground = Ground::new(Fs::Ext4, SectorSize::S4096, Cache::Direct);
    ground.iter().for_each(Ground::peers);
}

/// How much longer than usual: `BLKRING_ROUNDS`, a factor.
fn rounds() -> u64 {
    std::env::var("BLKRING_ROUNDS").map_or(1, |text| text.parse().unwrap())
}

fn check_clean(path: &Path) {
    let args = ["check".as_ref(), "-fqcow2".as_ref(), path.as_os_str()];
    qemu_img(&args).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn crowds_on_xfs_direct() {
    let ground = Ground::new(Fs::Xfs, SectorSize::S512, Cache::Direct);
    ground.iter().for_each(|ground| ground.crowds(0));
}

#[test]
fn crowds_on_xfs_4096_direct() {
    let ground = Ground::new(Fs::Xfs, SectorSize::S4096, Cache::Direct);
    ground.iter().for_each(|ground| ground.crowds(1));
}

#[test]
fn crowds_on_xfs_cached() {
    let ground = Ground::new(Fs::Xfs, SectorSize::S512, Cache::Cached);
    ground.iter().for_each(|ground| ground.crowds(2));
}

#[test]
fn crowds_on_ext4_direct() {
    let ground = Ground::new(Fs::Ext4, SectorSize::S512, Cache::Direct);
    ground.iter().for_each(|ground| ground.crowds(3));
}

#[test]
fn crowds_on_ext4_4096_direct() {
    let ground = Ground::new(Fs::Ext4, SectorSize::S4096, Cache::Direct);
    ground.iter().for_each(|ground| ground.crowds(4));
}

#[test]
fn crowds_on_ext4_cached() {
    let ground = Ground::new(Fs::Ext4, SectorSize::S512, Cache::Cached);
    ground.iter().for_each(|ground| ground.crowds(5));
}

/// A few of the crowds, for file systems where each takes its time.
fn some_crowds(fs: Fs, cache: Cache) {
    let Some(ground) = Ground::new(fs, SectorSize::S512, cache) else { return };
    for (i, below) in BELOW.into_iter().enumerate() {
        let policy = if i == 1 { AllocPolicy::PerAllocation } else { AllocPolicy::Ahead };
        ground.crowd(SIZES[i], policy, below, i as u64);
    }
    ground.in_turns(SIZES[1], ("raw", 4 << 20), 3);
}

#[test]
fn crowds_on_btrfs() {
    some_crowds(Fs::Btrfs, Cache::Cached);
}

/// Whether or not such a write goes through the page cache: the bytes are right.
#[test]
fn crowds_on_btrfs_direct() {
    some_crowds(Fs::Btrfs, Cache::Direct);
}

#[test]
fn crowds_on_tmpfs() {
    some_crowds(Fs::Tmpfs, Cache::Cached);
}
