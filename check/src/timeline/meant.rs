//! Commands that mean one hold or one wait of their owner: those with a TOKEN, and CANCEL.

use super::{Overlooked, Owner, Timeline};
use crate::history::{Operation, Outcome, Rule, Violation};

/// A CANCEL.
#[derive(Clone, Copy)]
pub(super) struct Cancelled {
    sent_us: u64,
    answered_us: u64,
    /// How many requests it has ended.
    ended: u64,
    is_waiting: bool,
}

impl Owner<'_> {
    /// Whether a TOKEN is not that of the hold which this owner has.
    pub(super) fn means_another(&self, one: &Operation, token: u64) -> bool {
        self.held[one.mode as usize].is_some_and(|held| held.token != token)
    }

    pub(super) fn cancel(&mut self, one: &Operation, is_waiting: bool) {
        let Outcome::Number(ended) = one.outcome else { return };
        self.cancelled.push(Cancelled { sent_us: one.sent_us, answered_us: one.answered_us, ended, is_waiting });
        if ended > 0 {
            self.asked = None;
        }
    }

    /// A request that waited when it was to be taken back.
    pub(super) fn check_cancelled(
        &mut self,
        one: &Operation,
        timeline: &mut Timeline,
        violations: &mut Vec<Violation>,
    ) {
        let is_about =
            |cancelled: &Cancelled| one.sent_us <= cancelled.sent_us && cancelled.answered_us <= one.answered_us;
        // What one has ended is over, also if another one finds nothing afterwards.
        let about = self.cancelled.iter().copied().filter(is_about);
        let Some(Cancelled { answered_us, ended, is_waiting, .. }) = about.max_by_key(|cancelled| cancelled.ended)
        else {
            return;
        };
        let Operation { owner, key, sent_us, .. } = *one;
        if ended == 0 {
            timeline.overlooked.extend(is_waiting.then_some(Overlooked { owner, sent_us, until_us: answered_us }));
            return;
        }
        self.asked = None;
        if let Outcome::Granted(_) | Outcome::Nil = one.outcome {
            let story = format!("{owner} of {key} was told that its request had ended, and then {:?}", one.outcome);
            violations.push(Violation { rule: Rule::CancelEndsWaits, story });
        }
    }
}

/// A command that means an earlier hold leaves the one that is there alone.
pub(super) fn check_untouched(one: &Operation, token: u64, violations: &mut Vec<Violation>) {
    if let Outcome::Number(_) = one.outcome {
        let story =
            format!("{} of {} has another hold than that with token {token}, and it was meant", one.owner, one.key);
        violations.push(Violation { rule: Rule::TokenIsMeant, story });
    }
}
