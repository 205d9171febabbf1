//! Random scripts on both sides: see `blkring_tests::differential`.
//!
//! `BLKRING_DIFFERENTIAL_SEED=N` runs the script of one seed, `BLKRING_DIFFERENTIAL_COUNT=N` as many as that, from seed 0
//! or from that of `BLKRING_DIFFERENTIAL_FROM` on. A difference is shown as soon as it is found (with `--nocapture`), with
//! the seed, and with a script without what it does not need.

use blkring_tests::differential::{Script, run, script, shrink};
use blkring_tests::tools;

/// Scripts of a usual run.
const COUNT: u64 = 200;

/// Differences after which a run is given up.
const MOST: usize = 20;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

fn check(seed: u64) -> Result<(), String> {
    let whole = script(seed);
    let Err(first) = run(&whole) else { return Ok(()) };
    let fails = |script: &Script| run(script).is_err();
    let small = shrink(whole.clone(), fails);
    // It may have failed by chance, and not again.
    let (script, found) = match run(&small) {
        Err(found) => (small, found),
        Ok(()) => (whole, first),
    };
    Err(format!(
        "seed {seed}: BLKRING_DIFFERENTIAL_SEED={seed} shows it again\n{script}the difference: {}\n--- the installed programs\n{}\n--- \
         the program\n{}\n",
        found.place, found.theirs, found.ours
    ))
}

/// Scripts that have shown a difference once, without what it did not need.
const FOUND: &[&str] = &[
    // A discard beyond the end of the backing file.
    "# Loose; qemu-io of the program: --alloc-policy=per-allocation
/usr/bin/qemu-img create -q -f qcow2 base 131072
/usr/bin/qemu-io -f qcow2 -c 'write -q -P 176 61344 41576' base
qemu-img create -f qcow2 -o cluster_size=16384 -b base -F qcow2 image 262144
qemu-io -c 'discard 114688 49152' image
qemu-img map --output=json image
",
    // Zeros over what a snapshot shares.
    "# Loose; qemu-io of the program: --alloc-policy=per-allocation
/usr/bin/qemu-img create -f qcow2 -o cluster_size=1024 image 16384
/usr/bin/qemu-io -f qcow2 -c 'write -q -P 177 8064 280' -c 'write -q -P 178 3281 2090' image
/usr/bin/qemu-img snapshot -c one image
qemu-img info image
qemu-io -c 'write -z 4096 4096' image
qemu-img check --output=json image
qemu-img map --output=json image
qemu-io -c 'write -P 7 4096 512' -c 'write -z 4096 4096' -c 'write -z -u 8192 1024' image
# the images of the two sides change places
qemu-img check --output=json image
qemu-img map --output=json image
",
    // A last cluster that is compressed, and a disk that grows.
    "# Loose; qemu-io of the program: --alloc-policy=per-allocation
/usr/bin/qemu-img create -q -f raw source 1562624
/usr/bin/qemu-io -f raw -c 'write -q -P 179 1052349 468000' source
/usr/bin/qemu-img convert -c -f raw -O qcow2 -o cluster_size=524288 source image
qemu-img info image
qemu-img resize image 3135488
qemu-img map --output=json image
",
    // Sizes of version 2 with snapshots.
    "# Loose; qemu-io of the program: --alloc-policy=ahead
/usr/bin/qemu-img create -f qcow2 -o compat=0.10 image 1M
/usr/bin/qemu-img snapshot -c one image
qemu-img info image
qemu-img resize image 2M
qemu-img resize image 1M
qemu-img resize image 2000000
qemu-img resize --preallocation=metadata image 2M
qemu-img resize --shrink image 512k
qemu-io -c 'truncate 2M' -c 'truncate 1M' -c 'truncate 2000000' -c 'truncate 512k' -c 'truncate -m full 2M' image
",
    // Growth with space made ready.
    "# Loose; qemu-io of the program: --alloc-policy=per-allocation
qemu-img create -f qcow2 image 1M
qemu-io -c 'truncate -m metadata 2M' -c length -c 'truncate -m falloc 3M' -c 'truncate -m full 4M' -c length image
qemu-img check image
",
];

#[test]
fn what_has_differed_does_so_no_more() {
    if tools::missing("qemu-io") || tools::missing("qemu-img") {
        return;
    }
    for text in FOUND {
        let script = Script::read(text).expect("lines as they are shown");
        assert_eq!(&script.to_string(), text);
        if let Err(found) = run(&script) {
            panic!("{text}at {}:\n{}\n--- the program\n{}", found.place, found.theirs, found.ours);
        }
    }
}

#[test]
fn random_scripts_have_the_same_results_on_both_sides() {
    if tools::missing("qemu-io") || tools::missing("qemu-img") {
        return;
    }
    let seeds = match number("BLKRING_DIFFERENTIAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let from = number("BLKRING_DIFFERENTIAL_FROM").unwrap_or(0);
            from..from + number("BLKRING_DIFFERENTIAL_COUNT").unwrap_or(COUNT)
        }
    };
    println!("seeds {seeds:?}");
    let differing: Vec<u64> = seeds
        .filter(|&seed| check(seed).inspect_err(|shown| println!("{shown}")).is_err())
        .take(MOST)
        .collect();
    assert!(differing.is_empty(), "the seeds {differing:?} show differences");
}
