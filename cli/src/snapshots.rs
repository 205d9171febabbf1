//! The list of the snapshots of an image.

use std::fmt::Write as _;

use blkring_qcow2::{Snapshot, SnapshotKey};
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use crate::failure::Failure;
use crate::image_name::split;
use crate::name::complain;
use crate::number::short;

const NANOSECONDS: u64 = 1_000_000_000;

/// Which snapshot `word` means: an id or a name, or `snapshot.id=ID,snapshot.name=NAME`.
///
/// # Errors
/// If it says something else.
pub fn key(word: &str) -> Result<SnapshotKey, Failure> {
    if !word.starts_with("snapshot.") {
        return Ok(SnapshotKey::IdOrName(word.to_owned()));
    }
    let (mut id, mut name) = (None, None);
    for option in split(word) {
        let (field, value) = option.split_once('=').unwrap_or((&option, "on"));
        match field {
            "snapshot.id" => id = Some(value.to_owned()),
            "snapshot.name" => name = Some(value.to_owned()),
            other => {
                complain(format_args!("Invalid parameter '{other}'"));
                return Err(Failure::Usage(format!("Failed in parsing snapshot param '{word}'")));
            }
        }
    }
    Ok(SnapshotKey::Both { id, name })
}

/// A snapshot cannot be read.
pub fn missing(why: &str) -> Failure {
    Failure::Usage(format!("Failed to load snapshot: {why}"))
}

/// One snapshot, for programs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SnapshotInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    icount: Option<u64>,
    vm_clock_nsec: u64,
    name: String,
    date_sec: u32,
    date_nsec: u32,
    vm_clock_sec: u64,
    id: String,
    vm_state_size: u64,
}

impl SnapshotInfo {
    /// What the image says of it.
    pub fn of(snapshot: &Snapshot) -> Self {
        SnapshotInfo {
            icount: snapshot.icount,
            vm_clock_nsec: snapshot.vm_clock_nsec % NANOSECONDS,
            name: snapshot.name.clone(),
            date_sec: snapshot.date.0,
            date_nsec: snapshot.date.1,
            vm_clock_sec: snapshot.vm_clock_nsec / NANOSECONDS,
            id: snapshot.id.clone(),
            vm_state_size: snapshot.vm_state_bytes,
        }
    }
}

/// The list for people, with a line of headings. Dates are those of the place where the program runs.
pub fn table(snapshots: &[SnapshotInfo]) -> String {
    let place = TimeZone::system();
    let heading = ["ID", "TAG", "VM_SIZE", "DATE", "VM_CLOCK", "ICOUNT"].map(str::to_owned);
    let rows = snapshots.iter().map(|snapshot| row(snapshot, &place));
    let mut text = String::new();
    for [id, tag, size, date, clock, icount] in std::iter::once(heading).chain(rows) {
        let (id, tag) = (padded(&id, 7), padded(&tag, 16));
        writeln!(text, "{id} {tag} {size:>8} {date:>19} {clock:>15} {icount:>10}")
            .expect("a string takes everything");
    }
    text
}

fn row(snapshot: &SnapshotInfo, place: &TimeZone) -> [String; 6] {
    let date = match Timestamp::from_second(i64::from(snapshot.date_sec)) {
        Ok(date) => place.to_datetime(date).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => snapshot.date_sec.to_string(),
    };
    let (seconds, milliseconds) = (snapshot.vm_clock_sec, snapshot.vm_clock_nsec / 1_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    [
        snapshot.id.clone(),
        snapshot.name.clone(),
        short(snapshot.vm_state_size),
        date,
        format!("{hours:04}:{minutes:02}:{:02}.{milliseconds:03}", seconds % 60),
        snapshot.icount.map_or_else(|| "--".to_owned(), |icount| icount.to_string()),
    ]
}

/// A text with blanks up to `width` bytes: bytes are counted, not characters.
fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.len())))
}
