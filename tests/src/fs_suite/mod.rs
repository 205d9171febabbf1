//! The concurrency suite: what many queues may do to one file at once, on any file system.
//!
//! A *test* ([`list`]) makes files at a *place* ([`ground`]) and has *hands* use them ([`crew`], [`hand`]): futures of
//! several queues, each queue on a thread of its own. The *history* of a file ([`history`], [`sizes`]) knows what each of
//! its bytes and its size may be, whatever happens in which order; every read is judged by it, and now and then, when all
//! hands rest, the whole file. The *order* ([`order`]) sees what is in the kernel at the same time, and that flushes cover
//! what they must. So a test can notice a rule that is broken although the kernel at hand does no harm with it; which
//! test must notice which rule is tried by [`broken`].

pub mod broken;
pub mod cli;
pub mod crew;
pub mod finding;
pub mod ground;
pub mod hand;
pub mod history;
pub mod list;
pub mod meeting;
pub mod order;
pub mod run;
mod scenes;
pub mod session;
pub mod sizes;
pub mod sleep;
pub mod subject;
pub mod time;
