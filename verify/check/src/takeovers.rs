//! Takeovers: a server replaces one that died.
//!
//! Replication is asynchronous, so the new server may lack the latest changes of the old one. So
//! the rules do not rely on changes that the old server acknowledged. At each takeover
//!
//! - every known hold ends: another owner may be granted the lock, with a higher token;
//! - a request without an answer counts as unknown;
//! - the later calls of an owner that had sent a request before prove nothing, although they may
//!   get it the lock. Their tokens still have to be higher.
//!
//! All other rules stay: tokens rise across all servers, one server never grants two owners at
//! once, and no request waits for a free lock.

use std::collections::{HashMap, HashSet};

use crate::history::{Call, Operation, Outcome};
use crate::timeline::{Grant, Possible};

const US_PER_MS: u64 = 1000;

/// Turns pairs of moments into spans: from the loss of the old server until the new one was ready.
pub fn spans(takeovers_us: &[u64]) -> impl Iterator<Item = Possible> {
    let pairs = takeovers_us.chunks_exact(2);
    pairs.filter_map(|pair| Some(Possible { from_us: *pair.first()?, until_us: *pair.get(1)? }))
}

/// Removes the operations that do not count. Takeovers are pairs: when the old server was killed,
/// and when the new one was ready. Returns the later grants, with their keys, of owners whose other
/// calls do not count.
pub fn forget(operations: &mut Vec<Operation>, takeovers_us: &[u64]) -> Vec<(u32, Grant)> {
    let spans: Vec<Possible> = spans(takeovers_us).collect();
    if spans.is_empty() {
        return Vec::new();
    }
    let mut first_sent_us: HashMap<(u32, u64), u64> = HashMap::new();
    for one in operations.iter() {
        let first = first_sent_us.entry((one.key, one.owner)).or_insert(u64::MAX);
        *first = (*first).min(one.sent_us);
    }
    let mut forgotten = Forgotten::default();
    operations.sort_by_key(|one| one.answered_us);
    operations.retain_mut(|one| {
        let first_us = first_sent_us.get(&(one.key, one.owner)).copied().unwrap_or(0);
        // The first takeover since this owner's first call.
        let Some(Possible { from_us: killed_us, .. }) = spans.iter().copied().find(|span| span.until_us > first_us)
        else {
            return true;
        };
        forgotten.note(one, killed_us);
        if one.answered_us <= killed_us {
            end_at(one, killed_us);
            return true;
        }
        // A request that began before the takeover has no answer that counts.
        one.outcome = Outcome::Unknown;
        one.sent_us < killed_us || matches!(one.call, Call::Acquire { .. })
    });
    forgotten.grants
}

/// The grants of owners that had asked before a takeover, from the calls seen so far, in the order
/// of their answers.
#[derive(Default)]
struct Forgotten {
    /// The known tokens of each owner. A repeated grant has one of them.
    known: HashSet<(u32, u64, u64)>,
    /// When each owner first sent a request that got no answer. A later answer may report that
    /// request's grant.
    unanswered_us: HashMap<(u32, u64), u64>,
    grants: Vec<(u32, Grant)>,
}

impl Forgotten {
    fn note(&mut self, one: &Operation, killed_us: u64) {
        let Operation { key, owner, mode, sent_us, answered_us, outcome, .. } = *one;
        if let Outcome::Granted(token) = outcome {
            let is_new = self.known.insert((key, owner, token));
            if is_new && answered_us > killed_us {
                // A request that was sent later may have been lost earlier, such as a CANCEL of
                // this wait.
                let sent_us = self.unanswered_us.get(&(key, owner)).map_or(sent_us, |earlier| sent_us.min(*earlier));
                let grant = Grant {
                    owner,
                    mode,
                    count: 1,
                    token,
                    sent_us,
                    answered_us,
                    lease_us: 0,
                    order: 0,
                    passes_queue: true,
                };
                self.grants.push((key, grant));
            }
        } else if outcome == Outcome::Unknown {
            self.unanswered_us.entry((key, owner)).or_insert(sent_us);
        }
    }
}

/// The rules rely on a grant until the takeover at the latest.
fn end_at(one: &mut Operation, killed_us: u64) {
    let left_ms = killed_us.saturating_sub(one.sent_us) / US_PER_MS;
    if let (Call::Renew { .. }, Outcome::Number(told_ms)) = (one.call, &mut one.outcome) {
        *told_ms = (*told_ms).min(left_ms);
    }
    match &mut one.call {
        Call::Acquire { lease_ms, .. } | Call::Renew { lease_ms, .. } => *lease_ms = (*lease_ms).min(left_ms),
        Call::Keep { keep_ms } => *keep_ms = (*keep_ms).min(left_ms),
        Call::Release { .. } | Call::Remove | Call::Cancel { .. } | Call::Close { .. } | Call::Look => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Key, Kind, Mode, Rule};
    use crate::rules;

    fn granted(owner: u64, at_us: u64, token: u64) -> Operation {
        let call = Call::Acquire {
            count: 1,
            lease_ms: 1_000,
            block_ms: None,
            request_id: None,
            keeps_place: false,
            is_once: false,
        };
        let outcome = Outcome::Granted(token);
        Operation {
            key: 0,
            owner,
            mode: Mode::Exclusive,
            sent_us: at_us,
            answered_us: at_us + 10,
            order: 0,
            call,
            outcome,
        }
    }

    fn rules_broken(operations: &[Operation], takeovers_us: &[u64]) -> Vec<Rule> {
        let mut operations = operations.to_vec();
        let grants_of_forgotten = forget(&mut operations, takeovers_us);
        let keys = vec![Key { name: "k".into(), kind: Kind::Mutex, permits: 1 }; 2];
        rules::check(&mut History { keys, operations, grants_of_forgotten, ..History::default() })
            .iter()
            .map(|violation| violation.rule)
            .collect()
    }

    #[test]
    fn lock_may_be_granted_again_after_a_takeover_and_not_before() {
        let both = [granted(1, 10_000, 5), granted(2, 50_000, 6)];
        assert_eq!(rules_broken(&both, &[]), [Rule::Exclusion]);
        assert_eq!(rules_broken(&both, &[30_000, 40_000]), []);
        assert_eq!(rules_broken(&both, &[60_000, 70_000]), [Rule::Exclusion]);
    }

    #[test]
    fn owner_that_was_releasing_no_longer_holds() {
        let release =
            Operation { call: Call::Release { count: 1, token: None, request_id: None }, ..granted(1, 20_000, 5) };
        let release = Operation { answered_us: 35_000, outcome: Outcome::Unknown, ..release };
        let next = granted(2, 25_000, 6);
        assert_eq!(rules_broken(&[granted(1, 10_000, 5), release, next], &[30_000, 40_000]), []);
        assert_eq!(rules_broken(&[granted(1, 10_000, 5), next], &[30_000, 40_000]), [Rule::Exclusion]);
    }

    #[test]
    fn another_server_does_not_repeat_a_token() {
        let both = [granted(1, 10_000, 5), granted(2, 50_000, 5)];
        assert_eq!(rules_broken(&both, &[30_000, 40_000]), [Rule::TokensRise]);
        let lower = [granted(1, 10_000, 5), granted(2, 50_000, 4)];
        assert_eq!(rules_broken(&lower, &[30_000, 40_000]), [Rule::TokensRise]);
    }

    #[test]
    fn tokens_rise_for_owners_that_asked_before_a_takeover() {
        let broken = |between: &[Operation], token| {
            let mut all = vec![granted(1, 10_000, 5), granted(3, 20_000, 9), granted(1, 50_000, token)];
            all[1].key = 1;
            all.extend(between);
            rules_broken(&all, &[30_000, 40_000])
        };
        assert_eq!(broken(&[], 10), []);
        assert_eq!(broken(&[], 5), [], "it still holds");
        assert_eq!(broken(&[], 8), [Rule::TokensRise]);
        let unanswered = Operation { outcome: Outcome::Unknown, ..granted(1, 15_000, 0) };
        assert_eq!(broken(&[unanswered], 8), [], "it may have been granted before");
    }

    /// Owner 1 waits, and its CANCEL is lost with the old server. It learns of its grant late, when
    /// another key already has a higher token.
    #[test]
    fn lost_cancel_does_not_make_a_grant_later() {
        let broken = |waits_from_us| {
            let waited = Operation { answered_us: 39_000, sent_us: waits_from_us, ..granted(1, 0, 8) };
            let cancel = Call::Cancel { is_waiting: false };
            let cancel = Operation { call: cancel, outcome: Outcome::Unknown, ..granted(1, 37_000, 0) };
            let other = Operation { key: 1, sent_us: 36_000, answered_us: 36_500, ..granted(3, 0, 9) };
            rules_broken(&[waited, cancel, other], &[30_000, 40_000])
        };
        assert_eq!(broken(10_000), []);
        assert_eq!(broken(36_600), [Rule::TokensRise]);
    }
}
