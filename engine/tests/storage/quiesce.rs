//! A raw disk that is held still.

use std::cell::RefCell;
use std::rc::Rc;

use blkring_engine::sim::{Matcher, OpKind, Point, SimDisk, SimOptions, Stage, World};
use blkring_engine::{Access, Disk, Flags, QueueOptions, Quiesced, RawDisk, Request, Result};

use super::setup::mem;

struct Scene {
    disk: SimDisk,
    world: World,
    raw: std::sync::Arc<RawDisk>,
    handles: Vec<Disk>,
}

type Held = Rc<RefCell<Option<Result<Quiesced>>>>;

/// Two queues on a disk of 64 KiB whose file takes whole blocks of 4 KiB only.
fn scene(access: Access) -> Scene {
    let disk = SimDisk::default();
    disk.create_file("a", &[1; 65536]);
    let mut world = World::new(3, &disk);
    let raw = RawDisk::new(disk.storage("a", SimOptions { access, ..SimOptions::aligned(4096) }));
    let handles = (0..2)
        .map(|_| {
            let queue = world.add_queue(QueueOptions::default());
            world.queue(queue).attach(&raw).unwrap()
        })
        .collect();
    Scene { disk, world, raw, handles }
}

impl Scene {
    fn quiesce(&mut self, queue: usize) -> Held {
        let (raw, lane) = (self.raw.clone(), self.world.queue(queue).lane());
        self.world.start(queue, async move { raw.quiesce(&lane).await })
    }

    fn submit(&mut self, queue: usize, request: Request) -> Rc<RefCell<Option<Result<()>>>> {
        let receipt = self.handles[queue].submit(request).unwrap();
        self.world.start(queue, receipt)
    }
}

fn is_still(held: &Held) -> bool {
    matches!(&*held.borrow(), Some(Ok(_)))
}

fn kinds() -> [Request; 6] {
    [
        Request::read(0, mem(512, 0)),
        Request::write(0, mem(4096, 7)),
        Request::write(8200, mem(100, 7)),
        Request::write_zeroes(16384 + 512, 8192).with(Flags::FUA),
        Request::discard(32768, 4096),
        Request::flush(),
    ]
}

#[test]
fn it_waits_for_every_request_and_keeps_every_one_waiting() {
    for begun in kinds() {
        let mut scene = scene(Access::ReadWrite);
        let dirty = scene.submit(0, Request::write(40960, mem(4096, 9)));
        scene.world.settle();
        assert!(dirty.borrow().is_some());
        scene.disk.hold("begun", Matcher::any(), Point::Land);
        let first = scene.submit(0, begun.clone());
        scene.world.settle();
        let held = scene.quiesce(1);
        scene.world.settle();
        assert!(held.borrow().is_none(), "{begun:?} is under way");
        scene.disk.release("begun");
        scene.world.settle();
        assert!(is_still(&held) && first.borrow().is_some(), "{begun:?} is over");
        assert_eq!(scene.disk.durable_contents("a"), scene.disk.contents("a"));
        let mark = scene.disk.steps();
        let late: Vec<_> = (0..2)
            .flat_map(|queue| kinds().map(|request| (queue, request)))
            .map(|(queue, request)| scene.submit(queue, request))
            .collect();
        let (raw, lane) = (scene.raw.clone(), scene.world.queue(0).lane());
        let resized = scene.world.start(0, async move { raw.resize(&lane, 131_072).await });
        scene.world.settle();
        assert!(late.iter().all(|one| one.borrow().is_none()) && resized.borrow().is_none());
        let accepted = |log: Vec<blkring_engine::sim::Event>| {
            log.iter().filter(|event| event.stage == Stage::Accepted).count()
        };
        assert_eq!(accepted(scene.disk.log_since(mark)), 0, "the disk was asked for something");
        held.take().unwrap().unwrap().resume();
        scene.world.drain().done();
        scene.world.settle();
        assert!(late.iter().all(|one| matches!(*one.borrow(), Some(Ok(())))));
        assert!(matches!(*resized.borrow(), Some(Ok(()))));
    }
}

#[test]
fn a_disk_that_is_only_read_is_not_flushed() {
    let mut scene = scene(Access::ReadOnly);
    let held = scene.quiesce(0);
    scene.world.settle();
    assert!(is_still(&held));
    assert_eq!(scene.disk.count(OpKind::Sync), 0);
}
