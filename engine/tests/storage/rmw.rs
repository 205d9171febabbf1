//! Read-modify-write: alone in its blocks, and whole or not at all.

use blkring_engine::sim::{Fault, Matcher, OpKind, Rule, SimOptions};
use blkring_engine::{Flags, IoMem, Variant, Variants};

use super::setup::{FILE, Setup, mem};

#[test]
fn an_error_of_the_inner_read_fails_the_write_and_changes_nothing() {
    for (offset, len) in [(5, 100), (4000, 200), (100, 8092), (4096, 5000), (5, 300_000)] {
        for reads_before in 0..2 {
            let mut bench = Setup::new(1, &[0x11; 1 << 19]).aligned(4096).build();
            let fault = Rule::new(Matcher::kind(OpKind::Read), Fault::Error(libc::EIO));
            bench.disk.inject(fault.after(reads_before));
            let error = bench.run(|storage, lane| async move {
                storage.write(&lane, offset, &mem(len, 1), Flags::empty()).await
            });
            let reads = bench.disk.count(OpKind::Read);
            let Err(error) = error else {
                // One read was enough for this one.
                assert!(reads_before == 1 && reads == 1, "{offset}+{len}");
                continue;
            };
            assert_eq!(error.errno, libc::EIO);
            let content = bench.disk.contents(FILE);
            if len < 10_000 {
                assert_eq!(bench.disk.count(OpKind::Write), 0, "{offset}+{len}");
                assert_eq!(content, [0x11; 1 << 19]);
            } else {
                // Of a write larger than its buffer whole pieces may be there, as after any failed write.
                assert!(content[..5].iter().all(|&byte| byte == 0x11));
                assert!(content[300_005..].iter().all(|&byte| byte == 0x11));
            }
            bench.assert_idle();
        }
    }
}

#[test]
fn what_surrounds_an_unaligned_write_is_kept() {
    for offset in [0u64, 1, 511, 512, 4095, 4096, 5000, 262_143, 262_144] {
        for len in [1usize, 511, 512, 4095, 4096, 4097, 8192, 12_289, 262_144, 600_000] {
            let before: Vec<u8> = (0..1usize << 20).map(|i| (i % 251) as u8).collect();
            let mut bench = Setup::new(1, &before).aligned(4096).build();
            let bytes: Vec<u8> = (0..len).map(|i| (i % 241) as u8 ^ 0xff).collect();
            let written = IoMem::from(bytes.clone());
            bench
                .run(|storage, lane| async move {
                    storage.write(&lane, offset, &written, Flags::empty()).await
                })
                .unwrap();
            let mut expected = before;
            let at = usize::try_from(offset).unwrap();
            expected[at..at + len].copy_from_slice(&bytes);
            assert!(bench.disk.contents(FILE) == expected, "{offset}+{len}");
            let back = mem(len, 0);
            let into = back.clone();
            bench
                .run(|storage, lane| async move { storage.read(&lane, offset, &into).await })
                .unwrap();
            assert!(back.to_vec() == bytes, "{offset}+{len}");
            bench.assert_idle();
        }
    }
}

/// F28: writes of the halves of one block, at once. Whether both survive.
fn both_halves_survive(seed: u64, variants: Variants) -> (bool, u64) {
    let setup = Setup::new(seed, &[0; 8192]).aligned(4096).queues(2).variants(variants);
    let mut bench = setup.build();
    for queue in 0..2u8 {
        _ = bench.start(usize::from(queue), move |storage, lane| async move {
            let offset = 4096 + u64::from(queue) * 2048;
            storage.write(&lane, offset, &mem(512, queue + 1), Flags::empty()).await.unwrap();
        });
    }
    bench.world.settle();
    bench.assert_idle();
    let content = bench.disk.contents(FILE);
    let both = content[4096..4608] == [1; 512] && content[6144..6656] == [2; 512];
    (both, bench.storage.statistics().waited)
}

#[test]
fn f28_two_halves_of_a_block() {
    let seeds = 1000;
    let broken = Variants::only(Variant::RmwNotSerialised);
    let lost = (0..seeds).filter(|&seed| !both_halves_survive(seed, broken).0).count();
    println!("not serialised: {lost} of {seeds} seeds lose a write");
    assert!(0 < lost && lost < seeds as usize);
    let mut waited = 0;
    for seed in 0..seeds {
        let (both, waits) = both_halves_survive(seed, Variants::default());
        assert!(both, "seed {seed}");
        waited += waits;
    }
    assert!(waited > 0);
}

#[test]
fn one_buffer_serves_many_unaligned_writes() {
    let mut setup = Setup::new(3, &[0; 1 << 20]).queues(2);
    setup.options = SimOptions { buffer_budget: 4096, ..SimOptions::aligned(512) };
    let mut bench = setup.build();
    for i in 0..40u64 {
        _ = bench.start((i % 2) as usize, move |storage, lane| async move {
            let len = 100 + 10_000 * (i as usize % 3);
            storage.write(&lane, i * 25_000 + 3, &mem(len, 9), Flags::empty()).await.unwrap();
        });
    }
    bench.world.settle();
    bench.assert_idle();
    let content = bench.disk.contents(FILE);
    assert_eq!(content.iter().filter(|&&byte| byte == 9).count(), 40 * 100 + 13 * 30_000);
}
