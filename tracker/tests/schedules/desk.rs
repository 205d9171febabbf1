//! A table with short words for what the schedules do, checked after each step.

use blkring_tracker::Span;
use blkring_tracker::table::{Begun, Class, Id, Overtaken, Patience, Phase, Table, Widened};
use std::ops::Range;

#[derive(Default)]
pub struct Desk {
    pub table: Table,
}

pub fn span(range: Range<u64>) -> Span {
    Span::new(range.start, range.end)
}

impl Desk {
    pub fn begin(&mut self, span: Span, class: Class) -> Id {
        let begun = self.table.begin(span, class, Patience::Wait);
        self.table.self_check();
        match begun {
            Begun::Admitted(id) => {
                assert_eq!(self.table.phase(id), Phase::Running);
                id
            }
            Begun::Waiting(id) => {
                assert_eq!(self.table.phase(id), Phase::Waiting);
                id
            }
            Begun::Busy => panic!("busy although it may wait"),
        }
    }

    pub fn sh(&mut self, range: Range<u64>) -> Id {
        self.begin(span(range), Class::Shared)
    }

    pub fn ser(&mut self, range: Range<u64>) -> Id {
        self.begin(span(range), Class::Serialising)
    }

    /// Widens; returns whom the call admitted.
    pub fn widen(&mut self, id: Id, range: Range<u64>) -> Vec<Id> {
        self.widen_span(id, span(range))
    }

    pub fn widen_span(&mut self, id: Id, span: Span) -> Vec<Id> {
        let widened = self.table.widen(id, span, Patience::Wait);
        let phase = self.table.phase(id);
        match widened {
            Widened::AtOnce => assert_eq!(phase, Phase::Running),
            Widened::Parked => assert_eq!(phase, Phase::Parked),
            Widened::Busy => panic!("busy although it may wait"),
        }
        self.woken()
    }

    /// Ends or withdraws; returns whom that admitted.
    pub fn end(&mut self, id: Id) -> Vec<Id> {
        self.table.end(id);
        self.woken()
    }

    pub fn runs(&self, id: Id) -> bool {
        self.table.phase(id) == Phase::Running
    }

    pub fn overtaken(&self, id: Id) -> bool {
        self.table.overtaken(id) == Overtaken::Yes
    }

    fn woken(&mut self) -> Vec<Id> {
        let woken: Vec<_> = self.table.woken().collect();
        self.table.self_check();
        assert!(woken.iter().all(|&id| self.runs(id)));
        woken
    }
}

/// The end of a schedule: nothing may be left.
impl Drop for Desk {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.table.requests().count(), 0, "requests left over");
            assert_eq!(self.table.statistics().in_flight(), 0);
            assert_eq!(self.table.statistics().serialising, 0);
        }
    }
}
