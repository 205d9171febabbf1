//! A new refcount block (P11): never in a pending cluster, and the clusters that it counts are pending.

use std::ops::Range;

use blkring_engine::Variant;
use blkring_engine::sim::{Event, OpKind, Stage};
use blkring_tests::image_world::{ImageWorld, Setup, Verdict, fails_only_with};

use crate::{broken, is_sync};

/// With clusters of 512 bytes a block counts 256 of them.
fn setup() -> Setup {
    Setup::new(600).cluster(512).reserve(16)
}

/// A write in place that goes no further: the image has no quiet moment any more.
fn keep_busy(w: &mut ImageWorld) {
    w.write(0, 0, 0..1, 0x33);
    w.catch(w.is_data());
}

/// Fills clusters one by one until the refcount table is to name a new block. Where the log was then, and the op.
fn until_named(w: &mut ImageWorld) -> (u64, Event) {
    let reftable = w.places().fixed[1].clone();
    for cluster in 1..300 {
        w.fill(0, cluster, 0x11);
        let entry =
            w.try_catch(|op| op.kind == OpKind::Write && op.touches(reftable.start, reftable.end));
        if let Some(entry) = entry {
            return (w.disk.steps(), entry);
        }
    }
    panic!("300 clusters need a second block")
}

/// The block that an entry on its way names.
fn named_by(w: &mut ImageWorld, entry: &Event) -> Range<u64> {
    let before = w.places().blocks;
    w.advance(entry, Stage::Landed);
    let mut blocks = w.places().blocks.into_iter().filter(|block| !before.contains(block));
    blocks.next().expect("one block was added")
}

/// Clusters that the new block counts are linked and flushed. An entry that survives alone names nothing whose count
/// is lost.
fn links_wait_for_the_counts(w: &mut ImageWorld) -> Verdict {
    for cluster in 300..340 {
        let written = w.fill(0, cluster, 0x22);
        w.finish(&written);
    }
    let blocks = w.places().blocks;
    let is_cut = |op: &Event| {
        op.kind == OpKind::Write && !blocks.iter().any(|block| op.touches(block.start, block.end))
    };
    let before = w.disk.steps();
    let flushed = w.flush(0);
    w.catch_behind_syncs(is_cut);
    let cut: Vec<u64> =
        w.accepted_since(before).iter().filter(|op| is_cut(op)).map(|op| op.op).collect();
    w.crash(|op| cut.contains(&op.op)).is_sound()?;
    w.release_all();
    w.finish(&flushed);
    let after = w.crash(|_| false);
    after.is_sound()?;
    after.reads_as(339, 0..1, &[0x22])
}

/// A clean cluster of the reservation is an empty block: nothing is written to it before it has its name, and no sync
/// comes between the name and the first counts.
#[test]
fn p11_a_block_in_a_clean_cluster() {
    fails_only_with(&setup(), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        let written = w.fill(0, 0, 0x11);
        w.finish(&written);
        let (named, entry) = until_named(w);
        w.crash(|op| op.op == entry.op).is_sound()?;
        w.crash(|_| true).is_sound()?;
        keep_busy(w);
        let block = named_by(w, &entry);
        assert!(block.start < 256 * 512, "counted by the first one");
        let touches = |op: &Event| op.kind == OpKind::Write && op.touches(block.start, block.end);
        w.crash(|op| op.op == entry.op).is_sound()?;
        w.release(&entry);
        let count = w.catch(touches);
        let between = w.accepted_since(named);
        assert!(!between.iter().any(is_sync), "no sync for the name alone: {between:?}");
        let counts = between.iter().filter(|op| touches(op)).count();
        assert_eq!(counts, 1, "the block was written for its first counts only");
        w.crash(|op| op.op == count.op).is_sound()?;
        w.release(&count);
        links_wait_for_the_counts(w)
    });
}

/// P11x: where all that is ready is pending, a block lies in the first cluster that it counts; its contents are
/// durable before the table names it. P11y: what it counts is pending.
#[test]
fn p11x_p11y_a_block_that_counts_itself() {
    fails_only_with(&setup(), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        let written = w.fill(0, 0, 0x11);
        w.finish(&written);
        keep_busy(w);
        let (_, entry) = until_named(w);
        w.crash(|op| op.op == entry.op).is_sound()?;
        let block = named_by(w, &entry);
        assert_eq!(block, 256 * 512..257 * 512, "the first one that it counts");
        w.crash(|op| op.op == entry.op).is_sound()?;
        w.release(&entry);
        links_wait_for_the_counts(w)
    });
}
