//! Named points of a driver, where rules can be armed and requests held.

use std::fmt;

/// Makes the enum, its names and the list of all from one table.
macro_rules! events {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// A point that a request or a piece of shared work passes. The names are those of QEMU's blkdebug, so that
        /// its scripts can be used; which of them the driver passes is said in the documentation of `blkring-qcow2`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Event {
            $(#[doc = $doc] $variant,)*
        }

        impl Event {
            /// All of them.
            pub const ALL: &'static [Event] = &[$(Event::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Event::$variant => $name,)*
                }
            }
        }
    };
}

events! {
    L1Update "l1_update" "An L1 entry is written."
    L1GrowAllocTable "l1_grow_alloc_table" "Room for a longer L1 table is looked for."
    L1GrowWriteTable "l1_grow_write_table" "A longer L1 table is written."
    L1GrowActivateTable "l1_grow_activate_table" "The header names a longer L1 table."
    L2Load "l2_load" "A slice of an L2 table is read."
    L2Update "l2_update" "A changed slice of an L2 table is written."
    L2UpdateCompressed "l2_update_compressed" "An entry for compressed data is made."
    L2AllocCowRead "l2_alloc_cow_read" "An L2 table that is shared is read to be copied."
    L2AllocWrite "l2_alloc_write" "A new L2 table is written."
    ReadAio "read_aio" "Data of a guest is read from the file."
    ReadBackingAio "read_backing_aio" "Data of a guest is read from a backing file."
    ReadCompressed "read_compressed" "A compressed cluster is read."
    WriteAio "write_aio" "Data of a guest is written."
    WriteCompressed "write_compressed" "A compressed cluster is written."
    VmstateLoad "vmstate_load" "The state of a virtual machine is read."
    VmstateSave "vmstate_save" "The state of a virtual machine is written."
    CowRead "cow_read" "What a first write leaves of a cluster is read."
    CowWrite "cow_write" "A cluster with what was copied is written."
    ReftableLoad "reftable_load" "The refcount table is read."
    ReftableGrow "reftable_grow" "A longer refcount table is begun."
    ReftableUpdate "reftable_update" "An entry of the refcount table is written."
    RefblockLoad "refblock_load" "A refcount block is read."
    RefblockUpdate "refblock_update" "A refcount block is written."
    RefblockUpdatePart "refblock_update_part" "A part of a refcount block is written."
    RefblockAlloc "refblock_alloc" "A new refcount block is begun."
    RefblockAllocHookup "refblock_alloc_hookup" "The refcount table names a new block."
    RefblockAllocWrite "refblock_alloc_write" "A new refcount block is written."
    RefblockAllocWriteBlocks "refblock_alloc_write_blocks" "The blocks of a longer refcount table are written."
    RefblockAllocWriteTable "refblock_alloc_write_table" "A longer refcount table is written."
    RefblockAllocSwitchTable "refblock_alloc_switch_table" "The header names a longer refcount table."
    ClusterAlloc "cluster_alloc" "Clusters are counted for use."
    ClusterAllocBytes "cluster_alloc_bytes" "Room for compressed data is taken."
    ClusterFree "cluster_free" "Clusters lose a count."
    FlushToOs "flush_to_os" "A flush begins: what is in memory goes to the file."
    FlushToDisk "flush_to_disk" "A flush has written everything, and syncs the file."
    PwritevRmwHead "pwritev_rmw_head" "The first block of an unaligned write is read."
    PwritevRmwAfterHead "pwritev_rmw_after_head" "The first block of an unaligned write was read."
    PwritevRmwTail "pwritev_rmw_tail" "The last block of an unaligned write is read."
    PwritevRmwAfterTail "pwritev_rmw_after_tail" "The last block of an unaligned write was read."
    Pwritev "pwritev" "Bytes are written to a file."
    PwritevZero "pwritev_zero" "A range of a file is made zero."
    PwritevDone "pwritev_done" "A write or zero-write of a file has ended."
    EmptyImagePrepare "empty_image_prepare" "An image is about to be emptied."
    L1ShrinkWriteTable "l1_shrink_write_table" "A shorter L1 table is written."
    L1ShrinkFreeL2Clusters "l1_shrink_free_l2_clusters" "What a shorter L1 table gave up is freed."
    CorWrite "cor_write" "What was read from below is written to the image."
    ClusterAllocSpace "cluster_alloc_space" "Newly allocated clusters are made zero."
    Unnamed "none" "No point: a rule for it is armed from the start."
}

impl Event {
    /// The event of this name.
    pub fn named(name: &str) -> Option<Event> {
        Event::ALL.iter().copied().find(|event| event.name() == name)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_found_by_its_name() {
        for event in Event::ALL {
            assert_eq!(Event::named(event.name()), Some(*event));
        }
        assert_eq!(Event::named("l2_loaded"), None);
        assert_eq!(Event::L2Load.to_string(), "l2_load");
    }
}
