//! How the file below an image is found and what it is taken for. F39: relative names, symlinks, descriptors. F42: an
//! image that does not say the format of its backing file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use blkring_engine::{Access, Cache, Disk, OpenError as StorageError, OpenOptions, Queue, Storage};
use blkring_qcow2::{
    Access as HeaderAccess, FileOpener, Header, Image, ImageOptions, OpenError, Opener,
};
use blkring_tests::images::queue;
use blkring_tests::links::{Links, Whose};

/// A chain in `a` and a link to it from elsewhere. Beside the link in `b` is another base; beside that in `links` none.
const PLACES: &[&str] = &[
    "mkdir a b links cwd; yes base | head -c 64k > a/base.raw; yes other | head -c 64k > b/base.raw",
    "cd a; qemu-img create -q -f qcow2 -b base.raw -F raw top.qcow2",
    "ln -s ../a/top.qcow2 links/top; ln -s ../a/top.qcow2 b/top",
];

/// The names of a chain's top, and what the first bytes of the disk are; nothing if it cannot be opened.
const NAMES: &[(&str, Option<&str>)] = &[
    ("../a/top.qcow2", Some("base")),
    ("$PWD/../a/top.qcow2", Some("base")),
    // From the directory of the link, not of what it leads to.
    ("../b/top", Some("other")),
    ("../links/top", None),
    // A descriptor has no directory: relative names do not lead anywhere from there.
    ("/dev/fd/7", None),
    ("/proc/self/fd/7", None),
];

#[test]
fn f39_relative_names_links_and_descriptors() {
    let Some(links) = Links::new(PLACES) else { return };
    let same_words = links.same_words();
    for (name, expected) in NAMES {
        for command in ["map", "info", "check", "convert -O raw"] {
            let target = if command.starts_with("convert") { "out" } else { "" };
            let line = format!("cd cwd; exec 7<../a/top.qcow2; qemu-img {command} {name} {target}");
            // The two run in directories of their own, which an absolute name tells.
            if same_words && !name.starts_with('$') {
                links.compare(&line);
            }
        }
        let line =
            "cd cwd; exec 7<../a/top.qcow2; PROGRAM convert -O raw NAME out && head -n 1 out";
        for (whose, program) in
            [(Whose::Theirs, "qemu-img"), (Whose::Ours, "qemu-img"), (Whose::Ours, "blkring")]
        {
            let line = line.replace("PROGRAM", program).replace("NAME", name);
            let said = links.run(whose, &line);
            let expected = expected.map(|word| format!("{word}\n")).unwrap_or_default();
            assert_eq!(said.stdout, expected, "{line}: {said:?}");
            assert_eq!(said.code == Some(0), !expected.is_empty(), "{line}: {said:?}");
        }
    }
    // Where no name is followed, a descriptor is as good as a name, for writing too.
    for line in [
        "qemu-img map -f raw /dev/fd/7 7<a/base.raw",
        "qemu-io -f raw -c 'write -P 65 0 512' /dev/fd/7 7<>a/base.raw; head -c 9 a/base.raw",
        "qemu-img map --image-opts driver=qcow2,file.filename=/dev/fd/7,backing.driver=raw 7<a/top.qcow2",
    ] {
        links.compare(line);
    }
}

/// Opens every name from one directory, as an embedder may that has nothing but descriptors.
struct From(PathBuf);

impl Opener for From {
    fn open(&self, _: &Path, name: &OsStr, access: Access) -> Result<Storage, StorageError> {
        Storage::open(&self.0.join(name), &OpenOptions::new().access(access))
    }
}

/// An opener that says what a file without a format is.
struct Says(Option<&'static str>);

impl Opener for Says {
    fn open(&self, image: &Path, name: &OsStr, access: Access) -> Result<Storage, StorageError> {
        FileOpener::default().open(image, name, access)
    }

    fn format(&self, file: &Storage, named: Option<&str>) -> Result<Option<String>, StorageError> {
        assert!(file.size() > 0 && named.is_none());
        Ok(self.0.map(str::to_owned))
    }
}

fn open(queue: &mut Queue, path: &Path, opener: &dyn Opener) -> Result<Disk, OpenError> {
    let storage = Storage::open(path, &OpenOptions::new().cache(Cache::Cached))?;
    let lane = queue.lane();
    let opened = queue.block_on(Image::open(&lane, storage, opener, ImageOptions::new()));
    let image = opened.unwrap()?;
    Ok(queue.attach(&image).unwrap())
}

fn first_bytes(queue: &mut Queue, disk: &Disk) -> String {
    let mem = blkring_engine::IoMem::from(vec![0; 512]);
    queue.block_on(disk.read(0, mem.clone())).unwrap().unwrap();
    String::from_utf8_lossy(&mem.to_vec()).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn f39_an_embedder_may_have_descriptors_alone() {
    let Some(links) = Links::new(PLACES) else { return };
    let made = links.run(Whose::Theirs, "true");
    assert_eq!(made.code, Some(0));
    let place = links.place(Whose::Theirs);
    let file = File::open(place.join("a/top.qcow2")).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut queue = queue();
    let error = open(&mut queue, &path, &FileOpener::default()).err().unwrap();
    assert!(error.to_string().contains("/proc/self/fd/base.raw"), "{error}");
    for (directory, expected) in [("a", "base"), ("b", "other")] {
        let disk = open(&mut queue, &path, &From(place.join(directory))).unwrap();
        assert_eq!(first_bytes(&mut queue, &disk), expected);
    }
}

/// Overlays without a format: `raw` over a raw file, `top` over a qcow2 image, `deep` over `raw`.
const UNNAMED: &[&str] = &[
    "yes base | head -c 128k > base.raw; qemu-img convert -f raw -O qcow2 base.raw base.qcow2",
    "qemu-img create -q -f qcow2 -b base.raw -F raw raw; qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 top",
    "qemu-img create -q -f qcow2 -b raw -F qcow2 deep; cp raw missing",
];

/// Takes the format of the backing file out of an image's header.
pub fn unname(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    assert!(Header::parse(&bytes, HeaderAccess::Read).unwrap().backing_format().is_some());
    let kind = 0xe279_2acau32.to_be_bytes();
    let at = bytes.windows(4).position(|window| window == kind).unwrap();
    bytes[at..at + 4].copy_from_slice(b"none");
    assert!(Header::parse(&bytes, HeaderAccess::Read).unwrap().backing_format().is_none());
    fs::write(path, bytes).unwrap();
}

#[test]
fn f42_a_backing_format_that_is_not_named_is_not_guessed() {
    let Some(links) = Links::new(UNNAMED) else { return };
    for image in ["raw", "top", "missing"] {
        unname(&links.made().join(image));
    }
    fs::remove_file(links.made().join("base.raw"))
        .and_then(|()| {
            // What a guest writes decides what is found in a raw file.
            fs::copy(links.made().join("base.qcow2"), links.made().join("base.raw")).map(drop)
        })
        .unwrap();
    for (line, hint) in [
        ("blkring map raw", "'base.raw' has, and it is not guessed"),
        ("blkring convert -O raw top out", ",backing.driver=raw (or qcow2)"),
        ("blkring io -r -c 'read 0 512' deep", ",backing.backing.driver=raw (or qcow2)"),
    ] {
        let said = links.run(Whose::Ours, line);
        assert_eq!(said.code, Some(1), "{line}: {said:?}");
        assert!(said.stderr.contains(hint) && said.stderr.lines().count() == 1, "{said:?}");
    }
    // Once it is said, it is as it was said.
    let options = "--image-opts driver=qcow2,file.filename=";
    for (image, said, expected) in [
        ("raw", "backing.driver=raw", "QFI"),
        ("raw", "backing.driver=qcow2", "base"),
        ("top", "backing.driver=qcow2", "base"),
        ("deep", "backing.backing.driver=raw", "QFI"),
    ] {
        for program in ["blkring", "qemu-img"] {
            let line = format!(
                "{program} convert -O raw {options}{image},{said} out; head -c 4 out | tr -d '\\373'"
            );
            let said = links.run(Whose::Ours, &line);
            assert_eq!((&*said.stdout, &*said.stderr), (expected, ""), "{line}");
        }
    }
}

/// qemu-img and qemu-io guess, and so do links of these names.
#[test]
fn f42_under_their_names_it_is_guessed_as_they_do() {
    let Some(links) = Links::new(UNNAMED) else { return };
    for image in ["raw", "top", "missing"] {
        unname(&links.made().join(image));
    }
    if !links.same_words() {
        return;
    }
    let opts = "--image-opts driver=qcow2,file.filename=";
    for line in [
        "qemu-img convert -O raw raw out && cmp out base.raw",
        "qemu-img convert -O raw top out && cmp out base.raw",
        "qemu-img convert -O raw deep out && cmp out base.raw",
        "qemu-img map raw; qemu-img map top; qemu-img check raw; qemu-img check deep",
        "qemu-img info --backing-chain top; qemu-img info --backing-chain deep",
        "qemu-io -c 'read -v 0 16' deep",
        "qemu-io -c 'write -P 1 4k 4k' -c 'read -v 4090 16' raw",
        "rm base.raw; qemu-img map raw; qemu-io -c 'read 0 512' deep",
        "qemu-img create -f qcow2 -b raw -F qcow2 over",
        &format!("qemu-img map {opts}raw,backing.driver=raw"),
        &format!("qemu-img map {opts}raw,backing.driver=qcow2"),
        &format!("qemu-img check {opts}raw,backing.driver=qcow2"),
        &format!("qemu-img map {opts}top,backing.driver=raw"),
        &format!("qemu-img map {opts}top,backing.driver=foo"),
        &format!("qemu-img map {opts}top,backing.backing.driver=raw"),
        &format!("qemu-img check {opts}top,backing.backing.driver=raw"),
        &format!("qemu-img map {opts}base.qcow2,backing.driver=raw"),
        &format!("qemu-img info {opts}top,backing.driver=raw"),
        &format!("qemu-io {opts}deep,backing.backing.driver=raw -c 'read -v 0 16'"),
        "qemu-img map --image-opts driver=raw,file.filename=base.raw,backing.driver=raw",
        "qemu-img check --image-opts driver=raw,file.filename=base.raw,backing.driver=raw",
    ] {
        links.compare(line);
    }
}

#[test]
fn f42_an_embedder_says_what_it_is_or_it_is_refused() {
    let Some(links) = Links::new(UNNAMED) else { return };
    let top = links.made().join("top");
    unname(&top);
    let mut queue = queue();
    for opener in [&FileOpener::default() as &dyn Opener, &Says(None)] {
        let error = open(&mut queue, &top, opener).err().unwrap();
        assert!(matches!(error, OpenError::NoBackingFormat { .. }), "{error}");
        assert_eq!(error.errno(), libc::EINVAL);
    }
    let error = open(&mut queue, &top, &Says(Some("vmdk"))).err().unwrap();
    assert!(matches!(error, OpenError::BackingFormat { .. }), "{error}");
    for (format, expected) in [("raw", "QFI"), ("qcow2", "base")] {
        let disk = open(&mut queue, &top, &Says(Some(format))).unwrap();
        assert!(first_bytes(&mut queue, &disk).starts_with(expected), "{format}");
    }
}
