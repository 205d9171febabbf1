//! The thread that lets delayed operations go.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkring_tracker::sync::{Mutex, thread};

use crate::clock;
use crate::lane::Place;
use crate::sys::{self, EventFd};

/// The longest sleep of the thread in milliseconds: it looks again then.
const LONGEST: u128 = 60_000;

/// Ends with its thread, which is joined. What is delayed then goes on at once.
pub(super) struct Timer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    event: EventFd,
}

#[derive(Default)]
struct State {
    /// In no order: a few hundred at most.
    delayed: Vec<(Instant, Place)>,
    over: bool,
}

impl Timer {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), event: EventFd::new()? });
        let of_thread = shared.clone();
        let builder = thread::Builder::new().name("blkring-delay".to_owned());
        let thread = builder.spawn(move || of_thread.run())?;
        Ok(Timer { shared, thread: Some(thread) })
    }

    pub(super) fn add(&self, place: Place, by: Duration) {
        self.shared.state.lock().delayed.push((clock::now() + by, place));
        self.shared.event.signal();
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let now = clock::now();
            let (due, next, over) = self.state.lock().due(now);
            for (_, place) in due {
                place.release();
            }
            if over {
                return;
            }
            let wait = next.map_or(LONGEST, |at| {
                (at.saturating_duration_since(now).as_micros().div_ceil(1000)).min(LONGEST)
            });
            sys::wait_readable(self.event.as_raw_fd(), i32::try_from(wait).unwrap_or(i32::MAX));
            self.event.take();
        }
    }
}

impl State {
    /// What is due, when the next one is, and whether this is the end.
    fn due(&mut self, now: Instant) -> (Vec<(Instant, Place)>, Option<Instant>, bool) {
        let over = self.over;
        let due = self.delayed.extract_if(.., |(at, _)| over || *at <= now).collect();
        (due, self.delayed.iter().map(|(at, _)| *at).min(), over)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.event.signal();
        let Some(thread) = self.thread.take() else { return };
        // The last one to use the faults may be an operation that this very thread has let go.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::error!("the thread for delays has panicked");
        }
    }
}
