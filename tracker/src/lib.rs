//! Bookkeeping of requests in flight: ranges, conflicts, serialising requests, fair waiting.
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
