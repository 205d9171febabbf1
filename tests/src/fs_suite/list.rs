//! The tests by name, what each needs, and which broken rules it must notice.

use blkring_engine::Variant;

use super::finding::Sign;
use super::ground::Room;
use super::run::{Done, Job};
use super::scenes::{
    dropped, enospc, extending, flush, halves, mixed, post_eof, reflink, seek_hole, truncate,
};

/// What a file system must be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing but files.
    Nothing,
    /// Direct I/O in blocks, so that parts of blocks are read, changed and written.
    Blocks,
    /// Copies that share blocks.
    Reflinks,
}

/// A broken rule, and the sign by which a test notices it.
#[derive(Debug, Clone, Copy)]
pub struct Catch {
    /// The rule.
    pub variant: Variant,
    /// What the test reports.
    pub sign: Sign,
}

/// One test.
#[derive(Debug)]
pub struct Test {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Its part of the time, beside those of the others.
    pub weight: u32,
    /// Where it runs.
    pub room: Room,
    /// What the file system must be able to do.
    pub need: Need,
    /// What it must notice.
    pub catches: &'static [Catch],
    /// Runs it.
    pub run: fn(&Job) -> Result<Done, String>,
}

/// A minute has so many rounds at most.
pub const ROUNDS: u64 = 200_000;

const fn catch(variant: Variant, sign: Sign) -> Catch {
    Catch { variant, sign }
}

const GROWTH: Catch = catch(Variant::GrowthNotSerialised, Sign::Order);
const RMW: Catch = catch(Variant::RmwNotSerialised, Sign::Bytes);
const WAKEUP: Catch = catch(Variant::WakeupLost, Sign::Silence);

const PLAIN: Test = Test {
    name: "",
    about: "",
    weight: 1,
    room: Room::Plenty,
    need: Need::Nothing,
    catches: &[],
    run: |_| Ok(Done { rounds: 0, together: 0, held_back: 0, found: None }),
};

/// All of them, in order.
pub const TESTS: &[Test] = &[
    Test {
        name: "post-eof-zero",
        about: "zero-writes beyond the end of the file against writes beyond them",
        weight: 10,
        catches: &[GROWTH, catch(Variant::ZeroWriteWidensToOwnRange, Sign::Order), WAKEUP],
        run: post_eof::zero,
        ..PLAIN
    },
    Test {
        name: "post-eof-allocate",
        about: "plain fallocate beyond the end of the file against writes beyond it",
        weight: 10,
        catches: &[GROWTH],
        run: post_eof::allocate,
        ..PLAIN
    },
    Test {
        name: "append-allocate",
        about: "appending writes against fallocate of an earlier block",
        catches: &[GROWTH, catch(Variant::ZeroWriteWidensToOwnRange, Sign::Order)],
        run: post_eof::earlier,
        ..PLAIN
    },
    Test {
        name: "truncate",
        about: "ftruncate to longer and shorter against writes and reads",
        catches: &[GROWTH],
        run: truncate::truncate,
        ..PLAIN
    },
    Test {
        name: "growth",
        about: "growth of every kind against growth",
        catches: &[GROWTH],
        run: post_eof::growth,
        ..PLAIN
    },
    Test {
        name: "half-blocks",
        about: "writes of 512 bytes into parts of one block",
        need: Need::Blocks,
        catches: &[RMW, WAKEUP],
        run: halves::halves,
        ..PLAIN
    },
    Test {
        name: "punch-hole",
        about: "holes punched beside writes and reads of the same and neighbouring blocks",
        need: Need::Blocks,
        catches: &[RMW],
        run: halves::punch,
        ..PLAIN
    },
    Test {
        name: "extending",
        about: "writes behind the end by many queues, whole blocks and parts",
        need: Need::Blocks,
        catches: &[RMW],
        run: extending::extending,
        ..PLAIN
    },
    Test {
        name: "flush",
        about: "flushes and durable writes beside writes",
        catches: &[
            catch(Variant::FlushSkipped, Sign::Durability),
            catch(Variant::FlushCountsAtSubmission, Sign::Durability),
        ],
        run: flush::flush,
        ..PLAIN
    },
    Test {
        name: "mixed",
        about: "direct I/O and the page cache on one file",
        need: Need::Blocks,
        catches: &[RMW],
        run: mixed::mixed,
        ..PLAIN
    },
    Test {
        name: "seek-hole",
        about: "SEEK_HOLE and SEEK_DATA during writes",
        need: Need::Blocks,
        catches: &[RMW],
        run: seek_hole::seek_hole,
        ..PLAIN
    },
    Test {
        name: "enospc",
        about: "no room in the middle, on a small file system",
        room: Room::Little,
        catches: &[catch(Variant::LadderErrnoIgnored, Sign::Size)],
        run: enospc::enospc,
        ..PLAIN
    },
    Test {
        name: "reflink",
        about: "copies that share blocks, taken during writes",
        need: Need::Reflinks,
        catches: &[RMW],
        run: reflink::reflink,
        ..PLAIN
    },
    Test {
        name: "dropped",
        about: "receipts and futures that are dropped beside writes to the same blocks",
        need: Need::Blocks,
        catches: &[
            catch(Variant::RmwNotSerialised, Sign::Order),
            catch(Variant::DroppedReceiptReleasesRange, Sign::Order),
        ],
        run: dropped::dropped,
        ..PLAIN
    },
];

/// The broken rules that the suite must notice.
pub const VARIANTS: &[Variant] = &[
    Variant::GrowthNotSerialised,
    Variant::ZeroWriteWidensToOwnRange,
    Variant::RmwNotSerialised,
    Variant::FlushSkipped,
    Variant::FlushCountsAtSubmission,
    Variant::LadderErrnoIgnored,
    Variant::WakeupLost,
    Variant::DroppedReceiptReleasesRange,
];

/// The test of a name.
pub fn named(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_can_fail_and_every_rule_is_tested() {
        for test in TESTS {
            assert!(!test.catches.is_empty(), "{}: nothing makes it fail", test.name);
            let named = TESTS.iter().filter(|other| other.name == test.name).count();
            assert_eq!(named, 1, "{}", test.name);
        }
        for variant in VARIANTS {
            let caught = TESTS.iter().flat_map(|test| test.catches);
            assert!(caught.clone().any(|one| one.variant == *variant), "{variant:?}");
        }
    }
}
