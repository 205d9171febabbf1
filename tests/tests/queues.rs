//! Queues that come and go while others use the image.

use std::sync::Arc;
use std::thread;

use blkring_engine::{Cache, Flags, IoMem, Receipt, Request, Turn};
use blkring_qcow2::{CreateOptions, Image};
use blkring_tests::crowd::{Crowd, noise};
use blkring_tests::images::{Opened, create};

/// Bytes that the crowd uses; each visitor has a part behind it.
const CROWD: u64 = 8 << 20;

/// Bytes of a visitor's part.
const PART: u64 = 1 << 20;

/// Bytes of a block that a visitor writes at once.
const BLOCK: u64 = 24 << 10;

/// Bytes of block `number`, as written in a round.
fn block(visitor: u64, round: u64, number: u64) -> Vec<u8> {
    (0..BLOCK).map(|at| noise(visitor << 32 | round << 16 | number, at) | 1).collect()
}

/// In each round a queue of its own, which is removed while its requests are under way. What was answered as done is
/// there, and what was answered as withdrawn was not begun.
fn visit(image: &Arc<Image>, visitor: u64) -> (u64, u64) {
    let start = CROWD + visitor * PART;
    let blocks = PART / BLOCK;
    let mut wanted: Vec<Vec<u8>> = (0..blocks).map(|_| vec![0; BLOCK as usize]).collect();
    let (mut done, mut withdrawn) = (0, 0);
    for round in 0..30 {
        let mut opened = Opened::beside(image);
        for (number, wanted) in (0..).zip(&wanted) {
            let found = opened.read(start + number * BLOCK, BLOCK as usize);
            assert!(found == *wanted, "visitor {visitor}, round {round}, block {number}");
        }
        // A few at once, neighbours in their clusters; the last ones are in the queue when it is removed.
        let mut receipts: Vec<Option<Receipt>> = Vec::new();
        for number in 0..blocks.min(16) {
            let bytes = block(visitor, round, number);
            let offset = start + number * BLOCK;
            let request = Request::write(offset, IoMem::from(bytes)).with(Flags::empty());
            receipts.push(Some(opened.disk.submit(request).expect("the queue has room")));
            if number == round % 16 {
                opened.queue.turn().expect("the ring works");
            }
        }
        let Opened { mut queue, disk, .. } = opened;
        queue.retire();
        assert!(disk.submit(Request::flush()).is_err(), "a retired queue takes nothing");
        while queue.unfinished() > 0 {
            if queue.turn().expect("the ring works") == Turn::Idle && queue.unfinished() > 0 {
                queue.wait().expect("the ring works");
            }
        }
        for (number, receipt) in (0..).zip(&mut receipts) {
            let receipt = receipt.take().expect("one for each");
            match queue.block_on(receipt).expect("the ring works") {
                Ok(()) => {
                    wanted[number as usize] = block(visitor, round, number);
                    done += 1;
                }
                Err(error) => {
                    assert_eq!(error.errno, libc::ECANCELED, "{error}");
                    withdrawn += 1;
                }
            }
        }
    }
    (done, withdrawn)
}

#[test]
fn queues_come_and_go_under_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.qcow2");
    create(&path, &CreateOptions::new(CROWD + 2 * PART));
    let mut own = Opened::writable(&path, Cache::Cached);
    let image = own.image.clone();
    let visitors: Vec<_> = (0..2)
        .map(|visitor| {
            let image = image.clone();
            thread::spawn(move || visit(&image, visitor))
        })
        .collect();
    let crowd = Crowd { queues: 2, lanes: 4, rounds: 150, fine: 4096, coarse: 1 << 18, seed: 90 };
    let ended = crowd.run_within(&image, vec![0; CROWD as usize]);
    for visitor in visitors {
        let (done, withdrawn) = visitor.join().expect("a visitor is content");
        println!("{done} writes done, {withdrawn} withdrawn");
        assert!(done > 30 && withdrawn > 30, "{done} done, {withdrawn} withdrawn");
    }
    assert!(own.read(0, CROWD as usize) == ended.contents);
    own.close();
}
