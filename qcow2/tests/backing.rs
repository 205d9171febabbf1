//! Backing files: their names are bytes, and an error tells which file failed and which image names it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::{IoMem, OpenOptions, Queue, QueueOptions, Storage};
use blkring_qcow2::{Backing, CreateOptions, FileOpener, Image, ImageOptions, Layout, OpenError};

const SIZE: u64 = 1 << 20;

fn create(path: &Path, name: &[u8], format: &str) {
    let backing = Some(Backing::new(name, format));
    let options = CreateOptions::new(SIZE).backing(backing);
    let layout = Layout::plan(&options).unwrap();
    let file = fs::File::create(path).unwrap();
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get()).unwrap();
    }
    file.set_len(layout.file_length).unwrap();
}

fn open(queue: &mut Queue, path: &Path) -> Result<Arc<Image>, OpenError> {
    let storage = Storage::open(path, &OpenOptions::new()).unwrap();
    let (lane, opener) = (queue.lane(), FileOpener::default());
    queue.block_on(Image::open(&lane, storage, &opener, ImageOptions::new())).unwrap()
}

fn queue() -> Queue {
    backend::started(QueueOptions::default())
}

/// Names and directories that are not UTF-8, two deep. Beside each is the file that a lossy name would lead to.
#[test]
fn a_name_that_is_not_utf_8_is_opened_exactly() {
    const REPLACED: &str = "\u{fffd}";
    let root = tempfile::tempdir().unwrap();
    let below = root.path().join(OsStr::from_bytes(b"below\xff"));
    let lossy = root.path().join(format!("below{REPLACED}"));
    for (directory, base, byte) in [
        (&below, &b"base\xfe"[..], 7),
        (&below, "base\u{fffd}".as_bytes(), 1),
        (&lossy, b"base\xfe", 2),
    ] {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(OsStr::from_bytes(base)), vec![byte; SIZE as usize]).unwrap();
    }
    create(&below.join(OsStr::from_bytes(b"middle\xfd")), b"base\xfe", "raw");
    let top = root.path().join("top");
    create(&top, b"below\xff/middle\xfd", "qcow2");
    let mut queue = queue();
    let image = open(&mut queue, &top).unwrap();
    let disk = queue.attach(&image).unwrap();
    let mem = IoMem::from(vec![0; 512]);
    queue.block_on(disk.read(4096, mem.clone())).unwrap().unwrap();
    assert_eq!(mem.to_vec(), [7; 512]);
    assert_eq!(image.info().backing_name.unwrap(), "below\u{fffd}/middle\u{fffd}");
}

/// The message of a failed open, with `directory` cut off.
fn refused(directory: &Path, name: &str) -> String {
    let error = open(&mut queue(), &directory.join(name)).err().unwrap();
    error.to_string().replace(&format!("{}/", directory.display()), "./")
}

#[test]
fn an_error_below_an_image_names_the_file_and_the_image_once() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path();
    fs::write(directory.join("noise"), [7; 4096]).unwrap();
    fs::create_dir(directory.join("directory")).unwrap();
    for (name, below, format) in [
        ("over-missing", "missing", "raw"),
        ("over-noise", "noise", "qcow2"),
        ("over-directory", "directory", "raw"),
        ("over-vdi", "noise", "vdi"),
        ("over-all", "over-missing", "qcow2"),
    ] {
        create(&directory.join(name), below.as_bytes(), format);
    }
    let missing = "./missing: open at offset 0: No such file or directory (os error 2)";
    for (name, message) in [
        ("over-missing", format!("{missing} (backing file of ./over-missing)")),
        // The image that names it, however far below the one that was asked for.
        ("over-all", format!("{missing} (backing file of ./over-missing)")),
        (
            "over-directory",
            "./directory: is a directory, and only regular files and block devices can be opened (backing file of ./over-directory)"
                .into(),
        ),
        ("over-vdi", "./over-vdi: the format 'vdi' of the backing file 'noise' is not supported".into()),
    ] {
        assert_eq!(refused(directory, name), message);
    }
    let noise = refused(directory, "over-noise");
    assert!(noise.starts_with("./noise: "), "{noise}");
    assert!(noise.ends_with(" (backing file of ./over-noise)"), "{noise}");
    let error = open(&mut queue(), &directory.join("over-missing")).err().unwrap();
    assert_eq!(error.errno(), 2);
}
