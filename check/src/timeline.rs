//! From the calls of each owner to spans of time.
//!
//! A hold *surely* lasts from the moment its grant was known to the client until it begins to give it up, or until its lease,
//! counted from the sending of the last request that renewed it, is over: that is what a client may believe. If it gives up by closing the
//! connection of its session, the grace counts too, where no connection is lost by itself. For those who wait, a hold lasts from the answer to its
//! request, until its release was answered or the lease, counted from the last answer, is over. What was not answered may be a hold, from the
//! moment it was sent (if it waited: from shortly before the answer failed to come).
//!
//! An owner makes one call at a time, so its calls in the order of their answers are the order in which they took effect.

mod meant;

use std::collections::{HashMap, HashSet};

use self::meant::{Cancelled, check_untouched};
use crate::history::{Call, History, Mode, Operation, Outcome, Rule, Violation};

/// How late an answer may be on a busy machine before that counts as a fault.
pub const SLACK_US: u64 = 2_000_000;

const US_PER_MS: u64 = 1000;

/// A span of time in which an owner surely held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// Who.
    pub owner: u64,
    /// How.
    pub mode: Mode,
    /// How many holds or permits.
    pub count: u32,
    /// From when.
    pub from_us: u64,
    /// Until when, exclusive.
    pub until_us: u64,
    /// The token of the hold.
    pub token: u64,
}

/// A span of time in which somebody may have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Possible {
    /// From when.
    pub from_us: u64,
    /// Until when, exclusive.
    pub until_us: u64,
}

/// A new hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub owner: u64,
    /// Its token.
    pub token: u64,
    /// When it was asked for.
    pub sent_us: u64,
    /// When it was known.
    pub answered_us: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
    /// Whether the owner held in another mode, and so passed the queue.
    pub passes_queue: bool,
}

/// A request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who.
    pub owner: u64,
    /// From when.
    pub sent_us: u64,
    /// Until when.
    pub answered_us: u64,
}

/// A request that did not want to wait, and was answered nil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// Whose.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When it was answered.
    pub answered_us: u64,
    /// How many holds or permits were asked for.
    pub count: u32,
}

/// Permits that an owner was given beside those that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// When it was known.
    pub answered_us: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
}

/// A request that waited, and was answered nil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Whose.
    pub owner: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
    /// It waited until then at least.
    pub until_us: u64,
}

/// A request that the server said would wait, and then not to know when it was asked to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlooked {
    /// Whose.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When CANCEL was answered.
    pub until_us: u64,
}

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
}

/// What an owner has in one mode, as far as it knows.
#[derive(Clone, Copy, Debug)]
struct Held {
    token: u64,
    count: u32,
    /// From when it has had this count.
    since_us: u64,
    sure_until_us: u64,
    possible_from_us: u64,
    possible_until_us: u64,
    last_id: Option<u64>,
    /// The id of the RELEASE that was done last.
    released_id: Option<u64>,
}

/// Under which circumstances everybody asks.
#[derive(Clone, Copy)]
struct Circumstances<'h> {
    /// See [`History::is_undisturbed`].
    is_undisturbed: bool,
    /// Locks go from one server to another, with what was granted in that turn.
    may_leave: bool,
    /// When nobody was told that its time is over: see [`History::pauses`].
    pauses: &'h [Possible],
    /// See [`History::demotions`].
    demotions: &'h [Possible],
    /// See [`History::clocks_differ_us`].
    clocks_differ_us: u64,
}

/// One owner of one key.
struct Owner<'h> {
    held: [Option<Held>; 4],
    /// The order of its first request that waited or kept a place, while it has no answer.
    asked: Option<u64>,
    /// When it first asked for something without an answer: what a later request is told may have been granted by that one.
    unanswered_us: Option<u64>,
    /// It was told that it has given up all of a hold, or has closed the connection of its session.
    has_given_up: bool,
    /// When it was the latter: in a pause, or as a replica, the server may not have looked at that yet.
    closed_us: Option<u64>,
    /// What it was told about each CANCEL.
    cancelled: Vec<Cancelled>,
    circumstances: Circumstances<'h>,
}

/// Sorts the operations, and calls `each` with what happened on each key. Returns what contradicts itself already.
pub fn each_key(history: &mut History, mut each: impl FnMut(&Timeline, &mut Vec<Violation>)) -> Vec<Violation> {
    let mut violations = Vec::new();
    let History { operations, pauses, demotions, .. } = history;
    let circumstances = Circumstances {
        is_undisturbed: history.is_undisturbed,
        may_leave: history.is_of_several_servers,
        pauses: if history.waits_end_in_pauses { &[] } else { pauses.as_slice() },
        demotions: demotions.as_slice(),
        clocks_differ_us: history.clocks_differ_us,
    };
    let is_undisturbed = circumstances.is_undisturbed;
    let of_many = owners_of_many_keys(operations);
    operations.sort_unstable_by_key(|one| (one.key, one.owner, one.answered_us, one.sent_us));
    for of_key in operations.chunk_by(|a, b| a.key == b.key) {
        let Some(first) = of_key.first() else { continue };
        let mut timeline = Timeline { key: first.key, ..Timeline::default() };
        for of_owner in of_key.chunk_by(|a, b| a.owner == b.owner) {
            if is_undisturbed {
                check_answers(of_owner, &mut violations);
            }
            let mut owner = Owner::new(circumstances);
            let before = timeline.possible.len();
            let is_of_many = of_owner.first().is_some_and(|one| of_many.contains(&one.owner));
            for operation in of_owner {
                owner.take(operation, &mut timeline, &mut violations);
                if is_of_many && !is_undisturbed && matches!(operation.call, Call::Acquire { .. }) {
                    // Those behind it wait as well, until nobody holds any other of its keys: where holds are lost with clients, for a lease.
                    timeline.possible.push(Possible { from_us: operation.sent_us, until_us: operation.answered_us });
                }
            }
            owner.end(of_owner, &mut timeline);
            timeline.note_taken(of_owner, before, is_of_many);
        }
        each(&timeline, &mut violations);
    }
    violations
}

impl Timeline {
    /// Notes when an owner may have had anything, by what was noted of it behind so many others.
    fn note_taken(&mut self, of_owner: &[Operation], before: usize, is_of_many: bool) {
        let acquisitions = || of_owner.iter().filter(|one| matches!(one.call, Call::Acquire { .. }));
        let Some(from_us) = acquisitions().map(|one| one.sent_us).min() else { return };
        let held = self.possible.get(before..).unwrap_or_default().iter().map(|span| span.until_us);
        // It was granted for a moment, or waited for another key at the head of this one's queue.
        let was_there = |one: &&Operation| is_of_many || one.outcome == Outcome::Undone;
        let briefly = acquisitions().filter(was_there).map(|one| one.answered_us);
        // A place is there for longer than is known here, and nobody else gets what is offered to it.
        let keeps_place = |one: &Operation| matches!(one.call, Call::Acquire { keeps_place: true, .. });
        let place = (self.possible.len() == before && of_owner.iter().any(keeps_place)).then_some(u64::MAX);
        // The server may be busy when it is to see that a connection has closed.
        let closes = of_owner.iter().any(|one| matches!(one.call, Call::Close { .. }));
        let late_us = if closes { SLACK_US } else { 0 };
        if let Some(until_us) = held.chain(briefly).chain(place).max() {
            self.taken.push(Possible { from_us, until_us: until_us.saturating_add(late_us) });
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

/// Where nothing fails, a request is answered, and ended by its own owner only.
fn check_answers(of_owner: &[Operation], violations: &mut Vec<Violation>) {
    for (at, one) in of_owner.iter().enumerate() {
        let ends = |(other_at, other): (usize, &Operation)| {
            other_at != at
                && matches!(other.call, Call::Acquire { .. } | Call::Cancel { .. })
                && other.sent_us < one.answered_us
                && one.sent_us < other.answered_us
        };
        let is_wrong = match (one.call, one.outcome) {
            // It has no answer.
            (Call::Close { .. }, _) => false,
            (_, Outcome::Refused | Outcome::Unknown) => true,
            (Call::Acquire { .. }, Outcome::Unblocked) => !of_owner.iter().enumerate().any(ends),
            (Call::Acquire { .. }, _) => false,
            (_, outcome) => !matches!(outcome, Outcome::Number(_) | Outcome::NotOwner),
        };
        if is_wrong {
            let story =
                format!("{} asked {:?} of {}, and was answered {:?}", one.owner, one.call, one.key, one.outcome);
            violations.push(Violation { rule: Rule::ServerLives, story });
        }
    }
}

impl<'h> Owner<'h> {
    fn new(circumstances: Circumstances<'h>) -> Self {
        let held = [None; 4];
        let (asked, unanswered_us, has_given_up, closed_us, cancelled) = (None, None, false, None, Vec::new());
        Self { held, asked, unanswered_us, has_given_up, closed_us, cancelled, circumstances }
    }

    /// Until when a lease lasts surely that was asked for by a request.
    fn sure_until_us(&self, one: &Operation, lease_ms: u64) -> u64 {
        (one.sent_us + lease_ms * US_PER_MS).saturating_sub(self.circumstances.clocks_differ_us)
    }

    fn take(&mut self, one: &Operation, timeline: &mut Timeline, violations: &mut Vec<Violation>) {
        match one.call {
            Call::Acquire { .. } => self.acquire(one, timeline, violations),
            Call::Release { token: Some(token), .. } | Call::Renew { token: Some(token), .. }
                if self.means_another(one, token) =>
            {
                check_untouched(one, token, violations);
            }
            Call::Release { count, request_id, .. } => self.release(one, count, request_id, timeline, violations),
            Call::Remove => self.release(one, 1, None, timeline, violations),
            Call::Renew { lease_ms, .. } => self.renew(one, lease_ms, violations),
            Call::Cancel { is_waiting } => self.cancel(one, is_waiting),
            Call::Close { grace_ms } => self.close(one, grace_ms, timeline),
            Call::Look => self.look(one, violations),
        }
    }

    fn acquire(&mut self, one: &Operation, timeline: &mut Timeline, violations: &mut Vec<Violation>) {
        let Call::Acquire { count, lease_ms, block_ms, keeps_place, .. } = one.call else {
            return;
        };
        if block_ms.is_some() {
            timeline.waits.push(Wait { owner: one.owner, sent_us: one.sent_us, answered_us: one.answered_us });
        }
        if (block_ms.is_some() || keeps_place) && self.asked.is_none() {
            self.asked = Some(one.order);
        }
        if block_ms.is_some() {
            self.check_cancelled(one, timeline, violations);
        }
        match one.outcome {
            Outcome::Granted(token) => self.granted(one, token, timeline, violations),
            Outcome::Nil => {
                self.check_nil(one, violations);
                if let Some(block_ms) = block_ms {
                    let until_us = one.sent_us + block_ms * US_PER_MS;
                    timeline.denied.push(Denied { owner: one.owner, order: one.order, until_us });
                }
                if !keeps_place {
                    self.asked = None;
                }
                if block_ms.is_none() && !keeps_place {
                    let Operation { owner, sent_us, answered_us, .. } = *one;
                    timeline.missed.push(Missed { owner, sent_us, answered_us, count });
                }
            }
            Outcome::Unknown => {
                if block_ms.is_some_and(|block_ms| self.is_late(one, block_ms)) {
                    let after_us = one.answered_us - one.sent_us;
                    let story = format!("{} of {} waited {after_us} us, and had no answer", one.owner, one.key);
                    violations.push(Violation { rule: Rule::NilIsFinal, story });
                }
                let until_us = one.answered_us + lease_ms * US_PER_MS;
                // Who waited is told at once, or loses its connection.
                let from_us = block_ms.map_or(0, |_| one.answered_us.saturating_sub(SLACK_US)).max(one.sent_us);
                timeline.possible.push(Possible { from_us, until_us });
                self.unanswered_us = self.unanswered_us.or(Some(one.sent_us));
                // If its place was taken over before its connection was lost, what follows has that place: none that is known.
                self.asked = Some(0);
            }
            // If an earlier request was not answered, its place may be there.
            Outcome::Refused if self.unanswered_us.is_none() => self.asked = None,
            Outcome::Undone if self.circumstances.may_leave => {
                let until_us = one.answered_us + lease_ms * US_PER_MS;
                timeline.possible.push(Possible { from_us: one.sent_us, until_us });
            }
            Outcome::Refused | Outcome::Unblocked | Outcome::Undone | Outcome::Number(_) | Outcome::NotOwner => {}
        }
    }

    fn granted(&mut self, one: &Operation, token: u64, timeline: &mut Timeline, violations: &mut Vec<Violation>) {
        let Call::Acquire { count, lease_ms, block_ms, request_id, is_once, .. } = one.call else {
            return;
        };
        if block_ms.is_some_and(|block_ms| self.is_late(one, block_ms)) {
            let after_us = one.answered_us - one.sent_us;
            let story = format!("{} of {} was granted after {after_us} us, when its time was over", one.owner, one.key);
            violations.push(Violation { rule: Rule::NilIsFinal, story });
        }
        let sure_until_us = self.sure_until_us(one, lease_ms);
        let possible_until_us = one.answered_us + lease_ms * US_PER_MS;
        let order = self.asked.take().unwrap_or(one.order);
        let others = self.held.iter().enumerate().filter(|(mode, _)| *mode != one.mode as usize);
        // One whose lease was over when it asked passes nobody. What had no answer may have prolonged it.
        let differ_us = self.circumstances.clocks_differ_us;
        let may_last = |held: &Held| held.possible_until_us.saturating_add(differ_us) >= one.sent_us;
        let is_unsure = self.unanswered_us.is_some();
        let passes_queue =
            others.clone().any(|(_, held)| held.as_ref().is_some_and(|held| is_unsure || may_last(held)));
        let slot = &mut self.held[one.mode as usize];
        if let Some(held) = slot {
            if held.token == token {
                let is_repeat = is_once || (request_id.is_some() && request_id == held.last_id);
                let added = if is_repeat { 0 } else { count };
                if added > 0 && one.mode == Mode::Permits {
                    timeline.additions.push(Addition { answered_us: one.answered_us, order });
                }
                // Permits that were added are surely there from now on.
                believe(one, held, one.answered_us, timeline);
                held.since_us = one.answered_us;
                held.count += added;
                held.sure_until_us = held.sure_until_us.max(sure_until_us);
                held.possible_until_us = held.possible_until_us.max(possible_until_us);
                held.last_id = request_id.or(held.last_id);
                return;
            }
            if held.sure_until_us > one.answered_us {
                let story = format!("{} of {} had token {} and was given {token}", one.owner, one.key, held.token);
                violations.push(Violation { rule: Rule::HoldIsKept, story });
            }
            believe(one, held, one.answered_us, timeline);
            timeline.possible.push(Possible { from_us: held.possible_from_us, until_us: held.possible_until_us });
        }
        *slot = Some(Held {
            token,
            count,
            since_us: one.answered_us,
            sure_until_us,
            possible_from_us: one.answered_us,
            possible_until_us,
            last_id: request_id,
            released_id: None,
        });
        let Operation { owner, answered_us, .. } = *one;
        let sent_us = self.unanswered_us.take().unwrap_or(one.sent_us);
        timeline.grants.push(Grant { owner, token, sent_us, answered_us, order, passes_queue });
    }

    fn check_nil(&self, one: &Operation, violations: &mut Vec<Violation>) {
        let Call::Acquire { block_ms, .. } = one.call else {
            return;
        };
        let held = self.held[one.mode as usize];
        if held.is_some_and(|held| held.sure_until_us > one.answered_us && one.mode != Mode::Permits) {
            let story = format!("{} of {} holds, asked again, and was answered nil", one.owner, one.key);
            violations.push(Violation { rule: Rule::HoldIsKept, story });
        }
        let Some(block_ms) = block_ms else { return };
        if block_ms == 0 || one.answered_us < one.sent_us + block_ms * US_PER_MS || self.is_late(one, block_ms) {
            let after_us = one.answered_us - one.sent_us;
            let story = format!("{} of {} waited {block_ms} ms, and nil came after {after_us} us", one.owner, one.key);
            violations.push(Violation { rule: Rule::NilIsFinal, story });
        }
    }

    /// Whether the answer to a wait came when its time had been over for long.
    fn is_late(&self, one: &Operation, block_ms: u64) -> bool {
        let due_us = one.sent_us + block_ms * US_PER_MS;
        // Who waits while the server is paused is told afterwards.
        let overlap = |pause: &Possible| pause.until_us.min(one.answered_us).saturating_sub(pause.from_us.max(due_us));
        let paused_us: u64 = self.circumstances.pauses.iter().map(overlap).sum();
        block_ms > 0 && one.answered_us > due_us + paused_us + SLACK_US
    }

    fn release(
        &mut self,
        one: &Operation,
        count: u32,
        request_id: Option<u64>,
        timeline: &mut Timeline,
        violations: &mut Vec<Violation>,
    ) {
        let slot = &mut self.held[one.mode as usize];
        let Some(held) = slot else {
            if let Outcome::Number(_) = one.outcome {
                let story = format!("{} of {} released what it did not hold", one.owner, one.key);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            return;
        };
        if one.outcome == Outcome::Refused {
            // Nothing was changed: it lasts until its lease is over.
            return;
        }
        let is_repeat = request_id.is_some() && request_id == held.released_id;
        let left = held.count.saturating_sub(if is_repeat { 0 } else { count });
        match one.outcome {
            Outcome::Number(told) if told != u64::from(left) => {
                let story = format!("{} of {} had {} left, and was told {told}", one.owner, one.key, left);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            Outcome::NotOwner if held.sure_until_us > one.answered_us => violations.push(lost(one, held)),
            _ => {}
        }
        believe(one, held, one.sent_us, timeline);
        if left == 0 || one.outcome == Outcome::NotOwner {
            let is_known = !matches!(one.outcome, Outcome::Unknown);
            let until_us = if is_known { one.answered_us } else { held.possible_until_us };
            let until_us = until_us.min(held.possible_until_us);
            timeline.possible.push(Possible { from_us: held.possible_from_us, until_us });
            self.has_given_up |= is_known;
            *slot = None;
        } else {
            // What is left is surely there all the time.
            held.since_us = one.sent_us;
            held.count = left;
            held.released_id = request_id;
        }
    }

    fn renew(&mut self, one: &Operation, lease_ms: u64, violations: &mut Vec<Violation>) {
        let sure_until_us = self.sure_until_us(one, lease_ms);
        let Some(held) = &mut self.held[one.mode as usize] else {
            if let (Outcome::Number(_), None) = (one.outcome, self.unanswered_us) {
                let story = format!("{} of {} renewed what it did not hold", one.owner, one.key);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            return;
        };
        match one.outcome {
            Outcome::Number(left_ms) => {
                held.sure_until_us = held.sure_until_us.max(sure_until_us);
                held.possible_until_us = held.possible_until_us.max(one.answered_us + lease_ms * US_PER_MS);
                if one.answered_us + (left_ms + 1) * US_PER_MS < held.sure_until_us {
                    let story = format!("{} of {} was told of {left_ms} ms left, and has more", one.owner, one.key);
                    violations.push(Violation { rule: Rule::HoldIsKept, story });
                }
            }
            Outcome::NotOwner if held.sure_until_us > one.answered_us => violations.push(lost(one, held)),
            // It may have been renewed.
            Outcome::Unknown => {
                held.possible_until_us = held.possible_until_us.max(one.answered_us + lease_ms * US_PER_MS);
            }
            _ => {}
        }
    }

    fn close(&mut self, one: &Operation, grace_ms: u64, timeline: &mut Timeline) {
        let slot = &mut self.held[one.mode as usize];
        if let Some(mut held) = slot.take() {
            (self.has_given_up, self.closed_us) = (true, Some(one.answered_us));
            // Where connections are lost, it is not known how long before.
            let grace_us = if self.circumstances.is_undisturbed { grace_ms * US_PER_MS } else { 0 };
            believe(one, &mut held, one.sent_us + grace_us, timeline);
            let until_us = held.possible_until_us.min(one.answered_us + grace_ms * US_PER_MS);
            timeline.possible.push(Possible { from_us: held.possible_from_us, until_us });
        }
    }

    fn look(&mut self, one: &Operation, violations: &mut Vec<Violation>) {
        let Outcome::Number(seen) = one.outcome else {
            return;
        };
        let may_end_late = self.closed_us.is_some_and(|closed_us| self.may_end_late(one, closed_us));
        match &self.held[one.mode as usize] {
            None if seen > 0 && self.unanswered_us.is_none() && !may_end_late => {
                let Operation { owner, key, sent_us, .. } = one;
                let (rule, why) = if self.has_given_up {
                    (Rule::GivenUpIsGone, "has given up what it held")
                } else {
                    (Rule::NilIsFinal, "was never told that it holds")
                };
                violations
                    .push(Violation { rule, story: format!("{owner} of {key} {why}, and holds at {sent_us} us") });
            }
            Some(held) if held.sure_until_us > one.answered_us && seen == 0 => violations.push(lost(one, held)),
            Some(held) if seen > 0 && seen != u64::from(held.count) => {
                let story = format!("{} of {} has {}, and {seen} were shown", one.owner, one.key, held.count);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            _ => {}
        }
    }

    /// Whether a session whose connection has closed may be there at a look: in a pause of the server, or until shortly after the promotion that ends it,
    /// if the server had not seen it before it became a replica.
    fn may_end_late(&self, look: &Operation, closed_us: u64) -> bool {
        let is_paused = |pause: &Possible| pause.from_us <= look.answered_us && look.sent_us <= pause.until_us;
        let is_unseen = |demotion: &Possible| {
            demotion.from_us <= closed_us + SLACK_US
                && closed_us <= demotion.until_us
                && look.sent_us <= demotion.until_us + SLACK_US
        };
        self.circumstances.pauses.iter().any(is_paused) || self.circumstances.demotions.iter().any(is_unseen)
    }

    /// What was never given up lasts as long as its lease.
    fn end(&mut self, operations: &[Operation], timeline: &mut Timeline) {
        let Some(last) = operations.last() else { return };
        for (slot, mode) in self.held.iter_mut().zip([Mode::Exclusive, Mode::Read, Mode::Write, Mode::Permits]) {
            if let Some(mut held) = slot.take() {
                believe(&Operation { mode, ..*last }, &mut held, u64::MAX, timeline);
                timeline.possible.push(Possible { from_us: held.possible_from_us, until_us: held.possible_until_us });
            }
        }
    }
}

fn lost(one: &Operation, held: &Held) -> Violation {
    let left_us = held.sure_until_us - one.answered_us;
    let story = format!("{} of {} lost token {} {left_us} us before its lease is over", one.owner, one.key, held.token);
    Violation { rule: Rule::HoldIsKept, story }
}

/// Notes that the count of a hold was surely there until now.
fn believe(one: &Operation, held: &mut Held, until_us: u64, timeline: &mut Timeline) {
    let until_us = until_us.min(held.sure_until_us);
    if until_us > held.since_us {
        let Held { token, count, since_us: from_us, .. } = *held;
        let (owner, mode) = (one.owner, one.mode);
        timeline.beliefs.push(Belief { owner, mode, count, from_us, until_us, token });
    }
}
