//! The image checker: follows every reference of an image and compares them with the refcounts.
//!
//! It works on anything that can be read at an offset, believes nothing, and never writes. Its
//! numbers are those of `qemu-img check`, with these exceptions, all on images that are corrupt:
//!
//! - an entry that has the COPIED flag and names no cluster is a corruption, since this driver
//!   refuses to follow it;
//! - so is the zero flag in version 2, where it is a reserved bit: no driver follows such an entry;
//! - an L2 table that is not aligned to a cluster is reported and not followed;
//! - metadata that shares its cluster is a corruption even where the refcounts agree.
//!
//! Work and memory are bounded by [`CheckLimits`], whatever the image says.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod bitmaps;
mod counts;
mod reader;
mod refcounts;
mod report;
mod tables;

pub use reader::{CheckLimits, ReadAt};
pub use report::{CheckError, CheckReport, Finding, LimitKind, Place, Severity};

use counts::{Counts, Kind};
use reader::Reader;

use crate::address::HostOffset;
use crate::geometry::Geometry;
use crate::header::{Access, HEADER_PREFIX_BYTES, Header};

/// Lengths of files are known in sectors; a reference into the last one is inside the file.
const SECTOR_BYTES: u64 = 512;
/// Tables are read in pieces of this many bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Checks an image. Each finding is also told to `sink` as it is met.
///
/// The image must not change meanwhile.
///
/// # Errors
///
/// Damage is no error but part of the report. An error means that there is no result: the header
/// is not one that can be handled, the image cannot be read, or a limit was reached.
pub fn check(
    image: &dyn ReadAt,
    limits: CheckLimits,
    sink: &mut dyn FnMut(&Finding),
) -> Result<CheckReport, CheckError> {
    let mut reader = Reader::new(image, limits.table_bytes);
    let header = read_header(&mut reader)?;
    let geometry = *header.geometry();
    let mut checker = Checker {
        geometry,
        reftable: Vec::new(),
        counts: Counts::new(limits.memory),
        clusters: geometry.clusters_for(reader.len()),
        shared_tables: false,
        report: CheckReport { total_clusters: geometry.guest_clusters(), ..Default::default() },
        reader,
        sink,
    };
    checker.load_refcounts(&header)?;
    let header_place = Place::Header;
    checker.refer(header_place, HostOffset::ZERO, geometry.cluster_size(), Kind::Metadata, 1)?;
    checker.walk_l1_tables(&header)?;
    checker.walk_bitmaps(&header)?;
    checker.walk_reftable(&header)?;
    checker.compare();
    Ok(checker.report)
}

fn read_header(reader: &mut Reader<'_>) -> Result<Header, CheckError> {
    let mut prefix = [0; HEADER_PREFIX_BYTES];
    let have = reader.len().min(HEADER_PREFIX_BYTES as u64) as usize;
    let prefix = prefix.get_mut(..have).unwrap_or_default();
    reader.read(HostOffset::ZERO, prefix)?;
    let wanted = Header::bytes_wanted(prefix)? as u64;
    // At most one cluster, 2 MiB.
    let mut bytes = vec![0; reader.len().min(wanted) as usize];
    reader.read(HostOffset::ZERO, &mut bytes)?;
    Ok(Header::parse(&bytes, Access::Check)?)
}

/// A check as it runs.
struct Checker<'a> {
    geometry: Geometry,
    /// The entries of the refcount table that lie inside the file.
    reftable: Vec<u64>,
    counts: Counts,
    /// Clusters to compare: those of the file, and one more if something ends in it.
    clusters: u64,
    /// Whether L2 tables may have several references: there are snapshots.
    shared_tables: bool,
    report: CheckReport,
    reader: Reader<'a>,
    sink: &'a mut dyn FnMut(&Finding),
}

/// Whether a reference leads into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Inside,
    Beyond,
}

impl Checker<'_> {
    /// Notes a finding that counts `times` times.
    fn find(&mut self, finding: Finding, times: u64) {
        (self.sink)(&finding);
        match finding.severity() {
            Severity::Corruption => self.report.corruptions += times,
            Severity::Leak => self.report.leaks += times,
            Severity::CheckError => self.report.check_errors += times,
        }
    }

    /// Clusters of the file; the last one may be there in part only.
    fn file_clusters(&self) -> u64 {
        self.geometry.clusters_for(self.reader.len())
    }

    /// Counts `times` references to all clusters that `bytes` bytes at `offset` touch. What ends
    /// a whole cluster or more behind the end of the file is a finding instead.
    fn refer(
        &mut self,
        place: Place,
        offset: HostOffset,
        bytes: u64,
        kind: Kind,
        times: u64,
    ) -> Result<Reach, CheckError> {
        if bytes == 0 {
            return Ok(Reach::Inside);
        }
        let end = offset.get().saturating_add(bytes);
        let file_end = self.reader.len().next_multiple_of(SECTOR_BYTES);
        if end.saturating_sub(file_end) >= self.geometry.cluster_size() {
            self.find(Finding::BeyondEof { place, offset, bytes }, times);
            return Ok(Reach::Beyond);
        }
        let first = self.geometry.host_cluster(offset).get();
        let last = self.geometry.host_cluster(HostOffset::new(end - 1)).get();
        for cluster in first..=last {
            self.counts.add_references(cluster, kind, times)?;
        }
        self.clusters = self.clusters.max(last + 1);
        Ok(Reach::Inside)
    }
}

#[cfg(test)]
mod tests;
