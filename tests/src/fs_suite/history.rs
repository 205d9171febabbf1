//! What every byte of a file may hold, while many change it at once.
//!
//! A file is seen as *cells* of a fixed number of bytes. A change of a range has a begin and an end, and a value: zeros,
//! or words that name the change and their place. Two changes that run at the same time may take effect in either
//! order, in each cell apart from all others. A change that ended well before another one began, which ended well too,
//! is over for good. So a cell always has a small set of values that it may hold, and a look at it may find one of the
//! set of its begin, or one of a change that began during the look.

use std::ops::Range;
use std::sync::Mutex;

/// Bytes of a word.
const WORD: u64 = 8;
/// Bits of the place in a word, in words: files up to 512 MiB.
const PLACE_BITS: u32 = 26;

/// What a change leaves in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Zeros.
    Zeros,
    /// The words of the change of this number.
    Words(u64),
}

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Answered as done: what came before is over.
    Done,
    /// It may have happened, or a part of it.
    Unsure,
}

/// Whether a cell may be found half changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tearing {
    /// Yes: somebody may be changing it.
    Allowed,
    /// No: nobody does.
    Forbidden,
}

/// The cells of one file.
pub struct History {
    grain: u64,
    state: Mutex<State>,
}

struct State {
    /// The last number given. Begins, ends and looks share the numbers, so that they are in one order.
    number: u64,
    cells: Vec<Cell>,
}

#[derive(Clone)]
struct Cell {
    changes: Vec<Change>,
    /// The last change to zeros that began.
    zeros_begun: u64,
}

#[derive(Clone, Copy)]
struct Change {
    begun: u64,
    ended: Option<u64>,
    value: Value,
}

/// A change under way.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Its number.
    pub number: u64,
    /// The bytes that it changes.
    pub range: Range<u64>,
}

/// A look under way: what each cell may hold.
pub struct Look {
    number: u64,
    range: Range<u64>,
    cells: Vec<Vec<Value>>,
}

impl Look {
    /// The same look, at its first `len` bytes only: whole cells.
    pub fn first_bytes(mut self, len: u64) -> Look {
        let bytes = self.range.end - self.range.start;
        let cells = self.cells.len() as u64 * len / bytes.max(1);
        self.range.end = self.range.start + len;
        self.cells.truncate(index(cells));
        self
    }
}

impl Cell {
    fn zeros() -> Self {
        let change = Change { begun: 0, ended: Some(0), value: Value::Zeros };
        Cell { changes: vec![change], zeros_begun: 0 }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

impl History {
    /// A file of zeros that has at most `limit` bytes, in cells of `grain` bytes.
    pub fn new(limit: u64, grain: u64) -> Self {
        assert!(limit < WORD << PLACE_BITS, "a word has no room for such places");
        let cells = vec![Cell::zeros(); index(limit.div_ceil(grain))];
        History { grain, state: Mutex::new(State { number: 0, cells }) }
    }

    /// Bytes of a cell.
    pub fn grain(&self) -> u64 {
        self.grain
    }

    fn cells(&self, range: &Range<u64>) -> Range<usize> {
        let whole = range.start.is_multiple_of(self.grain) && range.end.is_multiple_of(self.grain);
        assert!(whole, "{range:?} is not of whole cells of {} bytes", self.grain);
        index(range.start / self.grain)..index(range.end / self.grain)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing in here panics under the lock")
    }

    /// A change of a range to zeros begins.
    pub fn begin_zeros(&self, range: Range<u64>) -> Pending {
        self.begin(range, |_| Value::Zeros)
    }

    /// A change of a range to words of its own begins. [`words`] gives them.
    pub fn begin_words(&self, range: Range<u64>) -> Pending {
        self.begin(range, Value::Words)
    }

    fn begin(&self, range: Range<u64>, value: impl Fn(u64) -> Value) -> Pending {
        let cells = self.cells(&range);
        let mut state = self.locked();
        let number = state.next();
        for cell in &mut state.cells[cells] {
            let value = value(number);
            cell.changes.push(Change { begun: number, ended: None, value });
            if value == Value::Zeros {
                cell.zeros_begun = number;
            }
        }
        Pending { number, range }
    }

    /// A change has ended. Gives the number of its end.
    pub fn end(&self, pending: &Pending, end: End) -> u64 {
        let cells = self.cells(&pending.range);
        let mut state = self.locked();
        let ended = state.next();
        for cell in &mut state.cells[cells] {
            let own = cell.changes.iter_mut().find(|change| change.begun == pending.number);
            if let Some(change) = own {
                change.ended = Some(ended);
            }
            if end == End::Done {
                let over = |change: &Change| change.ended.is_some_and(|e| e < pending.number);
                cell.changes.retain(|change| !over(change));
            }
        }
        ended
    }

    /// Nothing is under way any more, what was given up included.
    pub fn end_all(&self) {
        let mut state = self.locked();
        let ended = state.next();
        for change in state.cells.iter_mut().flat_map(|cell| &mut cell.changes) {
            change.ended.get_or_insert(ended);
        }
    }

    /// Zeros everywhere again, for certain.
    pub fn reset(&self) {
        self.locked().cells.fill(Cell::zeros());
    }

    /// A look at a range begins.
    pub fn look(&self, range: Range<u64>) -> Look {
        let cells = self.cells(&range);
        let mut state = self.locked();
        let number = state.next();
        let values = |cell: &Cell| cell.changes.iter().map(|change| change.value).collect();
        Look { number, range, cells: state.cells[cells].iter().map(values).collect() }
    }

    /// Judges what a look has found.
    ///
    /// # Errors
    /// The first byte that may not be there, with what may.
    pub fn judge(&self, look: &Look, bytes: &[u8], tearing: Tearing) -> Result<(), String> {
        assert_eq!(bytes.len() as u64, look.range.end - look.range.start);
        let state = self.locked();
        let first = self.cells(&look.range).start;
        let parts = bytes.chunks_exact(index(self.grain));
        for ((place, part), values) in parts.enumerate().zip(&look.cells) {
            let cell = &state.cells[first + place];
            let at = look.range.start + place as u64 * self.grain;
            let may = |value: Value| {
                values.contains(&value)
                    || match value {
                        Value::Zeros => cell.zeros_begun > look.number,
                        Value::Words(number) => number > look.number && number <= state.number,
                    }
            };
            judge_cell(at, part, tearing, may).map_err(|what| {
                let may = values.iter().map(ToString::to_string).collect::<Vec<_>>();
                format!("{what}; it may hold {}", may.join(" or "))
            })?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Zeros => f.write_str("zeros"),
            Value::Words(number) => write!(f, "those of change {number}"),
        }
    }
}

fn judge_cell(
    at: u64,
    bytes: &[u8],
    tearing: Tearing,
    may: impl Fn(Value) -> bool,
) -> Result<(), String> {
    let mut former = None;
    for (place, word) in (0..).zip(bytes.chunks_exact(index(WORD))) {
        let at = at + place * WORD;
        let word = u64::from_le_bytes(word.try_into().expect("8 bytes each"));
        let value = match word >> PLACE_BITS {
            0 if word == 0 => Value::Zeros,
            number if word == self::word(number, at) => Value::Words(number),
            _ => return Err(format!("byte {at}: {word:#018x}, which was never written there")),
        };
        if !may(value) {
            return Err(format!("byte {at}: {value}, which may not be there"));
        }
        if tearing == Tearing::Forbidden && former.is_some_and(|former| former != value) {
            return Err(format!("byte {at}: {value} in the middle of a sector of others"));
        }
        former = Some(value);
    }
    Ok(())
}

fn word(number: u64, at: u64) -> u64 {
    (number << PLACE_BITS) | (at / WORD)
}

/// What a change writes.
pub fn words(pending: &Pending) -> Vec<u8> {
    let places = pending.range.clone().step_by(index(WORD));
    places.flat_map(|at| word(pending.number, at).to_le_bytes()).collect()
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the file fits into memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Range<u64> = 512..1024;

    fn finds(history: &History, look: &Look, bytes: &[u8]) -> bool {
        history.judge(look, bytes, Tearing::Forbidden).is_ok()
    }

    #[test]
    fn what_was_replaced_may_not_come_back() {
        let history = History::new(4096, 512);
        let first = history.begin_words(CELL);
        let old = words(&first);
        assert!(finds(&history, &history.look(CELL), &[0; 512]), "it has not ended");
        assert!(finds(&history, &history.look(CELL), &old));
        history.end(&first, End::Done);
        assert!(!finds(&history, &history.look(CELL), &[0; 512]));
        let early = history.look(CELL);
        let second = history.begin_words(CELL);
        let new = words(&second);
        history.end(&second, End::Done);
        assert!(!finds(&history, &history.look(CELL), &old));
        assert!(finds(&history, &history.look(CELL), &new));
        assert!(
            finds(&history, &early, &old) && finds(&history, &early, &new),
            "a look in between"
        );
    }

    #[test]
    fn those_that_ran_together_are_in_any_order() {
        let history = History::new(4096, 512);
        let (write, zeros) = (history.begin_words(CELL), history.begin_zeros(CELL));
        let bytes = words(&write);
        history.end(&write, End::Done);
        history.end(&zeros, End::Done);
        let look = history.look(CELL);
        assert!(finds(&history, &look, &bytes) && finds(&history, &look, &[0; 512]));
        let mut torn = bytes.clone();
        torn[256..].fill(0);
        assert!(!finds(&history, &look, &torn));
        assert!(history.judge(&look, &torn, Tearing::Allowed).is_ok());
    }

    #[test]
    fn what_failed_replaces_nothing() {
        let history = History::new(4096, 512);
        let done = history.begin_words(CELL);
        history.end(&done, End::Done);
        let failed = history.begin_words(CELL);
        history.end(&failed, End::Unsure);
        let look = history.look(CELL);
        assert!(finds(&history, &look, &words(&done)) && finds(&history, &look, &words(&failed)));
        let after = history.begin_zeros(CELL);
        history.end(&after, End::Done);
        assert!(!finds(&history, &history.look(CELL), &words(&failed)));
    }

    #[test]
    fn words_know_their_place() {
        let history = History::new(4096, 512);
        let write = history.begin_words(0..1024);
        let bytes = words(&write);
        history.end(&write, End::Done);
        assert!(finds(&history, &history.look(CELL), &bytes[512..]));
        assert!(!finds(&history, &history.look(CELL), &bytes[..512]));
    }
}
