//! How the pieces of a copy wait for each other, on one thread: a bound on how many there are, and their order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Lets so many pass at once.
pub struct Gate {
    free: Cell<usize>,
    limit: usize,
    waiting: RefCell<Option<Waker>>,
}

/// The right to be past a gate, until it is dropped.
pub struct Pass(Rc<Gate>);

impl Gate {
    /// A gate for `limit` at once.
    pub fn new(limit: usize) -> Rc<Self> {
        Rc::new(Gate { free: Cell::new(limit), limit, waiting: RefCell::default() })
    }

    /// Waits for a pass. One waits at a time.
    pub async fn enter(self: &Rc<Self>) -> Pass {
        self.until(|free| free > 0).await;
        self.free.set(self.free.get() - 1);
        Pass(self.clone())
    }

    /// Waits until nobody is past the gate. One waits at a time.
    pub async fn empty(&self) {
        self.until(|free| free == self.limit).await;
    }

    async fn until(&self, fits: impl Fn(usize) -> bool) {
        poll_fn(|cx| {
            if fits(self.free.get()) {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        let waiting = self.0.waiting.borrow_mut().take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// Whose turn it is: numbers from 0 on, one after the other.
#[derive(Default)]
pub struct Turns {
    next: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl Turns {
    /// Waits until it is the turn of `number`, which then is to be passed on by [`Turns::pass`].
    pub async fn wait(&self, number: u64) {
        poll_fn(|cx| {
            if self.next.get() == number {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().insert(number, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// It is the turn of the next.
    pub fn pass(&self) {
        let next = self.next.get() + 1;
        self.next.set(next);
        let waiting = self.waiting.borrow_mut().remove(&next);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_gate_counts() {
        let gate = Gate::new(2);
        let passes = RefCell::new(Vec::new());
        let enter = || {
            ready(async {
                let pass = gate.enter().await;
                passes.borrow_mut().push(pass);
            })
        };
        assert!(ready(gate.empty()) && enter() && enter() && !enter());
        assert!(!ready(gate.empty()));
        passes.borrow_mut().pop();
        assert!(enter());
        passes.borrow_mut().clear();
        assert!(ready(gate.empty()));
    }

    #[test]
    fn turns_come_in_order() {
        let turns = Turns::default();
        assert!(ready(turns.wait(0)) && !ready(turns.wait(1)));
        turns.pass();
        assert!(ready(turns.wait(1)) && !ready(turns.wait(2)));
    }
}
