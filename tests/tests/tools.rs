//! The installed peers answer.

use blkring_tests::tools::{ToolError, missing, qemu_img, qemu_io, version};

#[test]
fn qemu_makes_writes_and_reads_an_image() {
    if missing("qemu-img") {
        return;
    }
    if missing("qemu-io") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image.qcow2");
    let image = image.to_str().unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", image, "1M"]).unwrap();
    qemu_io(&["-f", "qcow2", "-c", "write -P 0x5a 64k 4k", image]).unwrap();
    let read = qemu_io(&["-f", "qcow2", "-c", "read -P 0x5a 64k 4k", image]).unwrap();
    assert!(read.stdout.contains("read 4096/4096 bytes"), "{}", read.stdout);
    let checked = qemu_img(&["check", image]).unwrap();
    assert!(checked.stdout.contains("No errors"), "{}", checked.stdout);
}

#[test]
fn a_failing_qemu_img_says_why() {
    if missing("qemu-img") {
        return;
    }
    let error = qemu_img(&["check", "/nonexistent/image"]).unwrap_err();
    let ToolError::Failed { code, stderr, .. } = &error else { panic!("{error}") };
    assert_eq!(*code, Some(1));
    assert!(stderr.contains("/nonexistent/image"), "{stderr}");
}

#[test]
fn qemu_is_new_enough() {
    if missing("qemu-img") {
        return;
    }
    let version = version("qemu-img").unwrap();
    assert!(version.major >= 5, "{version:?}");
}
