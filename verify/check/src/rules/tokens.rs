//! Tokens rise: none is given twice, and each is higher than all tokens that were known at the
//! earliest moment at which it can have been given.
//!
//! A request that waited was granted when the previous hold had ended, possibly long after it was
//! sent.

use crate::history::{Key, Kind, Mode, Rule, Violation};
use crate::timeline::{Belief, Grant, Possible, Timeline};

/// The grants of one key. Each counts as sent no earlier than the end of the last hold that it had
/// to wait for.
pub(super) fn grants<'t>(key: &'t Key, timeline: &'t Timeline) -> impl Iterator<Item = Grant> + 't {
    let mut beliefs: Vec<&Belief> = timeline.beliefs.iter().collect();
    beliefs.sort_unstable_by_key(|belief| belief.until_us);
    timeline.grants.iter().map(move |grant| {
        let ended = beliefs.partition_point(|belief| belief.until_us <= grant.answered_us);
        let latest_first = beliefs.get(..ended).unwrap_or_default().iter().rev();
        let before = latest_first
            .take_while(|belief| belief.until_us > grant.sent_us)
            // A belief that began after this grant's lease expired may belong to a later hold: the
            // answer may have taken that long.
            .filter(|belief| belief.from_us < grant.sent_us + grant.lease_us)
            .find(|belief| belief.owner != grant.owner && excludes(key, belief, grant));
        Grant { sent_us: before.map_or(grant.sent_us, |belief| belief.until_us), ..*grant }
    })
}

/// Whether two owners cannot hold in these modes at the same time.
fn excludes(key: &Key, one: &Belief, other: &Grant) -> bool {
    match key.kind {
        Kind::Mutex | Kind::Fair => true,
        Kind::RwLock => [one.mode, other.mode] != [Mode::Read, Mode::Read],
        Kind::Semaphore => one.count + other.count > key.permits,
    }
}

/// Across all keys, no token is given twice, and a grant that its client knew before another
/// request was sent has the lower token. While a server takes over, the old one may still grant for
/// a moment: the two may give the same token in the same microsecond, to two keys.
pub(super) fn check(grants: &mut [(u32, Grant)], takeovers: &[Possible], violations: &mut Vec<Violation>) {
    let may_be_of_two_servers =
        |grant: &Grant| takeovers.iter().any(|it| (it.from_us..=it.until_us).contains(&grant.answered_us));
    grants.sort_unstable_by_key(|(_, grant)| grant.token);
    for pair in grants.windows(2) {
        if let [(first_key, first), (second_key, second)] = pair
            && first.token == second.token
            && (first_key == second_key || ![first, second].into_iter().all(may_be_of_two_servers))
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
            let story = format!("{} was given token {} when {highest} was already known", grant.owner, grant.token);
            violations.push(Violation { rule: Rule::TokensRise, story });
        }
    }
}
