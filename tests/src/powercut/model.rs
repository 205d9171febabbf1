//! What the guest may see, sector by sector.
//!
//! Each sector has the *versions* that were written to it: a token, when the request was submitted and when it was
//! answered. A version *precedes* another if it was answered before the other was submitted; two that overlap in time
//! may have landed in any order. A version is *durable* when a completed flush had been submitted after its answer,
//! or when it was written durably. A crash may show every version but those that precede a durable one. A failed
//! request is a version like others that never becomes durable and replaces nothing: it may have landed in part.

use std::ops::Range;

use blkring_engine::sim::Rng;

/// Bytes of a sector of the guest.
pub(crate) const SECTOR: u64 = 512;

/// What a sector is filled with: it begins with its token, and the rest follows from that. 0 is zeros.
pub(crate) type Token = u64;

/// Counts submissions and answers.
pub(crate) type Time = u64;

#[derive(Debug, Clone)]
pub(crate) struct Version {
    token: Token,
    submitted: Time,
    /// When it was answered.
    answered: Option<Time>,
    state: State,
    /// A durable version came after it.
    buried: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Failed,
    Written,
    Durable,
}

impl Version {
    fn precedes(&self, other: &Version) -> bool {
        self.answered.is_some_and(|end| end < other.submitted)
    }
}

/// Whether a request succeeded, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Failed,
    Written,
    Durable,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    sectors: Vec<Vec<Version>>,
    now: Time,
}

impl Model {
    /// A disk whose content is durable.
    pub(crate) fn new(tokens: &[Token]) -> Self {
        let durable = |&token: &Token| {
            vec![Version {
                token,
                submitted: 0,
                answered: Some(0),
                state: State::Durable,
                buried: false,
            }]
        };
        Model { sectors: tokens.iter().map(durable).collect(), now: 0 }
    }

    /// The time of an event that happens now.
    pub(crate) fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    /// A request that writes `token(sector)` to these sectors is submitted.
    pub(crate) fn submit(&mut self, sectors: Range<usize>, token: impl Fn(usize) -> Token) -> Time {
        let now = self.tick();
        for sector in sectors {
            self.sectors[sector].push(Version {
                token: token(sector),
                submitted: now,
                answered: None,
                state: State::InFlight,
                buried: false,
            });
        }
        now
    }

    /// The request that was submitted at `submitted` is answered.
    pub(crate) fn answer(&mut self, sectors: Range<usize>, submitted: Time, answer: Answer) {
        let now = self.tick();
        for sector in sectors {
            let versions = &mut self.sectors[sector];
            let one = versions.iter_mut().find(|version| version.submitted == submitted);
            let one = one.expect("only what is buried by later ones is dropped");
            one.answered = Some(now);
            one.state = match answer {
                Answer::Failed => State::Failed,
                Answer::Written => State::Written,
                Answer::Durable => State::Durable,
            };
            bury(versions);
        }
    }

    /// The request that was submitted at `submitted` was given up before it did anything.
    pub(crate) fn undo(&mut self, sectors: Range<usize>, submitted: Time) {
        self.tick();
        for sector in sectors {
            self.sectors[sector].retain(|version| version.submitted != submitted);
        }
    }

    /// A flush that was submitted at `submitted` has succeeded.
    pub(crate) fn flushed(&mut self, submitted: Time) {
        self.tick();
        for versions in &mut self.sectors {
            for version in versions.iter_mut() {
                let covered = version.answered.is_some_and(|end| end < submitted);
                if covered && version.state == State::Written {
                    version.state = State::Durable;
                }
            }
            bury(versions);
        }
    }

    /// Whether a power cut now may leave this in a sector.
    pub(crate) fn allows(&self, sector: usize, token: Token) -> bool {
        self.sectors[sector].iter().any(|version| !version.buried && version.token == token)
    }

    /// Whether a read that was submitted at `submitted` and is answered now may show this in a sector.
    pub(crate) fn shows(&self, sector: usize, token: Token, submitted: Time) -> bool {
        let versions = &self.sectors[sector];
        let replaced = |version: &Version| {
            versions.iter().any(|newer| {
                matches!(newer.state, State::Written | State::Durable)
                    && newer.answered.is_some_and(|end| end < submitted)
                    && version.precedes(newer)
            })
        };
        versions.iter().any(|version| version.token == token && !replaced(version))
    }

    /// Forgets what no power cut can bring back. Not while a read is under way.
    pub(crate) fn compact(&mut self) {
        for versions in &mut self.sectors {
            versions.retain(|version| !version.buried);
        }
    }

    /// How many clusters have a version that is not durable.
    pub(crate) fn open_clusters(&self, sectors_per_cluster: usize) -> u64 {
        let open = |version: &Version| !version.buried && version.state != State::Durable;
        let clusters = self.sectors.chunks(sectors_per_cluster);
        clusters.filter(|cluster| cluster.iter().flatten().any(open)).count() as u64
    }

    /// The versions of a sector, for a report.
    pub(crate) fn history(&self, sector: usize) -> String {
        let lines = self.sectors[sector].iter().map(|version| {
            let Version { token, submitted, answered, state, buried } = version;
            let end = answered.map_or("-".to_owned(), |end| end.to_string());
            let gone = if *buried { ", no longer legal" } else { "" };
            format!(
                "{}: submitted at {submitted}, answered at {end}, {state:?}{gone}",
                name(*token)
            )
        });
        lines.collect::<Vec<_>>().join("; ")
    }
}

fn bury(versions: &mut [Version]) {
    for index in 0..versions.len() {
        let is_buried = versions
            .iter()
            .any(|newer| newer.state == State::Durable && versions[index].precedes(newer));
        versions[index].buried |= is_buried;
    }
}

/// The token of a write, or that of what was there before.
pub(crate) fn token(request: u64, sector: usize) -> Token {
    request << 16 | (sector as u64 & 0xffff)
}

/// What marks the sectors of clusters that are written in compressed form.
const PACKED: Token = 0xcccc << 48;

/// The token of a compressed write: its sectors are filled so that they compress differently well.
pub(crate) fn packed_token(request: u64, sector: usize) -> Token {
    token(request, sector) | PACKED
}

/// A token as text.
pub(crate) fn name(token: Token) -> String {
    match token {
        0 => "zeros".to_owned(),
        token if is_packed(token) => format!("compressed {}", name(token ^ PACKED)),
        token if token >> 48 == 0 => format!("request {} sector {}", token >> 16, token & 0xffff),
        token => format!("{token:#018x}"),
    }
}

/// What a sector is filled with; `Err` with its first bytes if it is not filled evenly.
pub(crate) fn read_token(sector: &[u8]) -> Result<Token, Token> {
    let (words, _) = sector.as_chunks::<8>();
    let first = u64::from_le_bytes(words[0]);
    if *sector == fill(first) { Ok(first) } else { Err(first) }
}

fn is_packed(token: Token) -> bool {
    token >> 48 == PACKED >> 48
}

/// The bytes of a sector.
pub(crate) fn fill(token: Token) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    let (words, _) = bytes.as_chunks_mut::<8>();
    words.iter_mut().for_each(|word| *word = token.to_le_bytes());
    if is_packed(token) {
        // No method makes these smaller.
        let mut rng = Rng::new(token);
        let noise = rng.index(words.len() - 12);
        words[1..=noise].iter_mut().for_each(|word| *word = rng.next_u64().to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_buries_what_came_before_what_it_covers() {
        let mut model = Model::new(&[7]);
        let first = model.submit(0..1, |_| 1);
        model.answer(0..1, first, Answer::Written);
        let flush = model.tick();
        let second = model.submit(0..1, |_| 2);
        model.answer(0..1, second, Answer::Written);
        assert!(model.allows(0, 7) && model.allows(0, 1) && model.allows(0, 2));
        model.flushed(flush);
        assert!(!model.allows(0, 7), "replaced by what the flush covered");
        assert!(model.allows(0, 1), "covered, and the next one is not");
        assert!(model.allows(0, 2));
        assert!(!model.shows(0, 1, model.now));
    }

    #[test]
    fn what_overlaps_in_time_may_land_in_any_order() {
        let mut model = Model::new(&[0]);
        let first = model.submit(0..1, |_| 1);
        let second = model.submit(0..1, |_| 2);
        model.answer(0..1, first, Answer::Durable);
        assert!(!model.allows(0, 0));
        model.answer(0..1, second, Answer::Durable);
        let now = model.tick();
        assert!(model.allows(0, 1) && model.allows(0, 2));
        assert!(model.shows(0, 1, now) && model.shows(0, 2, now));
    }

    #[test]
    fn a_failed_write_replaces_nothing_and_may_be_there() {
        let mut model = Model::new(&[5]);
        let failed = model.submit(0..1, |_| 1);
        model.answer(0..1, failed, Answer::Failed);
        let flush = model.tick();
        model.flushed(flush);
        assert!(model.allows(0, 5) && model.allows(0, 1));
        let good = model.submit(0..1, |_| 2);
        model.answer(0..1, good, Answer::Durable);
        assert!(!model.allows(0, 1) && !model.allows(0, 5));
    }
}
