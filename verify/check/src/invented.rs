//! Histories without a server. A lock with one queue behaves correctly by construction, and its
//! clients see it with a delay.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::history::{Call, History, Key, Kind, Mode, Operation, Outcome};

/// How many keys a history has.
const KEYS: u64 = 16;

/// A correct history with this many operations: on each key one owner after the other waits, holds,
/// renews and releases.
#[must_use]
pub fn history(operations: usize, seed: u64) -> History {
    let mut random = StdRng::seed_from_u64(seed);
    let keys = (0..KEYS).map(|number| Key { name: format!("mutex {number}"), kind: Kind::Mutex, permits: 1 });
    let mut history =
        History { keys: keys.collect(), operations: Vec::with_capacity(operations), ..History::default() };
    let mut free_at_us = [1_000_000_u64; KEYS as usize];
    let (mut token, mut owner) = (0, 0);
    while history.operations.len() + 3 <= operations {
        // Tokens rise in the order of the grants, so the key that becomes free first is granted
        // next.
        let Some((key, granted_us)) = free_at_us.iter().copied().enumerate().min_by_key(|(_, at_us)| *at_us) else {
            break;
        };
        owner += 1;
        token += 1;
        let asked_us = granted_us - random.random_range(1..500);
        let known_us = granted_us + random.random_range(1..100);
        let renewed_us = known_us + random.random_range(1..100);
        let released_us = renewed_us + random.random_range(50..200);
        let answered_us = released_us + random.random_range(1..100);
        let call = Call::Acquire {
            count: 1,
            lease_ms: 30_000,
            block_ms: Some(10_000),
            request_id: None,
            keeps_place: false,
            is_once: false,
        };
        let one = |sent_us, answered_us, call, outcome| Operation {
            key: key as u32,
            owner,
            mode: Mode::Exclusive,
            sent_us,
            answered_us,
            order: owner,
            call,
            outcome,
        };
        history.operations.push(one(asked_us, known_us, call, Outcome::Granted(token)));
        let renew = Call::Renew { lease_ms: 30_000, token: None };
        let renewed = one(renewed_us, renewed_us + 40, renew, Outcome::Number(30_000));
        history.operations.push(renewed);
        let release = Call::Release { count: 1, token: None, request_id: None };
        history.operations.push(one(released_us, answered_us, release, Outcome::Number(0)));
        if let Some(free_at_us) = free_at_us.get_mut(key) {
            *free_at_us = random.random_range(released_us..answered_us).max(granted_us + 1);
        }
    }
    history
}
