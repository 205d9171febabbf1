//! Further traces: frees and evictions (C7b), and closing (f, f4, f5).

use blkring_engine::Variant;
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{Setup, Verdict, fails_only_with};

use crate::broken;

/// C7b: what an eviction unlinked is not due: nothing has synced it.
#[test]
fn c7b_eviction_frees_nothing() {
    let setup = Setup::new(256).cluster(512).options(|options| options.cache_bytes(512));
    fails_only_with(&setup, &[broken(Variant::EvictionPromotes)], |w| {
        w.prepare(0..3, 0x11);
        w.prepare(200..201, 0x11);
        let gone = w.discard(0, 0);
        w.finish(&gone);
        w.read(0, 200 * 512, 512);
        w.settle();
        let statistics = w.image.statistics();
        if (statistics.dirty_clusters, statistics.held_back_clusters) != (0, 1) {
            return Err(format!("recycled without a sync: {statistics:?}"));
        }
        w.flush_twice();
        assert_eq!(w.image.statistics().dirty_clusters, 1, "with one it is");
        Ok(())
    });
}

/// f: the power is cut at every step of closing.
#[test]
fn f_closing_is_sound_at_every_step() {
    for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
        let setup = Setup::new(64).reserve(8).policy(policy);
        fails_only_with(&setup, &[], |w| {
            w.prepare(0..12, 0x11);
            for cluster in 2..8 {
                let gone = w.discard(0, cluster);
                w.finish(&gone);
            }
            let closed = w.close(0);
            let mut steps = 0;
            while let Some(op) = w.try_catch(|_| true) {
                for after in [w.crash(|_| true), w.crash(|_| false), w.crash(|one| one.op == op.op)]
                {
                    after.is_sound()?;
                    after.reads_as(0, 0..8, &[0x11])?;
                    after.reads_as(9, 0..8, &[0x11])?;
                    after.reads_as(4, 0..8, &[0, 0x11])?;
                }
                w.release(&op);
                w.advance_to_end(&op);
                steps += 1;
            }
            w.finish(&closed);
            assert!(steps >= 4, "closing writes, cuts and syncs");
            let left = w.crash(|_| false);
            assert!(left.check().is_clean(), "{:?}", left.check());
            left.reads_as(4, 0..8, &[0])
        });
    }
}

/// f4: a file whose last cluster in use is a refcount block is not cut before it.
#[test]
fn f4_truncation_spares_refcount_blocks() {
    fails_only_with(&Setup::new(600).cluster(512).reserve(4), &[], |w| {
        w.prepare(0..300, 0x11);
        assert_eq!(w.places().blocks.len(), 2);
        // Everything behind the second block's first clusters goes.
        w.give_up(200..300);
        let closed = w.close(0);
        w.finish(&closed);
        let left = w.crash(|_| false);
        assert!(left.check().is_clean(), "{:?}", left.check());
        left.reads_as(199, 0..1, &[0x11])
    });
}

/// f5: what one session returned is not zero for the next.
fn returned_clusters(setup: &Setup) -> Verdict {
    let mut w = setup.clone().make();
    w.prepare(0..4, 0x11);
    w.give_up(0..3);
    let closed = w.close(0);
    w.finish(&closed);
    let left = w.crash(|_| false);
    assert!(left.check().is_clean(), "{:?}", left.check());
    let mut w = setup.clone().open(&left.disk);
    for cluster in 5..8 {
        let written = w.write(0, cluster, 0..1, 0x22);
        w.finish(&written);
        w.reads_as(cluster, 1..8, &[0])?;
    }
    Ok(())
}

#[test]
fn f5_returned_clusters_are_not_zero() {
    let setup = Setup::new(16);
    assert_eq!(returned_clusters(&setup), Ok(()));
    assert_eq!(returned_clusters(&setup.clone().policy(AllocPolicy::PerAllocation)), Ok(()));
    let broken = setup.variants(broken(Variant::AllocationTakenForZero));
    assert!(returned_clusters(&broken).is_err(), "not noticed");
}
