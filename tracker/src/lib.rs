//! Bookkeeping of requests in flight over one address space, for block layers: requests that may hurt each other wait
//! for each other, all others never meet.
//!
//! [`Tracker`] is the object to use: [`begin`](Tracker::begin) takes a byte range and a class and gives a future whose
//! output is a [`Guard`]; dropping the guard ends the request. Below it lies [`table::Table`], the same rules as a
//! plain state machine without I/O, clock, threads or wakers.
//!
//! ```
//! use blkring_tracker::{Class, Overtaken, Span, Tracker};
//! # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
//! # fn run<T>(future: impl Future<Output = T>) -> T {
//! #     match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
//! #         Poll::Ready(output) => output,
//! #         Poll::Pending => panic!("nobody ends what it waits for"),
//! #     }
//! # }
//! # run(async {
//! let tracker = Tracker::new();
//!
//! // Two plain writes overlap and run side by side.
//! let write = tracker.begin(Span::at(0, 4096), Class::Shared).await;
//! let other = tracker.begin(Span::at(2048, 4096), Class::Shared).await;
//!
//! // One that must be alone has its place in the order at once, and waits.
//! let discard = tracker.begin(Span::at(0, 65536), Class::Serialising);
//! assert!(tracker.try_begin(Span::at(8192, 512), Class::Shared).is_err(), "not past the discard");
//!
//! drop(write);
//! drop(other);
//! let discard = discard.await;
//!
//! // It finds that it changes the size of the file: everything from there on must wait for it.
//! let grant = discard.widen(Span::to_infinity(65536)).await;
//! assert_eq!(grant.overtaken, Overtaken::No);
//! assert_eq!(grant.guard.span(), Span::to_infinity(0));
//! # });
//! ```
//!
//! # The rules
//!
//! A **request** is a range `[start, end)`, a class and a ticket. The end may be infinity. The ticket is drawn at
//! `begin` and kept for life. Two requests *conflict* when their ranges share a byte and at least one of them is
//! serialising; an empty range conflicts with nothing.
//!
//! A request is *waiting* (never admitted so far), *running*, or *parked* (it ran, asked for more, and waits for that).
//! Only a running request has I/O in the kernel.
//!
//! **The waiting rule.** A request that does not run is judged by the range and class it asks for. It waits for every
//! conflicting request that runs, whatever its ticket, and for every conflicting one that does not run and has the
//! lower ticket. This holds at every moment: when another request widens, blockers may come and go. When the last one
//! is gone the request is admitted, under the same lock hold.
//!
//! **Late widening.** A running request may, with none of its I/O in flight, widen to the hull of what it has and what
//! it asks for. It is serialising from then on; neither is taken back. Unblocked it goes on. Otherwise it parks and
//! *gives up its old grant*, keeping its ticket: a parked request with a lower ticket may now run there, so the call may
//! admit others. If anybody in conflict with the old grant did run, the widener is told that it was
//! [overtaken](Overtaken), and must learn again what it learned under that grant: the file's size, a mapping, bytes read
//! for a read-modify-write. Asking for what is held is granted at once. The number of widenings per request is
//! [bounded](table::MAX_WIDENINGS).
//!
//! **Without waiting.** `try_begin` and `try_widen` are busy if they would have to wait, *also for one that itself
//! waits*. Passing those would starve them. A busy call changes nothing but the busy counter.
//!
//! **Dropping** a guard, or the future of one that waits, takes the request out in any phase and admits whoever that
//! frees. Dropping the future of a widening drops the request; it cannot go back to the smaller range.
//!
//! **The caller's part.** The guard of a request belongs to whatever owns its I/O until the last completion. Inner
//! requests (the read of a read-modify-write) run under the caller's guard and are never registered again. Where
//! several trackers or other resources are involved, nobody waits for something earlier in a fixed order than what it
//! holds. Every phase of I/O ends.
//!
//! # Why it is safe, free of deadlock and fair
//!
//! Draw an arrow from each request that does not run to each one that it waits for.
//!
//! 1. *Two in conflict never run together.* A request starts to run only without an arrow, so nobody in conflict with
//!    it runs at that moment. Of two admitted by the same event the one with the higher ticket would still have an
//!    arrow to the other if they were in conflict. A range grows only by widening, which runs on only without an arrow.
//! 2. *Arrows form no cycle.* They lead to running requests, which have none, or to lower tickets. So if anybody waits,
//!    the lowest ticket among those that do not run waits for running ones only.
//! 3. *An admission adds no arrow.* Whoever is in conflict with the one that starts and does not run has the higher
//!    ticket, else the one would have waited for it; and then it had the arrow before. Hence the number of arrows of a
//!    request changes only when another one begins, ends or widens, and one countdown per request is enough.
//! 4. *No newcomer gets past.* The higher tickets that a request waits for are running ones. None is ever added: a
//!    newcomer or a parked one in conflict waits for the lower ticket, and a running one that widens over it parks
//!    behind it. Lower tickets are not added either, for all of them are already there.
//! 5. *The wait is bounded.* Once a request has the lowest ticket of all, its blockers run and each ends or parks within
//!    T, the longest phase of I/O; after at most w + 1 times waiting and running, w its widenings, it is gone. By
//!    induction over the p lower tickets in flight a request runs within (2p(w + 1) + 1) T.
//!
//! When a running request Y widens, every Z that does not run and conflicts with its new range is looked at once. If Z
//! has the higher ticket and had no arrow to Y, it gets one. If Z has the lower ticket and had one, because Y ran, that
//! arrow turns round: Y parks behind Z. If Y does not park there is no Z of the second kind.
//!
//! # What it costs
//!
//! A shared `begin` and every end take O((k + 1) log n), k the conflicts among n in flight; a serialising `begin` and a
//! widening also pass once over the running shared requests (a fraction of a nanosecond each). Each request has one
//! countdown, and exactly those that reach zero are woken, outside the lock. When nothing serialises a request takes
//! the one lock once at its begin and once at its end, with no search. A warm tracker allocates nothing.
//!
#![doc = include_str!("cost.md")]
//!
//! # Locks, threads, models
//!
//! There is one lock, around the table and the wakers; it is never held across an await or while a waker runs. The
//! [`sync`] module is the one source of locks, atomics and threads, for this crate and those above it, so that model
//! checkers can stand in for them.
#![forbid(unsafe_code)]

mod begin;
mod busy;
mod guard;
mod request;
mod span;
pub mod sync;
pub mod table;
mod tracker;
mod widen;

pub use begin::Begin;
pub use busy::Busy;
pub use guard::Guard;
pub use request::{Class, Id, Overtaken, Phase, Request};
pub use span::Span;
pub use table::Statistics;
pub use tracker::Tracker;
pub use widen::{Grant, Marked, Widen};
