//! Deadlock detection: a request that would make its owner wait for itself is refused.
//!
//! The nodes of the graph are owners. An owner that waits under a name has edges to the other
//! owners that hold the lock there in a conflicting mode, and to those with a waiting request ahead
//! of it in the queue. Four things make no edges: semaphores; a key that the owner holds itself,
//! since it is granted ahead of the queue; a place without a connection; and a name whose holders
//! are unknown, because a command of the server has changed its value.
//!
//! Waiting requests create the edges, so one of them closes each cycle. (A server command that
//! moves values can close one too, but then there is no request to refuse.) So the search for a
//! request looks only for cycles through an edge of that request: from its owner to the owners that
//! block it, or to its owner from the owners behind it. The owner's other requests, however many,
//! were searched when they began to wait.
//!
//! One walk starts with the edges of the request, and one with all edges of its owner in the
//! opposite direction. They take one step each in turn, and the search ends as soon as either walk
//! is exhausted. So the search takes few steps for an owner that no other owner waits for, however
//! long the queue ahead of it, and for an owner whose request waits for holders that do not wait.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Bound;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};

use super::Registry;
use super::names::Holder;
use super::owners::{Holding, Wait};
use super::positions::{NameId, OwnerId, Position};
use super::waiter::Waiter;
use crate::kind::Mode;
use crate::request::WaitEdge;
use crate::time::Now;

/// The most steps of one search, half of them in each direction. A longer search gives up and finds
/// no cycle: it runs on the server's only thread.
const MAX_STEPS: u32 = 20_000;

/// How many edges of a cycle an error reports.
const MAX_REPORTED_EDGES: usize = 4;

/// The result of a search.
pub(crate) enum Outcome {
    NoCycle,
    /// The cycle, beginning at the owner.
    Cycle(Box<[WaitEdge]>),
    /// The searches of this turn have used up their steps.
    NotNow,
}

/// Looks for a cycle through the edges of a waiter, in at most `steps_left` steps. `ends` are
/// requests of its owner that are about to end. Returns the number of steps, too.
pub(crate) fn search(registry: &Registry, ticket: u64, ends: &[u64], now: Now, steps_left: u32) -> (Outcome, u32) {
    let Some(waiter) = registry.get(ticket) else {
        return (Outcome::NoCycle, 0);
    };
    let graph = Graph { registry, me: waiter.owner, ticket, ends, now, steps_left };
    let me = registry.owners.get(waiter.owner).filter(|me| me.is_waited_for());
    let Some(me) = me.filter(|_| graph.makes_edges(ticket, waiter)) else {
        return (Outcome::NoCycle, 0);
    };
    let mut steps = 0;
    let mut outcome = meet(graph, Direction::Forward, &mut steps);
    if outcome.is_none() && me.waits.len() > waiter.names.len() {
        // The owners behind the request wait for its owner now, and may block another request of
        // that owner.
        outcome = meet(graph, Direction::Backward, &mut steps);
    }
    (outcome.unwrap_or(Outcome::NoCycle), steps)
}

/// Looks for a cycle through an edge of the request in the direction `from_request`. The walk in
/// that direction starts with these edges, the other one with all edges of the owner. Returns
/// `None` if either walk is exhausted.
fn meet(graph: Graph<'_>, from_request: Direction, steps: &mut u32) -> Option<Outcome> {
    let walk = |direction| Walk::new(graph, direction, direction == from_request);
    let mut walks = [walk(Direction::Backward), walk(Direction::Forward)];
    loop {
        for walk in &mut walks {
            if *steps >= MAX_STEPS {
                return Some(Outcome::NoCycle);
            }
            if *steps >= graph.steps_left {
                return Some(Outcome::NotNow);
            }
            *steps = steps.saturating_add(1);
            match walk.step() {
                Step::Exhausted => return None,
                Step::Closed(cycle) => return Some(Outcome::Cycle(cycle)),
                Step::More => {}
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Graph<'a> {
    registry: &'a Registry,
    me: OwnerId,
    /// The request to search for.
    ticket: u64,
    ends: &'a [u64],
    now: Now,
    /// How many steps the searches of this turn have left.
    steps_left: u32,
}

impl<'a> Graph<'a> {
    /// Whether the owner has no edges under this name, because it already holds the lock, as a
    /// MACQUIRE that waits for other keys may.
    fn owner_holds(&self, owner: OwnerId, name: NameId, mode: Mode) -> bool {
        let is_live = |holding: Holding| {
            let record = self.registry.names.get(name);
            let holder = record.and_then(|record| record.next_holder(holding.token.saturating_sub(1)));
            holder.is_some_and(|holder| holder.token == holding.token && holder.deadline_us > self.now.mono_us)
        };
        let holdings = self.registry.owners.get(owner).map(|owner| &owner.holdings);
        let first = holdings.and_then(|holdings| holdings.first_from(Bound::Included(Holding { name, token: 0 })));
        mode == Mode::Exclusive && first.is_some_and(|holding| holding.name == name && is_live(holding))
    }

    /// A cut-off request is granted nothing any longer.
    fn is_cut_off(&self, waiter: &Waiter) -> bool {
        self.registry.cut_off(waiter).is_some()
    }

    /// Whether a request makes edges.
    fn makes_edges(&self, ticket: u64, waiter: &Waiter) -> bool {
        waiter.request().mode != Mode::Permits
            && !waiter.has_timed_out(self.now)
            && !self.is_cut_off(waiter)
            && !self.ends.contains(&ticket)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// To the owners that an owner waits for.
    Forward,
    /// To the owners that wait for an owner.
    Backward,
}

/// An owner that was reached, and the edge between it and the previous node.
struct Node {
    owner: OwnerId,
    previous: usize,
    name: NameId,
    /// The edge is due to a hold, not to a request ahead in the queue.
    is_held: bool,
}

/// The node of the owner that asks.
const ME: usize = 0;

/// A part of the graph that remains to be visited.
enum Task {
    /// The names of the request to search for, from index `next` on.
    Request { next: usize },
    /// The requests of a node, behind `after`.
    Waits { node: usize, after: Bound<Wait> },
    /// The holds of a node under names with waiters.
    Holds { node: usize, after: Bound<Holding> },
    /// The holders of a name that block a node's request.
    Holders { node: usize, name: NameId, mode: Mode, after: u64 },
    /// A queue up to an end. With `held`, only the waiters that this hold blocks.
    Queue { node: usize, name: NameId, after: Bound<Position>, end: Bound<Position>, held: Option<Holder> },
}

enum Step {
    More,
    Exhausted,
    Closed(Box<[WaitEdge]>),
}

struct Walk<'a> {
    graph: Graph<'a>,
    direction: Direction,
    /// The walk starts with the edges of the request, and may end with any edge of its owner.
    /// Otherwise it starts with any edge of the owner, and may end only with one of the request.
    from_request: bool,
    nodes: Vec<Node>,
    seen: HashSet<u32, RandomState>,
    todo: Vec<Task>,
    /// How far each queue was visited: up to this position, or in a backward walk from the end down
    /// to it. Visits for the first node are not recorded, because they skip that owner's requests.
    queues: HashMap<u32, Position, RandomState>,
    /// Names whose holders were visited, with the mode of the request. In a backward walk: names
    /// whose queue was visited, with the mode of the holder.
    holds: HashSet<(u32, Mode), RandomState>,
}

impl<'a> Walk<'a> {
    fn new(graph: Graph<'a>, direction: Direction, from_request: bool) -> Self {
        let hasher = &graph.registry.hasher;
        let mut walk = Self {
            graph,
            direction,
            from_request,
            nodes: Vec::new(),
            seen: HashSet::with_hasher(hasher.clone()),
            todo: Vec::new(),
            queues: HashMap::with_hasher(hasher.clone()),
            holds: HashSet::with_hasher(hasher.clone()),
        };
        walk.enter(Node { owner: graph.me, previous: ME, name: NameId(0), is_held: false });
        walk
    }

    /// Visits the next part.
    fn step(&mut self) -> Step {
        let edge = match self.todo.pop() {
            None => return Step::Exhausted,
            Some(Task::Request { next }) => self.next_of_request(next),
            Some(Task::Waits { node, after }) => self.next_wait(node, after),
            Some(Task::Holds { node, after }) => self.next_hold(node, after),
            Some(Task::Holders { node, name, mode, after }) => self.next_holder(node, name, mode, after),
            Some(Task::Queue { node, name, after, end, held }) => self.next_in_queue(node, name, after, end, held),
        };
        match edge {
            Some(edge) => self.reach(edge),
            None => Step::More,
        }
    }

    fn enter(&mut self, node: Node) {
        let index = self.nodes.len();
        let owner = node.owner;
        self.nodes.push(node);
        if index == ME && self.from_request {
            return self.todo.push(Task::Request { next: 0 });
        }
        let is_followed = || self.graph.registry.owners.get(owner).is_some_and(|owner| owner.followed > 0);
        if self.direction == Direction::Forward || is_followed() {
            self.todo.push(Task::Waits { node: index, after: Bound::Unbounded });
        }
        if self.direction == Direction::Backward {
            self.todo.push(Task::Holds { node: index, after: Bound::Unbounded });
        }
    }

    /// Follows an edge to an owner.
    fn reach(&mut self, edge: Node) -> Step {
        let is_me = edge.owner == self.graph.me;
        if is_me && edge.previous != ME {
            return Step::Closed(self.cycle(edge));
        }
        if !is_me && self.seen.insert(edge.owner.0) {
            self.enter(edge);
        }
        Step::More
    }

    /// Whether the walk may follow an edge to `owner`. `ticket` is the request that makes the edge,
    /// `None` for a hold. Without this check a request would be refused for a cycle that it does
    /// not close.
    fn may_reach(&self, owner: OwnerId, ticket: Option<u64>) -> bool {
        owner != self.graph.me || self.from_request || ticket == Some(self.graph.ticket)
    }

    fn owner(&self, node: usize) -> Option<OwnerId> {
        self.nodes.get(node).map(|node| node.owner)
    }

    /// Visits the next name of the request to search for.
    fn next_of_request(&mut self, next: usize) -> Option<Node> {
        let Graph { ticket, me, .. } = self.graph;
        let waiter = self.graph.registry.get(ticket)?;
        let name = *waiter.names.get(next)?;
        self.todo.push(Task::Request { next: next.saturating_add(1) });
        self.expand_wait(ME, me, name, waiter.request().mode, waiter.position(ticket));
        None
    }

    /// Visits the next name that a node waits for.
    fn next_wait(&mut self, node: usize, after: Bound<Wait>) -> Option<Node> {
        let owner = self.owner(node)?;
        let wait = self.graph.registry.owners.get(owner)?.waits.first_from(after)?;
        self.todo.push(Task::Waits { node, after: Bound::Excluded(wait) });
        let waiter = self.graph.registry.get(wait.position.ticket)?;
        if self.graph.makes_edges(wait.position.ticket, waiter) {
            self.expand_wait(node, owner, wait.name, waiter.request().mode, wait.position);
        }
        None
    }

    /// Visits the edges of a request.
    fn expand_wait(&mut self, node: usize, owner: OwnerId, name: NameId, mode: Mode, position: Position) {
        if !self.graph.registry.knows_holders(name) {
            return;
        }
        let done = self.queues.get(&name.0).copied();
        match self.direction {
            Direction::Forward => {
                if self.graph.owner_holds(owner, name, mode) {
                    return;
                }
                if node == ME || self.holds.insert((name.0, mode)) {
                    self.todo.push(Task::Holders { node, name, mode, after: u64::MIN });
                }
                if done.is_none_or(|done| done < position) {
                    let after = done.map_or(Bound::Unbounded, Bound::Included);
                    self.look_at_queue(node, name, position, (after, Bound::Excluded(position)));
                }
            }
            Direction::Backward => {
                if done.is_none_or(|done| position < done) {
                    let end = done.map_or(Bound::Unbounded, Bound::Included);
                    self.look_at_queue(node, name, position, (Bound::Excluded(position), end));
                }
            }
        }
    }

    fn look_at_queue(
        &mut self,
        node: usize,
        name: NameId,
        position: Position,
        (after, end): (Bound<Position>, Bound<Position>),
    ) {
        self.todo.push(Task::Queue { node, name, after, end, held: None });
        if node != ME {
            self.queues.insert(name.0, position);
        }
    }

    fn next_hold(&mut self, node: usize, after: Bound<Holding>) -> Option<Node> {
        let queues = self.graph.registry;
        let holding = queues.owners.get(self.owner(node)?)?.holdings.first_from(after)?;
        let Holding { name, token } = holding;
        self.todo.push(Task::Holds { node, after: Bound::Excluded(holding) });
        if !self.graph.registry.knows_holders(name) {
            return None;
        }
        let holder = queues.names.get(name)?.next_holder(token.saturating_sub(1))?;
        // An expired hold blocks no request, but a later one in the same mode may.
        let is_live = holder.deadline_us > self.graph.now.mono_us;
        if is_live && (node == ME || self.holds.insert((name.0, holder.mode))) {
            let (after, end, held) = (Bound::Unbounded, Bound::Unbounded, Some(holder));
            self.todo.push(Task::Queue { node, name, after, end, held });
        }
        None
    }

    fn next_holder(&mut self, node: usize, name: NameId, mode: Mode, after: u64) -> Option<Node> {
        let holder = self.graph.registry.names.get(name)?.next_holder(after)?;
        self.todo.push(Task::Holders { node, name, mode, after: holder.token });
        let is_other = Some(holder.owner) != self.owner(node);
        let is_edge = is_other && holder.blocks(mode, self.graph.now) && self.may_reach(holder.owner, None);
        is_edge.then_some(Node { owner: holder.owner, previous: node, name, is_held: true })
    }

    fn next_in_queue(
        &mut self,
        node: usize,
        name: NameId,
        after: Bound<Position>,
        end: Bound<Position>,
        held: Option<Holder>,
    ) -> Option<Node> {
        let graph = self.graph;
        let position = graph.registry.names.next_in_queue(name, after)?;
        let is_past_end = match end {
            Bound::Unbounded => false,
            Bound::Included(end) => position > end,
            Bound::Excluded(end) => position >= end,
        };
        if is_past_end {
            return None;
        }
        self.todo.push(Task::Queue { node, name, after: Bound::Excluded(position), end, held });
        let waiter = graph.registry.get(position.ticket)?;
        let (owner, mode) = (waiter.owner, waiter.request().mode);
        let is_edge = Some(owner) != self.owner(node)
            && graph.makes_edges(position.ticket, waiter)
            && self.may_reach(owner, Some(position.ticket))
            && held.is_none_or(|holder| holder.blocks(mode, graph.now))
            && (self.direction == Direction::Forward || !graph.owner_holds(owner, name, mode));
        is_edge.then_some(Node { owner, previous: node, name, is_held: held.is_some() })
    }

    /// The cycle that the edge `last` closes, beginning at the owner of the request.
    fn cycle(&self, last: Node) -> Box<[WaitEdge]> {
        let queues = self.graph.registry;
        let name_of = |owner| queues.owners.bytes(owner).into();
        let mut edges = Vec::new();
        let mut edge = &last;
        loop {
            let previous = self.owner(edge.previous).unwrap_or(self.graph.me);
            let (waiter, ahead) = match self.direction {
                Direction::Forward => (previous, edge.owner),
                Direction::Backward => (edge.owner, previous),
            };
            if let Some(record) = queues.names.get(edge.name) {
                let key = record.key().to_key();
                edges.push(WaitEdge { waiter: name_of(waiter), key, ahead: name_of(ahead), is_held: edge.is_held });
            }
            match self.nodes.get(edge.previous) {
                Some(node) if edge.previous != ME => edge = node,
                _ => break,
            }
        }
        if self.direction == Direction::Forward {
            edges.reverse();
        }
        edges.truncate(MAX_REPORTED_EDGES);
        edges.into()
    }
}
