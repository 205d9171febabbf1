//! The memory of a guest, as rust-vmm has it, as the memory of requests: nothing is copied.
//!
//! The engine takes addresses with an owner that keeps them alive, so it knows nothing of `vm-memory`, and an embedder
//! may use any version of it.

use std::error::Error;
use std::sync::Arc;

use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenOptions, QueueOptions, QueueSeed, RawDisk, Segment, Storage,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};

/// Memory of a guest whose regions stay mapped for as long as somebody has a share of it.
type GuestMemory = Arc<GuestMemoryMmap>;

/// `len` bytes of the guest's memory from `address` on, which may cross the border of two regions.
///
/// # Errors
/// If the guest has no such memory: guests ask for anything.
fn guest_mem(
    memory: &GuestMemory,
    address: GuestAddress,
    len: usize,
) -> Result<IoMem, GuestMemoryError> {
    let mut segments = Vec::new();
    for slice in memory.get_slices(address, len) {
        let slice = slice?;
        let address = slice.ptr_guard_mut().as_ptr().expose_provenance();
        segments.push(Segment { address, len: slice.len() });
    }
    // SAFETY: the slices are within regions that stay mapped, for reading and writing, while `memory` has a share, and
    // the request is given one. Nobody has a Rust reference to these bytes: `vm-memory` gives none.
    Ok(unsafe { IoMem::from_segments(&segments, memory.clone()) })
}

fn main() -> Result<(), Box<dyn Error>> {
    // Two regions, side by side for the guest and anywhere in this process.
    let (first, second) = (GuestAddress(0), GuestAddress(1 << 20));
    let memory: GuestMemory =
        Arc::new(GuestMemoryMmap::from_ranges(&[(first, 1 << 20), (second, 1 << 20)])?);
    let (across, back) = (GuestAddress((1 << 20) - 4096), GuestAddress(65536));
    let pattern: Vec<u8> = (0..8192).map(|at| (at % 251) as u8).collect();
    memory.write_slice(&pattern, across)?;

    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(1 << 20)?;
    // Around the page cache where the file system can: the disk takes the bytes from the guest's memory.
    let direct = OpenOptions::new().access(Access::ReadWrite).cache(Cache::Direct);
    let storage = Storage::open(file.path(), &direct)
        .or_else(|_| Storage::open(file.path(), &direct.clone().cache(Cache::Cached)))?;
    let raw = RawDisk::new(storage);
    let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
    let disk = queue.attach(&raw)?;

    queue.block_on(disk.write(0, guest_mem(&memory, across, 8192)?, Flags::FUA))??;
    queue.block_on(disk.read(0, guest_mem(&memory, back, 8192)?))??;
    let mut found = vec![0; 8192];
    memory.read_slice(&mut found, back)?;
    assert_eq!(found, pattern);
    assert_eq!(std::fs::read(file.path())?[..8192], pattern);
    assert!(guest_mem(&memory, second, 2 << 20).is_err(), "the guest has no such memory");
    println!(
        "8192 bytes went out of two regions of guest memory and back into one through {}",
        raw.storage().path()
    );
    Ok(())
}
