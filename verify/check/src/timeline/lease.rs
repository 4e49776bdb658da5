//! RENEW and HOLDS: what they report about a hold, and that the hold ends with its lease.

use super::owner::{Owner, lost};
use super::spans::Possible;
use super::{SLACK_US, US_PER_MS};
use crate::history::{Operation, Outcome, Rule, Violation};

impl Owner<'_> {
    pub(super) fn renew(&mut self, one: &Operation, lease_ms: u64, violations: &mut Vec<Violation>) {
        let sure_until_us = self.sure_until_us(one, lease_ms);
        let circumstances = self.circumstances;
        let Some(held) = &mut self.held[one.mode as usize] else {
            if let (Outcome::Number(_), None) = (one.outcome, self.unanswered_us) {
                let story = format!("{} renewed key {} without holding it", one.owner, one.key);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            return;
        };
        match one.outcome {
            Outcome::Number(left_ms) => {
                circumstances.check_outlived(one, held, violations);
                held.sure_until_us = held.sure_until_us.max(sure_until_us);
                held.possible_until_us = held.possible_until_us.max(one.answered_us + lease_ms * US_PER_MS);
                circumstances.check_length(one, held, left_ms, violations);
                if one.answered_us + (left_ms + 1) * US_PER_MS < held.sure_until_us {
                    let story = format!(
                        "{} of key {} has more than the {left_ms} ms that the server reported",
                        one.owner, one.key
                    );
                    violations.push(Violation { rule: Rule::HoldIsKept, story });
                }
            }
            Outcome::NotOwner if held.sure_until_us > one.answered_us => violations.push(lost(one, held)),
            // It may have been renewed.
            Outcome::Unknown => {
                held.possible_until_us = held.possible_until_us.max(one.answered_us + lease_ms * US_PER_MS);
                held.is_unsure = true;
            }
            _ => {}
        }
    }

    pub(super) fn look(&mut self, one: &Operation, violations: &mut Vec<Violation>) {
        let Outcome::Number(seen) = one.outcome else {
            return;
        };
        let may_end_late = self.closed_us.is_some_and(|closed_us| self.may_end_late(one, closed_us));
        if let Some(held) = self.held[one.mode as usize].as_ref().filter(|_| seen > 0) {
            self.circumstances.check_outlived(one, held, violations);
        }
        match &self.held[one.mode as usize] {
            None if seen > 0 && self.unanswered_us.is_none() && !may_end_late => {
                let Operation { owner, key, sent_us, .. } = one;
                let (rule, why) = if self.has_given_up {
                    (Rule::GivenUpIsGone, "gave up its hold")
                } else {
                    (Rule::NilIsFinal, "was never granted the lock")
                };
                violations.push(Violation {
                    rule,
                    story: format!("{owner} of key {key} {why}, but HOLDS shows it at {sent_us} us"),
                });
            }
            Some(held) if held.sure_until_us > one.answered_us && seen == 0 => violations.push(lost(one, held)),
            Some(held) if seen > 0 && seen != u64::from(held.count) => {
                let story = format!("{} of key {} has {}, but HOLDS shows {seen}", one.owner, one.key, held.count);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            _ => {}
        }
    }

    /// Whether HOLDS may still show a session whose connection has closed: during a pause of the
    /// server, or until shortly after the pause or promotion that ends it, if the server had not
    /// noticed the close before it paused or became a replica.
    fn may_end_late(&self, look: &Operation, closed_us: u64) -> bool {
        let is_paused = |pause: &Possible| pause.from_us <= look.answered_us && look.sent_us <= pause.until_us;
        let unseen_until_us = self.circumstances.unseen_until_us(closed_us);
        self.circumstances.pauses.iter().any(is_paused)
            || unseen_until_us.is_some_and(|until_us| look.sent_us <= until_us + SLACK_US)
    }
}
