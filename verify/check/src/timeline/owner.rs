//! The known state of one owner of one key, from its calls so far.

use super::kept::check_still_kept;
use super::meant::{Cancelled, check_untouched};
use super::spans::{Belief, Possible};
use super::{SLACK_US, Timeline, US_PER_MS};
use crate::history::{Call, Mode, Operation, Rule, Violation};

/// The hold of an owner in one mode, as far as its client knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The holder; [`NOBODY`](super::kept::NOBODY) while the lock is kept closed.
    pub(super) owner: u64,
    pub(super) token: u64,
    pub(super) count: u32,
    /// When the request that gave it this count was sent, and since when it has the count.
    pub(super) asked_us: u64,
    pub(super) since_us: u64,
    pub(super) sure_until_us: u64,
    pub(super) possible_from_us: u64,
    pub(super) possible_until_us: u64,
    /// A request that may have prolonged it got no answer, and may take effect at any time.
    pub(super) is_unsure: bool,
    pub(super) last_id: Option<u64>,
    /// The id of the last RELEASE that took effect.
    pub(super) released_id: Option<u64>,
}

/// The circumstances under which all owners make their calls.
#[derive(Clone, Copy)]
pub(super) struct Circumstances<'h> {
    /// See [`History::is_undisturbed`].
    pub(super) is_undisturbed: bool,
    /// Locks move from one server to another, possibly in the turn of a grant.
    pub(super) may_leave: bool,
    /// See [`History::pauses`].
    pub(super) pauses: &'h [Possible],
    /// See [`History::waits_end_in_pauses`].
    pub(super) waits_end_in_pauses: bool,
    /// See [`History::demotions`].
    pub(super) demotions: &'h [Possible],
    /// See [`History::clocks_differ_us`].
    pub(super) clocks_differ_us: u64,
    /// How much longer than requested a lease may last, by the clock of its client.
    pub(super) leases_outlast_us: u64,
}

impl Circumstances<'_> {
    /// Until when the server had not acted on a closed connection, because it was a replica or
    /// could not write when the connection closed or shortly afterwards. `None` if it was neither.
    pub(super) fn unseen_until_us(&self, closed_us: u64) -> Option<u64> {
        let is_unseen = |span: &&Possible| span.from_us <= closed_us + SLACK_US && closed_us <= span.until_us;
        self.demotions.iter().chain(self.pauses).filter(is_unseen).map(|span| span.until_us).max()
    }

    /// Whether a replica took over in agreement with the server during this call. A server that
    /// becomes a replica in the turn of a grant undoes nothing. Clocks differ only in campaigns
    /// with such takeovers, and there each pause is a takeover.
    pub(super) fn gives_way_during(&self, one: &Operation) -> bool {
        let is_meanwhile = |pause: &Possible| pause.from_us <= one.answered_us && one.sent_us <= pause.until_us;
        self.clocks_differ_us > 0 && self.pauses.iter().any(is_meanwhile)
    }

    /// Reports a lease that, by the server's answer, lasts longer than requested.
    pub(super) fn check_length(&self, one: &Operation, held: &Held, left_ms: u64, violations: &mut Vec<Violation>) {
        let until_us = one.sent_us.saturating_add(left_ms.saturating_mul(US_PER_MS));
        if !held.is_unsure && until_us > held.possible_until_us.saturating_add(self.leases_outlast_us) {
            let Operation { owner, key, call, .. } = one;
            let story = format!(
                "{owner} sent {call:?} for key {key}, and the server reported {left_ms} ms left, which is too long"
            );
            violations.push(Violation { rule: Rule::LeaseEnds, story });
        }
    }

    /// Reports an answer that treats the owner as a holder although its lease had surely expired
    /// before the call.
    pub(super) fn check_outlived(&self, one: &Operation, held: &Held, violations: &mut Vec<Violation>) {
        let over_us = held.possible_until_us.saturating_add(self.leases_outlast_us);
        if !held.is_unsure && over_us < one.sent_us {
            let Operation { owner, key, call, outcome, .. } = one;
            let late_us = one.sent_us - held.possible_until_us;
            let story = format!(
                "the lease of {owner} on key {key}, token {}, had expired {late_us} us before it sent {call:?}, and the server answered {outcome:?}",
                held.token
            );
            violations.push(Violation { rule: Rule::LeaseEnds, story });
        }
    }
}

/// One owner of one key.
pub(super) struct Owner<'h> {
    /// The lock is fair: a place survives the end of its request's connection.
    pub(super) is_fair: bool,
    pub(super) held: [Option<Held>; 4],
    /// The lock that it keeps closed, after it ended its hold with KEEP.
    pub(super) kept: Option<Held>,
    /// The order of its first request that waits or keeps a place, until its answer arrives.
    pub(super) asked: Option<u64>,
    /// When it first sent a request that got no answer. The answer to a later request may report
    /// that grant.
    pub(super) unanswered_us: Option<u64>,
    /// It received an answer that it gave up a whole hold, or it closed the connection of its
    /// session.
    pub(super) has_given_up: bool,
    /// When it closed the connection. A server that is paused or a replica may not have acted on
    /// that yet.
    pub(super) closed_us: Option<u64>,
    /// Its holds end with a connection.
    pub(super) has_session: bool,
    /// The answers to its CANCELs.
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

    /// Until when the lease of a request surely lasts.
    pub(super) fn sure_until_us(&self, one: &Operation, lease_ms: u64) -> u64 {
        let until_us = one.sent_us + lease_ms * US_PER_MS;
        // Each takeover during the lease moves its end, and has a pause.
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
            Call::Release { token: None, .. } if self.held[one.mode as usize].is_none() && self.kept.is_some() => {
                check_still_kept(one, violations);
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

    /// A hold that was never given up lasts as long as its lease.
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
    let story =
        format!("{} of key {} lost token {} {left_us} us before its lease expires", one.owner, one.key, held.token);
    Violation { rule: Rule::HoldIsKept, story }
}

/// Notes that the hold surely had its count until `until_us`.
pub(super) fn believe(one: &Operation, held: &mut Held, until_us: u64, timeline: &mut Timeline) {
    let until_us = until_us.min(held.sure_until_us);
    if until_us > held.since_us {
        let Held { owner, token, count, asked_us, since_us: from_us, .. } = *held;
        let mode = one.mode;
        timeline.beliefs.push(Belief { owner, mode, count, asked_us, from_us, until_us, token });
    }
}
