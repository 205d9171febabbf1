//! The table checked against the rules, from scratch.

use super::{Class, Phase, Request, Table};

impl Table {
    /// Recomputes everything that the table keeps incrementally and compares: no two running requests conflict,
    /// every countdown is the number of requests waited for by the waiting rule, exactly the requests without a
    /// blocker run, each request is where the others look for it, and the statistics add up. Quadratic in the
    /// number of requests in flight; for tests.
    ///
    /// # Panics
    /// If anything differs.
    pub fn self_check(&self) {
        for request in self.requests() {
            self.check_request(request);
        }
        self.check_places();
        self.check_statistics();
    }

    fn check_request(&self, request: &Request) {
        let blockers = self.requests().filter(|other| request.waits_for(other)).count();
        assert_eq!(request.blockers as usize, blockers, "countdown of {request:?}");
        assert_eq!(request.phase == Phase::Running, blockers == 0, "phase of {request:?}");
        assert!(request.span.contains(request.granted), "{request:?} shrank");
        if request.phase == Phase::Running {
            let conflict = self.requests().find(|other| {
                other.id != request.id && other.phase == Phase::Running && other.conflicts(request)
            });
            assert!(conflict.is_none(), "{request:?} runs beside {conflict:?}");
            assert_eq!(request.granted, request.span);
            assert_eq!(request.granted_class, request.class);
        }
    }

    fn check_places(&self) {
        self.serialising.self_check();
        self.waiting.self_check();
        let (mut running, mut waiting, mut serialising) = (0, 0, 0);
        let mut found = Vec::new();
        for request in self.requests().filter(|request| !request.span.is_empty()) {
            found.clear();
            match (request.class, request.phase) {
                (Class::Shared, Phase::Running) => {
                    running += 1;
                    let place = self.running.get(request.position);
                    assert_eq!(place, Some((request.span, request.id.slot)), "{request:?}");
                    continue;
                }
                (Class::Shared, _) => {
                    waiting += 1;
                    self.waiting.find(request.span, &mut found);
                }
                (Class::Serialising, _) => {
                    serialising += 1;
                    self.serialising.find(request.span, &mut found);
                }
            }
            assert!(found.contains(&request.id.slot), "{request:?} is not indexed");
        }
        assert_eq!(self.running.len(), running);
        assert_eq!(self.waiting.len(), waiting);
        assert_eq!(self.serialising.len(), serialising);
    }

    fn check_statistics(&self) {
        let count = |wanted: &dyn Fn(&Request) -> bool| {
            self.requests().filter(|request| wanted(request)).count() as u64
        };
        let s = self.statistics;
        assert_eq!(s.running, count(&|request| request.phase == Phase::Running));
        assert_eq!(s.waiting, count(&|request| request.phase == Phase::Waiting));
        assert_eq!(s.parked, count(&|request| request.phase == Phase::Parked));
        assert_eq!(s.serialising, count(&|request| request.class == Class::Serialising));
        assert_eq!(s.requests(), s.ended + s.cancelled + s.in_flight());
        assert_eq!(s.requests(), self.next_ticket);
        assert!(s.waits >= s.waited);
        assert!(self.requests().all(|request| request.id.ticket < self.next_ticket));
    }
}
