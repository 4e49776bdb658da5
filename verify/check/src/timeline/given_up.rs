//! RELEASE, and the end of a session when its connection closes.

use super::owner::{Owner, believe, lost};
use super::{SLACK_US, Timeline, US_PER_MS};
use crate::history::{Operation, Outcome, Rule, Violation};

impl Owner<'_> {
    pub(super) fn release(
        &mut self,
        one: &Operation,
        count: u32,
        request_id: Option<u64>,
        timeline: &mut Timeline,
        violations: &mut Vec<Violation>,
    ) {
        let circumstances = self.circumstances;
        let slot = match &mut self.held[one.mode as usize] {
            // The owner frees the lock that it keeps closed.
            None => &mut self.kept,
            held => held,
        };
        let Some(held) = slot else {
            if let Outcome::Number(_) = one.outcome {
                let story = format!("{} released key {} without holding it", one.owner, one.key);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            return;
        };
        if one.outcome == Outcome::Refused {
            // Nothing was changed: the hold lasts until its lease expires.
            return;
        }
        let is_repeat = request_id.is_some() && request_id == held.released_id;
        let left = held.count.saturating_sub(if is_repeat { 0 } else { count });
        if let Outcome::Number(_) = one.outcome {
            circumstances.check_outlived(one, held, violations);
        }
        match one.outcome {
            Outcome::Number(reported) if reported != u64::from(left) => {
                let story =
                    format!("{} of key {} had {} left, and the server reported {reported}", one.owner, one.key, left);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            Outcome::NotOwner if held.sure_until_us > one.answered_us => violations.push(lost(one, held)),
            _ => {}
        }
        believe(one, held, one.sent_us, timeline);
        if left == 0 || one.outcome == Outcome::NotOwner {
            let is_known = !matches!(one.outcome, Outcome::Unknown);
            if is_known {
                timeline.was_given_up(held.possible_from_us, one.answered_us.min(held.possible_until_us));
            } else {
                timeline.may_be_held(held.possible_from_us, held.possible_until_us);
            }
            self.has_given_up |= is_known;
            *slot = None;
        } else {
            // The remaining count is surely held throughout.
            (held.asked_us, held.since_us) = (one.sent_us, one.sent_us);
            held.count = left;
            held.released_id = request_id;
        }
    }

    pub(super) fn close(&mut self, one: &Operation, grace_ms: u64, timeline: &mut Timeline) {
        let slot = &mut self.held[one.mode as usize];
        if let Some(mut held) = slot.take() {
            (self.has_given_up, self.closed_us) = (true, Some(one.answered_us));
            // Where connections get lost, this one may have been lost long before the close.
            let grace_us = if self.circumstances.is_undisturbed { grace_ms * US_PER_MS } else { 0 };
            believe(one, &mut held, one.sent_us + grace_us, timeline);
            let until_us = held.possible_until_us.min(one.answered_us + grace_ms * US_PER_MS);
            timeline.may_be_held(held.possible_from_us, until_us);
            // The server may be busy when it should notice the close.
            let seen_us = self.circumstances.unseen_until_us(one.answered_us).unwrap_or(until_us).max(until_us);
            timeline.may_be_taken(seen_us + SLACK_US);
        }
    }
}
