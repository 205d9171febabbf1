//! What a queue does when it has nothing to do: it sleeps, or looks again for a while before.

use std::hint;
use std::io;
use std::time::Duration;

use super::{Queue, Turn};
use crate::clock;

/// Whether a queue that waits sleeps at once. A sleep costs a switch of threads, and the time until the processor is
/// awake again; to look again and again costs the processor. It concerns [`Queue::wait`], [`Queue::block_on`] and
/// [`Queue::drain`]; [`Queue::turn`] never waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Polling {
    /// It sleeps at once.
    #[default]
    Off,
    /// It looks for completions and wake-ups for so long before it sleeps.
    For(Duration),
    /// It never sleeps.
    Always,
}

impl Queue {
    /// A turn, and if it leaves nothing to do a sleep, or what [`Polling`] says. One call both submits and waits.
    /// Answers [`Turn::Idle`] if it slept.
    pub(super) fn rest_or_submit(&mut self) -> io::Result<Turn> {
        match self.pass()? {
            Turn::Busy => {
                self.submit()?;
                Ok(Turn::Busy)
            }
            Turn::Idle if self.looks_again()? == Turn::Busy => Ok(Turn::Busy),
            Turn::Idle => {
                self.sleep()?;
                Ok(Turn::Idle)
            }
        }
    }

    /// Takes turns until one finds something to do, for as long as the queue may.
    fn looks_again(&mut self) -> io::Result<Turn> {
        let end = match self.polling {
            Polling::Off => return Ok(Turn::Idle),
            Polling::For(time) => clock::now().checked_add(time),
            Polling::Always => None,
        };
        // Without a ring there is nothing to sleep for either.
        if self.backend.is_none() {
            return Ok(Turn::Idle);
        }
        loop {
            // Each time: the kernel may have refused some of it for the moment.
            self.submit()?;
            hint::spin_loop();
            if self.pass()? == Turn::Busy {
                self.submit()?;
                return Ok(Turn::Busy);
            }
            if end.is_some_and(|end| clock::now() >= end) {
                return Ok(Turn::Idle);
            }
        }
    }

    fn sleep(&mut self) -> io::Result<()> {
        self.sleeps += 1;
        self.enter(1)
    }

    /// How often this queue has slept, or was about to when something came.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }
}
