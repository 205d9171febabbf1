//! The object that stands for an admitted request.

use crate::request::{Class, Id, Patience};
use crate::sync::Arc;
use crate::table::Widened;
use crate::widen::{Marked, Widen};
use crate::{Busy, Span, Tracker};
use std::fmt;

/// An admitted request. Dropping it ends the request and wakes exactly those that this admits.
///
/// While the kernel works for a request its guard belongs to whatever owns the operation until its completion, never
/// to a future that may be dropped before.
#[must_use = "dropping it ends the request"]
pub struct Guard {
    tracker: Arc<Tracker>,
    id: Id,
    span: Span,
    class: Class,
}

impl Guard {
    pub(crate) fn new(tracker: Arc<Tracker>, id: Id, span: Span, class: Class) -> Self {
        Self { tracker, id, span, class }
    }

    /// The bytes granted.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The class granted.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// The request's name in [`Tracker::requests`].
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }

    /// The tracker it is registered in.
    #[must_use]
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// Asserts that an inner request (the read of a read-modify-write, a copy) stays within the grant that it runs
    /// under. Inner requests are never registered: waiting for a tracker that one already holds a grant of can
    /// deadlock.
    ///
    /// # Panics
    /// If it does not: an error of the caller.
    pub fn assert_covers(&self, inner: Span) {
        assert!(self.span.contains(inner), "{inner:?} lies outside the grant {:?}", self.span);
    }

    /// Widens to the hull of what is held and `span`, serialising from then on. Registered when this returns; the
    /// future only waits. While it waits the old grant is given up, and the [`Grant`](crate::Grant) tells whether
    /// others used it. None of the request's I/O may be in flight. Asking for what is held is granted at once.
    ///
    /// Decide the whole range before the first I/O where possible: a second widening may be overtaken too.
    ///
    /// # Panics
    /// After [`MAX_WIDENINGS`](crate::table::MAX_WIDENINGS) widenings: an error of the caller.
    pub fn widen(self, span: Span) -> Widen {
        self.mark_serialising(span).wait()
    }

    /// The first half of [`widen`](Self::widen): registers, does not wait. Work that needs no grant can be done
    /// between the two.
    ///
    /// # Panics
    /// As [`widen`](Self::widen).
    pub fn mark_serialising(mut self, span: Span) -> Marked {
        match self.tracker.widen(self.id, span, Patience::Wait) {
            Widened::AtOnce => {
                self.grow(span);
                Marked::at_once(self)
            }
            Widened::Parked => {
                self.grow(span);
                Marked::parked(self)
            }
            Widened::Busy => unreachable!("only a call that does not wait is told so"),
        }
    }

    /// Widens if nothing is in the way.
    ///
    /// # Errors
    /// Gives the guard back, as it was and still running, if it would have to wait, be it for one that itself waits.
    ///
    /// # Panics
    /// As [`widen`](Self::widen).
    pub fn try_widen(mut self, span: Span) -> Result<Self, (Self, Busy)> {
        match self.tracker.widen(self.id, span, Patience::NoWait) {
            Widened::AtOnce => {
                self.grow(span);
                Ok(self)
            }
            Widened::Busy => Err((self, Busy)),
            Widened::Parked => unreachable!("told not to wait"),
        }
    }

    fn grow(&mut self, span: Span) {
        self.span = self.span.hull(span);
        self.class = Class::Serialising;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tracker.end(self.id);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("ticket", &self.id.ticket())
            .field("span", &self.span)
            .field("class", &self.class)
            .finish()
    }
}
