//! The table against a slow, obviously right model: after each of many random steps everything is compared.
#![cfg(not(any(blkring_loom, blkring_shuttle)))]

mod model;

use blkring_tracker::Span;
use blkring_tracker::table::{Begun, Class, Id, Patience, Phase, Table, Widened};
use model::{Model, Outcome};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

#[derive(Clone, Debug)]
enum Step {
    Begin {
        span: Span,
        class: Class,
        patience: Patience,
    },
    /// Of one that runs.
    Widen {
        pick: Index,
        span: Span,
        patience: Patience,
    },
    /// Of any: an end or a withdrawal.
    End {
        pick: Index,
    },
    /// Of one that does not run, if there is one.
    Withdraw {
        pick: Index,
    },
}

/// Spans over `units`: mostly short, some empty, some to infinity.
fn spans(units: u64) -> impl Strategy<Value = Span> {
    (0..units, 0u32..12, 1..=units.div_ceil(4)).prop_map(|(start, kind, len)| match kind {
        0 => Span::at(start, 0),
        1 => Span::to_infinity(start),
        _ => Span::at(start, len),
    })
}

fn patience() -> impl Strategy<Value = Patience> {
    prop_oneof![4 => Just(Patience::Wait), 1 => Just(Patience::NoWait)]
}

fn steps(units: u64, serialising: u32) -> impl Strategy<Value = Vec<Step>> {
    let class = prop_oneof![
        10 - serialising => Just(Class::Shared),
        serialising => Just(Class::Serialising),
    ];
    let step = prop_oneof![
        5 => (spans(units), class, patience())
            .prop_map(|(span, class, patience)| Step::Begin { span, class, patience }),
        2 => (any::<Index>(), spans(units), patience())
            .prop_map(|(pick, span, patience)| Step::Widen { pick, span, patience }),
        3 => any::<Index>().prop_map(|pick| Step::End { pick }),
        1 => any::<Index>().prop_map(|pick| Step::Withdraw { pick }),
    ];
    prop::collection::vec(step, 1..150)
}

#[derive(Default)]
struct Pair {
    table: Table,
    model: Model,
    /// Of the model's members, in its order.
    ids: Vec<Id>,
}

fn outcome(widened: Widened) -> Outcome {
    match widened {
        Widened::AtOnce => Outcome::Runs,
        Widened::Parked => Outcome::Waits,
        Widened::Busy => Outcome::Busy,
    }
}

impl Pair {
    fn apply(&mut self, step: &Step) {
        match step {
            &Step::Begin { span, class, patience } => self.begin(span, class, patience),
            Step::Widen { pick, span, patience } => {
                let fit = |at: &usize| self.model.members[*at].can_widen();
                if let Some(at) = self.pick(pick, fit) {
                    let (expected, admitted) = self.model.widen(at, *span, *patience);
                    let widened = self.table.widen(self.ids[at], *span, *patience);
                    assert_eq!(outcome(widened), expected);
                    self.compare(&admitted);
                }
            }
            Step::End { pick } => {
                if let Some(at) = self.pick(pick, |_| true) {
                    self.end(at);
                }
            }
            Step::Withdraw { pick } => {
                let fit = |at: &usize| self.model.members[*at].phase != Phase::Running;
                if let Some(at) = self.pick(pick, fit) {
                    self.end(at);
                }
            }
        }
    }

    fn pick(&self, pick: &Index, fit: impl Fn(&usize) -> bool) -> Option<usize> {
        let fitting: Vec<_> = (0..self.ids.len()).filter(|at| fit(at)).collect();
        (!fitting.is_empty()).then(|| *pick.get(&fitting))
    }

    fn begin(&mut self, span: Span, class: Class, patience: Patience) {
        let expected = self.model.begin(span, class, patience);
        let (found, id) = match self.table.begin(span, class, patience) {
            Begun::Admitted(id) => (Outcome::Runs, Some(id)),
            Begun::Waiting(id) => (Outcome::Waits, Some(id)),
            Begun::Busy => (Outcome::Busy, None),
        };
        assert_eq!(found, expected);
        self.ids.extend(id);
        self.compare(&[]);
    }

    fn end(&mut self, at: usize) {
        let admitted = self.model.end(at);
        self.table.end(self.ids.remove(at));
        self.compare(&admitted);
    }

    fn compare(&mut self, admitted: &[u64]) {
        let woken: Vec<_> = self.table.woken().map(Id::ticket).collect();
        assert_eq!(woken, admitted, "woken");
        self.table.self_check();
        assert_eq!(self.table.statistics(), self.model.statistics());
        let mut requests: Vec<_> = self.table.requests().collect();
        requests.sort_unstable_by_key(|request| request.id.ticket());
        assert_eq!(requests.len(), self.model.members.len());
        for (request, member) in requests.into_iter().zip(&self.model.members) {
            let blockers = self.model.blockers(member);
            assert!(
                member.is(request, blockers),
                "{request:?} should be {member:?}, {blockers} blockers"
            );
        }
    }

    /// Ends what runs, over and over: everything must run and end, and nothing stay behind.
    fn drain(&mut self) {
        while !self.ids.is_empty() {
            let running =
                (0..self.ids.len()).find(|&at| self.model.members[at].phase == Phase::Running);
            self.end(running.expect("somebody runs whenever anybody is there"));
        }
        let statistics = self.table.statistics();
        assert_eq!((statistics.in_flight(), statistics.serialising), (0, 0));
    }
}

fn run(steps: &[Step]) {
    let mut pair = Pair::default();
    for step in steps {
        pair.apply(step);
    }
    pair.drain();
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/oracle.txt",
        ))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn crowded(steps in steps(4, 5)) {
        run(&steps);
    }

    #[test]
    fn mostly_shared(steps in steps(12, 2)) {
        run(&steps);
    }

    #[test]
    fn roomy(steps in steps(60, 4)) {
        run(&steps);
    }
}
