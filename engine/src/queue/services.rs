//! The shared work that a queue drives, image by image. A service with its descriptors belongs to its image and goes with
//! it: a queue only watches it, and holds for a turn those that are still there.

use std::sync::{Arc, Weak};

use super::WAKE_KEY;
use crate::service::Service;

/// The services that a queue watches.
#[derive(Default)]
pub(super) struct Services {
    watched: Vec<Watched>,
    /// Those of the turn that is being taken.
    driven: Vec<Arc<Service>>,
    /// Keys given so far. None is used again: the ring may still tell of one whose service is gone.
    keys: u64,
}

struct Watched {
    service: Weak<Service>,
    /// What its event comes with from the ring.
    key: u64,
}

impl Services {
    /// Adds a service and gives the key to watch its event with; `None` if it is known.
    pub(super) fn add(&mut self, service: &Arc<Service>) -> Option<u64> {
        let service = Arc::downgrade(service);
        if self.watched.iter().any(|known| known.service.ptr_eq(&service)) {
            return None;
        }
        self.keys += 1;
        let key = WAKE_KEY + self.keys;
        self.watched.push(Watched { service, key });
        Some(key)
    }

    /// Forgets the service of a key.
    pub(super) fn remove(&mut self, key: u64) {
        self.watched.retain(|one| one.key != key);
    }

    /// Those that are still there.
    pub(super) fn iter(&self) -> impl Iterator<Item = Arc<Service>> + '_ {
        self.watched.iter().filter_map(|one| one.service.upgrade())
    }

    /// The service whose event has this key.
    pub(super) fn of_key(&self, key: u64) -> Option<Arc<Service>> {
        let mut all = self.watched.iter();
        all.find(|one| one.key == key).and_then(|one| one.service.upgrade())
    }

    /// From here on the services count on this queue to look at what is ready. Gives the keys of those that are gone.
    pub(super) fn begin_turn(&mut self) -> Vec<u64> {
        let (driven, mut gone) = (&mut self.driven, Vec::new());
        self.watched.retain(|one| match one.service.upgrade() {
            Some(service) => {
                service.begin_turn();
                driven.push(service);
                true
            }
            None => {
                gone.push(one.key);
                false
            }
        });
        gone
    }

    /// Those of this turn.
    pub(super) fn driven(&self) -> &[Arc<Service>] {
        &self.driven
    }

    /// Ends a turn. Says whether nothing is left to do until something completes or is woken.
    pub(super) fn end_turn(&mut self) -> bool {
        let left = self.driven.iter().filter(|service| !service.end_turn()).count();
        self.driven.clear();
        left == 0
    }
}
