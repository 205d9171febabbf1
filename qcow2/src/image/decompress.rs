//! Reading compressed clusters.
//!
//! The data is read into a buffer of the image, and decompressed by whoever polls the read: the thread of the queue,
//! or the one that drives the shared work. Some of the latest clusters are kept, so that small reads one after the
//! other do not decompress the same cluster again and again.
//!
//! What is kept is told by the place of its data. The bytes there do not change as long as anything names them or
//! holds a lease on them: only new compressed data may come there later, and whoever writes that forgets what is kept
//! before it is linked ([`Decompressed::forget`]).

use std::collections::VecDeque;
use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::sync::Mutex;
use blkring_engine::tracker::sync::atomic::{AtomicU64, Ordering};
use blkring_engine::{BufferPool, IoError, IoMem, Lane, Operation, Result};

use super::Chain;
use super::layer::{Layer, Lease};
use crate::compressed::CompressedData;
use crate::compression::{CompressionError, decompress};

/// Clusters kept at most, however small they are.
const KEPT: usize = 16;

/// Bytes of the clusters kept at most; one cluster always is.
const KEPT_BYTES: usize = 1 << 20;

/// Compressed data in a file of the chain, so many files below the topmost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) level: usize,
    pub(super) data: CompressedData,
}

/// What a chain needs to decompress, and what it has kept.
pub(super) struct Decompressed {
    /// A pool of its own: a copy on write holds a buffer of the other one while it reads.
    buffers: Arc<BufferPool>,
    /// Latest used last. The lock *decompressed*.
    kept: Mutex<VecDeque<(Place, Arc<Vec<u8>>)>>,
    count: AtomicU64,
}

impl Decompressed {
    pub(super) fn new(buffer_bytes: usize) -> Self {
        Decompressed {
            buffers: BufferPool::new(buffer_bytes),
            kept: Mutex::default(),
            count: AtomicU64::new(0),
        }
    }

    /// How many clusters have been decompressed.
    pub(super) fn count(&self) -> u64 {
        // A counter for people: no ordering with anything else.
        self.count.load(Ordering::Relaxed)
    }

    /// Other data comes to this place.
    pub(super) fn forget(&self, place: Place) {
        self.kept.lock().retain(|(other, _)| *other != place);
    }

    fn get(&self, place: Place) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.kept.lock();
        let index = kept.iter().position(|(other, _)| *other == place)?;
        let one = kept.remove(index)?;
        let cluster = one.1.clone();
        kept.push_back(one);
        Some(cluster)
    }

    /// Keeps a cluster. The lease that its data was read under is still held.
    fn keep(&self, place: Place, cluster: Arc<Vec<u8>>, _lease: &Lease) {
        let mut kept = self.kept.lock();
        let fit = (KEPT_BYTES / cluster.len()).clamp(1, KEPT);
        kept.retain(|(other, _)| *other != place);
        while kept.len() >= fit {
            kept.pop_front();
        }
        kept.push_back((place, cluster));
    }
}

impl Chain {
    /// Fills `mem` from byte `within` on of the cluster whose compressed data is at `place`, in a file that is
    /// `layer`.
    pub(super) async fn read_compressed(
        &self,
        lane: &Lane,
        layer: &Layer,
        place: Place,
        (within, mem): (usize, &IoMem),
        lease: &Lease,
    ) -> Result<()> {
        let cluster = match self.decompressed.get(place) {
            Some(cluster) => cluster,
            None => {
                let cluster = Arc::new(self.decompress(lane, layer, place.data).await?);
                if mem.len() < cluster.len() {
                    self.decompressed.keep(place, cluster.clone(), lease);
                }
                cluster
            }
        };
        let wanted = cluster.get(within..within + mem.len());
        mem.copy_in(0, wanted.expect("a piece of a read is within its cluster"));
        Ok(())
    }

    async fn decompress(
        &self,
        lane: &Lane,
        layer: &Layer,
        data: CompressedData,
    ) -> Result<Vec<u8>> {
        let compression = layer.compression;
        if !compression.is_built_in() {
            return Err(layer.decompress_error(data, CompressionError::NotBuiltIn { compression }));
        }
        let offset = data.offset().get();
        if offset >= layer.storage.size() {
            let error = layer.error(Operation::Decompress, offset, libc::EIO);
            return Err(error.because("compressed data beyond the end of the file"));
        }
        // Whole blocks, so that nothing is copied on the way. The last sector may end beyond the end of the file:
        // what is missing there reads as zeros.
        let unit = layer.storage.alignment();
        let start = offset / unit * unit;
        let len = index(data.end().get().next_multiple_of(unit) - start);
        // Of few sizes, so that buffers are used again.
        let buffer = self.decompressed.buffers.take(len.next_power_of_two()).await;
        let mem = buffer.mem().slice(0..len);
        layer.storage.point(Event::ReadCompressed).await;
        layer.storage.read(lane, start, &mem).await?;
        let skip = index(offset - start);
        let bytes = mem.slice(skip..skip + index(data.bytes())).to_vec();
        drop((mem, buffer));
        let mut cluster = vec![0; index(layer.geometry.cluster_size())];
        decompress(compression, &bytes, &mut cluster)
            .map_err(|error| layer.decompress_error(data, error))?;
        self.decompressed.count.fetch_add(1, Ordering::Relaxed);
        Ok(cluster)
    }
}

impl Layer {
    fn decompress_error(&self, data: CompressedData, error: CompressionError) -> IoError {
        let offset = data.offset().get();
        tracing::warn!(path = %self.storage.path(), offset, bytes = data.bytes(), %error, "decompress");
        self.error(Operation::Decompress, offset, error.errno()).because(error.reason())
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a few clusters at most")
}
