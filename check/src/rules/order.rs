//! Tokens rise, and the first who came was the first who was served.
//!
//! Tokens are given in the order of the grants. Requests are granted at once or from the head of their key's queue, so on one
//! key the order of the requests and that of the tokens are the same; but for whoever passes the queue because it holds in
//! another mode.

use crate::history::{Key, Rule, Violation};
use crate::timeline::Grant;

/// Of one key: the order in which requests came is that in which they were granted.
pub(super) fn check_queue(key: &Key, grants: &[Grant], violations: &mut Vec<Violation>) {
    let in_line = |grant: &&Grant| grant.order != 0 && !grant.passes_queue;
    let mut sorted: Vec<&Grant> = grants.iter().filter(in_line).collect();
    sorted.sort_unstable_by_key(|grant| grant.order);
    let mut latest: Option<&Grant> = None;
    for grant in sorted {
        if let Some(earlier) = latest.filter(|earlier| earlier.token > grant.token) {
            let story = format!(
                "{} asked for {} before {} and was granted after it: requests {} and {}, tokens {} and {}",
                earlier.owner, key.name, grant.owner, earlier.order, grant.order, earlier.token, grant.token
            );
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        } else {
            latest = Some(grant);
        }
    }
}

/// Of all keys: no token is given twice, and what was granted before another request was sent has the lower token.
pub(super) fn check_tokens(grants: &mut [(u32, Grant)], violations: &mut Vec<Violation>) {
    grants.sort_unstable_by_key(|(_, grant)| grant.token);
    for pair in grants.windows(2) {
        if let [(first_key, first), (second_key, second)] = pair
            && first.token == second.token
        {
            let (token, owner, other) = (first.token, first.owner, second.owner);
            let story = format!("token {token} was given to {owner} on {first_key} and to {other} on {second_key}");
            violations.push(Violation { rule: Rule::TokensRise, story });
        }
    }
    let mut answered: Vec<(u64, u64)> = grants.iter().map(|(_, grant)| (grant.answered_us, grant.token)).collect();
    answered.sort_unstable();
    grants.sort_unstable_by_key(|(_, grant)| grant.sent_us);
    let mut answered = answered.into_iter().peekable();
    let mut highest = 0;
    for (_, grant) in grants.iter() {
        while let Some((_, token)) = answered.next_if(|(answered_us, _)| *answered_us < grant.sent_us) {
            highest = highest.max(token);
        }
        if grant.token < highest {
            let story = format!("{} was given {} when {highest} was known already", grant.owner, grant.token);
            violations.push(Violation { rule: Rule::TokensRise, story });
        }
    }
}
