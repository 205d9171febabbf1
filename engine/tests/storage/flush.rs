//! Flush: what it covers, when it may be left out, and what happens after one has failed.

use blkring_engine::sim::{Fault, Matcher, OpKind, Point, Rule};
use blkring_engine::{Flags, Service, Variant, Variants};

use super::setup::{Bench, FILE, Setup, mem};

fn bench() -> Bench {
    Setup::new(1, &[0; 8192]).queues(2).build()
}

fn write(bench: &mut Bench, offset: u64, byte: u8) {
    bench
        .run(|storage, lane| async move {
            storage.write(&lane, offset, &mem(512, byte), Flags::empty()).await
        })
        .unwrap();
}

fn flush(bench: &mut Bench) -> Result<(), i32> {
    let result = bench.run(|storage, lane| async move { storage.flush(&lane).await });
    result.map_err(|error| error.errno)
}

/// N3: a write is in flight when a sync begins and completes before that ends; a second flush comes after. Gives the
/// syncs there were and whether the write is durable in the end.
fn flushed_twice_around(held: Point, variants: Variants) -> (u64, bool) {
    let mut bench = Setup::new(1, &[0; 8192]).queues(2).variants(variants).build();
    bench.disk.hold("write", Matcher::writes(), Point::Land);
    let written = bench.start(0, |storage, lane| async move {
        storage.write(&lane, 0, &mem(512, 1), Flags::empty()).await
    });
    bench.world.settle();
    bench.disk.hold("sync", Matcher::kind(OpKind::Sync), held);
    let flushed = bench.start(1, |storage, lane| async move { storage.flush(&lane).await });
    bench.world.settle();
    assert_eq!(bench.disk.held("sync"), 1);
    bench.disk.release("write");
    bench.world.settle();
    written.take().unwrap().unwrap();
    bench.disk.release("sync");
    bench.world.settle();
    flushed.take().unwrap().unwrap();
    assert_eq!(bench.disk.durable_contents(FILE)[..512], [0; 512], "the sync began too early");
    flush(&mut bench).unwrap();
    (bench.disk.count(OpKind::Sync), bench.disk.durable_contents(FILE)[..512] == [1; 512])
}

#[test]
fn n3_a_write_that_completes_during_a_sync_is_not_covered_by_it() {
    for held in [Point::Land, Point::Complete] {
        assert_eq!(flushed_twice_around(held, Variants::default()), (2, true));
        let broken = Variants::only(Variant::FlushCountsAtSubmission);
        assert_eq!(flushed_twice_around(held, broken), (1, false), "the variant is not noticed");
    }
}

#[test]
fn what_was_answered_before_a_flush_survives_it() {
    for seed in 0..300 {
        let mut bench = Setup::new(seed, &[0; 65536]).queues(2).build();
        let mut covered = Vec::new();
        for queue in 0..2u64 {
            covered.push(bench.start(queue as usize, move |storage, lane| async move {
                for step in 0..6u64 {
                    let at = queue * 32768 + step * 512;
                    storage.write(&lane, at, &mem(512, 7), Flags::empty()).await.unwrap();
                    if step % 2 == queue {
                        storage.flush(&lane).await.unwrap();
                        return step;
                    }
                }
                unreachable!("one of the steps flushes")
            }));
        }
        let done = || covered.iter().any(|cell| cell.borrow().is_some());
        bench.world.run(done, 10_000).done();
        let after = bench.disk.crash_keeping_nothing().contents(FILE);
        for (queue, cell) in covered.iter().enumerate() {
            let Some(steps) = *cell.borrow() else { continue };
            let end = queue * 32768 + (steps as usize + 1) * 512;
            assert!(after[queue * 32768..end].iter().all(|&byte| byte == 7), "seed {seed}");
        }
    }
}

#[test]
fn a_flush_is_left_out_when_nothing_has_completed_since() {
    let mut bench = bench();
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.count(OpKind::Sync), 1, "what happened before the open is not known");
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.count(OpKind::Sync), 1);
    write(&mut bench, 0, 1);
    flush(&mut bench).unwrap();
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.count(OpKind::Sync), 2);
    let changes: [fn(&mut Bench); 4] = [
        |bench| {
            bench
                .run(|s, lane| async move { s.write_zeroes(&lane, 0, 512, Flags::empty()).await })
                .unwrap();
        },
        |bench| bench.run(|s, lane| async move { s.discard(&lane, 0, 4096).await }).unwrap(),
        |bench| bench.run(|s, lane| async move { s.grow(&lane, 65536).await }).unwrap(),
        |bench| bench.run(|s, lane| async move { s.resize(&lane, 4096).await }).unwrap(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        change(&mut bench);
        flush(&mut bench).unwrap();
        assert_eq!(bench.disk.count(OpKind::Sync), 3 + index as u64, "change {index}");
    }
    // A failed write may have changed anything.
    bench.disk.inject(Rule::new(Matcher::writes(), Fault::Partial(512, libc::EIO)));
    let failed = bench.run(|storage, lane| async move {
        storage.write(&lane, 0, &mem(1024, 1), Flags::empty()).await
    });
    assert_eq!(failed.unwrap_err().errno, libc::EIO);
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.count(OpKind::Sync), 7);
    let read = bench.run(|storage, lane| async move { storage.read(&lane, 0, &mem(9, 0)).await });
    read.unwrap();
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.count(OpKind::Sync), 7, "reads change nothing");
}

#[test]
fn a_failed_sync_is_never_retried_into_success() {
    let mut bench = bench();
    write(&mut bench, 0, 1);
    bench.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(libc::EIO)));
    assert_eq!(flush(&mut bench), Err(libc::EIO));
    assert_eq!(flush(&mut bench), Err(libc::EIO));
    write(&mut bench, 512, 1);
    assert_eq!(flush(&mut bench), Err(libc::EIO));
    assert_eq!(bench.disk.count(OpKind::Sync), 1);
    let zeroed = bench
        .run(|storage, lane| async move { storage.write_zeroes(&lane, 0, 512, Flags::FUA).await });
    assert_eq!(zeroed.unwrap_err().errno, libc::EIO, "a durable zero-write needs a sync");
    assert_eq!(bench.disk.durable_contents(FILE), [0; 8192]);
}

#[test]
fn a_sync_that_failed_beside_another_poisons_both() {
    let mut bench = bench();
    write(&mut bench, 0, 1);
    bench.disk.hold("syncs", Matcher::kind(OpKind::Sync), Point::Complete);
    bench.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(libc::ENOSPC)));
    let flushes: Vec<_> = (0..2)
        .map(|queue| bench.start(queue, |storage, lane| async move { storage.flush(&lane).await }))
        .collect();
    bench.world.settle();
    assert_eq!(bench.disk.held("syncs"), 2);
    // The failed one, which landed first, is told first.
    let failed = bench
        .disk
        .log()
        .iter()
        .find(|e| e.stage == blkring_engine::sim::Stage::Landed && e.kind == OpKind::Sync)
        .unwrap()
        .op;
    let place = bench.disk.pending().iter().position(|op| op.op == failed).unwrap();
    bench.disk.release("syncs");
    assert!(bench.disk.advance(place));
    bench.world.settle();
    for flushed in flushes {
        assert_eq!(flushed.take().unwrap().unwrap_err().errno, libc::ENOSPC);
    }
}

#[test]
fn an_interrupted_sync_is_asked_again() {
    let mut bench = bench();
    write(&mut bench, 0, 1);
    for errno in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
        bench.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(errno)).times(3));
    }
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.count(OpKind::Sync), 10);
    assert_eq!(bench.disk.durable_contents(FILE)[..512], [1; 512]);
    // For ever is not: it ends with the error, and nothing is taken for durable.
    write(&mut bench, 0, 2);
    bench.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(libc::EAGAIN)).always());
    assert_eq!(flush(&mut bench), Err(libc::EAGAIN));
    bench.disk.clear_faults();
    flush(&mut bench).unwrap();
    assert_eq!(bench.disk.durable_contents(FILE)[..512], [2; 512]);
}

#[test]
fn durable_writes_and_zero_writes_survive_without_a_flush() {
    for seed in 0..50 {
        let mut bench = Setup::new(seed, &[0x11; 16384]).aligned(4096).build();
        let [written, padded] = [(4096, 4096), (8192 + 700, 100)];
        bench
            .run(|s, lane| async move {
                s.write(&lane, written.0, &mem(written.1, 1), Flags::FUA).await?;
                s.write(&lane, padded.0, &mem(padded.1, 2), Flags::FUA).await
            })
            .unwrap();
        assert_eq!(bench.disk.count(OpKind::Sync), 0, "one durable write each");
        bench
            .run(|s, lane| async move { s.write_zeroes(&lane, 20_480, 4096, Flags::FUA).await })
            .unwrap();
        let after = bench.disk.crash_keeping_nothing().contents(FILE);
        assert_eq!(after[4096..8192], [1; 4096]);
        assert_eq!(after[8192 + 700..8192 + 800], [2; 100]);
        assert_eq!(after.len(), 24_576);
    }
}

/// Two flushes of shared work side by side: the first fails, and its failure is told after the second has succeeded.
/// The kernel tells of it once, so the second must not answer before.
#[test]
fn a_flush_waits_for_the_word_of_those_beside_it() {
    let mut bench = bench();
    let service = Service::without_ring(4).unwrap();
    bench.world.queue(0).watch_service(&service).unwrap();
    write(&mut bench, 0, 1);
    bench.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(libc::EIO)));
    bench.disk.hold("first", Matcher::kind(OpKind::Sync), Point::Complete);
    let lane = service.lane().clone();
    let first = bench.start(0, |storage, _| async move { storage.flush(&lane).await });
    bench.world.settle();
    assert_eq!(bench.disk.held("first"), 1);
    bench.disk.hold_no_more("first");
    write(&mut bench, 512, 2);
    let lane = service.lane().clone();
    let second = bench.start(0, |storage, _| async move { storage.flush(&lane).await });
    bench.world.settle();
    assert_eq!(bench.disk.count(OpKind::Sync), 2, "both were issued");
    assert_eq!(bench.disk.pending().len(), 1, "the second has succeeded");
    assert!(second.borrow().is_none(), "the first one's word is out");
    bench.disk.release("first");
    bench.world.settle();
    for flush in [first, second] {
        assert_eq!(flush.borrow_mut().take().unwrap().unwrap_err().errno, libc::EIO);
    }
}

/// The sync within a durable write is told of a failure to write back what others wrote, and no later one is.
#[test]
fn after_a_failed_durable_write_every_flush_fails() {
    let mut bench = bench();
    write(&mut bench, 0, 1);
    let durable = Matcher::kind(OpKind::WriteDurable);
    bench.disk.inject(Rule::new(durable, Fault::Error(libc::EIO)));
    let result = bench.run(|storage, lane| async move {
        storage.write(&lane, 4096, &mem(512, 2), Flags::FUA).await
    });
    assert_eq!(result.map_err(|error| error.errno), Err(libc::EIO));
    assert_eq!(flush(&mut bench), Err(libc::EIO));
    assert_eq!(flush(&mut bench), Err(libc::EIO));
}
