//! From the calls of each owner to spans of time.
//!
//! A hold *surely* lasts from the moment its grant was known to the client until it begins to give it up, or until its lease,
//! counted from the sending of the last request that renewed it, is over: that is what a client may believe. If it gives up by closing the
//! connection of its session, the grace counts too, where no connection is lost by itself. For those who wait, a hold lasts from the answer to its
//! request, until its release was answered or the lease, counted from the last answer, is over. What was not answered may be a hold, from the
//! moment it was sent (if it waited: from shortly before the answer failed to come).
//!
//! An owner makes one call at a time, so its calls in the order of their answers are the order in which they took effect.
//!
//! `owner.rs` says what is known of an owner, and there is a file for what each group of commands tells: `asked.rs` (ACQUIRE), `given_up.rs`
//! (RELEASE, and the end of a session), `kept.rs` (RELEASE with KEEP), `lease.rs` (RENEW and HOLDS), and `meant.rs` (TOKEN and CANCEL).

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

/// How late an answer may be on a busy machine before that counts as a fault.
pub const SLACK_US: u64 = 2_000_000;

/// How much later than by the clock of its client the server may take a lease for over.
const LEASE_SLACK_US: u64 = 10_000;

const US_PER_MS: u64 = 1000;

/// What happened on one key.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Which key.
    pub key: u32,
    /// Who surely held.
    pub beliefs: Vec<Belief>,
    /// When it may have been held.
    pub possible: Vec<Possible>,
    /// Every new hold.
    pub grants: Vec<Grant>,
    /// Every addition to a hold that had to stand in line.
    pub additions: Vec<Addition>,
    /// Every request that waited in vain.
    pub denied: Vec<Denied>,
    /// From the first request of each owner that may have got something until it may have had it for the last time.
    pub taken: Vec<Possible>,
    /// Every request that did not want to wait, and was in vain.
    pub missed: Vec<Missed>,
    /// Every request that waited.
    pub waits: Vec<Wait>,
    /// Every one that CANCEL did not find.
    pub overlooked: Vec<Overlooked>,
    /// Until when the owner that is looked at may have had anything.
    had_until_us: Option<u64>,
    /// How much later than it is known for a lease may be over for others.
    lease_slack_us: u64,
    /// See [`History::takeovers`].
    takeovers: Vec<Possible>,
    /// See [`History::is_of_several_servers`].
    may_leave: bool,
}

/// Sorts the operations, and calls `each` with what happened on each key. Returns what contradicts itself already.
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
    // What is lost with a client or a server lasts longer than is known here.
    let lease_slack_us = if is_undisturbed { LEASE_SLACK_US } else { SLACK_US };
    operations.sort_unstable_by_key(|one| (one.key, one.owner, one.answered_us, one.sent_us));
    let of_many = owners_of_many_keys(operations);
    // Where nothing fails no hold is lost with its client, so that a request for many keys waits for no lease.
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
    /// Notes that the lock may have been held until a lease was over.
    fn may_be_held(&mut self, from_us: u64, until_us: u64) {
        self.possible.push(Possible { from_us, until_us });
        self.may_be_taken(until_us.saturating_add(self.lease_slack_us));
    }

    /// Notes that the owner that is looked at may have had something until then.
    fn may_be_taken(&mut self, until_us: u64) {
        self.had_until_us = self.had_until_us.max(Some(until_us));
    }

    /// Notes that the lock may have been held until its owner was told that it has given it up.
    fn was_given_up(&mut self, from_us: u64, until_us: u64) {
        self.possible.push(Possible { from_us, until_us });
        let may_lose = |takeover: &Possible| takeover.from_us <= until_us + SLACK_US && until_us <= takeover.until_us;
        let late_us = if self.takeovers.iter().any(may_lose) { self.lease_slack_us } else { 0 };
        self.may_be_taken(until_us.saturating_add(late_us));
    }

    /// Notes when an owner may have had anything, of whom everything else is noted.
    fn note_taken(&mut self, of_owner: &[Operation], is_of_many: bool, is_undisturbed: bool) {
        let held = self.had_until_us.take();
        let acquisitions = || of_owner.iter().filter(|one| matches!(one.call, Call::Acquire { .. }));
        // Where a lock goes to another server, whoever waits asks anew there. Its place has gone with the lock, and may be there before.
        let from_us = |one: &Operation| match one.call {
            Call::Acquire { block_ms: Some(block_ms), .. } if self.may_leave => {
                one.sent_us.saturating_sub(block_ms * US_PER_MS)
            }
            _ => one.sent_us,
        };
        let Some(from_us) = acquisitions().map(from_us).min() else { return };
        // It was granted for a moment, or waited for another key at the head of this one's queue.
        let was_there = |one: &&Operation| is_of_many || one.outcome == Outcome::Undone;
        let briefly = acquisitions().filter(was_there).map(|one| one.answered_us);
        // A place is there for longer than is known here, and nobody else gets what is offered to it; but where nothing fails it ends with the CANCEL
        // that has found it.
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

/// The owners that have asked for many keys at once.
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
