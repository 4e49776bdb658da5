//! What is known of one owner of one key, from its calls so far.

use super::meant::{Cancelled, check_untouched};
use super::spans::{Belief, Possible};
use super::{SLACK_US, Timeline, US_PER_MS};
use crate::history::{Call, Mode, Operation, Rule, Violation};

/// What an owner has in one mode, as far as it knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Who holds; [`NOBODY`](super::kept::NOBODY) while the lock is kept.
    pub(super) owner: u64,
    pub(super) token: u64,
    pub(super) count: u32,
    /// From when it has had this count.
    pub(super) since_us: u64,
    pub(super) sure_until_us: u64,
    pub(super) possible_from_us: u64,
    pub(super) possible_until_us: u64,
    /// What may have prolonged it had no answer, and may be done at any time.
    pub(super) is_unsure: bool,
    pub(super) last_id: Option<u64>,
    /// The id of the RELEASE that was done last.
    pub(super) released_id: Option<u64>,
}

/// Under which circumstances everybody asks.
#[derive(Clone, Copy)]
pub(super) struct Circumstances<'h> {
    /// See [`History::is_undisturbed`].
    pub(super) is_undisturbed: bool,
    /// Locks go from one server to another, with what was granted in that turn.
    pub(super) may_leave: bool,
    /// See [`History::pauses`].
    pub(super) pauses: &'h [Possible],
    /// See [`History::waits_end_in_pauses`].
    pub(super) waits_end_in_pauses: bool,
    /// See [`History::demotions`].
    pub(super) demotions: &'h [Possible],
    /// See [`History::clocks_differ_us`].
    pub(super) clocks_differ_us: u64,
    /// How much longer than it was asked for a lease lasts at most, by the clock of its client.
    pub(super) leases_outlast_us: u64,
}

impl Circumstances<'_> {
    /// Until when a server has not acted upon a connection that closed while it was a replica, or could not write, or shortly before. `None` if it was
    /// neither then.
    pub(super) fn unseen_until_us(&self, closed_us: u64) -> Option<u64> {
        let is_unseen = |span: &&Possible| span.from_us <= closed_us + SLACK_US && closed_us <= span.until_us;
        self.demotions.iter().chain(self.pauses).filter(is_unseen).map(|span| span.until_us).max()
    }

    /// Whether a replica took over in agreement with the server meanwhile: a server that becomes a replica in the very turn of a grant takes nothing back.
    /// Only where replicas take over so do clocks differ, and each pause is a takeover.
    pub(super) fn gives_way_during(&self, one: &Operation) -> bool {
        let is_meanwhile = |pause: &Possible| pause.from_us <= one.answered_us && one.sent_us <= pause.until_us;
        self.clocks_differ_us > 0 && self.pauses.iter().any(is_meanwhile)
    }

    /// Whether a lease lasts longer than anybody has asked for, as its owner is told.
    pub(super) fn check_length(&self, one: &Operation, held: &Held, left_ms: u64, violations: &mut Vec<Violation>) {
        let until_us = one.sent_us.saturating_add(left_ms.saturating_mul(US_PER_MS));
        if !held.is_unsure && until_us > held.possible_until_us.saturating_add(self.leases_outlast_us) {
            let Operation { owner, key, call, .. } = one;
            let story =
                format!("{owner} of {key} asked {call:?}, and was told of {left_ms} ms left, which is too long");
            violations.push(Violation { rule: Rule::LeaseEnds, story });
        }
    }

    /// Whether the lease of a hold was surely over when something was asked about it, and its owner is answered as if it held still.
    pub(super) fn check_outlived(&self, one: &Operation, held: &Held, violations: &mut Vec<Violation>) {
        let over_us = held.possible_until_us.saturating_add(self.leases_outlast_us);
        if !held.is_unsure && over_us < one.sent_us {
            let Operation { owner, key, call, outcome, .. } = one;
            let late_us = one.sent_us - held.possible_until_us;
            let story = format!(
                "the lease of {owner} on {key}, token {}, was over for {late_us} us when it asked {call:?}, and it was answered {outcome:?}",
                held.token
            );
            violations.push(Violation { rule: Rule::LeaseEnds, story });
        }
    }
}

/// One owner of one key.
pub(super) struct Owner<'h> {
    /// It keeps a place when its wait was cut off.
    pub(super) is_fair: bool,
    pub(super) held: [Option<Held>; 4],
    /// The lock, after its hold ended with KEEP: it may be closed still.
    pub(super) kept: Option<Held>,
    /// The order of its first request that waited or kept a place, while it has no answer.
    pub(super) asked: Option<u64>,
    /// When it first asked for something without an answer: what a later request is told may have been granted by that one.
    pub(super) unanswered_us: Option<u64>,
    /// It was told that it has given up all of a hold, or has closed the connection of its session.
    pub(super) has_given_up: bool,
    /// When it was the latter: in a pause, or as a replica, the server may not have looked at that yet.
    pub(super) closed_us: Option<u64>,
    /// What it holds ends with a connection.
    pub(super) has_session: bool,
    /// What it was told about each CANCEL.
    pub(super) cancelled: Vec<Cancelled>,
    pub(super) circumstances: Circumstances<'h>,
}

impl<'h> Owner<'h> {
    pub(super) fn new(of_owner: &[Operation], is_fair: bool, circumstances: Circumstances<'h>) -> Self {
        let held = [None; 4];
        let has_session = of_owner.iter().any(|one| matches!(one.call, Call::Close { .. }));
        let (asked, unanswered_us, has_given_up, closed_us, cancelled) = (None, None, false, None, Vec::new());
        Self {
            is_fair,
            held,
            kept: None,
            asked,
            unanswered_us,
            has_given_up,
            closed_us,
            has_session,
            cancelled,
            circumstances,
        }
    }

    /// Until when a lease lasts surely that was asked for by a request.
    pub(super) fn sure_until_us(&self, one: &Operation, lease_ms: u64) -> u64 {
        let until_us = one.sent_us + lease_ms * US_PER_MS;
        // Each takeover in the lease moves its end, and has a pause.
        let moves = |pause: &&Possible| pause.from_us <= until_us && one.sent_us <= pause.until_us;
        let times = self.circumstances.pauses.iter().filter(moves).count().max(1) as u64;
        until_us.saturating_sub(times * self.circumstances.clocks_differ_us)
    }

    pub(super) fn take(&mut self, one: &Operation, timeline: &mut Timeline, violations: &mut Vec<Violation>) {
        match one.call {
            Call::Acquire { .. } => self.acquire(one, timeline, violations),
            Call::Release { token: Some(token), .. } | Call::Renew { token: Some(token), .. }
                if self.means_another(one, token) =>
            {
                check_untouched(one, token, violations);
            }
            Call::Release { count, request_id, .. } => self.release(one, count, request_id, timeline, violations),
            Call::Keep { keep_ms } => self.keep(one, keep_ms, timeline, violations),
            Call::Remove => self.release(one, 1, None, timeline, violations),
            Call::Renew { lease_ms, .. } => self.renew(one, lease_ms, violations),
            Call::Cancel { is_waiting } => self.cancel(one, is_waiting),
            Call::Close { grace_ms } => self.close(one, grace_ms, timeline),
            Call::Look => self.look(one, violations),
        }
    }

    /// What was never given up lasts as long as its lease.
    pub(super) fn end(&mut self, operations: &[Operation], timeline: &mut Timeline) {
        let Some(last) = operations.last() else { return };
        let modes = [Mode::Exclusive, Mode::Read, Mode::Write, Mode::Permits];
        for (slot, mode) in self.held.iter_mut().zip(modes).chain([(&mut self.kept, Mode::Exclusive)]) {
            if let Some(mut held) = slot.take() {
                believe(&Operation { mode, ..*last }, &mut held, u64::MAX, timeline);
                timeline.may_be_held(held.possible_from_us, held.possible_until_us);
            }
        }
    }
}

pub(super) fn lost(one: &Operation, held: &Held) -> Violation {
    let left_us = held.sure_until_us - one.answered_us;
    let story = format!("{} of {} lost token {} {left_us} us before its lease is over", one.owner, one.key, held.token);
    Violation { rule: Rule::HoldIsKept, story }
}

/// Notes that the count of a hold was surely there until now.
pub(super) fn believe(one: &Operation, held: &mut Held, until_us: u64, timeline: &mut Timeline) {
    let until_us = until_us.min(held.sure_until_us);
    if until_us > held.since_us {
        let Held { owner, token, count, since_us: from_us, .. } = *held;
        let mode = one.mode;
        timeline.beliefs.push(Belief { owner, mode, count, from_us, until_us, token });
    }
}
