//! Writes: piece by piece, each mapped, moved and published alone.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::Guard;
use blkring_engine::{Context, Flags, IoMem, Result, Variant};

use super::Image;
use super::plan::{Durable, Plan, Prepare};

/// The grant of a request, shared with the work that must not outlive it.
pub(super) enum Grant {
    Own(Guard),
    Shared(Arc<Guard>),
    /// While it changes from one to the other.
    Moving,
}

impl Grant {
    /// A share for a job: the range stays granted until the job has ended, whatever becomes of the request.
    pub(super) fn share(&mut self) -> Arc<Guard> {
        let shared = match std::mem::replace(self, Grant::Moving) {
            Grant::Own(guard) => Arc::new(guard),
            Grant::Shared(shared) => shared,
            Grant::Moving => unreachable!("set below before anybody looks"),
        };
        *self = Grant::Shared(shared.clone());
        shared
    }
}

/// Whether a finished piece, with its mapping, is durable already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Durable,
    NeedsFlush,
}

impl Image {
    /// Writes `mem` at `offset` under `grant`.
    pub(super) async fn write_guest(
        self: &Arc<Self>,
        context: &Context,
        offset: u64,
        mem: &IoMem,
        flags: Flags,
        grant: &mut Grant,
    ) -> Result<()> {
        let mut settled = Settled::Durable;
        let mut done = 0;
        while done < mem.len() {
            let rest = mem.slice(done..mem.len());
            let (len, piece) =
                self.write_piece(context, offset + done as u64, &rest, flags, grant).await?;
            if piece == Settled::NeedsFlush {
                settled = piece;
            }
            done += usize::try_from(len).expect("a piece is within the memory");
        }
        if flags.contains(Flags::FUA) && settled == Settled::NeedsFlush {
            self.flush_metadata().await?;
        }
        Ok(())
    }

    /// Writes the first piece of `mem`; answers how long it was.
    async fn write_piece(
        self: &Arc<Self>,
        context: &Context,
        offset: u64,
        mem: &IoMem,
        flags: Flags,
        grant: &mut Grant,
    ) -> Result<(u64, Settled)> {
        // A slice once found stays until the piece is done.
        let mut held = None;
        loop {
            let mut prepare = |work| match work {
                Prepare::Whole(one) => self.copy_job(one, offset, mem, grant.share()),
                Prepare::Zeros(id, first, run) => {
                    self.top.zero_job((id, first, run), grant.share())
                }
            };
            match self.top.plan(offset, mem.len() as u64, self.backing_end(), &mut prepare)? {
                Plan::Load(job, pin) => {
                    drop(held.replace(pin));
                    job.join().await?;
                }
                // Whatever became of the other writer: this one maps again.
                Plan::Wait(job) => drop(job.join().await),
                Plan::Refill(job) => job.join().await?,
                Plan::InPlace { at, len, lease, durable } => {
                    let flags =
                        if durable == Durable::Yes { flags & Flags::FUA } else { Flags::empty() };
                    self.move_bytes(context, at.get(), len, mem, flags).await?;
                    drop(lease);
                    let settled = if durable == Durable::Yes {
                        Settled::Durable
                    } else {
                        Settled::NeedsFlush
                    };
                    return Ok((len, settled));
                }
                Plan::Zeroing { job, at, len, claim } => {
                    context.commit();
                    if self.top.breaks(Variant::PayloadBeforeZeroWrite) {
                        self.move_bytes(context, at.get(), len, mem, Flags::empty()).await?;
                        job.join().await?;
                    } else {
                        job.join().await?;
                        self.move_bytes(context, at.get(), len, mem, Flags::empty()).await?;
                    }
                    claim.publish();
                    return Ok((len, Settled::NeedsFlush));
                }
                Plan::Claimed { at, len, claim } => {
                    context.commit();
                    self.refill_ahead();
                    self.move_bytes(context, at.get(), len, mem, Flags::empty()).await?;
                    claim.publish();
                    if self.top.breaks(Variant::FuaWithoutMapping) {
                        return Ok((len, Settled::Durable));
                    }
                    return Ok((len, Settled::NeedsFlush));
                }
                Plan::Careful { job, len } => {
                    context.commit();
                    job.join().await?;
                    self.let_go().await?;
                    return Ok((len, Settled::NeedsFlush));
                }
            }
        }
    }

    async fn move_bytes(
        &self,
        context: &Context,
        at: u64,
        len: u64,
        mem: &IoMem,
        flags: Flags,
    ) -> Result<()> {
        let len = usize::try_from(len).expect("a piece is within the memory");
        self.top.storage.point(Event::WriteAio).await;
        self.top.storage.write(&context.lane, at, &mem.slice(0..len), flags).await
    }

    /// Begins a refill before it is needed. Whoever needs the clusters learns of a failure by a refill of its own.
    fn refill_ahead(&self) {
        let mut state = self.top.lock();
        if self.top.is_low(&state) {
            self.top.refill_job(&mut state, 1);
        }
    }
}
