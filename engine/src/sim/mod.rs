//! A simulated kernel and disk, for tests: nothing in it happens by itself, and everything that a real one may do to
//! those who trust it too much can be made to happen.
//!
//! # The model
//!
//! *Ops* come from the lanes of queues and services as they would go to a ring. An accepted op is *pending* and makes
//! its steps only when the owner of the disk says so, usually a [`World`] that picks by seed: latency and reordering
//! are the order of steps. A read or write *lands* (the bytes move, at once and whole, and everybody sees them), then
//! *completes* (its issuer is told). An fdatasync *begins* (it knows what it covers), *lands*, completes.
//!
//! *Durability.* The disk has a volatile cache. What landed is volatile, sector by sector (512 bytes), and so are
//! changes of the size and of the allocation, until an fdatasync that began after the landing has itself landed. A
//! durable write settles its own sectors when it completes, and the size if they need it to be read. Nothing
//! else becomes durable, and nothing by chance: that is a choice of the crash.
//!
//! *Crash.* After a power cut each sector holds, each independently of all others, its durable value, one that
//! landed since, or one of a write, zeroing or punch that is accepted and has not landed (so writes tear at sectors).
//! The size is the durable one, one that landed since, or that of an op in flight, independent of the sectors; what
//! lies beyond it is gone. No order between any two of these is kept, which is less than a journal promises: what
//! survives here survives there. [`SimDisk::crash`] leaves every choice to its caller, [`SimDisk::crash_random`]
//! picks states that real disks are likely to leave as well as those that they are not.
//!
//! *fallocate.* `Grow` gives space and lets the file grow, old bytes stay. `ZeroRange` zeroes besides. `PunchHole`
//! zeroes and takes the space away, the size stays. All of it is volatile like a write.
//!
//! *The old kernel* ([`Kernel::OldXfs`]): a fallocate that ends beyond the end of the file has a first step that
//! computes the new size, and when it lands it sets just that: what was written beyond it in between is cut off.
//! The real one also keeps other I/O out between the two steps; that is not assumed.
//!
//! *Faults* ([`Rule`]): an op fails with an error number, or moves fewer bytes, or moves some and then fails. A sync
//! that fails loses what it covered: the cache still shows it and no later sync writes it out. Without room
//! ([`SimDisk::set_capacity`]) a write or allocation is ENOSPC and changes nothing. Ops not aligned as the open file
//! asks are EINVAL. [`SimDisk::hold`] keeps ops from a step until they are released by name.
//!
//! *Not modelled:* reads that see half of a concurrent write; bytes that rot; a sector torn within; sectors larger
//! than 512 bytes, which would tear less; a device that lies about fdatasync.
//!
//! [`SimDisk::log`] has every step in order, for assertions about who was where when.

mod crash;
mod disk;
mod execute;
mod fault;
mod file;
mod history;
mod log;
mod pending;
mod rng;
mod sectors;
mod world;

pub use crash::{Cell, Choice};
pub use disk::{Kernel, SimDisk, SimOptions, SimShape};
pub use fault::{Fault, Matcher, Point, Rule};
pub use file::SimFile;
pub use log::{Event, OpKind, Stage};
pub use rng::Rng;
pub use sectors::SECTOR;
pub use world::{Outcome, World};
