//! Replication is asynchronous: a server that takes over from one that died may not have heard of its last changes. What was acknowledged
//! before is not relied on afterwards. So at each takeover
//!
//! - what somebody surely held ends, as far as it is known: it may be given to another owner, with a higher token;
//! - a request that was under way has no answer that counts;
//! - an owner that had asked for something before proves nothing by what it asks for later, but may hold by it. The tokens that it is granted
//!   then are higher, as anybody's.
//!
//! All other rules go on: tokens rise over all servers, nobody holds beside another on one server, and nobody waits for what is free.

use std::collections::{HashMap, HashSet};

use crate::history::{Call, Operation, Outcome};
use crate::timeline::{Grant, Possible};

const US_PER_MS: u64 = 1000;

/// Pairs of moments as spans: from when the old server was lost until the new one was there.
pub fn spans(takeovers_us: &[u64]) -> impl Iterator<Item = Possible> {
    let pairs = takeovers_us.chunks_exact(2);
    pairs.filter_map(|pair| Some(Possible { from_us: *pair.first()?, until_us: *pair.get(1)? }))
}

/// Takes out of a history what does not count. Takeovers are pairs: when the old server was killed, and when the new one was there. Returns what was
/// granted later to owners of whom nothing else counts any more, with their keys.
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
        // The first takeover that this owner has seen.
        let Some(Possible { from_us: killed_us, .. }) = spans.iter().copied().find(|span| span.until_us > first_us)
        else {
            return true;
        };
        forgotten.note(one, killed_us);
        if one.answered_us <= killed_us {
            end_at(one, killed_us);
            return true;
        }
        // What was begun before is over for whoever began it.
        one.outcome = Outcome::Unknown;
        one.sent_us < killed_us || matches!(one.call, Call::Acquire { .. })
    });
    forgotten.grants
}

/// What is left of owners that had asked for something before a takeover, by the calls that were looked at, in the order of their answers.
#[derive(Default)]
struct Forgotten {
    /// The tokens that are known of each: what is granted again has one of them.
    known: HashSet<(u32, u64, u64)>,
    /// When those that have no answer were sent for the first time: what is granted later may have been granted by them.
    unanswered_us: HashMap<(u32, u64), u64>,
    grants: Vec<(u32, Grant)>,
}

impl Forgotten {
    fn note(&mut self, one: &Operation, killed_us: u64) {
        let Operation { key, owner, mode, sent_us, answered_us, outcome, .. } = *one;
        if let Outcome::Granted(token) = outcome {
            let is_new = self.known.insert((key, owner, token));
            if is_new && answered_us > killed_us {
                // One that was sent later may have been lost sooner, as a CANCEL of this very wait.
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

/// What was granted is relied on until then at most.
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
    fn a_lock_may_be_given_again_after_a_takeover_and_not_before() {
        let both = [granted(1, 10_000, 5), granted(2, 50_000, 6)];
        assert_eq!(rules_broken(&both, &[]), [Rule::Exclusion]);
        assert_eq!(rules_broken(&both, &[30_000, 40_000]), []);
        assert_eq!(rules_broken(&both, &[60_000, 70_000]), [Rule::Exclusion]);
    }

    #[test]
    fn who_was_giving_up_does_not_hold_any_more() {
        let release =
            Operation { call: Call::Release { count: 1, token: None, request_id: None }, ..granted(1, 20_000, 5) };
        let release = Operation { answered_us: 35_000, outcome: Outcome::Unknown, ..release };
        let next = granted(2, 25_000, 6);
        assert_eq!(rules_broken(&[granted(1, 10_000, 5), release, next], &[30_000, 40_000]), []);
        assert_eq!(rules_broken(&[granted(1, 10_000, 5), next], &[30_000, 40_000]), [Rule::Exclusion]);
    }

    #[test]
    fn a_token_is_not_given_again_by_another_server() {
        let both = [granted(1, 10_000, 5), granted(2, 50_000, 5)];
        assert_eq!(rules_broken(&both, &[30_000, 40_000]), [Rule::TokensRise]);
        let lower = [granted(1, 10_000, 5), granted(2, 50_000, 4)];
        assert_eq!(rules_broken(&lower, &[30_000, 40_000]), [Rule::TokensRise]);
    }

    #[test]
    fn tokens_rise_for_those_too_who_had_asked_before() {
        let told = |between: &[Operation], token| {
            let mut told = vec![granted(1, 10_000, 5), granted(3, 20_000, 9), granted(1, 50_000, token)];
            told[1].key = 1;
            told.extend(between);
            rules_broken(&told, &[30_000, 40_000])
        };
        assert_eq!(told(&[], 10), []);
        assert_eq!(told(&[], 5), [], "it holds still");
        assert_eq!(told(&[], 8), [Rule::TokensRise]);
        let unanswered = Operation { outcome: Outcome::Unknown, ..granted(1, 15_000, 0) };
        assert_eq!(told(&[unanswered], 8), [], "it may have been granted before");
    }

    /// Owner 1 waits, and its CANCEL is lost with the old server. Its grant is told late: another key had a higher token by then.
    #[test]
    fn a_cancel_that_was_lost_makes_no_grant_a_later_one() {
        let told = |waits_from_us| {
            let waited = Operation { answered_us: 39_000, sent_us: waits_from_us, ..granted(1, 0, 8) };
            let cancel = Call::Cancel { is_waiting: false };
            let cancel = Operation { call: cancel, outcome: Outcome::Unknown, ..granted(1, 37_000, 0) };
            let other = Operation { key: 1, sent_us: 36_000, answered_us: 36_500, ..granted(3, 0, 9) };
            rules_broken(&[waited, cancel, other], &[30_000, 40_000])
        };
        assert_eq!(told(10_000), []);
        assert_eq!(told(36_600), [Rule::TokensRise]);
    }
}
