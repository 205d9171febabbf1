//! Clusters that the guest writes in compressed form.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use blkring_engine::{IoError, Operation};
use blkring_qcow2::{CompressedCluster, Compression, Compressor};

use super::{Answer, Config, Errors, Life, Packed, SECTOR, Time, Token};
use crate::powercut::model::{fill, packed_token};

/// Compresses the clusters of a case.
pub(in crate::powercut) struct Packer(Compressor);

impl Packer {
    pub(in crate::powercut) fn new(config: &Config) -> Self {
        let cluster = usize::try_from(config.cluster).expect("small");
        Packer(Compressor::new(Compression::Zlib, cluster).expect("it is built in"))
    }

    /// A cluster with these tokens.
    pub(in crate::powercut) fn pack(
        &mut self,
        tokens: impl Iterator<Item = Token>,
    ) -> CompressedCluster {
        let bytes: Vec<u8> = tokens.flat_map(fill).collect();
        self.0.compress(&bytes).expect("the end of each sector is one word again and again")
    }
}

/// The answer to a write, once there is one.
type Answered = Rc<RefCell<Option<blkring_engine::Result<()>>>>;

/// A cluster on its way.
pub(super) struct Packing {
    number: u64,
    sectors: Range<usize>,
    submitted: Time,
    /// The image refused to go on when it was submitted.
    late: bool,
    result: Answered,
}

/// Whether a write was refused since its cluster has data: nothing has changed then.
pub(in crate::powercut) fn is_taken(error: &IoError) -> bool {
    error.operation == Operation::Write
        && error.reason.is_some_and(|reason| reason.ends_with("over a cluster that has data"))
}

impl Life<'_> {
    /// Writes some cluster in compressed form, now and then.
    pub(super) fn maybe_pack(&mut self) {
        let wanted = self.config.packed != Packed::None && self.next < self.end;
        if !wanted || self.packings.len() >= self.config.requests || !self.guest.one_in(12) {
            return;
        }
        let per_cluster = self.config.cluster / SECTOR;
        let whole = self.sectors / per_cluster;
        if whole == 0 {
            return;
        }
        let cluster = self.guest.below(whole);
        let queue = self.guest.index(self.config.queues);
        let first = usize::try_from(cluster * per_cluster).expect("the disks here are small");
        let sectors = first..first + usize::try_from(per_cluster).expect("small");
        let number = self.next;
        self.next += 1;
        let token = move |sector| packed_token(number, sector);
        let submitted = self.model.submit(sectors.clone(), token);
        self.tell(format!("{number} on queue {queue} at {submitted}: compressed {sectors:?}"));
        let packed = self.packer.pack(sectors.clone().map(token));
        let (image, offset) = (self.image.clone(), cluster * self.config.cluster);
        let write = async move { image.write_compressed(offset, packed).await };
        let result = self.world.start(queue, write);
        let late = self.refuses;
        self.packings.push(Packing { number, sectors, submitted, late, result });
    }

    pub(super) fn take_packed(&mut self) -> Result<(), String> {
        let is_answered = |one: &mut Packing| one.result.borrow().is_some();
        let answered: Vec<Packing> = self.packings.extract_if(.., is_answered).collect();
        for one in answered {
            let Packing { number, sectors, submitted, late, result } = one;
            let result = result.take().expect("it is answered");
            self.tell(format!("{number} answered: {result:?}"));
            let answer = match result {
                Ok(()) if late => {
                    return Err(format!("{number} succeeds although an fdatasync had failed"));
                }
                Ok(()) => Answer::Written,
                Err(error) if is_taken(&error) => Answer::Failed,
                Err(error) if self.config.errors == Errors::None => {
                    return Err(format!("compressing {sectors:?} fails: {error}"));
                }
                Err(_) => Answer::Failed,
            };
            self.model.answer(sectors, submitted, answer);
        }
        Ok(())
    }

    /// Clusters that compressed data leaks more than other data: what is not durable is counted in two host clusters,
    /// and so is what is unlinked; one more is open.
    pub(super) fn packed_leaks(&self, open_clusters: u64) -> u64 {
        match self.config.packed {
            Packed::None => 0,
            Packed::Most | Packed::Later => open_clusters + self.peak_held_back + 1,
        }
    }
}
