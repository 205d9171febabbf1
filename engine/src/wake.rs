//! Waking a queue: which of its tasks are ready, and the event that ends its sleep.

use std::sync::Arc;
use std::task::Wake;

use blkring_tracker::sync::Mutex;
use blkring_tracker::sync::atomic::{AtomicBool, Ordering};

use crate::sys::EventFd;
use crate::variant::{Variant, Variants};

/// The tasks of one queue that were woken. Any thread may add to it.
pub(crate) struct Wakeups {
    ready: Mutex<Vec<usize>>,
    /// Whether the queue will look at `ready` before it sleeps. Cleared by the queue *before* its last look, read by
    /// wakers *after* adding: one of the two sees the other, so that no wake-up is lost. Only swapped, never stored to:
    /// the model takes a store and a swap beside it for unordered.
    awake: AtomicBool,
    /// `None` for simulated queues, which never sleep.
    event: Option<EventFd>,
    pub(crate) variants: Variants,
}

impl Wakeups {
    pub(crate) fn new(event: Option<EventFd>, variants: Variants) -> Arc<Self> {
        let (ready, awake) = (Mutex::new(Vec::new()), AtomicBool::new(true));
        Arc::new(Wakeups { ready, awake, event, variants })
    }

    pub(crate) fn event(&self) -> Option<&EventFd> {
        self.event.as_ref()
    }

    /// Ends a sleep, or keeps the queue from falling asleep.
    pub(crate) fn kick(&self) {
        if !self.awake.swap(true, Ordering::SeqCst)
            && let Some(event) = &self.event
        {
            event.signal();
        }
    }

    fn add(&self, key: usize) {
        self.ready.lock().push(key);
        if !self.variants.has(Variant::WakeupLost) {
            self.kick();
        }
    }

    /// Moves the woken tasks into `batch` (which is empty).
    pub(crate) fn take(&self, batch: &mut Vec<usize>) {
        std::mem::swap(&mut *self.ready.lock(), batch);
    }

    /// From here on wakers signal the event. Returns whether the queue may sleep: nothing is ready.
    pub(crate) fn lie_down(&self) -> bool {
        self.awake.swap(false, Ordering::SeqCst);
        self.ready.lock().is_empty()
    }

    #[cfg(feature = "sim")]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.lock().is_empty()
    }

    pub(crate) fn get_up(&self) {
        self.awake.swap(true, Ordering::SeqCst);
    }
}

/// Woken, the queue looks at what it has.
impl Wake for Wakeups {
    fn wake(self: Arc<Self>) {
        self.kick();
    }
}

/// The waker of one task slot. It is made once for each slot and serves all tasks that ever use it; a late wake-up
/// polls the wrong task once, which is harmless.
pub(crate) struct TaskWaker {
    key: usize,
    queued: AtomicBool,
    wakeups: Arc<Wakeups>,
}

impl TaskWaker {
    pub(crate) fn new(key: usize, wakeups: Arc<Wakeups>) -> Arc<Self> {
        Arc::new(TaskWaker { key, queued: AtomicBool::new(false), wakeups })
    }

    /// The task is about to be polled: wake-ups from here on count again.
    pub(crate) fn rearm(&self) {
        // A swap: the poll sees what a waker did before it found the task queued already. A store would not say so.
        self.queued.swap(false, Ordering::SeqCst);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.wakeups.add(self.key);
        }
    }
}
