//! Reading what can be read.

use blkring_engine::{IoError, IoMem};

use super::source::Sources;
use crate::name::complain;
use crate::status::SECTOR;
use crate::text::describe;

/// Reads sector by sector. One that cannot be read is zero, and told.
pub async fn read(sources: &Sources, offset: u64, mem: &IoMem) {
    let sector = usize::try_from(SECTOR).expect("a sector is small");
    let mut lost: Option<Lost> = None;
    for start in (0..mem.len()).step_by(sector) {
        let end = mem.len().min(start + sector);
        let at = offset + start as u64;
        let Err(error) = sources.read(at, &mem.slice(start..end)).await else {
            Lost::tell(lost.take());
            continue;
        };
        mem.fill(start..end, 0);
        match &mut lost {
            Some(lost) if lost.error.errno == error.errno => lost.end = offset + end as u64,
            _ => Lost::tell(lost.replace(Lost { start: at, end: offset + end as u64, error })),
        }
    }
    Lost::tell(lost);
}

/// Sectors one after the other that cannot be read for one reason.
struct Lost {
    start: u64,
    end: u64,
    error: IoError,
}

impl Lost {
    fn tell(lost: Option<Lost>) {
        let Some(Lost { start, end, error }) = lost else { return };
        let (bytes, reason) = (end - start, describe(error.errno));
        complain(format_args!(
            "warning: error while reading offset {start}, {bytes} bytes: {reason}; they are taken for zeros"
        ));
    }
}
