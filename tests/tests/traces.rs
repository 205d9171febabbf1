//! The traces that broke earlier wordings of the crash rules, one test each, numbered as in the list of the fifteen
//! worst. Each runs on the driver as it is, where it must end legally, and with the rule broken, where it must not.

use blkring_engine::{Variant, Variants};
use blkring_tests::image_world::{ImageWorld, Setup, Verdict, fails_only_with};

/// The byte of the backing file.
const BELOW: u8 = 0xaa;

fn broken(variant: Variant) -> Variants {
    Variants::only(variant)
}

/// A guest write covers a whole cluster over backing data, and the flush's entry survives the cut where its data does
/// not: the guest must see the backing, not zeros.
#[test]
fn trace_01_b2_whole_cluster_over_backing() {
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(
        &setup,
        &[broken(Variant::PayloadAfterEntry)],
        |w: &mut ImageWorld| -> Verdict {
            w.prepare(0..2, 0x11);
            let (is_data, is_table) = (w.is_data(), w.is_table());
            let written = w.fill(0, 5, 0x22);
            w.finish(&written);
            w.settle();
            let flushed = w.flush(0);
            let entry = w.catch(is_table);
            assert!(!flushed.given());
            let after = w.crash(|op| op.op == entry.op || !is_data(op));
            after.reads_as(5, 0..8, &[BELOW, 0x22])?;
            after.is_sound()?;
            w.release(&entry);
            w.finish(&flushed);
            w.crash(|_| false).reads_as(5, 0..8, &[0x22])
        },
    );
}
