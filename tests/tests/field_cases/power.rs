//! F43: the write stream, cut at every prefix. The enumerator in `powercut.rs` does that at large and judges by the
//! project's own checker and reader; here qemu is the judge of a few hundred states.

use blkring_engine::sim::{Rng, SimDisk};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{Answer, IMAGE, ImageWorld, Setup};
use blkring_tests::tools::{ToolError, missing, qemu_img};

/// Guest clusters of the image.
const CLUSTERS: u64 = 24;

/// Of the image.
const CLUSTER: u64 = 4096;

/// Every so many steps of the disk the power is cut.
const EVERY: u64 = 4;

/// Clusters by the bytes they may read as after a power cut.
type Legal = Vec<Vec<u8>>;

#[test]
fn f43_qemu_judges_prefixes_of_the_write_stream() {
    if missing("qemu-img") {
        return;
    }
    let mut judged = 0;
    for (seed, policy) in [(1, AllocPolicy::Ahead), (2, AllocPolicy::PerAllocation)] {
        let mut w = Setup::new(CLUSTERS).queues(2).seed(seed).reserve(3).policy(policy).make();
        judged += stream(&mut w, &mut Rng::new(seed));
    }
    println!("F43: {judged} states");
    assert!(judged > 100, "only {judged} states");
}

/// Writes and discards whole clusters with a flush now and then; judges the states on the way.
fn stream(w: &mut ImageWorld, rng: &mut Rng) -> u64 {
    let mut legal: Legal = vec![vec![0]; CLUSTERS as usize];
    let mut judged = 0;
    for round in 0..60u8 {
        let cluster = rng.below(CLUSTERS);
        let (answer, byte) = match rng.below(5) {
            0 => (w.discard(rng.index(2), cluster), 0),
            _ => (w.fill(rng.index(2), cluster, round + 1), round + 1),
        };
        legal[cluster as usize].push(byte);
        judged += watch(w, &answer, rng, &legal);
        if rng.one_in(4) {
            let flushed = w.flush(0);
            judged += watch(w, &flushed, rng, &legal);
            legal.iter_mut().for_each(|bytes| drop(bytes.drain(..bytes.len() - 1)));
        }
    }
    judged
}

/// Steps until the request is answered, with power cuts on the way. Says how many.
fn watch(w: &mut ImageWorld, answer: &Answer, rng: &mut Rng, legal: &Legal) -> u64 {
    let mut judged = 0;
    while !answer.given() {
        assert!(w.world.step(), "nothing goes on");
        if w.disk.steps().is_multiple_of(EVERY) {
            judge(&w.disk.crash_random(rng), legal);
            judged += 1;
        }
    }
    answer.result().unwrap();
    judged
}

/// qemu finds at most leaks, and reads what it may.
fn judge(disk: &SimDisk, legal: &Legal) {
    let directory = tempfile::tempdir().unwrap();
    let name = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(name("image"), disk.contents(IMAGE)).unwrap();
    match qemu_img(&["check", "-fqcow2", &name("image")]) {
        Ok(_) | Err(ToolError::Failed { code: Some(3), .. }) => (),
        Err(error) => panic!("{error}"),
    }
    qemu_img(&["convert", "-fqcow2", "-Oraw", &name("image"), &name("raw")]).unwrap();
    let raw = std::fs::read(name("raw")).unwrap();
    for (cluster, (bytes, legal)) in raw.chunks(CLUSTER as usize).zip(legal).enumerate() {
        for (sector, bytes) in bytes.chunks(512).enumerate() {
            let one = bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(
                one && legal.contains(&bytes[0]),
                "cluster {cluster}, sector {sector}: {:#x} instead of one of {legal:x?}",
                bytes[0],
            );
        }
    }
}
