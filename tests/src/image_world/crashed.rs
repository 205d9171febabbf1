//! What a power cut has left, and where things are in the file of an image.

use std::ops::Range;

use blkring_engine::sim::{Event, SimDisk, SimOptions, World};
use blkring_engine::{IoMem, QueueOptions, Request};
use blkring_qcow2::{
    Access, CheckLimits, CheckReport, Header, ImageOptions, L1Entry, RefTableEntry, check,
    table_get,
};

use super::setup::{IMAGE, open_image};
use super::{SECTOR, Verdict};
use crate::snapshots;

/// A disk after a power cut.
pub struct Crashed {
    /// The disk.
    pub disk: SimDisk,
    cluster: u64,
}

impl Crashed {
    pub(super) fn new(disk: SimDisk, cluster: u64) -> Self {
        Crashed { disk, cluster }
    }

    /// Whether every sector of these is as one of the legal bytes all over.
    pub fn reads_as(&self, cluster: u64, sectors: Range<u64>, legal: &[u8]) -> Verdict {
        let offset = cluster * self.cluster + sectors.start * SECTOR;
        let bytes = self.read(offset, (sectors.end - sectors.start) * SECTOR)?;
        judge(&bytes, offset, legal).map_err(|what| format!("after the crash: {what}"))
    }

    /// Whether all of these clusters of a snapshot are as one of the legal bytes all over.
    pub fn snapshot_reads_as(&self, number: usize, clusters: Range<u64>, legal: &[u8]) -> Verdict {
        let disk = self.disk.crash_keeping_nothing();
        disk.create_file(IMAGE, &snapshots::view(&self.disk.contents(IMAGE), number)?);
        let view = Crashed::new(disk, self.cluster);
        let (offset, len) =
            (clusters.start * self.cluster, (clusters.end - clusters.start) * self.cluster);
        let bytes = view.read(offset, len)?;
        judge(&bytes, offset, legal).map_err(|what| format!("snapshot {number}: {what}"))
    }

    /// What a reader finds.
    ///
    /// # Errors
    /// If the image cannot be opened or read any more.
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        let mut world = World::new(0, &self.disk);
        let queue = world.add_queue(QueueOptions::default());
        let storage = self.disk.storage(IMAGE, SimOptions::default());
        let image = open_image(&mut world, &self.disk, storage, ImageOptions::new())
            .map_err(|error| error.to_string())?;
        let handle = world.queue(queue).attach(&image).expect("no ring to be watched");
        let mem = IoMem::from(vec![0x5a; usize::try_from(len).expect("small")]);
        let request = Request::read(offset, mem.clone());
        let read = world.block_on(queue, async move { handle.request(request).await });
        read.map_err(|error| error.to_string())?;
        Ok(mem.to_vec())
    }

    /// What the checker says of the image.
    ///
    /// # Panics
    /// If it has no result.
    pub fn check(&self) -> CheckReport {
        let bytes = self.disk.contents(IMAGE);
        check(&bytes, CheckLimits::default(), &mut |_| ()).expect("the check comes to a result")
    }

    /// Whether no refcount is below the references, and no reference leads astray. Leaks are no damage.
    pub fn is_sound(&self) -> Verdict {
        let bytes = self.disk.contents(IMAGE);
        let mut findings = Vec::new();
        let report =
            check(&bytes, CheckLimits::default(), &mut |found| findings.push(found.to_string()))
                .map_err(|error| error.to_string())?;
        match report.corruptions + report.check_errors {
            0 => Ok(()),
            _ => Err(format!("{findings:?}")),
        }
    }
}

/// Whether every sector is one of the legal bytes all over.
pub(super) fn judge(bytes: &[u8], offset: u64, legal: &[u8]) -> Verdict {
    for (number, sector) in (0u64..).zip(bytes.chunks(SECTOR as usize)) {
        let first = sector[0];
        if !legal.contains(&first) || sector.iter().any(|&byte| byte != first) {
            let at = offset + number * SECTOR;
            return Err(format!("offset {at} reads {first:#x}.., legal {legal:#x?}"));
        }
    }
    Ok(())
}

/// Byte ranges of metadata in the file of an image.
#[derive(Debug, Clone)]
pub struct Places {
    /// Header, refcount table and L1 table.
    pub fixed: Vec<Range<u64>>,
    /// The L1 table.
    pub l1: Range<u64>,
    /// Refcount blocks.
    pub blocks: Vec<Range<u64>>,
    /// L2 tables.
    pub tables: Vec<Range<u64>>,
}

impl Places {
    /// What the tables in `bytes` say.
    ///
    /// # Panics
    /// If that is no image.
    pub fn of(bytes: &[u8]) -> Self {
        let header = Header::parse(bytes, Access::Check).expect("an image");
        let geometry = header.geometry();
        let size = geometry.cluster_size();
        let (l1, reftable) = (header.l1(), header.reftable());
        let fixed = vec![
            0..size,
            reftable.offset.get()..reftable.offset.get() + reftable.bytes(geometry),
            l1.offset.get()..l1.offset.get() + l1.bytes().next_multiple_of(size),
        ];
        let numbers = |range: &Range<u64>| -> Vec<u64> {
            let index = |at: u64| usize::try_from(at).expect("small");
            // The file may end within a table's cluster.
            let end = index(range.end).min(bytes.len());
            let table = &bytes[index(range.start)..end];
            (0..table.len() / 8).filter_map(|entry| table_get(table, entry)).collect()
        };
        let cluster = |host| {
            let start = geometry.host_offset(host).get();
            start..start + size
        };
        let block = |raw| match RefTableEntry::decode(raw, geometry) {
            Ok(RefTableEntry::Block(host)) => Some(cluster(host)),
            _ => None,
        };
        let table = |raw| match L1Entry::decode(raw, geometry) {
            Ok(L1Entry::Table(host, _)) => Some(cluster(host)),
            _ => None,
        };
        Places {
            blocks: numbers(&fixed[1]).into_iter().filter_map(block).collect(),
            tables: numbers(&fixed[2]).into_iter().filter_map(table).collect(),
            l1: fixed[2].clone(),
            fixed,
        }
    }

    /// Whether the op touches any of it.
    pub fn hit(&self, event: &Event) -> bool {
        [&self.fixed, &self.blocks, &self.tables].iter().any(|ranges| touches(ranges, event))
    }
}

pub(super) fn touches(ranges: &[Range<u64>], event: &Event) -> bool {
    &*event.file == IMAGE && ranges.iter().any(|range| event.touches(range.start, range.end))
}
