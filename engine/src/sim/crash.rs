//! Power cuts: what the disk may hold afterwards.

use std::collections::BTreeMap;

use super::disk::{SimDisk, State};
use super::file::{FileState, discarded};
use super::log::OpKind;
use super::pending::{Pending, Step};
use super::rng::Rng;
use super::sectors::Value;

/// What is being chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// The size of the file.
    Size,
    /// The sector that begins at this byte.
    Sector(u64),
}

/// One cell with several values that may survive. Option 0 is the durable one, option `i` that of the op
/// `ops[i - 1]`.
#[derive(Debug)]
pub struct Choice<'a> {
    /// The file.
    pub file: &'a str,
    /// The cell of the file.
    pub cell: Cell,
    /// The ops whose values they are, by number: first those that have landed, oldest first, then those in flight.
    pub ops: &'a [u64],
    /// How many of these have landed.
    pub landed: usize,
}

impl Choice<'_> {
    /// How many values there are, at least two.
    pub fn options(&self) -> usize {
        self.ops.len() + 1
    }

    /// The option that the running system shows.
    pub fn live(&self) -> usize {
        self.landed
    }

    /// The last option whose op survives; 0 if none does.
    pub fn last_of(&self, mut survives: impl FnMut(u64) -> bool) -> usize {
        self.ops.iter().rposition(|&op| survives(op)).map_or(0, |place| place + 1)
    }
}

type InFlight = BTreeMap<u64, Vec<(u64, Value)>>;

impl SimDisk {
    /// The disk after a power cut: for every cell with `n` values that may survive, `choose(n)` picks one. The new
    /// disk is quiescent and shares nothing that changes with this one, which goes on.
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> SimDisk {
        self.crash_by(&mut |choice| choose(choice.options()))
    }

    /// The same for choices that depend on where a value comes from.
    pub fn crash_by(&self, choose: &mut dyn FnMut(&Choice<'_>) -> usize) -> SimDisk {
        let state = self.shared.state.lock();
        let files = (0..state.files.len()).map(|index| state.crash_file(index, choose)).collect();
        let (capacity, kernel) = (state.capacity, state.kernel);
        SimDisk::of(State { files, capacity, kernel, ..State::default() })
    }

    /// Nothing volatile survives.
    pub fn crash_keeping_nothing(&self) -> SimDisk {
        self.crash(&mut |_| 0)
    }

    /// Everything that has landed survives, nothing in flight.
    pub fn crash_keeping_all(&self) -> SimDisk {
        self.crash_by(&mut |choice| choice.live())
    }

    /// A random legal state. Where large writes are about, choosing for each sector alone would almost never leave
    /// one of them whole; so `rng` first picks how the cells hang together.
    pub fn crash_random(&self, rng: &mut Rng) -> SimDisk {
        let mut fates: BTreeMap<u64, bool> = BTreeMap::new();
        let newest = self.shared.state.lock().accepted;
        match rng.below(6) {
            // Every cell for itself.
            0 => self.crash(&mut |options| rng.index(options)),
            // Few cells are torn off from what the system saw, or few survive.
            1 => self.crash_by(&mut |choice| {
                if rng.one_in(8) { rng.index(choice.options()) } else { choice.live() }
            }),
            2 => self.crash_by(&mut |choice| {
                if rng.one_in(8) { rng.index(choice.options()) } else { 0 }
            }),
            // In the order in which they came, up to some op.
            3 => {
                let last = rng.below(newest + 1);
                self.crash_by(&mut |choice| choice.last_of(|op| op <= last))
            }
            // Whole ops, each for itself; sometimes one of them torn.
            other => {
                let torn = if other == 4 { None } else { Some(rng.below(newest + 1)) };
                self.crash_by(&mut |choice| {
                    choice.last_of(|op| {
                        if Some(op) == torn {
                            return rng.one_in(2);
                        }
                        *fates.entry(op).or_insert_with(|| rng.one_in(2))
                    })
                })
            }
        }
    }
}

impl State {
    fn crash_file(&self, index: usize, choose: &mut dyn FnMut(&Choice<'_>) -> usize) -> FileState {
        let file = &self.files[index];
        let flying = self.pending.iter().filter(|op| op.file == index && op.next != Step::Complete);
        let mut sectors = InFlight::new();
        let mut sizes = Vec::new();
        for op in flying {
            for (sector, value) in in_flight(file, op) {
                sectors.entry(sector).or_default().push((op.id, value));
            }
            sizes.extend(size_in_flight(file, op).map(|size| (op.id, size)));
        }
        let size = crash_size(file, &sizes, choose);
        let sectors = file.sectors.crash(&sectors, &mut |sector, ops, landed| {
            let cell = Cell::Sector(sector * super::sectors::SECTOR);
            choose(&Choice { file: &file.name, cell, ops, landed })
        });
        FileState::after_crash(file, sectors, size)
    }
}

/// The values that an op in flight may already have left in sectors.
fn in_flight(file: &FileState, op: &Pending) -> Vec<(u64, Value)> {
    match (op.kind, &op.op.mem) {
        (OpKind::Write | OpKind::WriteDurable, Some(mem)) => {
            file.sectors.written(op.offset(), &mem.to_vec())
        }
        (OpKind::ZeroRange | OpKind::PunchHole | OpKind::ZeroOutCall, _) => {
            file.sectors.zeroed(op.offset(), op.end())
        }
        (OpKind::Discard | OpKind::DiscardCall, _) => {
            file.sectors.written(op.offset(), &discarded(op.offset(), op.end()))
        }
        _ => Vec::new(),
    }
}

/// The size that an op in flight may already have set.
fn size_in_flight(file: &FileState, op: &Pending) -> Option<u64> {
    let size = match op.kind {
        OpKind::Truncate => op.offset(),
        OpKind::Grow | OpKind::ZeroRange if op.begun => op.target?,
        OpKind::Write | OpKind::WriteDurable | OpKind::Grow | OpKind::ZeroRange => {
            op.end().max(file.size())
        }
        OpKind::Read
        | OpKind::Sync
        | OpKind::PunchHole
        | OpKind::Discard
        | OpKind::DiscardCall
        | OpKind::ZeroOutCall => return None,
    };
    (size != file.size()).then_some(size)
}

fn crash_size(
    file: &FileState,
    flying: &[(u64, u64)],
    choose: &mut dyn FnMut(&Choice<'_>) -> usize,
) -> u64 {
    let landed = file.sizes.versions();
    let ops: Vec<u64> =
        landed.iter().map(super::history::Version::op).chain(flying.iter().map(|f| f.0)).collect();
    if ops.is_empty() {
        return file.durable_size;
    }
    let choice = Choice { file: &file.name, cell: Cell::Size, ops: &ops, landed: landed.len() };
    match choose(&choice) {
        0 => file.durable_size,
        option if option <= landed.len() => landed[option - 1].value,
        option => flying[option - 1 - landed.len()].1,
    }
}
