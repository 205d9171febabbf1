//! Random damage.

use blkring_engine::sim::Rng;
use blkring_tests::deadline::within;
use blkring_tests::hostile::{everything, sample, try_in_memory};
use blkring_tests::image_world::Places;

use crate::{AT_ONCE, CLUSTER_SIZES, put};

/// Images of each size of clusters: `BLKRING_MUTATIONS`.
fn count() -> u64 {
    std::env::var("BLKRING_MUTATIONS").map_or(400, |text| text.parse().unwrap())
}

#[test]
fn random_damage_is_a_result() {
    for cluster_size in CLUSTER_SIZES {
        let sound = sample(cluster_size);
        let places = Places::of(&sound);
        let (mut opened, mut failing) = (0, 0);
        for seed in 0..count() {
            let mut bytes = sound.clone();
            let mut rng = Rng::new(seed ^ (cluster_size << 32));
            for _ in 0..=rng.below(4) {
                damage(&mut bytes, &places, &mut rng);
            }
            let what = format!("seed {seed}, clusters of {cluster_size}");
            let tried = within(AT_ONCE, &what, || try_in_memory(&bytes, everything));
            opened += u64::from(tried.opened.is_ok());
            failing += u64::from(!tried.failed.is_empty());
        }
        println!(
            "clusters of {cluster_size}: {} images, {opened} opened, {failing} failed later",
            count()
        );
        // Damage that is never met, or never passes the door, tests nothing.
        assert!(opened > count() / 4 && opened < count() && failing > count() / 10);
    }
}

/// Changes a byte, a bit or a number somewhere in the metadata.
fn damage(bytes: &mut [u8], places: &Places, rng: &mut Rng) {
    let structures = [&places.fixed[..], &places.blocks, &places.tables].concat();
    let place = &structures[rng.index(structures.len())];
    // Most of a structure may be empty; its beginning is not.
    let most = (place.end - place.start).min(if rng.one_in(4) { u64::MAX } else { 112 });
    let at = (place.start + rng.below(most)) as usize;
    let Some(byte) = bytes.get_mut(at) else { return };
    match rng.below(3) {
        0 => *byte ^= 1 << rng.below(8),
        1 => *byte = rng.next_u64() as u8,
        _ => {
            let at = at / 8 * 8;
            let near = structures[rng.index(structures.len())].start;
            let flags = [0, 1, 1 << 63, 1 << 62, (1 << 63) | 1][rng.index(5)];
            let numbers =
                [0, !0, near, near + 512, bytes.len() as u64, rng.next_u64(), 1 << rng.below(64)];
            if at + 8 <= bytes.len() {
                put(bytes, at, numbers[rng.index(numbers.len())] | flags);
            }
        }
    }
}
