//! The wait for admission.

use crate::Guard;
use crate::tracker::Turn;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A request that [`Tracker::begin`](crate::Tracker::begin) has taken in; the future waits until it runs.
///
/// Dropping it withdraws the request and admits whoever that frees.
#[derive(Debug)]
#[must_use = "dropping it withdraws the request"]
pub struct Begin {
    guard: Option<Guard>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Admitted,
    Waiting,
}

impl Begin {
    pub(crate) fn admitted(guard: Guard) -> Self {
        Self { guard: Some(guard), state: State::Admitted }
    }

    pub(crate) fn waiting(guard: Guard) -> Self {
        Self { guard: Some(guard), state: State::Waiting }
    }
}

impl Future for Begin {
    type Output = Guard;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard> {
        let this = &mut *self;
        let guard = this.guard.as_ref().expect("polled after it was ready");
        if this.state == State::Waiting
            && matches!(guard.tracker().poll(guard.id(), cx.waker()), Turn::Waits)
        {
            return Poll::Pending;
        }
        Poll::Ready(this.guard.take().expect("looked at above"))
    }
}
