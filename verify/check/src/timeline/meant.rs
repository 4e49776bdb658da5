//! Commands that apply to one particular hold or wait of their owner: those with TOKEN, and CANCEL.

use super::{Overlooked, Owner, Timeline};
use crate::history::{Call, Operation, Outcome, Rule, Violation};

/// An answered CANCEL.
#[derive(Clone, Copy)]
pub(super) struct Cancelled {
    sent_us: u64,
    answered_us: u64,
    /// How many requests it ended.
    ended: u64,
    is_waiting: bool,
}

impl Owner<'_> {
    /// Whether a TOKEN differs from that of the owner's hold, or of the hold that it ended with
    /// KEEP.
    pub(super) fn means_another(&self, one: &Operation, token: u64) -> bool {
        self.held[one.mode as usize].or(self.kept).is_some_and(|held| held.token != token)
    }

    pub(super) fn cancel(&mut self, one: &Operation, is_waiting: bool) {
        let Outcome::Number(ended) = one.outcome else { return };
        self.cancelled.push(Cancelled { sent_us: one.sent_us, answered_us: one.answered_us, ended, is_waiting });
        if ended > 0 {
            self.asked = None;
        }
    }

    /// Checks a request that was waiting when its owner cancelled it.
    pub(super) fn check_cancelled(
        &mut self,
        one: &Operation,
        timeline: &mut Timeline,
        violations: &mut Vec<Violation>,
    ) {
        let is_about =
            |cancelled: &Cancelled| one.sent_us <= cancelled.sent_us && cancelled.answered_us <= one.answered_us;
        // A request that one CANCEL ended stays ended, even if another CANCEL finds nothing
        // afterwards.
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
            let story = format!(
                "CANCEL told {owner} that its request for key {key} had ended, which then got {:?}",
                one.outcome
            );
            violations.push(Violation { rule: Rule::CancelEndsWaits, story });
        }
    }
}

/// CANCEL ends no more requests than its owner has waiting.
pub(super) fn check_ended(of_owner: &[Operation], violations: &mut Vec<Violation>) {
    for one in of_owner.iter().filter(|one| matches!(one.call, Call::Cancel { .. })) {
        let Outcome::Number(ended) = one.outcome else { continue };
        let may_wait = |other: &&Operation| {
            let Call::Acquire { block_ms, keeps_place, .. } = other.call else { return false };
            let is_there = keeps_place || other.outcome == Outcome::Unknown || other.answered_us >= one.sent_us;
            (block_ms.is_some() || keeps_place) && other.sent_us <= one.answered_us && is_there
        };
        let waiting = of_owner.iter().filter(may_wait).count() as u64;
        if ended > waiting {
            let Operation { owner, key, .. } = one;
            let story =
                format!("CANCEL ended {ended} requests of {owner} for key {key}, of which at most {waiting} waited");
            violations.push(Violation { rule: Rule::CancelEndsWaits, story });
        }
    }
}

/// A command for an earlier hold leaves the current hold alone.
pub(super) fn check_untouched(one: &Operation, token: u64, violations: &mut Vec<Violation>) {
    if let Outcome::Number(_) = one.outcome {
        let story = format!(
            "{} of key {} sent token {token}, and the server changed a hold with another token",
            one.owner, one.key
        );
        violations.push(Violation { rule: Rule::TokenIsMeant, story });
    }
}
