//! A raw disk: opened, written, flushed, read, in forty lines.
use std::error::Error;

use blkring_engine::{
    Access, Flags, IoMem, OpenOptions, QueueOptions, QueueSeed, RawDisk, Request, Storage,
};

fn main() -> Result<(), Box<dyn Error>> {
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(1 << 20)?;
    // The disk is shared by all threads; each thread that does I/O has a queue of its own.
    let options = OpenOptions::new().access(Access::ReadWrite);
    let raw = RawDisk::new(Storage::open(file.path(), &options)?);
    let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
    let disk = queue.attach(&raw)?;

    // Requests as futures. Any alignment will do; 4096 is the fastest.
    queue.block_on(async {
        disk.write(0, IoMem::aligned(&[7; 4096]), Flags::empty()).await?;
        disk.write_zeroes(512, 512, Flags::MAY_UNMAP).await?;
        disk.flush().await
    })??;

    // Requests as a batch: the first turn hands all of them to the kernel by one system call.
    let blocks: Vec<IoMem> = (0..8).map(|_| IoMem::aligned_zeroed(512)).collect();
    for (number, block) in (0..).zip(&blocks) {
        disk.queue(Request::read(number * 512, block.clone()), number)?;
    }
    queue.drain()?;
    for answer in queue.completions() {
        answer.result?;
        let wanted = if answer.user_data == 1 { 0 } else { 7 };
        assert_eq!(blocks[usize::try_from(answer.user_data)?].to_vec(), [wanted; 512]);
    }
    println!("8 blocks of {} read back as written", raw.storage().path());
    Ok(())
}
