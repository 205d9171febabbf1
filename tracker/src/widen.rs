//! The wait of a running request for more.

use crate::tracker::Turn;
use crate::{Guard, Overtaken};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A request whose widening is registered, by [`Guard::mark_serialising`], and that has not waited for it yet.
///
/// It keeps others off the wider range from now on, but may do no I/O before [`wait`](Self::wait) is over: until then
/// it may be parked, holding nothing. Dropping it drops the request.
#[derive(Debug)]
#[must_use = "dropping it drops the request"]
pub struct Marked(Widen);

impl Marked {
    pub(crate) fn at_once(guard: Guard) -> Self {
        Self(Widen { guard: Some(guard), state: State::Runs })
    }

    pub(crate) fn parked(guard: Guard) -> Self {
        Self(Widen { guard: Some(guard), state: State::Parked })
    }

    /// Waits until the wider range is granted.
    pub fn wait(self) -> Widen {
        self.0
    }

    /// Whether the wider range was granted by the call that marked it: [`wait`](Self::wait) then is ready at once.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.0.state == State::Runs
    }
}

/// A widening that [`Guard::widen`] has registered; the future waits until it is granted.
///
/// Dropping it drops the request: going back to the smaller range is not possible, others may run there by now.
#[derive(Debug)]
#[must_use = "dropping it drops the request"]
pub struct Widen {
    guard: Option<Guard>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Parked,
}

/// A granted widening.
#[derive(Debug)]
#[must_use = "dropping the guard ends the request"]
pub struct Grant {
    /// The request, serialising now, over the hull of what it had and what it asked for.
    pub guard: Guard,
    /// Whether what was learned under the old grant must be learned again.
    pub overtaken: Overtaken,
}

impl Future for Widen {
    type Output = Grant;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Grant> {
        let this = &mut *self;
        let guard = this.guard.as_ref().expect("polled after it was ready");
        let turn = match this.state {
            State::Runs => Turn::Admitted(Overtaken::No),
            State::Parked => guard.tracker().poll(guard.id(), cx.waker()),
        };
        match turn {
            Turn::Waits => Poll::Pending,
            Turn::Admitted(overtaken) => {
                let guard = this.guard.take().expect("looked at above");
                Poll::Ready(Grant { guard, overtaken })
            }
        }
    }
}
