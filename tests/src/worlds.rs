//! Worlds: a few queues on one qcow2 image and on a raw disk beside it, and a seed that decides everything else.
//!
//! The seed draws how the image is made and opened ([`Config`]), what the guests ask for, which queue takes a turn and
//! which op makes a step, which ops are late, fail, are interrupted or move fewer bytes than they were asked to, whose
//! receipts are dropped, what is withdrawn, and when queues pause, come and go. The same seed makes the same world, step
//! by step: the hash of a [`Trace`] says so.
//!
//! - *Every read* shows in each sector something that a history allows: what was written last, or one of those that
//!   overlapped with it in time. What was withdrawn has done nothing.
//! - *Nothing hangs*: every request is answered within a bounded number of steps.
//! - *At the end* nothing is left: trackers, lanes, tasks, receipts, jobs and buffers are empty. After a flush the disk
//!   is read by the queues that are there, and by new ones after a power cut that keeps nothing volatile, and one that
//!   keeps all of it. The checker finds no damage, and after the image is closed no leak.
//!
//! What a guest may see, and how an image is made, is that of the power-cut enumerator (`powercut`), which looks at many
//! more states after power cuts and at far fewer interleavings.

mod config;
mod delays;
mod end;
mod faults;
mod play;
mod queues;
mod requests;
mod search;
mod seeds;
mod side;
mod trace;

pub use config::{Config, Mix};
pub use play::{Violation, play};
pub use search::{Found, Tally, search};
pub use seeds::{Seed, parse};
pub use trace::Trace;
