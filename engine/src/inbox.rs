//! The side of a queue that its owner holds: requests on their way in, answers on their way out.
//!
//! Everything here belongs to the queue's thread. No borrow of a `RefCell` outlives a function, none is held while
//! foreign code runs. To clone, drop or wake a waker is to run foreign code, which may call in here.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::error::{IoError, Result};
use crate::memory::IoMem;
use crate::queue::{Port, QueueOptions};
use crate::request::{Completion, Flags, Request, WouldBlock};
use crate::statistics::{Asked, Latencies, QueueStatistics};
use crate::storage::Topology;
use crate::target::Facts;
use crate::variant::Variant;
use crate::wake::Wakeups;

pub(crate) struct Inbox {
    pub(crate) incoming: RefCell<VecDeque<Incoming>>,
    withdrawn: RefCell<Vec<Ticket>>,
    /// Ports that have lost their last handle.
    abandoned: RefCell<Vec<usize>>,
    pub(crate) completions: RefCell<VecDeque<Completion>>,
    receipts: RefCell<Slab<Awaiting>>,
    /// Requests accepted so far.
    accepted: Cell<u64>,
    /// Futures that found the queue full; all are woken when a request ends.
    starving: RefCell<Vec<Waker>>,
    unfinished: Cell<usize>,
    limit: usize,
    latencies: Latencies,
    statistics: RefCell<QueueStatistics>,
    closing: Cell<bool>,
    wakeups: Arc<Wakeups>,
}

pub(crate) struct Incoming {
    pub(crate) port: usize,
    pub(crate) request: Request,
    pub(crate) receipt: usize,
}

/// An accepted request, until its answer was taken. Keys are used again, numbers are not.
struct Awaiting {
    number: u64,
    asked: Asked,
    answer: Answer,
}

enum Answer {
    /// To the list of completions, with this user data.
    Listed(u64),
    /// To a receipt that nobody has polled yet, or that waits with this waker.
    Awaited(Option<Waker>),
    /// The receipt was dropped: the request goes on, the answer is forgotten.
    Forgotten,
    Given(Result<()>),
}

impl Inbox {
    pub(crate) fn new(options: &QueueOptions, wakeups: Arc<Wakeups>) -> Rc<Self> {
        Rc::new(Inbox {
            incoming: RefCell::default(),
            withdrawn: RefCell::default(),
            abandoned: RefCell::default(),
            completions: RefCell::default(),
            receipts: RefCell::default(),
            accepted: Cell::default(),
            starving: RefCell::default(),
            unfinished: Cell::new(0),
            limit: options.requests.max(1),
            latencies: options.latencies,
            statistics: RefCell::default(),
            closing: Cell::new(false),
            wakeups,
        })
    }

    fn accept(
        &self,
        port: usize,
        request: Request,
        answer: Answer,
    ) -> std::result::Result<Ticket, WouldBlock> {
        if self.unfinished.get() >= self.limit || self.closing.get() {
            return Err(WouldBlock(request));
        }
        self.unfinished.set(self.unfinished.get() + 1);
        let number = self.accepted.get();
        self.accepted.set(number + 1);
        let asked = Asked::now(&request, self.latencies);
        let receipt = self.receipts.borrow_mut().insert(Awaiting { number, asked, answer });
        // Nobody is woken: the next turn of this thread comes before its next sleep.
        self.incoming.borrow_mut().push_back(Incoming { port, request, receipt });
        Ok(Ticket { key: receipt, number })
    }

    fn breaks(&self, variant: Variant) -> bool {
        self.wakeups.variants.has(variant)
    }

    fn withdraw(&self, ticket: Ticket) {
        self.withdrawn.borrow_mut().push(ticket);
        self.wakeups.kick();
    }

    pub(crate) fn abandon(&self, port: usize) {
        self.abandoned.borrow_mut().push(port);
        self.wakeups.kick();
    }

    pub(crate) fn take_abandoned(&self, ports: &mut Vec<usize>) {
        ports.append(&mut self.abandoned.borrow_mut());
    }

    /// What was to be withdrawn since the last call and is not answered.
    pub(crate) fn withdrawn(&self) -> Vec<usize> {
        let mut tickets = self.withdrawn.take();
        let receipts = self.receipts.borrow();
        tickets.retain(|ticket| {
            let awaiting = receipts.get(ticket.key).filter(|one| one.number == ticket.number);
            awaiting.is_some_and(|one| !matches!(one.answer, Answer::Given(_)))
        });
        tickets.into_iter().map(|ticket| ticket.key).collect()
    }

    /// Puts `answer` in the place of what there is, unless the request has ended: then it is taken out. Gives the
    /// former. Wakers are dropped when the borrow has ended: of the former by the caller, and `answer` is a parameter
    /// so that it outlives the borrow here.
    fn replace(&self, ticket: Ticket, answer: Answer) -> Answer {
        let mut receipts = self.receipts.borrow_mut();
        match receipts[ticket.key].answer {
            Answer::Given(_) => receipts.remove(ticket.key).answer,
            _ => std::mem::replace(&mut receipts[ticket.key].answer, answer),
        }
    }

    /// Gives the one answer of an accepted request.
    pub(crate) fn answer(&self, receipt: usize, result: Result<()>) {
        self.unfinished.set(self.unfinished.get() - 1);
        let mut receipts = self.receipts.borrow_mut();
        self.statistics.borrow_mut().note(&receipts[receipt].asked, result.is_err());
        let answer = std::mem::replace(&mut receipts[receipt].answer, Answer::Forgotten);
        let waker = match answer {
            Answer::Listed(user_data) => {
                receipts.remove(receipt);
                self.completions.borrow_mut().push_back(Completion { user_data, result });
                None
            }
            Answer::Awaited(waker) => {
                receipts[receipt].answer = Answer::Given(result);
                waker
            }
            Answer::Forgotten => {
                receipts.remove(receipt);
                None
            }
            Answer::Given(_) => panic!("a request is answered once"),
        };
        drop(receipts);
        let starving = std::mem::take(&mut *self.starving.borrow_mut());
        starving.into_iter().chain(waker).for_each(Waker::wake);
    }

    /// Requests accepted and not answered.
    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.get()
    }

    pub(crate) fn statistics(&self) -> QueueStatistics {
        self.statistics.borrow().clone()
    }

    /// Requests whose answers were not taken.
    #[cfg(feature = "sim")]
    pub(crate) fn receipts(&self) -> usize {
        self.receipts.borrow().len()
    }

    #[cfg(feature = "sim")]
    pub(crate) fn has_incoming(&self) -> bool {
        !self.incoming.borrow().is_empty()
            || !self.withdrawn.borrow().is_empty()
            || !self.abandoned.borrow().is_empty()
    }

    pub(crate) fn close(&self) {
        self.closing.set(true);
    }
}

/// One target as seen from the thread of a queue that drives it. Clones are cheap, and stay on that thread; another one
/// attaches the target to a queue of its own.
///
/// ```compile_fail,E0277
/// fn elsewhere(disk: blkring_engine::Disk) {
///     std::thread::spawn(move || disk.size());
/// }
/// ```
#[derive(Clone)]
pub struct Disk {
    pub(crate) port: Rc<Port>,
    /// Not held: the queue keeps the target open while there are handles, and lets it go when the queue goes.
    pub(crate) target: Weak<dyn Facts>,
    pub(crate) size: u64,
    pub(crate) topology: Topology,
    pub(crate) path: Arc<str>,
}

/// Names a request that was submitted with user data, to withdraw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    key: usize,
    number: u64,
}

impl Disk {
    fn inbox(&self) -> &Rc<Inbox> {
        &self.port.inbox
    }

    fn accept(&self, request: Request, answer: Answer) -> std::result::Result<Ticket, WouldBlock> {
        self.inbox().accept(self.port.number, request, answer)
    }

    /// The size in bytes that requests may reach now. Of a target that is gone, what it was when it was attached.
    pub fn size(&self) -> u64 {
        self.target.upgrade().map_or(self.size, |target| target.size())
    }

    /// The units and limits of the target.
    pub fn topology(&self) -> Topology {
        self.target.upgrade().map_or(self.topology, |target| target.topology())
    }

    /// Hands a request to the queue; its one completion carries `user_data` and is found in
    /// [`Queue::completions`](crate::Queue::completions).
    ///
    /// Nothing is asked of the kernel yet: that does the next [`Queue::turn`](crate::Queue::turn), for all requests
    /// that were handed in before it, by one system call. So take everything that a virtqueue has, and then turn.
    ///
    /// # Errors
    /// [`WouldBlock`] if the queue holds as many requests as it may: nothing was accepted.
    pub fn queue(
        &self,
        request: Request,
        user_data: u64,
    ) -> std::result::Result<Ticket, WouldBlock> {
        self.accept(request, Answer::Listed(user_data))
    }

    /// Hands a request to the queue and gives a future for its answer. The request belongs to the queue from here
    /// on: dropping the receipt neither cancels nor releases anything.
    ///
    /// # Errors
    /// [`WouldBlock`] as for [`Disk::queue`].
    pub fn submit(&self, request: Request) -> std::result::Result<Receipt, WouldBlock> {
        let ticket = self.accept(request, Answer::Awaited(None))?;
        Ok(Receipt { inbox: self.inbox().clone(), ticket: Some(ticket) })
    }

    /// Asks for a request to be given up if it only waits: no operation and no cluster is its own yet. It is then
    /// answered with ECANCELED; otherwise it goes on. Nothing happens if it is
    /// answered already.
    pub fn withdraw(&self, ticket: Ticket) {
        self.inbox().withdraw(ticket);
    }

    /// Submits when there is room and waits for the answer.
    ///
    /// # Errors
    /// What the request met.
    pub async fn request(&self, request: Request) -> Result<()> {
        let mut request = Some(request);
        let receipt = poll_fn(|cx| {
            let asked = request.take().expect("put back below unless it was accepted");
            if self.inbox().closing.get() {
                let (operation, offset) = (asked.operation(), asked.offset);
                let error = IoError::new(&self.path, operation, offset, libc::ESHUTDOWN);
                return Poll::Ready(Err(error));
            }
            match self.submit(asked) {
                Ok(receipt) => Poll::Ready(Ok(receipt)),
                Err(WouldBlock(back)) => {
                    request = Some(back);
                    let waker = cx.waker().clone();
                    self.inbox().starving.borrow_mut().push(waker);
                    Poll::Pending
                }
            }
        })
        .await?;
        receipt.await
    }

    /// Reads into `mem` from `offset`.
    ///
    /// # Errors
    /// As [`Disk::request`].
    pub async fn read(&self, offset: u64, mem: IoMem) -> Result<()> {
        self.request(Request::read(offset, mem)).await
    }

    /// Writes `mem` at `offset`.
    ///
    /// # Errors
    /// As [`Disk::request`].
    pub async fn write(&self, offset: u64, mem: IoMem, flags: Flags) -> Result<()> {
        self.request(Request::write(offset, mem).with(flags)).await
    }

    /// Makes `len` bytes at `offset` read as zeros.
    ///
    /// # Errors
    /// As [`Disk::request`].
    pub async fn write_zeroes(&self, offset: u64, len: u64, flags: Flags) -> Result<()> {
        self.request(Request::write_zeroes(offset, len).with(flags)).await
    }

    /// Gives `len` bytes at `offset` back.
    ///
    /// # Errors
    /// As [`Disk::request`].
    pub async fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.request(Request::discard(offset, len)).await
    }

    /// Makes everything answered before durable.
    ///
    /// # Errors
    /// As [`Disk::request`].
    pub async fn flush(&self) -> Result<()> {
        self.request(Request::flush()).await
    }
}

/// A future for the answer of a submitted request, on the thread of its queue.
///
/// ```compile_fail,E0277
/// fn elsewhere(receipt: blkring_engine::Receipt) {
///     std::thread::spawn(move || drop(receipt));
/// }
/// ```
#[must_use = "a receipt tells how the request ended"]
pub struct Receipt {
    inbox: Rc<Inbox>,
    /// `None` once the answer was taken.
    ticket: Option<Ticket>,
}

impl Receipt {
    /// As [`Disk::withdraw`]; the receipt still tells how the request ended.
    pub fn withdraw(&self) {
        if let Some(ticket) = self.ticket {
            self.inbox.withdraw(ticket);
        }
    }
}

impl Future for Receipt {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let ticket = self.ticket.expect("a receipt is not polled after it was ready");
        match self.inbox.replace(ticket, Answer::Awaited(Some(cx.waker().clone()))) {
            Answer::Given(result) => {
                self.ticket = None;
                Poll::Ready(result)
            }
            _former => Poll::Pending,
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let former = self.inbox.replace(ticket, Answer::Forgotten);
            let answered = matches!(former, Answer::Given(_));
            if !answered && self.inbox.breaks(Variant::DroppedReceiptReleasesRange) {
                self.inbox.withdraw(ticket);
            }
        }
    }
}
