//! Turns the calls of each owner into spans of time.
//!
//! A client may believe that it holds from the moment at which it receives the grant. This *sure*
//! span ends when it begins to release, or when the lease expires, counted from the sending of the
//! last request that renewed it. If the client releases by closing the connection of its session,
//! the grace counts too, provided that connections are never lost by themselves.
//!
//! For waiters, a hold is *possible* from the answer to its request until the answer to its
//! release, or until its lease, counted from the last answer, expired. A request without an answer
//! may be a hold, from the moment it was sent (if it waited: from shortly before the answer failed
//! to arrive).
//!
//! An owner makes one call at a time, so its calls in the order of their answers are the order in
//! which they took effect.
//!
//! `owner.rs` has the known state of an owner. Each group of commands has a file: `asked.rs`
//! (ACQUIRE), `given_up.rs` (RELEASE, and the end of a session), `kept.rs` (RELEASE with KEEP),
//! `lease.rs` (RENEW and HOLDS), and `meant.rs` (TOKEN and CANCEL).

mod answers;
mod asked;
mod excuses;
mod given_up;
mod kept;
mod lease;
mod meant;
mod owner;
mod spans;

use std::collections::{HashMap, HashSet};

use self::answers::check_answers;
use self::excuses::excuses;
use self::meant::check_ended;
use self::owner::{Circumstances, Owner};
pub use self::spans::{Addition, Belief, Denied, Grant, Missed, Overlooked, Possible, Wait};
use crate::history::{Call, History, Kind, Operation, Outcome, Violation};

/// How late an answer may be on a busy machine before it counts as a fault.
pub const SLACK_US: u64 = 2_000_000;

/// How long after its end by the client's clock a lease may still count at the server.
const LEASE_SLACK_US: u64 = 10_000;

const US_PER_MS: u64 = 1000;

/// What happened on one key.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Index of the key.
    pub key: u32,
    /// The spans in which an owner surely held.
    pub beliefs: Vec<Belief>,
    /// The spans in which the lock may have been held.
    pub possible: Vec<Possible>,
    /// Every new hold.
    pub grants: Vec<Grant>,
    /// Every addition to a hold that had to wait in the queue.
    pub additions: Vec<Addition>,
    /// Every waiting request that got nil.
    pub denied: Vec<Denied>,
    /// One span per owner: from its first request that may have been granted until it can no longer
    /// have held.
    pub taken: Vec<Possible>,
    /// Every request without a wait that got nil.
    pub missed: Vec<Missed>,
    /// Every waiting request.
    pub waits: Vec<Wait>,
    /// Every waiting request that CANCEL did not find.
    pub overlooked: Vec<Overlooked>,
    /// Until when the current owner may have held.
    had_until_us: Option<u64>,
    /// How much later than its owner assumes a lease may expire for others.
    lease_slack_us: u64,
    /// See [`History::takeovers`].
    takeovers: Vec<Possible>,
    /// See [`History::is_of_several_servers`].
    may_leave: bool,
}

/// Sorts the operations, and calls `each` with the timeline of each key. Returns the contradictions
/// that are already visible in the calls of one owner.
pub fn each_key(history: &mut History, mut each: impl FnMut(&Timeline, &mut Vec<Violation>)) -> Vec<Violation> {
    let mut violations = Vec::new();
    let may_leave = history.is_of_several_servers;
    let History { keys, operations, pauses, demotions, takeovers, .. } = history;
    let circumstances = Circumstances {
        is_undisturbed: history.is_undisturbed,
        may_leave,
        pauses: pauses.as_slice(),
        waits_end_in_pauses: history.waits_end_in_pauses,
        demotions: demotions.as_slice(),
        clocks_differ_us: history.clocks_differ_us,
        leases_outlast_us: history.leases_outlast_us + LEASE_SLACK_US,
    };
    let is_undisturbed = circumstances.is_undisturbed;
    // A hold that is lost with a client or a server lasts longer than its client can know.
    let lease_slack_us = if is_undisturbed { LEASE_SLACK_US } else { SLACK_US };
    operations.sort_unstable_by_key(|one| (one.key, one.owner, one.answered_us, one.sent_us));
    let of_many = owners_of_many_keys(operations);
    // Where nothing fails, no hold is lost with its client, so no request for many keys waits for a
    // lease to expire.
    let excuses = if is_undisturbed { HashMap::new() } else { excuses(operations, &of_many, circumstances) };
    for of_key in operations.chunk_by(|a, b| a.key == b.key) {
        let Some(first) = of_key.first() else { continue };
        let mut timeline =
            Timeline { key: first.key, lease_slack_us, takeovers: takeovers.clone(), may_leave, ..Timeline::default() };
        for of_owner in of_key.chunk_by(|a, b| a.owner == b.owner) {
            if is_undisturbed {
                check_answers(of_owner, &mut violations);
            }
            check_ended(of_owner, &mut violations);
            let is_fair = keys.get(first.key as usize).is_some_and(|key| key.kind == Kind::Fair);
            let mut owner = Owner::new(of_owner, is_fair, circumstances);
            let is_of_many = of_owner.first().is_some_and(|one| of_many.contains(&one.owner));
            for operation in of_owner {
                owner.take(operation, &mut timeline, &mut violations);
                if is_of_many && !is_undisturbed && matches!(operation.call, Call::Acquire { .. }) {
                    timeline.may_be_taken(operation.answered_us.saturating_add(lease_slack_us));
                }
            }
            owner.end(of_owner, &mut timeline);
            timeline.note_taken(of_owner, is_of_many, is_undisturbed);
        }
        timeline.possible.extend(excuses.get(&first.key).into_iter().flatten());
        each(&timeline, &mut violations);
    }
    violations
}

impl Timeline {
    /// Notes that the lock may have been held until a lease expired.
    fn may_be_held(&mut self, from_us: u64, until_us: u64) {
        self.possible.push(Possible { from_us, until_us });
        self.may_be_taken(until_us.saturating_add(self.lease_slack_us));
    }

    /// Notes that the current owner may have held until this time.
    fn may_be_taken(&mut self, until_us: u64) {
        self.had_until_us = self.had_until_us.max(Some(until_us));
    }

    /// Notes that the lock may have been held until its owner received the answer to its release.
    fn was_given_up(&mut self, from_us: u64, until_us: u64) {
        self.possible.push(Possible { from_us, until_us });
        let may_lose = |takeover: &Possible| takeover.from_us <= until_us + SLACK_US && until_us <= takeover.until_us;
        let late_us = if self.takeovers.iter().any(may_lose) { self.lease_slack_us } else { 0 };
        self.may_be_taken(until_us.saturating_add(late_us));
    }

    /// Notes when the current owner may have held, once all of its calls are noted.
    fn note_taken(&mut self, of_owner: &[Operation], is_of_many: bool, is_undisturbed: bool) {
        let held = self.had_until_us.take();
        let acquisitions = || of_owner.iter().filter(|one| matches!(one.call, Call::Acquire { .. }));
        // If a lock moves to another server, each waiter asks again there. Its place moved with the
        // lock, and may be there before it.
        let from_us = |one: &Operation| match one.call {
            Call::Acquire { block_ms: Some(block_ms), .. } if self.may_leave => {
                one.sent_us.saturating_sub(block_ms * US_PER_MS)
            }
            _ => one.sent_us,
        };
        let Some(from_us) = acquisitions().map(from_us).min() else { return };
        // The request was granted for a moment, or waited at the head of this key's queue for
        // another key.
        let was_there = |one: &&Operation| is_of_many || one.outcome == Outcome::Undone;
        let briefly = acquisitions().filter(was_there).map(|one| one.answered_us);
        // A place may last longer than its client can know, and no other owner gets the lock while
        // it is offered to that place. But where nothing fails, the place ends with the CANCEL that
        // found it.
        let keeps_place = |one: &Operation| matches!(one.call, Call::Acquire { keeps_place: true, .. });
        let has_ended = |one: &Operation| {
            is_undisturbed && matches!((one.call, one.outcome), (Call::Cancel { .. }, Outcome::Number(1..)))
        };
        let last = of_owner.iter().rev().find(|one| keeps_place(one) || has_ended(one)).filter(|_| held.is_none());
        let place = last.map(|one| if has_ended(one) { one.answered_us } else { u64::MAX });
        if let Some(until_us) = held.into_iter().chain(briefly).chain(place).max() {
            self.taken.push(Possible { from_us, until_us });
        }
    }
}

/// The owners that have requested many keys at once.
fn owners_of_many_keys(operations: &[Operation]) -> HashSet<u64> {
    let mut keys: HashMap<u64, u32> = HashMap::new();
    let mut has_other_key = |one: &Operation| *keys.entry(one.owner).or_insert(one.key) != one.key;
    operations
        .iter()
        .filter(|one| matches!(one.call, Call::Acquire { .. }))
        .filter(|one| has_other_key(one))
        .map(|one| one.owner)
        .collect()
}
