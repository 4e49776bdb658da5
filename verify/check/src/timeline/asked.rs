//! ACQUIRE, and the part of one key in a MACQUIRE.

use super::owner::{Held, Owner, believe};
use super::spans::{Addition, Denied, Grant, Missed, Possible, Wait};
use super::{SLACK_US, Timeline, US_PER_MS};
use crate::history::{Call, Mode, Operation, Outcome, Rule, Violation};

impl Owner<'_> {
    pub(super) fn acquire(&mut self, one: &Operation, timeline: &mut Timeline, violations: &mut Vec<Violation>) {
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
        if block_ms.is_some() && self.leaves_place(one.outcome) {
            timeline.may_be_taken(one.answered_us + SLACK_US);
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
                    let story = format!("{} waited {after_us} us for key {} and got no answer", one.owner, one.key);
                    violations.push(Violation { rule: Rule::NilIsFinal, story });
                }
                let until_us = one.answered_us + lease_ms * US_PER_MS;
                // The server answers a waiter at once, or its connection is lost.
                let from_us = block_ms.map_or(0, |_| one.answered_us.saturating_sub(SLACK_US)).max(one.sent_us);
                timeline.may_be_held(from_us, until_us);
                self.held.iter_mut().flatten().for_each(|held| held.is_unsure = true);
                self.unanswered_us = self.unanswered_us.or(Some(one.sent_us));
                // Its place may have been taken over before the connection was lost. A later
                // request then has a place whose order is unknown.
                self.asked = Some(0);
            }
            Outcome::Refused | Outcome::Unblocked if block_ms.is_some_and(|block_ms| self.is_late(one, block_ms)) => {
                let story = format!(
                    "{} got {2:?} for key {1} after its time to wait was over",
                    one.owner, one.key, one.outcome
                );
                violations.push(Violation { rule: Rule::NilIsFinal, story });
            }
            // If an earlier request got no answer, its place may still exist.
            Outcome::Refused if self.unanswered_us.is_none() => self.asked = None,
            Outcome::Undone if self.circumstances.may_leave || self.circumstances.gives_way_during(one) => {
                let until_us = one.answered_us + lease_ms * US_PER_MS;
                timeline.may_be_held(one.sent_us, until_us);
            }
            Outcome::Number(tokens) => {
                let story = format!("{} requested key {} and got {tokens} tokens", one.owner, one.key);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            Outcome::Refused
            | Outcome::Waiting
            | Outcome::Unblocked
            | Outcome::Undone
            | Outcome::NotOwner
            | Outcome::AnsweredTwice => {}
        }
    }

    /// Whether a request that waited for a fair lock may keep its place there for a grace after the
    /// answer that ended its wait: if its connection closed, or the lock moved away with its slot.
    fn leaves_place(&self, outcome: Outcome) -> bool {
        let is_ended = matches!(outcome, Outcome::Unblocked | Outcome::Refused);
        self.circumstances.may_leave || (self.is_fair && is_ended && !self.circumstances.is_undisturbed)
    }

    fn granted(&mut self, one: &Operation, token: u64, timeline: &mut Timeline, violations: &mut Vec<Violation>) {
        let Call::Acquire { count, lease_ms, block_ms, request_id, is_once, .. } = one.call else {
            return;
        };
        if block_ms.is_some_and(|block_ms| self.is_late(one, block_ms)) {
            let after_us = one.answered_us - one.sent_us;
            let story = format!(
                "{} was granted key {} after {after_us} us, when its time to wait was over",
                one.owner, one.key
            );
            violations.push(Violation { rule: Rule::NilIsFinal, story });
        }
        let sure_until_us = self.sure_until_us(one, lease_ms);
        let possible_until_us = one.answered_us + lease_ms * US_PER_MS;
        let order = self.asked.take().unwrap_or(one.order);
        let others = self.held.iter().enumerate().filter(|(mode, _)| *mode != one.mode as usize);
        // An owner whose lease expired before it asked passes no waiter. A request without an
        // answer may have prolonged that lease.
        let differ_us = self.circumstances.clocks_differ_us;
        let may_last = |held: &Held| held.possible_until_us.saturating_add(differ_us) >= one.sent_us;
        let is_unsure = self.unanswered_us.is_some();
        let passes_queue =
            others.clone().any(|(_, held)| held.as_ref().is_some_and(|held| is_unsure || may_last(held)));
        let circumstances = self.circumstances;
        let slot = &mut self.held[one.mode as usize];
        if let Some(held) = slot {
            if held.token == token {
                circumstances.check_outlived(one, held, violations);
                let is_repeat = is_once || (request_id.is_some() && request_id == held.last_id);
                let added = if is_repeat { 0 } else { count };
                if added > 0 && one.mode == Mode::Permits {
                    timeline.additions.push(Addition { answered_us: one.answered_us, order });
                }
                // The added permits are surely held from now on.
                believe(one, held, one.answered_us, timeline);
                (held.asked_us, held.since_us) = (one.sent_us, one.answered_us);
                held.count += added;
                held.sure_until_us = held.sure_until_us.max(sure_until_us);
                held.possible_until_us = held.possible_until_us.max(possible_until_us);
                held.last_id = request_id.or(held.last_id);
                return;
            }
            if held.sure_until_us > one.answered_us {
                let story =
                    format!("{} held key {} with token {} and was given token {token}", one.owner, one.key, held.token);
                violations.push(Violation { rule: Rule::HoldIsKept, story });
            }
            believe(one, held, one.answered_us, timeline);
            timeline.may_be_held(held.possible_from_us, held.possible_until_us);
        }
        if let Some(mut kept) = self.kept.take() {
            believe(one, &mut kept, u64::MAX, timeline);
            timeline.was_given_up(kept.possible_from_us, kept.possible_until_us.min(one.answered_us));
        }
        // The answer to a later request may report the grant of one without an answer.
        let sent_us = self.unanswered_us.take().unwrap_or(one.sent_us);
        *slot = Some(Held {
            owner: one.owner,
            token,
            count,
            asked_us: sent_us,
            since_us: one.answered_us,
            sure_until_us,
            possible_from_us: one.answered_us,
            possible_until_us,
            is_unsure,
            last_id: request_id,
            released_id: None,
        });
        let Operation { owner, mode, answered_us, .. } = *one;
        // A session may end with its connection before the client reads the answer.
        let lease_us = if self.has_session { 0 } else { sure_until_us.saturating_sub(one.sent_us) };
        timeline.grants.push(Grant { owner, mode, count, token, sent_us, answered_us, lease_us, order, passes_queue });
    }

    fn check_nil(&self, one: &Operation, violations: &mut Vec<Violation>) {
        let Call::Acquire { block_ms, request_id, is_once, .. } = one.call else {
            return;
        };
        let held = self.held[one.mode as usize];
        let is_repeat = |held: &Held| is_once || (request_id.is_some() && request_id == held.last_id);
        if held
            .is_some_and(|held| held.sure_until_us > one.answered_us && (one.mode != Mode::Permits || is_repeat(&held)))
        {
            let story = format!("{} holds key {}, asked again, and got nil", one.owner, one.key);
            violations.push(Violation { rule: Rule::HoldIsKept, story });
        }
        let Some(block_ms) = block_ms else { return };
        if block_ms == 0 || one.answered_us < one.sent_us + block_ms * US_PER_MS || self.is_late(one, block_ms) {
            let after_us = one.answered_us - one.sent_us;
            let story = format!(
                "{} was to wait for key {} for {block_ms} ms, and got nil after {after_us} us",
                one.owner, one.key
            );
            violations.push(Violation { rule: Rule::NilIsFinal, story });
        }
    }

    /// Whether the answer came long after the time to wait was over.
    fn is_late(&self, one: &Operation, block_ms: u64) -> bool {
        let due_us = one.sent_us + block_ms * US_PER_MS;
        // A server that pauses answers waiters after the pause.
        let overlap = |pause: &Possible| pause.until_us.min(one.answered_us).saturating_sub(pause.from_us.max(due_us));
        let is_told_afterwards = !self.circumstances.waits_end_in_pauses;
        let paused_us: u64 = self.circumstances.pauses.iter().filter(|_| is_told_afterwards).map(overlap).sum();
        block_ms > 0 && one.answered_us > due_us + paused_us + SLACK_US
    }
}
