//! The end of a world: nothing is left over, and the disk holds what it should.

use blkring_engine::sim::SimDisk;
use blkring_engine::{IoMem, Request};

use crate::powercut::judge::{check_structure, contents};
use crate::powercut::model::{Answer, SECTOR};

use super::play::Play;
use super::side::{RAW, SIDES, Side, tokens};

impl Play<'_> {
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.disk.clear_faults();
        self.let_go();
        self.settle()?;
        self.remove_retired();
        for orphan in std::mem::take(&mut self.orphans) {
            self.seen.of(orphan.side).answer(orphan.sectors, orphan.submitted, Answer::Failed);
        }
        self.recorder.trace.delays = self.delays.count();
        self.leaves_nothing()?;
        SIDES.into_iter().try_for_each(|side| self.flush(side))?;
        SIDES.into_iter().try_for_each(|side| self.read_all(side))?;
        self.judge_cuts()?;
        self.close()?;
        self.settle()?;
        self.leaves_nothing()
    }

    /// Nothing is in flight, waits, or is held by anybody.
    fn leaves_nothing(&mut self) -> Result<(), String> {
        let pending = self.disk.pending();
        if !pending.is_empty() {
            return Err(format!("the disk is not done: {pending:?}"));
        }
        let statistics = self.image.statistics();
        let trackers = [
            ("the image", statistics.image_tracker),
            ("its file", statistics.storage_tracker),
            ("the raw disk", self.raw.storage().statistics()),
        ];
        for (whose, tracker) in trackers {
            if tracker.in_flight() > 0 || tracker.serialising > 0 {
                return Err(format!("left in the tracker of {whose}: {tracker:?}"));
            }
            let seen = tracker.at_once + tracker.waited;
            if seen != tracker.ended + tracker.cancelled {
                return Err(format!("the tracker of {whose} has lost count: {tracker:?}"));
            }
        }
        for (whose, storage) in [("image", self.image.storage()), ("raw", self.raw.storage())] {
            let taken = storage.buffers().taken();
            if taken > 0 {
                return Err(format!("{taken} bytes of the buffers of {whose} are left taken"));
            }
        }
        for member in &self.members {
            let left = self.world.queue(member.number).leftovers();
            if !left.is_empty() {
                return Err(format!("queue {} still has {left:?}", member.number));
            }
        }
        Ok(())
    }

    /// Runs one request on the first queue that is left.
    fn run(&mut self, side: Side, request: Request) -> blkring_engine::Result<()> {
        let member = self.members.first().expect("the last queue stays");
        let (number, handle) = (member.number, member.disk(side).clone());
        let answer = self.world.block_on(number, async move { handle.request(request).await });
        self.record();
        answer
    }

    fn flush(&mut self, side: Side) -> Result<(), String> {
        let submitted = self.seen.of(side).tick();
        match self.run(side, Request::flush()) {
            Ok(()) => self.seen.of(side).flushed(submitted),
            Err(_) if self.config.may_fail() => (),
            Err(error) => return Err(format!("{side:?}: the last flush fails: {error}")),
        }
        Ok(())
    }

    /// Reads the whole disk.
    fn read_all(&mut self, side: Side) -> Result<(), String> {
        let sectors = match side {
            Side::Image => self.config.image.sectors(),
            Side::Raw => self.config.raw_sectors,
        };
        let len = usize::try_from(sectors * SECTOR).expect("small");
        let mem = IoMem::aligned_zeroed(len);
        let submitted = self.seen.of(side).tick();
        self.run(side, Request::read(0, mem.clone()))
            .map_err(|error| format!("{side:?}: the last read fails: {error}"))?;
        let bytes = mem.to_vec();
        self.recorder.note(&bytes);
        self.seen.judge((side, 0..len / SECTOR as usize), &bytes, submitted)
    }

    /// Nothing volatile survives, or all of it.
    fn judge_cuts(&mut self) -> Result<(), String> {
        for (how, disk) in [
            ("nothing volatile survived", self.disk.crash_keeping_nothing()),
            ("everything survived", self.disk.crash_keeping_all()),
        ] {
            self.judge_cut(&disk).map_err(|text| format!("power cut, {how}: {text}"))?;
        }
        Ok(())
    }

    fn judge_cut(&mut self, disk: &SimDisk) -> Result<(), String> {
        check_structure(disk, &self.config.image)?;
        let (_, found) = contents(disk, &self.config.image)?;
        self.seen.judge_cut(Side::Image, found.into_iter())?;
        let raw = disk.contents(RAW);
        // Padding may have made the file longer.
        let sectors = usize::try_from(self.config.raw_sectors).expect("small");
        self.seen.judge_cut(Side::Raw, tokens(&raw).take(sectors))
    }

    fn close(&mut self) -> Result<(), String> {
        let number = self.members.first().expect("the last queue stays").number;
        let (image, submitted) = (self.image.clone(), self.seen.image.tick());
        let closed = self.world.block_on(number, async move { image.close().await });
        self.record();
        match closed {
            Ok(()) => {
                self.seen.image.flushed(submitted);
                let leaks = check_structure(&self.disk, &self.config.image)?;
                if leaks > self.leaks && !self.config.may_fail() {
                    let before = self.leaks;
                    return Err(format!("closed, {leaks} clusters leaked instead of {before}"));
                }
                self.judge_cut(&self.disk.crash_keeping_nothing())
                    .map_err(|text| format!("closed: {text}"))
            }
            Err(_) if self.config.may_fail() => Ok(()),
            Err(error) => Err(format!("closing fails: {error}")),
        }
    }
}
