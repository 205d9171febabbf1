//! With the feature `log`, a program without a subscriber of `tracing` finds the events in its log.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use std::sync::Mutex;

use blkring_engine::{Flags, QueueOptions, QueueSeed, Storage};

/// What was logged.
struct Kept(Mutex<Vec<String>>);

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{}: {}", record.target(), record.args()));
    }

    fn flush(&self) {}
}

#[test]
fn events_are_logged() {
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let storage = Storage::in_memory("memory", vec![0; 4096], 65536);
    let mut queue = QueueSeed::without_ring(QueueOptions::default()).start().unwrap();
    let lane = queue.lane();
    queue.block_on(storage.write_zeroes(&lane, 4096, 4096, Flags::empty())).unwrap().unwrap();
    let kept = KEPT.0.lock().unwrap();
    let told = |line: &String| line.starts_with("blkring_engine") && line.contains("widen");
    assert!(kept.iter().any(told), "{kept:?}");
}
