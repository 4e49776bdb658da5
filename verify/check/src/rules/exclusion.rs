//! Owners that believe to hold at the same time must be compatible.

use crate::history::{Key, Kind, Mode, Rule, Violation};
use crate::timeline::Belief;

/// Sweeps over the beliefs in the order in which they begin. The beliefs that have not ended are
/// few: as many as the lock admits.
pub(super) fn check(key: &Key, beliefs: &[Belief], violations: &mut Vec<Violation>) {
    let mut sorted: Vec<&Belief> = beliefs.iter().collect();
    sorted.sort_unstable_by_key(|belief| belief.from_us);
    let mut active: Vec<&Belief> = Vec::new();
    for belief in sorted {
        active.retain(|other| other.until_us > belief.from_us);
        let mut others = active.iter().filter(|other| other.owner != belief.owner);
        if key.kind == Kind::Semaphore {
            let used: u64 = active.iter().map(|other| u64::from(other.count)).sum::<u64>() + u64::from(belief.count);
            if used > u64::from(key.permits) {
                let story =
                    format!("{used} of {} permits of {} are in use at {} us", key.permits, key.name, belief.from_us);
                violations.push(Violation { rule: Rule::Permits, story });
            }
        } else if let Some(other) = others.find(|other| !(is_read(key, other) && is_read(key, belief))) {
            let story = format!(
                "{} and {} hold {} at {} us, with tokens {} and {}",
                other.owner, belief.owner, key.name, belief.from_us, other.token, belief.token
            );
            violations.push(Violation { rule: Rule::Exclusion, story });
        }
        active.push(belief);
    }
}

fn is_read(key: &Key, belief: &Belief) -> bool {
    key.kind == Kind::RwLock && belief.mode == Mode::Read
}
