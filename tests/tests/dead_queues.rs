//! A queue that its owner never turns again stops nobody but those who conflict with its requests, whatever shared work
//! it had started; a dropped receipt releases nothing; and writers of one new cluster meet only where they must.

use blkring_engine::sim::{Event, OpKind, Stage};
use blkring_engine::{Flags, IoMem, Request};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{ImageWorld, Setup};

const BELOW: u8 = 0xaa;

/// A guest cluster that the dead queue is in.
const TAKEN: u64 = 5;

/// Two queues; one of everything else.
fn tiny(clusters: u64) -> Setup {
    let one =
        |options: blkring_qcow2::ImageOptions| options.cache_bytes(1).buffer_bytes(1).depth(1);
    Setup::new(clusters).queues(2).options(one)
}

/// What closing does while queue 0 is dead and not removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    /// Its request has a range of the guest.
    Waits,
    /// A flush has none.
    Ends,
}

/// Queue 0 has `begun` something and makes no further turn; the op is held at that moment and goes on afterwards. Queue
/// 1 writes, reads and flushes elsewhere; closing waits for a grant of queue 0 until that is removed.
fn nobody_else_waits(setup: &Setup, close: Close, begun: impl Fn(&mut ImageWorld) -> Event) {
    for seed in 0..4 {
        let mut w = setup.clone().seed(seed).make();
        w.prepare(0..2, 0x11);
        let held = begun(&mut w);
        w.abandon(0);
        w.release(&held);
        for cluster in [8, 9, 0, 10] {
            let written = w.write(1, cluster, 1..2, 0x33);
            w.finish(&written);
            let flushed = w.flush(1);
            w.finish(&flushed);
            let durable = w.write_with(1, cluster, 2..3, 0x44, Flags::FUA);
            w.finish(&durable);
        }
        let gone = w.discard(1, 9);
        w.finish(&gone);
        assert_eq!(w.read(1, 8 * 4096 + 512, 512), [0x33; 512]);
        let after = w.crash(|_| false);
        after.is_sound().expect("all that is referenced is counted");
        after.reads_as(10, 1..2, &[0x33]).expect("it was flushed");
        let closed = w.close(1);
        w.settle();
        assert_eq!(closed.given(), close == Close::Ends, "seed {seed}");
        w.remove(0);
        w.finish(&closed);
        let left = w.crash(|_| false);
        let report = left.check();
        assert!(report.is_clean(), "seed {seed}: {report:?}");
    }
}

#[test]
fn a_refill() {
    for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
        nobody_else_waits(&tiny(16).policy(policy), Close::Waits, |w| {
            w.fill(0, TAKEN, 0x22);
            w.catch(w.is_count())
        });
    }
}

#[test]
fn a_refill_that_syncs() {
    nobody_else_waits(&tiny(16), Close::Waits, |w| {
        w.fill(0, TAKEN, 0x22);
        w.catch(|op| op.kind == OpKind::Sync)
    });
}

#[test]
fn a_cut() {
    nobody_else_waits(&tiny(16).backing(BELOW), Close::Ends, |w| {
        let written = w.fill(0, TAKEN, 0x22);
        w.finish(&written);
        w.flush(0);
        w.catch(w.is_table())
    });
}

#[test]
fn a_cut_before_its_first_sync() {
    nobody_else_waits(&tiny(16).backing(BELOW), Close::Ends, |w| {
        let written = w.fill(0, TAKEN, 0x22);
        w.finish(&written);
        w.settle();
        w.flush(0);
        let sync = w.catch(|op| op.kind == OpKind::Sync);
        w.advance(&sync, Stage::Begun);
        sync
    });
}

#[test]
fn a_copy() {
    // There is one buffer for copies, and this one has it.
    for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
        nobody_else_waits(&tiny(16).backing(BELOW).policy(policy), Close::Waits, |w| {
            w.write(0, TAKEN, 0..1, 0x22);
            w.catch(w.is_data())
        });
        nobody_else_waits(&tiny(16).backing(BELOW).policy(policy), Close::Waits, |w| {
            w.write(0, TAKEN, 0..1, 0x22);
            w.catch(|op| &*op.file == blkring_tests::image_world::BACKING)
        });
    }
}

#[test]
fn a_zero_write() {
    nobody_else_waits(&tiny(16).policy(AllocPolicy::PerAllocation), Close::Waits, |w| {
        w.write(0, TAKEN, 0..1, 0x22);
        w.catch(|op| op.kind == OpKind::ZeroRange)
    });
}

#[test]
fn a_load_of_metadata() {
    // 512 entries in a table: the other one is loaded by the read.
    nobody_else_waits(&tiny(1024), Close::Waits, |w| {
        w.prepare(600..601, 0x11);
        w.prepare(0..1, 0x11);
        let mem = IoMem::from(vec![0; 512]);
        w.submit(0, Request::read(600 * 4096, mem));
        let is_table = {
            let tables = w.places().tables;
            move |op: &Event| {
                op.kind == OpKind::Read && tables.iter().any(|t| op.touches(t.start, t.end))
            }
        };
        w.catch(is_table)
    });
}

/// The payload of an allocating write is not shared work. Another writer of the cluster joins all the same, and links.
#[test]
fn a_write_that_others_join() {
    for seed in 0..4 {
        let mut w = tiny(16).seed(seed).make();
        w.prepare(0..2, 0x11);
        w.write(0, TAKEN, 0..1, 0x22);
        let data = w.catch(w.is_data());
        w.abandon(0);
        w.release(&data);
        let joined = w.write(1, TAKEN, 1..2, 0x33);
        w.finish(&joined);
        let flushed = w.flush(1);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(TAKEN, 1..2, &[0x33]).expect("it was flushed");
        let closed = w.close(1);
        w.settle();
        assert!(!closed.given());
        w.remove(0);
        w.finish(&closed);
        let report = w.crash(|_| false).check();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// A receipt is dropped while the `nth` op of its request is held. Returns whether there is such an op.
fn dropped_receipt(setup: &Setup, request: &Request, nth: usize) -> bool {
    let mut w = setup.clone().make();
    w.prepare(0..2, 0x11);
    let first = w.disk.steps();
    let receipt = w.handle(0).submit(request.clone()).expect("the queue has room");
    // The ops before it run to their end.
    for _ in 0..nth {
        let Some(op) = w.try_catch(|_| true) else { return false };
        w.release(&op);
        w.advance_to_end(&op);
    }
    let Some(held) = w.try_catch(|_| true) else { return false };
    drop(receipt);
    w.settle();
    // Zeroes the whole cluster: alone in its range, and its cut writes the table.
    let zeroed =
        w.submit(1, Request::write_zeroes(TAKEN * 4096, 4096).with(Flags::MAY_UNMAP | Flags::FUA));
    w.settle();
    assert!(!zeroed.given(), "op {nth}, {held}, is not over");
    let is_table = w.is_table();
    let early = w.accepted_since(first).into_iter().find(|op| op.op > held.op && is_table(op));
    assert_eq!(early, None, "the conflicting request began beside {held}");
    w.release(&held);
    w.finish(&zeroed);
    let log = w.disk.log_since(first);
    let ended = log.iter().position(|e| e.op == held.op && matches!(e.stage, Stage::Completed(_)));
    let began = log.iter().position(|e| e.stage == Stage::Accepted && is_table(e));
    assert!(ended < began, "the conflicting request began before {held} was over");
    w.reads_as(TAKEN, 0..8, &[0]).expect("the later request wins");
    true
}

#[test]
fn a_receipt_dropped_at_every_await() {
    let write = Request::write(TAKEN * 4096 + 512, IoMem::from(vec![0x22; 512]));
    let plain = Setup::new(16).queues(2);
    let setups = [
        (plain.clone(), 3),
        (plain.clone().backing(BELOW), 4),
        (plain.policy(AllocPolicy::PerAllocation), 4),
    ];
    for (setup, least) in setups {
        let mut awaits = 0;
        while dropped_receipt(&setup, &write, awaits) {
            awaits += 1;
        }
        println!("{awaits} ops of one write");
        assert!(awaits >= least, "only {awaits} ops of one write");
    }
}

/// Writes of two queues to one new guest cluster, the first of which is held on the disk. Returns whether the disk sees
/// the second one meanwhile.
fn second_writer_is_seen(setup: &Setup) -> bool {
    let mut w = setup.clone().queues(2).make();
    w.prepare(0..2, 0x11);
    let first = w.write(0, TAKEN, 0..1, 0x22);
    let is_data = w.is_data();
    let held = w.catch(&is_data);
    let mark = w.disk.steps();
    let second = w.write(1, TAKEN, 1..2, 0x33);
    w.settle();
    let seen = w.accepted_since(mark).iter().any(&is_data);
    assert_eq!(second.given(), seen, "what the disk has seen is answered");
    w.release(&held);
    w.finish(&first);
    w.finish(&second);
    w.reads_as(TAKEN, 0..1, &[0x22]).expect("the first");
    w.reads_as(TAKEN, 1..2, &[0x33]).expect("the second");
    seen
}

#[test]
fn two_writers_of_one_new_cluster() {
    let setup = Setup::new(16);
    assert!(second_writer_is_seen(&setup), "over zeros nobody waits");
    let per_allocation = setup.clone().policy(AllocPolicy::PerAllocation);
    assert!(second_writer_is_seen(&per_allocation), "nor once the zero-write is done");
    assert!(
        !second_writer_is_seen(&setup.backing(BELOW)),
        "over backing the second waits for the copy"
    );
    assert!(!second_writer_is_seen(&per_allocation.backing(BELOW)));
}

/// A refill that finds room before the end of the file changes no size, so it waits for no write behind that room.
#[test]
fn a_write_behind_the_room_that_a_refill_finds() {
    let mut w = Setup::new(16).queues(2).make();
    w.prepare(0..6, 0x11);
    w.give_up(0..4);
    w.flush_twice();
    w.write(0, 5, 0..1, 0x22);
    let data = w.catch(w.is_data());
    w.abandon(0);
    w.release(&data);
    let end = w.image.storage().size();
    for cluster in 8..12 {
        let written = w.fill(1, cluster, 0x33);

        w.finish(&written);
    }
    assert_eq!(w.image.storage().size(), end, "there was room");
}

/// The queue of a write is dropped while the disk zeroes the cluster for it. The cluster goes to nobody before that is
/// over, or the zeros would land on another one's bytes.
#[test]
fn a_zero_write_of_a_dropped_queue() {
    for seed in 0..4 {
        let setup = Setup::new(16).seed(seed).queues(2).policy(AllocPolicy::PerAllocation);
        let mut w = setup.make();
        w.prepare(0..3, 0x11);
        // Old space inside the file: its zero-write changes no size and keeps nobody waiting.
        w.give_up(0..1);
        w.write(0, 5, 0..1, 0x22);
        let zeroed = w.catch(|op| op.kind == OpKind::ZeroRange);
        w.remove(0);
        let written = w.write(1, 7, 0..8, 0x33);
        w.finish(&written);
        w.release(&zeroed);
        w.settle();
        assert!(w.read(1, 7 * 4096, 4096) == [0x33; 4096], "seed {seed}: it was answered");
        let closed = w.close(1);
        w.finish(&closed);
        let report = w.crash(|_| false).check();
        assert!(report.is_clean(), "seed {seed}: {report:?}");
    }
}
