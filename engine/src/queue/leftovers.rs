//! What a queue holds at a moment, for the end of a test.

use std::sync::Arc;

use super::Queue;
use crate::service::Service;

impl Queue {
    /// What is left of requests and shared work on this queue, each in a few words. Nothing once everything was answered,
    /// the answers were taken, and it has found nothing to do in a turn.
    pub fn leftovers(&self) -> Vec<String> {
        let services: Vec<Arc<Service>> = self.services.iter().collect();
        let shared = |count: fn(&Service) -> usize| services.iter().map(|one| count(one)).sum();
        let all: [(usize, &str); 6] = [
            (self.tasks.keys().len(), "tasks"),
            (self.inbox.receipts(), "receipts"),
            (self.inbox.unfinished(), "unanswered requests"),
            (self.lane.held(), "ops"),
            (shared(|service| service.lane().held()), "shared ops"),
            (shared(Service::jobs), "jobs"),
        ];
        let some = all.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("{count} {what}")).collect()
    }
}
