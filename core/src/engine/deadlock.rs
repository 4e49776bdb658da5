//! Deadlocks: a request that waits is refused if its owner would wait for itself.
//!
//! The graph has owners as its nodes. An owner that waits for a key has edges to the other owners that hold it in its
//! way, and to those with a connected request ahead in the queue. There are no edges on semaphores, nor on a key that
//! the owner holds itself, which it is granted past the queue; nor of the second request of an owner, which is granted
//! with its first. A place without a connection makes no edge, and neither does a key that has yet to be looked at
//! because its value came or went by a command of the server's.
//!
//! Edges come into being with requests that wait, so a cycle is closed by one of them (or by a command of the server's
//! that moves values, where there is nothing to refuse). The search goes from the owner in both directions, one step
//! each in turn, and ends as soon as one of them is exhausted: an owner that holds nothing that is waited for is in
//! no cycle, however long the queue ahead of it; nor is one whose holders wait for nobody, whoever waits for it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Bound;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::bytes::{Key, KeyRef, Owner};
use crate::lock::Mode;
use crate::queue::{Holder, Position, Waiter, Waiters};
use crate::request::{Refusal, WaitEdge};
use crate::time::Now;

/// How many steps the search takes in each direction. Beyond that it gives up without an alarm: it runs on the server's only
/// thread, and a step takes about a microsecond.
const MAX_STEPS: usize = 10_000;

/// How many edges of a cycle are told.
const TOLD_EDGES: usize = 4;

/// Looks for a cycle through `owner`, whose request is in line already. `ends` are requests of it that are about to end.
///
/// # Errors
///
/// [`Refusal::Deadlock`] with the cycle.
pub(super) fn check(
    waiters: &Waiters,
    owner: &Owner,
    ends: &[u64],
    hasher: &RandomState,
    now: Now,
) -> Result<(), Refusal> {
    let graph = Graph { waiters, me: owner, ends, now };
    if nobody_waits_for(graph) {
        return Ok(());
    }
    let mut backward = Walk::new(graph, Direction::Backward, hasher);
    let mut forward = Walk::new(graph, Direction::Forward, hasher);
    for _ in 0..MAX_STEPS {
        for walk in [&mut backward, &mut forward] {
            match walk.step() {
                Step::Exhausted => return Ok(()),
                Step::Closed(cycle) => return Err(Refusal::Deadlock(cycle)),
                Step::More => {}
            }
        }
    }
    Ok(())
}

/// Whether the owner holds nothing that is waited for, and is last in every line: the common case, without a walk.
fn nobody_waits_for(graph: Graph<'_>) -> bool {
    let Graph { waiters, me, .. } = graph;
    if waiters.next_held(me, None).is_some() {
        return false;
    }
    let mut after = None;
    while let Some((key, mode, position)) = waiters.next_wait(me, after) {
        if waiters.next_in_line(key.borrow(), Bound::Excluded(position)).is_some() {
            return false;
        }
        after = Some((key, mode, position));
    }
    true
}

#[derive(Clone, Copy)]
struct Graph<'a> {
    waiters: &'a Waiters,
    me: &'a Owner,
    ends: &'a [u64],
    now: Now,
}

impl Graph<'_> {
    /// Whether the owner waits for nobody on this key, because it holds it: part of a request for several keys.
    fn is_own(&self, owner: &Owner, key: KeyRef<'_>, mode: Mode) -> bool {
        mode == Mode::Exclusive && self.waiters.is_holder(owner, key, self.now)
    }

    /// Whether the request of an owner is one that it waits by: the others are granted together with that one.
    fn is_first(&self, owner: &Owner, key: KeyRef<'_>, mode: Mode, position: Position) -> bool {
        let first = |mode| {
            self.waiters.positions_of(owner, key, mode).find(|position| {
                self.waiters.get(position.ticket).is_some_and(|waiter| self.counts(position.ticket, waiter))
            })
        };
        let is_first = |mode| first(mode).is_none_or(|first| position <= first);
        // The writer is granted READ as well.
        is_first(mode) && (mode != Mode::Read || is_first(Mode::Write))
    }

    /// Whether a request makes edges.
    fn counts(&self, ticket: u64, waiter: &Waiter) -> bool {
        waiter.request.mode != Mode::Permits && !waiter.is_over(self.now) && !self.ends.contains(&ticket)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// To those for whom an owner waits.
    Forward,
    /// To those who wait for an owner.
    Backward,
}

/// An owner that was reached, by an edge between it and the node before it.
struct Node {
    owner: Owner,
    previous: usize,
    key: Key,
    /// The edge is for a hold, not for a request ahead in line.
    is_held: bool,
}

/// The node of the owner that asks.
const ME: usize = 0;

/// Something that is left to be looked at, piece by piece.
enum Task {
    /// The requests of a node; after which one to go on.
    Waits { node: usize, after: Option<(Key, Mode, Position)> },
    /// The holds of a node on keys that are waited for.
    Holds { node: usize, after: Option<(Key, u64)> },
    /// The holders of a key that are in the way of a node's request.
    Holders { node: usize, key: Key, mode: Mode, after: u64 },
    /// What follows in a line up to an end. On behalf of a hold, only those whom the hold is in the way of.
    Line { node: usize, key: Key, after: Bound<Position>, end: Bound<Position>, held: Option<Holder> },
}

enum Step {
    More,
    Exhausted,
    Closed(Box<[WaitEdge]>),
}

struct Walk<'a> {
    graph: Graph<'a>,
    direction: Direction,
    nodes: Vec<Node>,
    seen: HashSet<Owner, RandomState>,
    todo: Vec<Task>,
    /// Up to where a line was looked at, backward down to where. Not on behalf of the first node, which passes over its own
    /// requests.
    lines: HashMap<Key, Position, RandomState>,
    /// Keys whose holders (backward: whose line on behalf of a holder) were looked at, by the mode that makes a choice.
    holds: HashSet<(Key, Mode), RandomState>,
}

impl<'a> Walk<'a> {
    fn new(graph: Graph<'a>, direction: Direction, hasher: &RandomState) -> Self {
        let mut walk = Self {
            graph,
            direction,
            nodes: Vec::new(),
            seen: HashSet::with_hasher(hasher.clone()),
            todo: Vec::new(),
            lines: HashMap::with_hasher(hasher.clone()),
            holds: HashSet::with_hasher(hasher.clone()),
        };
        walk.enter(Node { owner: graph.me.clone(), previous: ME, key: Key::FIRST, is_held: false });
        walk
    }

    /// Looks at one more piece.
    fn step(&mut self) -> Step {
        let edge = match self.todo.pop() {
            None => return Step::Exhausted,
            Some(Task::Waits { node, after }) => self.next_wait(node, after),
            Some(Task::Holds { node, after }) => self.next_hold(node, after),
            Some(Task::Holders { node, key, mode, after }) => self.next_holder(node, key, mode, after),
            Some(Task::Line { node, key, after, end, held }) => self.next_in_line(node, key, after, end, held),
        };
        match edge {
            Some(edge) => self.reach(edge),
            None => Step::More,
        }
    }

    fn enter(&mut self, node: Node) {
        let index = self.nodes.len();
        self.nodes.push(node);
        self.todo.push(Task::Waits { node: index, after: None });
        if self.direction == Direction::Backward {
            self.todo.push(Task::Holds { node: index, after: None });
        }
    }

    /// Follows an edge to an owner.
    fn reach(&mut self, edge: Node) -> Step {
        let is_me = edge.owner == *self.graph.me;
        if is_me && edge.previous != ME {
            return Step::Closed(self.cycle(edge));
        }
        if !is_me && self.seen.insert(edge.owner.clone()) {
            self.enter(edge);
        }
        Step::More
    }

    fn owner(&self, node: usize) -> Option<&Owner> {
        self.nodes.get(node).map(|node| &node.owner)
    }

    fn next_wait(&mut self, node: usize, after: Option<(Key, Mode, Position)>) -> Option<Node> {
        let after = after.as_ref().map(|(key, mode, position)| (key, *mode, *position));
        let (key, mode, position) = self.graph.waiters.next_wait(self.owner(node)?, after)?;
        self.todo.push(Task::Waits { node, after: Some((key.clone(), mode, position)) });
        let waiter = self.graph.waiters.get(position.ticket)?;
        if self.graph.counts(position.ticket, waiter) {
            self.expand_wait(node, key, mode, position);
        }
        None
    }

    /// Looks for the edges of a request.
    fn expand_wait(&mut self, node: usize, key: &Key, mode: Mode, position: Position) {
        if !self.graph.waiters.knows_holders(key.borrow()) {
            return;
        }
        let done = self.lines.get(key).copied();
        match self.direction {
            Direction::Forward => {
                let graph = self.graph;
                let waits = self.owner(node).is_some_and(|owner| {
                    !graph.is_own(owner, key.borrow(), mode) && graph.is_first(owner, key.borrow(), mode, position)
                });
                if !waits {
                    return;
                }
                if node == ME || self.holds.insert((key.clone(), mode)) {
                    self.todo.push(Task::Holders { node, key: key.clone(), mode, after: u64::MIN });
                }
                if done.is_none_or(|done| done < position) {
                    let after = done.map_or(Bound::Unbounded, Bound::Included);
                    self.look_at_line(node, key, position, (after, Bound::Excluded(position)));
                }
            }
            Direction::Backward => {
                if done.is_none_or(|done| position < done) {
                    let end = done.map_or(Bound::Unbounded, Bound::Included);
                    self.look_at_line(node, key, position, (Bound::Excluded(position), end));
                }
            }
        }
    }

    fn look_at_line(
        &mut self,
        node: usize,
        key: &Key,
        position: Position,
        (after, end): (Bound<Position>, Bound<Position>),
    ) {
        self.todo.push(Task::Line { node, key: key.clone(), after, end, held: None });
        if node != ME {
            self.lines.insert(key.clone(), position);
        }
    }

    fn next_hold(&mut self, node: usize, after: Option<(Key, u64)>) -> Option<Node> {
        let graph = self.graph;
        let after = after.as_ref().map(|(key, token)| (key, *token));
        let (key, token, holder) = graph.waiters.next_held(self.owner(node)?, after)?;
        self.todo.push(Task::Holds { node, after: Some((key.clone(), token)) });
        if node == ME || self.holds.insert((key.clone(), holder.mode)) {
            let (after, end, held) = (Bound::Unbounded, Bound::Unbounded, Some(holder.clone()));
            self.todo.push(Task::Line { node, key: key.clone(), after, end, held });
        }
        None
    }

    fn next_holder(&mut self, node: usize, key: Key, mode: Mode, after: u64) -> Option<Node> {
        let graph = self.graph;
        let (token, holder) = graph.waiters.next_holder(key.borrow(), after)?;
        self.todo.push(Task::Holders { node, key: key.clone(), mode, after: token });
        let is_other = Some(&holder.owner) != self.owner(node);
        (is_other && holder.is_in_the_way_of(mode, graph.now)).then(|| Node {
            owner: holder.owner.clone(),
            previous: node,
            key,
            is_held: true,
        })
    }

    fn next_in_line(
        &mut self,
        node: usize,
        key: Key,
        after: Bound<Position>,
        end: Bound<Position>,
        held: Option<Holder>,
    ) -> Option<Node> {
        let graph = self.graph;
        let (position, waiter) = graph.waiters.next_in_line(key.borrow(), after)?;
        let is_over = match end {
            Bound::Unbounded => false,
            Bound::Included(end) => position > end,
            Bound::Excluded(end) => position >= end,
        };
        if is_over {
            return None;
        }
        let (owner, mode) = (&waiter.request.owner, waiter.request.mode);
        let is_other = Some(owner) != self.owner(node);
        let is_edge = is_other
            && graph.counts(position.ticket, waiter)
            && held.as_ref().is_none_or(|holder| holder.is_in_the_way_of(mode, graph.now))
            && (self.direction == Direction::Forward
                || (!graph.is_own(owner, key.borrow(), mode) && graph.is_first(owner, key.borrow(), mode, position)));
        let edge =
            is_edge.then(|| Node { owner: owner.clone(), previous: node, key: key.clone(), is_held: held.is_some() });
        self.todo.push(Task::Line { node, key, after: Bound::Excluded(position), end, held });
        edge
    }

    /// The cycle that an edge to the owner that asks closes, from that owner on.
    fn cycle(&self, last: Node) -> Box<[WaitEdge]> {
        let me = self.graph.me;
        let mut edges = Vec::new();
        let mut edge = &last;
        loop {
            let previous = self.owner(edge.previous).unwrap_or(me);
            let (waiter, ahead) = match self.direction {
                Direction::Forward => (previous, &edge.owner),
                Direction::Backward => (&edge.owner, previous),
            };
            let (waiter, ahead, key) = (waiter.clone(), ahead.clone(), edge.key.clone());
            edges.push(WaitEdge { waiter, key, ahead, is_held: edge.is_held });
            match self.nodes.get(edge.previous) {
                Some(node) if edge.previous != ME => edge = node,
                _ => break,
            }
        }
        if self.direction == Direction::Forward {
            edges.reverse();
        }
        edges.truncate(TOLD_EDGES);
        edges.into()
    }
}
