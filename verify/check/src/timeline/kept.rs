//! RELEASE with KEEP: the hold ends, and the lock stays closed to every owner until its time is
//! over or its former owner frees it with its token.

use super::owner::{Held, Owner, believe, lost};
use super::{Timeline, US_PER_MS};
use crate::history::{Operation, Outcome, Rule, Violation};

/// The holder of a kept lock: its former owner is not admitted either. No client has this number.
pub(super) const NOBODY: u64 = 0;

impl Owner<'_> {
    pub(super) fn keep(
        &mut self,
        one: &Operation,
        keep_ms: u64,
        timeline: &mut Timeline,
        violations: &mut Vec<Violation>,
    ) {
        let slot = &mut self.held[one.mode as usize];
        match (slot.as_ref().or(self.kept.as_ref()), one.outcome) {
            (None, Outcome::Number(_)) => {
                let story = format!("{} kept key {} closed without holding it", one.owner, one.key);
                violations.push(Violation { rule: Rule::CountsAreRight, story });
            }
            (Some(held), Outcome::Number(reported)) => {
                self.circumstances.check_outlived(one, held, violations);
                if reported != 1 {
                    let story =
                        format!("{} keeps key {} closed, and the server reported {reported}", one.owner, one.key);
                    violations.push(Violation { rule: Rule::CountsAreRight, story });
                }
            }
            (Some(held), Outcome::NotOwner) if held.sure_until_us > one.answered_us => {
                violations.push(lost(one, held));
            }
            _ => {}
        }
        if one.outcome == Outcome::Refused {
            return;
        }
        // An owner that already keeps the lock closed changes nothing.
        let Some(mut held) = slot.take() else { return };
        believe(one, &mut held, one.sent_us, timeline);
        let possible_until_us = one.answered_us + keep_ms * US_PER_MS;
        match one.outcome {
            Outcome::Number(_) => {
                let sure_until_us = self.sure_until_us(one, keep_ms);
                let (asked_us, since_us) = (one.sent_us, one.answered_us);
                self.kept = Some(Held { owner: NOBODY, asked_us, since_us, sure_until_us, possible_until_us, ..held });
                self.has_given_up = true;
            }
            Outcome::NotOwner => {
                timeline.was_given_up(held.possible_from_us, one.answered_us.min(held.possible_until_us));
                self.has_given_up = true;
            }
            _ => timeline.may_be_held(held.possible_from_us, held.possible_until_us.max(possible_until_us)),
        }
    }
}

/// Reports a RELEASE without TOKEN that freed the lock that its owner keeps closed.
pub(super) fn check_still_kept(one: &Operation, violations: &mut Vec<Violation>) {
    if let Outcome::Number(_) = one.outcome {
        let Operation { owner, key, outcome, .. } = one;
        let story = format!("{owner} keeps key {key} closed, and its RELEASE without TOKEN returned {outcome:?}");
        violations.push(Violation { rule: Rule::TokenIsMeant, story });
    }
}
