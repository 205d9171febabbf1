//! An ordered index of spans that finds overlaps: a height-balanced tree in an arena, keyed by start and ticket,
//! each node knowing the largest end below it.
//!
//! Balanced by heights rather than by chance, so that the depth is bounded whatever ranges a hostile guest picks
//! (at most 1.45 log2 n: 46 for the 2^32 requests that slots can name). That bound is also what makes recursion
//! harmless here.

use crate::Span;
use slab::Slab;

/// "No node".
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    span: Span,
    /// Largest end in the subtree of this node.
    furthest: u64,
    ticket: u64,
    slot: u32,
    left: u32,
    right: u32,
    /// Nodes on the longest way down, this one included.
    height: u8,
}

impl Node {
    fn key(&self) -> (u64, u64) {
        (self.span.start, self.ticket)
    }
}

/// Spans with the ticket and slot of their request. Tickets are distinct, no span is empty.
#[derive(Debug)]
pub(super) struct Index {
    nodes: Slab<Node>,
    root: u32,
}

impl Default for Index {
    fn default() -> Self {
        Self { nodes: Slab::new(), root: NIL }
    }
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Adds a span. Its key must be new.
    pub(super) fn insert(&mut self, span: Span, ticket: u64, slot: u32) {
        debug_assert!(!span.is_empty());
        let node =
            Node { span, furthest: span.end, ticket, slot, left: NIL, right: NIL, height: 1 };
        let new = u32::try_from(self.nodes.insert(node)).expect("as many as slots, which are u32");
        self.root = self.insert_below(self.root, new);
    }

    /// Removes the span that starts at `start` and belongs to `ticket`; it must be there.
    pub(super) fn remove(&mut self, start: u64, ticket: u64) {
        self.root = self.remove_below(self.root, (start, ticket));
    }

    /// Appends the slots of all that share a byte with `span`, by start, then ticket.
    pub(super) fn find(&self, span: Span, found: &mut Vec<u32>) {
        if !span.is_empty() {
            self.visit(self.root, span, &mut |node| found.push(node.slot));
        }
    }

    /// How many share a byte with `span`.
    pub(super) fn count(&self, span: Span) -> u32 {
        let mut count = 0;
        if !span.is_empty() {
            self.visit(self.root, span, &mut |_| count += 1);
        }
        count
    }

    fn visit(&self, mut at: u32, span: Span, act: &mut impl FnMut(&Node)) {
        while at != NIL {
            let node = self.node(at);
            if node.furthest <= span.start {
                return;
            }
            self.visit(node.left, span, act);
            if node.span.start >= span.end {
                return;
            }
            if node.span.end > span.start {
                act(node);
            }
            at = node.right;
        }
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn height(&self, at: u32) -> u8 {
        if at == NIL { 0 } else { self.node(at).height }
    }

    fn furthest(&self, at: u32) -> u64 {
        if at == NIL { 0 } else { self.node(at).furthest }
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NIL {
            return new;
        }
        debug_assert_ne!(self.node(new).key(), self.node(at).key(), "one ticket indexed twice");
        if self.node(new).key() < self.node(at).key() {
            let left = self.insert_below(self.node(at).left, new);
            self.node_mut(at).left = left;
        } else {
            let right = self.insert_below(self.node(at).right, new);
            self.node_mut(at).right = right;
        }
        self.balance(at)
    }

    fn remove_below(&mut self, at: u32, key: (u64, u64)) -> u32 {
        assert_ne!(at, NIL, "a request must be indexed under the span it has");
        let (left, right) = (self.node(at).left, self.node(at).right);
        match key.cmp(&self.node(at).key()) {
            std::cmp::Ordering::Less => {
                let left = self.remove_below(left, key);
                self.node_mut(at).left = left;
            }
            std::cmp::Ordering::Greater => {
                let right = self.remove_below(right, key);
                self.node_mut(at).right = right;
            }
            std::cmp::Ordering::Equal => {
                self.nodes.remove(at as usize);
                if left == NIL || right == NIL {
                    return if left == NIL { right } else { left };
                }
                let (rest, first) = self.take_first(right);
                self.node_mut(first).left = left;
                self.node_mut(first).right = rest;
                return self.balance(first);
            }
        }
        self.balance(at)
    }

    /// Unlinks the first node below `at`: what is left, and the node.
    fn take_first(&mut self, at: u32) -> (u32, u32) {
        let left = self.node(at).left;
        if left == NIL {
            return (self.node(at).right, at);
        }
        let (rest, first) = self.take_first(left);
        self.node_mut(at).left = rest;
        (self.balance(at), first)
    }

    /// Brings height and furthest end of `at` up to date.
    fn refresh(&mut self, at: u32) {
        let (left, right) = (self.node(at).left, self.node(at).right);
        let height = 1 + self.height(left).max(self.height(right));
        let below = self.furthest(left).max(self.furthest(right));
        let node = self.node_mut(at);
        node.height = height;
        node.furthest = node.span.end.max(below);
    }

    /// Refreshes `at`, whose children differ in height by two at most, and turns it until they differ by one at
    /// most; returns the node now on top.
    fn balance(&mut self, at: u32) -> u32 {
        let (left, right) = (self.node(at).left, self.node(at).right);
        if self.height(left) > self.height(right) + 1 {
            if self.height(self.node(left).left) < self.height(self.node(left).right) {
                let left = self.turn_left(left);
                self.node_mut(at).left = left;
            }
            return self.turn_right(at);
        }
        if self.height(right) > self.height(left) + 1 {
            if self.height(self.node(right).right) < self.height(self.node(right).left) {
                let right = self.turn_right(right);
                self.node_mut(at).right = right;
            }
            return self.turn_left(at);
        }
        self.refresh(at);
        at
    }

    fn turn_left(&mut self, at: u32) -> u32 {
        let top = self.node(at).right;
        self.node_mut(at).right = self.node(top).left;
        self.node_mut(top).left = at;
        self.refresh(at);
        self.refresh(top);
        top
    }

    fn turn_right(&mut self, at: u32) -> u32 {
        let top = self.node(at).left;
        self.node_mut(at).left = self.node(top).right;
        self.node_mut(top).right = at;
        self.refresh(at);
        self.refresh(top);
        top
    }

    /// Checks order, heights and furthest ends, and that no node is lost.
    ///
    /// # Panics
    /// If anything is wrong.
    pub(super) fn self_check(&self) {
        let mut keys = Vec::new();
        self.check_below(self.root, &mut keys);
        assert!(keys.is_sorted_by(|a, b| a < b), "index out of order");
        assert_eq!(keys.len(), self.nodes.len(), "nodes out of reach");
    }

    fn check_below(&self, at: u32, keys: &mut Vec<(u64, u64)>) {
        if at == NIL {
            return;
        }
        let node = self.node(at);
        self.check_below(node.left, keys);
        keys.push(node.key());
        self.check_below(node.right, keys);
        let (left, right) = (self.height(node.left), self.height(node.right));
        assert_eq!(node.height, 1 + left.max(right), "stale height");
        assert!(left.abs_diff(right) <= 1, "index out of balance");
        let below = self.furthest(node.left).max(self.furthest(node.right));
        assert_eq!(node.furthest, node.span.end.max(below), "stale furthest end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_list_finds(steps in prop::collection::vec((0u64..60, 1u64..20, any::<prop::sample::Index>(), 0u8..3), 1..200)) {
            let mut index = Index::default();
            let mut list: Vec<(Span, u64)> = Vec::new();
            for (ticket, (start, len, pick, what)) in (0u64..).zip(steps) {
                if what == 0 && !list.is_empty() {
                    let (span, ticket) = list.swap_remove(pick.index(list.len()));
                    index.remove(span.start, ticket);
                } else {
                    let span = if len == 19 { Span::to_infinity(start) } else { Span::at(start, len) };
                    index.insert(span, ticket, u32::try_from(ticket).expect("small"));
                    list.push((span, ticket));
                }
                index.self_check();
                let asked = Span::at(start / 2, len);
                let mut expected: Vec<_> =
                    list.iter().filter(|(span, _)| span.overlaps(asked)).map(|(span, t)| (span.start, *t)).collect();
                expected.sort_unstable();
                let mut found = Vec::new();
                index.find(asked, &mut found);
                prop_assert_eq!(found, expected.iter().map(|(_, t)| u32::try_from(*t).expect("small")).collect::<Vec<_>>());
                prop_assert_eq!(index.count(asked) as usize, expected.len());
                prop_assert_eq!(index.count(Span::at(start, 0)), 0);
            }
        }
    }

    #[test]
    fn depth_stays_logarithmic_in_sorted_order() {
        let mut index = Index::default();
        for i in 0..4096u32 {
            index.insert(Span::at(u64::from(i) * 8, 8), u64::from(i), i);
        }
        assert!(index.height(index.root) <= 17, "{}", index.height(index.root));
        index.self_check();
    }
}
