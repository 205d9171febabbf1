//! Requests that are stopped on purpose, by commands.

use std::sync::Arc;

use blkring_engine::faults::{Event, Faults, Notice, Rule};

use super::opened::Opened;
use super::session::Next;
use crate::text::describe;

/// Says what is stopped and let go.
pub fn tell(faults: &Arc<Faults>) {
    faults.observe(|notice| match notice {
        Notice::Stopped(tag) => println!("blkdebug: Suspended request '{tag}'"),
        Notice::Released(tag) => println!("blkdebug: Resuming request '{tag}'"),
    });
}

/// The next request that passes the point waits.
pub fn set(opened: &Opened, event: &str, tag: &str) -> Next {
    const WHAT: &str = "Could not set breakpoint";
    let Some(faults) = opened.faults() else { return failed(WHAT, libc::ENOTSUP) };
    let Some(event) = Event::named(event) else { return failed(WHAT, libc::ENOENT) };
    faults.add(Rule::suspend(event, tag));
    Next::Go
}

/// Takes breakpoints away. Who waits goes on, and that alone is no breakpoint.
pub fn remove(opened: &Opened, tag: &str) -> Next {
    let what = format!("Could not remove breakpoint {tag}");
    let Some(faults) = opened.faults() else { return failed(&what, libc::ENOTSUP) };
    let removed = faults.remove_tag(tag);
    faults.release(tag);
    if removed == 0 { failed(&what, libc::ENOENT) } else { Next::Go }
}

/// Lets go the request that was stopped last under this tag.
pub fn resume(opened: &Opened, tag: &str) -> Next {
    const WHAT: &str = "Could not resume request";
    let Some(faults) = opened.faults() else { return failed(WHAT, libc::ENOTSUP) };
    if faults.release_last(tag) { Next::Go } else { failed(WHAT, libc::ENOENT) }
}

/// An image without faults stops nobody.
pub fn cannot_wait() -> Next {
    failed("Could not wait for request", libc::ENOTSUP)
}

fn failed(what: &str, errno: i32) -> Next {
    println!("{what}: {}", describe(errno));
    Next::GoFailed
}
