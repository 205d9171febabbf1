//! The power-cut enumerator: workloads over the simulated disk, the power cut after any step of it, and what is left
//! judged by the rules.
//!
//! A *case* is a seed. The seed decides how the image is made and opened ([`Config`]), what the guest does (`script`)
//! and in which order queues and disk make their steps. After steps of the disk a few of the states that a power cut
//! may leave are built (`states`) and judged (`judge`):
//!
//! - **I1** no refcount is below the references, by the checker of the qcow2 crate;
//! - **I2** what a completed flush or a durable write covered is there, and
//! - **I3** what none covered is its durable value or one written since, sector by sector, by a model of the guest
//!   (`model`) that knows nothing of qcow2;
//! - **I4** no host cluster is used twice, by the checker;
//! - **I5** leaks are bounded by what is reserved, claimed, unlinked and not yet durable: compressed data of one guest
//!   cluster in two host clusters, and one more that is open.
//!
//! In some cases the image has snapshots, which no state may show changed.
//!
//! Some of the states are opened for writing, used and closed, and must then be clean but for what had leaked. A case
//! has several *lives*: the next one begins with what a power cut left of the one before, so that images with real
//! garbage in their free space come about by themselves.
//!
//! The choice of crash states takes its numbers from a generator of its own: how many are judged does not change
//! what happens.

mod config;
mod hunt;
pub(crate) mod judge;
pub(crate) mod make;
pub(crate) mod model;
mod run;
pub(crate) mod script;
mod states;

pub use config::{Base, Config, Errors, FreeSpace, Growth, Packed, Past};
pub use hunt::{Found, Hunt, Tally, hunt, repeat};
pub use run::Violation;
