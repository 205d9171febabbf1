//! What is copied: one image, or several one after the other.

use std::ops::Range;

use blkring_engine::{Disk, IoError, IoMem, Queue};

use super::error::{CopyError, Step};
use crate::disk::AnyDisk;
use crate::status::{Run, Survey};

/// Opened images as one disk.
pub struct Sources {
    parts: Vec<Part>,
    /// The part of it that counts: offsets are counted from its begin.
    window: Range<u64>,
}

struct Part {
    /// Where it begins in the whole.
    start: u64,
    /// Bytes, in whole sectors.
    len: u64,
    disk: Disk,
    survey: Survey,
}

impl Sources {
    /// The images, in this order.
    pub fn new<'a>(
        queue: &mut Queue,
        images: impl IntoIterator<Item = (&'a AnyDisk, Survey)>,
    ) -> std::io::Result<Self> {
        let mut sources = Sources { parts: Vec::new(), window: 0..0 };
        for (image, survey) in images {
            let (start, len) = (sources.window.end, image.virtual_size());
            let disk = image.attach(queue)?;
            sources.parts.push(Part { start, len, disk, survey });
            sources.window.end += len;
        }
        Ok(sources)
    }

    /// The same, and no more than these bytes of it.
    #[must_use]
    pub fn window(mut self, window: Range<u64>) -> Self {
        self.window = window;
        self
    }

    /// Bytes of all.
    pub fn len(&self) -> u64 {
        self.window.end - self.window.start
    }

    /// The run that begins at `offset`, within the whole.
    pub async fn run(&self, offset: u64) -> Result<Run, CopyError> {
        let at = self.window.start + offset;
        let part = self.part(at);
        let limit = part.len.min(self.window.end - part.start);
        let found = part.survey.run(at - part.start, limit).await;
        let run = found.map_err(|error| CopyError::new(Step::Status, offset, error))?;
        Ok(Run { offset, ..run })
    }

    /// Fills `mem` from `offset` on; beyond the end there are zeros.
    pub async fn read(&self, offset: u64, mem: &IoMem) -> Result<(), IoError> {
        let mut done = 0;
        while done < mem.len() {
            let at = self.window.start + offset + done as u64;
            if at >= self.window.end {
                mem.fill(done..mem.len(), 0);
                break;
            }
            let part = self.part(at);
            let within = at - part.start;
            let len = mem.len().min(done.saturating_add(small(part.len - within)));
            // The last sector may end beyond the end of a raw file.
            let there =
                len.min(done.saturating_add(small(part.disk.size().saturating_sub(within))));
            if there > done {
                part.disk.read(within, mem.slice(done..there)).await?;
            }
            mem.fill(there..len, 0);
            done = len;
        }
        Ok(())
    }

    fn part(&self, offset: u64) -> &Part {
        let at = self.parts.partition_point(|part| part.start <= offset);
        // Of empty parts the last one that begins there is found.
        self.parts.get(at - 1).expect("offsets lie within the whole, which begins with a part")
    }
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
