//! The traces that broke earlier wordings of the crash rules, one test each.
//!
//! `trace_..` are the worst fifteen, by number. The other modules hold the mutations of the second round, by the names
//! of their runs. Each schedule runs on the driver as it is, where it must end legally, and with the rule broken,
//! where it must not; where a second rule alone would keep the bytes safe, both are broken.
//!
//! A guest cluster has eight sectors, and one host cluster is reserved at a time, unless a test says otherwise.

mod errors;
mod fifteen;
mod freeze;
mod further;
mod new_block;
mod pending;
mod per_allocation;
mod snapshots;

use blkring_engine::sim::{Event, OpKind};
use blkring_engine::{Variant, Variants};

/// The byte of the backing file.
const BELOW: u8 = 0xaa;

fn broken(variant: Variant) -> Variants {
    Variants::only(variant)
}

fn is_sync(event: &Event) -> bool {
    event.kind == OpKind::Sync
}
