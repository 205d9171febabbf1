//! Where the hands of a file wait for each other, whichever thread drives them.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use super::finding::Stop;

/// A barrier of a fixed number of futures.
pub struct Meeting {
    expected: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    here: usize,
    /// Meetings that took place.
    past: u64,
    waiting: Vec<Waker>,
    over: bool,
}

impl Meeting {
    /// Of so many.
    pub fn new(expected: usize) -> Self {
        Meeting { expected, state: Mutex::default() }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing in here panics under the lock")
    }

    /// Waits until all are here.
    ///
    /// # Errors
    /// [`Stop::Ended`] when there will be no meeting any more.
    pub async fn meet(&self) -> Result<(), Stop> {
        let past = {
            let mut state = self.locked();
            let past = state.past;
            state.here += 1;
            if state.here == self.expected {
                state.here = 0;
                state.past += 1;
                let woken = std::mem::take(&mut state.waiting);
                drop(state);
                woken.into_iter().for_each(Waker::wake);
            }
            past
        };
        poll_fn(|cx| {
            let mut state = self.locked();
            if state.over {
                return Poll::Ready(Err(Stop::Ended));
            }
            if state.past > past {
                return Poll::Ready(Ok(()));
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// There will be no meeting any more.
    pub fn break_up(&self) {
        let mut state = self.locked();
        state.over = true;
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Lets all others go on first.
pub async fn stand_back() {
    let mut asked = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
