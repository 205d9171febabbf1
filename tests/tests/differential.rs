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
