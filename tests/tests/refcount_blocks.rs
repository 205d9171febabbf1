//! Refcount blocks and the table that names them: growth, errors while they grow, and many of them at once.
//!
//! With clusters of 512 bytes a block counts 256 clusters, and a table of one cluster names 64 blocks.

use blkring_engine::sim::{Event, Fault, Matcher, OpKind, Rule, Stage};
use blkring_engine::{Variant, Variants};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{EIO, IMAGE, ImageWorld, Setup, fails_only_with};

const CLUSTER: u64 = 512;

/// An error number.
const ENOSPC: i32 = 28;

fn setup(clusters: u64, reserve: u64) -> Setup {
    Setup::new(clusters).cluster(CLUSTER).reserve(reserve)
}

/// Fills guest clusters in requests of at most 64; the first error.
fn fill(w: &mut ImageWorld, clusters: std::ops::Range<u64>, byte: u8) -> Result<(), i32> {
    let mut at = clusters.start;
    while at < clusters.end {
        let count = (64 - at % 64).min(clusters.end - at);
        let written = w.write(0, at, 0..count, byte);
        assert!(w.runs_until(&written), "{}", w.report());
        written.result().map_err(|error| error.errno)?;
        at += count;
    }
    Ok(())
}

fn flush(w: &mut ImageWorld) -> Result<(), i32> {
    let flushed = w.flush(0);
    assert!(w.runs_until(&flushed), "{}", w.report());
    flushed.result().map_err(|error| error.errno)
}

/// An error of the first write to this range, while an image is filled that needs more than `blocks` refcount blocks.
/// Answers what the fill and the writes after it met.
fn error_at(
    range: std::ops::Range<u64>,
    errno: i32,
    clusters: u64,
) -> (ImageWorld, [Result<(), i32>; 2]) {
    let mut w = setup(clusters + 512, 64).make();
    let what = Matcher::writes().file(IMAGE).within(range);
    w.disk.inject(Rule::new(what, Fault::Error(errno)));
    let first = fill(&mut w, 0..clusters, 0x11);
    let again = fill(&mut w, 0..clusters, 0x22).and_then(|()| flush(&mut w));
    let failed = |event: &Event| event.stage == Stage::Completed(-errno);
    assert!(w.disk.log().iter().any(failed), "the error was met");
    (w, [first, again])
}

#[test]
fn a_new_block_that_finds_no_space_is_made_later() {
    let second = 256 * CLUSTER;
    let (mut w, results) = error_at(second..second + CLUSTER, ENOSPC, 400);
    // Less might have fitted: the refill asks for half.
    assert_eq!(results, [Ok(()), Ok(())]);
    let closed = w.close(0);
    w.finish(&closed);
    assert!(w.crash(|_| false).check().is_clean());
    w.crash(|_| false).reads_as(399, 0..1, &[0x22]).expect("it was flushed");
}

#[test]
fn a_new_block_that_the_table_may_not_name_counts_nothing() {
    let reftable = setup(8, 1).make().places().fixed[1].clone();
    let (w, results) = error_at(reftable, EIO, 400);
    // The first refill may have been ahead of use: nobody hears of it.
    assert_eq!(results[1], Ok(()));
    for survives in [true, false] {
        w.crash(|_| survives).is_sound().expect("nothing is counted by a block without a name");
    }
}

/// Where the first larger table of an image goes, with its block: behind all that the old one counts.
const LARGER: u64 = 64 * 256 * CLUSTER;

#[test]
fn a_larger_table_that_finds_no_space_is_made_later() {
    let (mut w, results) = error_at(LARGER..LARGER + 3 * CLUSTER, ENOSPC, 16600);
    // Less might have fitted: the refill asks for half.
    assert_eq!(results, [Ok(()), Ok(())]);
    let closed = w.close(0);
    w.finish(&closed);
    let report = w.crash(|_| false).check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_larger_table_that_the_header_may_not_name_counts_nothing() {
    let (w, results) = error_at(0..CLUSTER, EIO, 16600);
    assert_eq!(results, [Err(EIO), Err(EIO)]);
    for survives in [true, false] {
        w.crash(|_| survives).is_sound().expect("nothing is counted by a table without a name");
    }
}

/// More blocks than are kept in memory: one that a refill writes is pushed out by those that a cut needs, and read
/// again before the write has landed. The counts of the refill stay all the same.
#[test]
fn a_block_on_its_way_is_not_read_as_it_was() {
    let mut w = setup(5600, 1).make();
    fill(&mut w, 0..5230, 0x11).expect("there is room");
    w.flush_twice();
    // The first one that is given up waits in the pool, the second one is free.
    let (in_sixth, in_fourth) = (1370, 870);
    w.give_up(in_sixth + 20..in_sixth + 22);
    w.flush_twice();
    w.prepare(5240..5241, 0x22);
    for cluster in [in_sixth, in_fourth, in_sixth + 1] {
        let gone = w.discard(0, cluster);
        w.finish(&gone);
    }
    let flushed = w.flush(0);
    w.finish(&flushed);
    // This one takes what waits, the next one what is free: its refill writes a count.
    let written = w.fill(0, 5241, 0x33);
    w.finish(&written);
    let written = w.fill(0, 5242, 0x44);
    let count = w.catch(w.is_count());
    let flushed = w.flush(0);
    w.settle();
    w.release(&count);
    w.finish(&written);
    w.finish(&flushed);
    w.flush_twice();
    let after = w.crash(|_| false);
    after.is_sound().expect("the counts of the refill are there");
    after.reads_as(5242, 0..1, &[0x44]).expect("it was flushed");
}

/// What an image pays for a new block: nothing but the write of its name, where a clean cluster is at hand.
#[test]
fn a_new_block_needs_no_sync_of_its_own() {
    let mut w = setup(600, 16).make();
    let reftable = w.places().fixed[1].clone();
    let (mut syncs, mut names) = (Vec::new(), 0);
    for cluster in 0..450 {
        let before = w.disk.steps();
        let written = w.fill(0, cluster, 0x11);
        w.finish(&written);
        w.settle();
        let ops = w.accepted_since(before);
        let is_name =
            |op: &&Event| op.kind == OpKind::Write && op.touches(reftable.start, reftable.end);
        names += ops.iter().filter(is_name).count();
        syncs.push(ops.iter().filter(|op| op.kind == OpKind::Sync).count());
    }
    assert_eq!(names, 1, "one block was added");
    assert!(syncs.iter().all(|&count| count <= 1), "each refill has one, and one only: {syncs:?}");
    let closed = w.close(0);
    w.finish(&closed);
    let after = w.crash(|_| false);
    assert!(after.check().is_clean(), "{:?}", after.check());
    after.reads_as(449, 0..1, &[0x11]).expect("it was flushed");
}

/// The entry that names a block in a clean cluster fails: the disk may have it or not. The cluster stays what it is,
/// also when the image is closed before another attempt.
#[test]
fn a_clean_cluster_that_may_have_a_name_is_not_given_back() {
    for landed in [0, CLUSTER] {
        let mut w = setup(600, 16).make();
        let reftable = w.places().fixed[1].clone();
        let name = Matcher::writes().file(IMAGE).within(reftable);
        w.disk.inject(Rule::new(name, Fault::Partial(landed, EIO)).times(u64::MAX));
        let first = (0..500).find(|&cluster| {
            let written = w.fill(0, cluster, 0x11);
            assert!(w.runs_until(&written), "{}", w.report());
            w.settle();
            written.result().is_err()
        });
        let last = first.expect("there is no block for all of them");
        let blocks = w.places().blocks;
        assert!(blocks.iter().all(|block| block.start < 256 * CLUSTER), "in a counted cluster");
        assert_eq!(blocks.len(), if landed == 0 { 1 } else { 2 });
        let closed = w.close(0);
        assert!(w.runs_until(&closed));
        closed.result().expect("what was written is safe");
        let after = w.crash(|_| false);
        after.is_sound().expect("a block with a name is counted");
        after.reads_as(last - 1, 0..1, &[0x11]).expect("it was flushed");
    }
}

/// Every refill crosses into the range of a new block. The block may not take the cluster that a write waits for, to
/// have an L2 table in it: the next refill would bring another block, and so on until the disk is full.
#[test]
fn a_new_block_leaves_the_cluster_that_a_table_waits_for() {
    let mut w = setup(3000, 600).policy(AllocPolicy::PerAllocation).make();
    assert_eq!(fill(&mut w, 0..3000, 0x11), Ok(()));
    let closed = w.close(0);
    w.finish(&closed);
    let report = w.crash(|_| false).check();
    assert!(report.is_clean(), "{report:?}");
}

/// A block in the range that it counts stays when the reservation is given back: it is made when a cluster of that range
/// is needed, not ahead.
#[test]
fn a_reservation_ends_where_a_new_block_would_begin() {
    let mut w = setup(3000, 600).policy(AllocPolicy::PerAllocation).make();
    assert_eq!(fill(&mut w, 0..200, 0x11), Ok(()));
    let closed = w.close(0);
    w.finish(&closed);
    let end = w.crash(|_| false).disk.contents(IMAGE).len() as u64;
    assert!(end <= 256 * CLUSTER, "{end} bytes");
}

/// A reservation that reaches far leaves neither blocks nor a larger table behind: the file ends with what is in use, but
/// for the clusters that such blocks were in.
#[test]
fn a_reservation_given_back_leaves_no_space() {
    let mut w = setup(11_000, 32768).make();
    let table = w.places().fixed[1].clone();
    assert_eq!(fill(&mut w, 0..11_000, 0x11), Ok(()));
    let reserved = w.disk.contents(IMAGE).len() as u64 / CLUSTER;
    assert!(reserved > 16_000, "the reservation reached far: {reserved} clusters");
    let closed = w.close(0);
    w.finish(&closed);
    let after = w.crash(|_| false);
    assert!(after.check().is_clean(), "{:?}", after.check());
    assert_eq!(w.places().fixed[1], table, "the table is where it was");
    let data = 11_000 + 11_000_u64.div_ceil(64);
    // Header, table, L1 table of three clusters; blocks; as many clusters again as the table could name blocks.
    let fixed = 1 + 1 + 3;
    let blocks = (data + fixed).div_ceil(255);
    let end = after.disk.contents(IMAGE).len() as u64 / CLUSTER;
    assert!(end >= fixed + data + blocks, "{end} clusters");
    assert!(end <= fixed + data + 64, "{end} clusters");
    assert_eq!(w.places().blocks.len() as u64, blocks);
}

/// Blocks of a reservation are given up with it: at every step of that all that is named is counted.
#[test]
fn blocks_are_given_up_soundly_at_every_step() {
    let setup = setup(3000, 2000);
    fails_only_with(&setup, &[Variants::only(Variant::BlockFreedBeforeUnnamed)], |w| {
        fill(w, 0..700, 0x11).expect("there is room");
        w.flush_twice();
        let before = w.places().blocks.len();
        let closed = w.close(0);
        while let Some(op) = w.try_catch(|_| true) {
            for after in [w.crash(|_| true), w.crash(|_| false), w.crash(|one| one.op == op.op)] {
                after.is_sound()?;
                after.reads_as(699, 0..1, &[0x11])?;
            }
            w.release(&op);
            w.advance_to_end(&op);
        }
        w.finish(&closed);
        let after = w.crash(|_| false);
        assert!(w.places().blocks.len() < before, "some were given up");
        assert!(after.check().is_clean(), "{:?}", after.check());
        after.reads_as(699, 0..1, &[0x11])
    });
}
