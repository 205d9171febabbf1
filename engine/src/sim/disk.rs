//! The disk: its files, the ops that it has accepted, and the handle through which its owner drives it.

use std::sync::Arc;

use blkring_tracker::sync::Mutex;

use crate::buffers::BufferPool;
use crate::device::{Device, Kind};
use crate::lane::Lane;
use crate::op::Op;
use crate::storage::{Access, Medium, Storage};

use super::fault::{Hold, Matcher, Point, Rule};
use super::file::{FileState, SimFile};
use super::log::{Event, OpKind, Stage};
use super::pending::{Pending, Step};

/// Which kernel is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernel {
    /// A fallocate looks at the size when it lands.
    #[default]
    Current,
    /// XFS before Linux 5.5: a fallocate that ends beyond the end of the file computes the new size when it begins,
    /// and sets exactly that when it lands.
    OldXfs,
}

/// How a storage uses a file of the disk.
#[derive(Debug, Clone, Copy)]
pub struct SimOptions {
    /// What offsets and lengths must be multiples of, in bytes: 1, 512 or 4096. Anything else is EINVAL.
    pub alignment: u64,
    /// What addresses of memory must be multiples of, in bytes; at most `alignment`.
    pub memory_alignment: usize,
    /// Whether it may be written.
    pub access: Access,
    /// Bytes for bounce buffers.
    pub buffer_budget: usize,
    /// What the storage takes it for.
    pub shape: SimShape,
}

/// What a file of the simulated disk is opened as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SimShape {
    /// A regular file.
    #[default]
    File,
    /// A block device with logical blocks of 512 bytes, or of the alignment if that is larger. What is discarded there
    /// reads as other bytes.
    BlockDevice,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions {
            alignment: 1,
            memory_alignment: 1,
            access: Access::ReadWrite,
            buffer_budget: 1 << 20,
            shape: SimShape::File,
        }
    }
}

impl SimOptions {
    /// Writable, with this alignment of offsets, lengths and memory.
    pub fn aligned(alignment: u64) -> Self {
        let memory_alignment = usize::try_from(alignment).expect("alignments are small");
        SimOptions { alignment, memory_alignment, ..SimOptions::default() }
    }

    /// The same, taken for a block device.
    #[must_use]
    pub fn block_device(mut self) -> Self {
        self.shape = SimShape::BlockDevice;
        self
    }
}

/// A handle of the disk; clones are of the same disk. The disk goes with its last handle.
#[derive(Clone)]
pub struct SimDisk {
    pub(super) shared: Arc<Shared>,
}

/// The lock *disk* guards everything here. Held for one step of one op, never while an issuer is told.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) files: Vec<FileState>,
    /// In order of acceptance.
    pub(super) pending: Vec<Pending>,
    pub(super) rules: Vec<Rule>,
    pub(super) holds: Vec<Hold>,
    pub(super) log: Vec<Event>,
    pub(super) accepted: u64,
    /// Landings so far.
    pub(super) stamp: u64,
    pub(super) capacity: Option<u64>,
    pub(super) kernel: Kernel,
}

impl Default for SimDisk {
    fn default() -> Self {
        SimDisk::new(Kernel::Current)
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new(kernel: Kernel) -> Self {
        SimDisk::of(State { kernel, ..State::default() })
    }

    pub(super) fn of(state: State) -> Self {
        SimDisk { shared: Arc::new(Shared { state: Mutex::new(state) }) }
    }

    /// Makes a file, or replaces its content; `bytes` are durable at once.
    ///
    /// # Panics
    /// If ops on the file are pending.
    pub fn create_file(&self, name: &str, bytes: &[u8]) {
        let mut state = self.shared.state.lock();
        let file = FileState::new(name.into(), bytes);
        match state.index(name) {
            None => state.files.push(file),
            Some(index) => {
                assert!(state.pending.iter().all(|op| op.file != index), "{name} is in use");
                state.files[index] = file;
            }
        }
    }

    /// The names of all files.
    pub fn file_names(&self) -> Vec<String> {
        self.shared.state.lock().files.iter().map(|file| file.name.to_string()).collect()
    }

    /// Opens a file as a storage; `None` if there is none of that name.
    pub fn open(&self, name: &str, options: SimOptions) -> Option<Storage> {
        let state = self.shared.state.lock();
        let index = state.index(name)?;
        let disk = Arc::downgrade(&self.shared);
        let SimOptions { alignment, memory_alignment, .. } = options;
        let file = SimFile { disk, index, alignment, memory_alignment };
        let path = state.files[index].name.clone();
        let device = Device::new(path, Kind::Sim(Arc::new(file)), state.files[index].size());
        let buffers = BufferPool::new(options.buffer_budget);
        let storage = Storage::over(device, alignment, options.access, buffers);
        let storage = storage.with_memory_alignment(memory_alignment);
        Some(match options.shape {
            SimShape::File => storage,
            SimShape::BlockDevice => {
                let topology = storage.topology();
                storage.on(Medium::BlockDevice, topology)
            }
        })
    }

    /// The same for a file that exists.
    ///
    /// # Panics
    /// If it does not.
    pub fn storage(&self, name: &str, options: SimOptions) -> Storage {
        self.open(name, options).expect("the file exists")
    }

    /// The content as the running system sees it.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        self.shared
            .state
            .lock()
            .read(name, |file| (file.size(), |at, to| file.sectors.read(at, to)))
    }

    /// The content if the power went now and nothing volatile survived.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn durable_contents(&self, name: &str) -> Vec<u8> {
        self.shared
            .state
            .lock()
            .read(name, |file| (file.durable_size, |at, to| file.sectors.read_durable(at, to)))
    }

    /// Has ops fail from here on.
    pub fn inject(&self, rule: Rule) {
        self.shared.state.lock().rules.push(rule);
    }

    /// Forgets all rules of failure.
    pub fn clear_faults(&self) {
        self.shared.state.lock().rules.clear();
    }

    /// Keeps ops that match from making a step until `name` is released.
    pub fn hold(&self, name: &str, what: Matcher, point: Point) {
        self.shared.state.lock().holds.push(Hold::new(name, what, point));
    }

    /// Lets go what is held under `name`, and holds nothing more.
    pub fn release(&self, name: &str) {
        self.shared.state.lock().holds.retain(|hold| hold.name != name);
    }

    /// Goes on holding what is pending now under `name`, and nothing that comes later.
    pub fn hold_no_more(&self, name: &str) {
        let mut state = self.shared.state.lock();
        let latest = state.pending.iter().map(|op| op.id).max().unwrap_or(0);
        state
            .holds
            .iter_mut()
            .filter(|hold| hold.name == name)
            .for_each(|hold| hold.only_until(latest));
    }

    /// How many ops are stopped under `name` now.
    pub fn held(&self, name: &str) -> usize {
        let state = self.shared.state.lock();
        let hold = |op: &&Pending| {
            let file = &state.files[op.file].name;
            state.holds.iter().any(|hold| hold.name == name && hold.stops(file, op))
        };
        state.pending.iter().filter(hold).count()
    }

    /// Space for all files together, in bytes of whole 4096-byte blocks. What would need more is ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.state.lock().capacity = Some(bytes);
    }

    /// Bytes that have space now.
    pub fn used(&self) -> u64 {
        self.shared.state.lock().files.iter().map(|file| file.blocks() * 4096).sum()
    }

    /// Steps that ops have made so far, their acceptance included.
    pub fn steps(&self) -> u64 {
        self.shared.state.lock().log.len() as u64
    }

    /// All steps so far, in order.
    pub fn log(&self) -> Vec<Event> {
        self.log_since(0)
    }

    /// Those from number `first` on.
    pub fn log_since(&self, first: u64) -> Vec<Event> {
        let state = self.shared.state.lock();
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        state.log.get(first..).map(<[Event]>::to_vec).unwrap_or_default()
    }

    /// How many ops of a kind were accepted so far.
    pub fn count(&self, kind: OpKind) -> u64 {
        let state = self.shared.state.lock();
        let accepted = |event: &&Event| event.stage == Stage::Accepted && event.kind == kind;
        state.log.iter().filter(accepted).count() as u64
    }

    /// Ops accepted and not completed, held ones included, as their next step would find them.
    pub fn pending(&self) -> Vec<Event> {
        let state = self.shared.state.lock();
        state.pending.iter().map(|op| state.event(op, Stage::Accepted)).collect()
    }

    /// Ops that could make a step.
    pub fn ready(&self) -> usize {
        let state = self.shared.state.lock();
        if state.holds.is_empty() { state.pending.len() } else { state.ready().count() }
    }

    /// Has the `nth` of the ready ops (in order of acceptance) make its next step; false if there is none.
    pub fn advance(&self, nth: usize) -> bool {
        let mut state = self.shared.state.lock();
        let Some(place) = state.ready().nth(nth) else { return false };
        let Some(Pending { issuer: (lane, key), op, result, .. }) = state.advance(place) else {
            return true;
        };
        drop(state);
        lane.complete(key, result, Some(op));
        true
    }
}

impl Shared {
    pub(super) fn accept(&self, file: &SimFile, issuer: (Lane, u64), op: Op) {
        let mut state = self.state.lock();
        state.accepted += 1;
        let kind = OpKind::of(op.verb);
        let pending = Pending {
            id: state.accepted,
            file: file.index,
            kind,
            alignment: file.alignment,
            memory_alignment: file.memory_alignment,
            next: if state.has_begin(kind) { Step::Begin } else { Step::Land },
            begun: false,
            covers: 0,
            target: None,
            stamp: 0,
            result: 0,
            issuer,
            op,
        };
        let event = state.event(&pending, Stage::Accepted);
        state.log.push(event);
        state.pending.push(pending);
    }

    pub(super) fn with_file<T>(&self, index: usize, ask: impl FnOnce(&FileState) -> T) -> T {
        ask(&self.state.lock().files[index])
    }
}

impl State {
    fn index(&self, name: &str) -> Option<usize> {
        self.files.iter().position(|file| &*file.name == name)
    }

    fn read<'a, R: Fn(u64, &mut [u8])>(
        &'a self,
        name: &str,
        view: impl FnOnce(&'a FileState) -> (u64, R),
    ) -> Vec<u8> {
        let index = self.index(name).expect("the file exists");
        let (size, read) = view(&self.files[index]);
        let mut bytes = vec![0; usize::try_from(size).expect("files of tests fit into memory")];
        read(0, &mut bytes);
        bytes
    }

    pub(super) fn event(&self, op: &Pending, stage: Stage) -> Event {
        let file = self.files[op.file].name.clone();
        Event { op: op.id, stage, kind: op.kind, file, offset: op.offset(), len: op.len() }
    }

    /// The places of the ops that nothing holds.
    fn ready(&self) -> impl Iterator<Item = usize> + '_ {
        let free = |op: &Pending| {
            let file = &self.files[op.file].name;
            !self.holds.iter().any(|hold| hold.stops(file, op))
        };
        (0..self.pending.len()).filter(move |&place| free(&self.pending[place]))
    }

    /// One step of one op; the op itself if that was its last.
    fn advance(&mut self, place: usize) -> Option<Pending> {
        let mut op = self.pending.remove(place);
        let stage = match op.next {
            Step::Begin => {
                self.begin(&mut op);
                op.next = Step::Land;
                Stage::Begun
            }
            Step::Land => {
                op.result = self.land(&mut op);
                op.next = Step::Complete;
                Stage::Landed
            }
            Step::Complete => {
                self.finish(&op);
                Stage::Completed(op.result)
            }
        };
        let event = self.event(&op, stage);
        self.log.push(event);
        if op.next == Step::Complete && matches!(stage, Stage::Completed(_)) {
            return Some(op);
        }
        self.pending.insert(place, op);
        None
    }
}
