//! Random commands on locks of every kind, for tests that run everything at once.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Prefixes of the errors that [`any_lock_command`] may cause. Any other error is a bug.
pub const LOCK_ERRORS: [&str; 9] = [
    "NOTOWNER",
    "STALE",
    "WRONGTYPE",
    "SUPERSEDED",
    "UNBLOCKED",
    "NOSEMAPHORE",
    "DEADLOCK",
    "ERR the owner holds only",
    "ERR the semaphore has",
];

/// Picks one of `keys` key names.
pub fn any_key(random: &mut StdRng, keys: usize) -> String {
    format!("lock-{}", random.random_range(0..keys))
}

/// Returns a random command on one of `keys` keys, by one of four owners. One in `rarely` ACQUIREs
/// waits, for a few milliseconds.
pub fn any_lock_command(random: &mut StdRng, keys: usize, lease_ms: u64, rarely: u32) -> String {
    let number = random.random_range(0..keys);
    let key = format!("lock-{number}");
    let owner = format!("owner-{}", random.random_range(0..4));
    // Mostly one kind for each key, so that most commands fit the lock that they meet.
    let kind = if random.random_ratio(9, 10) { number } else { random.random_range(0..5) };
    let family = ["RLOCK", "RFAIRLOCK", "RRWLOCK", "RSEMAPHORE", "RLOCK"][kind % 5];
    let mode = match family {
        "RRWLOCK" => *[" READ", " READ", " WRITE"].choose(random).expect("not empty"),
        _ => "",
    };
    let permits = match family {
        "RSEMAPHORE" if random.random() => format!(" PERMITS {}", random.random_range(1..4)),
        _ => String::new(),
    };
    let request_id = match random.random_ratio(1, 4) {
        true => format!(" REQ {}", random.random_range(1..200)),
        false => String::new(),
    };
    match random.random_range(0..100) {
        0..8 => {
            let other = any_key(random, keys);
            let verb = *["MACQUIRE", "MACQUIRE", "MRELEASE"].choose(random).expect("not empty");
            let options = match verb {
                "MACQUIRE" => format!(" PX {lease_ms}{}", wait(random, rarely)),
                _ => String::new(),
            };
            // The module refuses a repeated key, so the test avoids it.
            let keys = if other == key { format!("1 {key}") } else { format!("2 {key} {other}") };
            format!("RLOCK.{verb} {keys} {owner}{options}{request_id}")
        }
        8..11 => format!("RLOCK.MRENEW 1 {key} {owner} PX {lease_ms}"),
        11..14 if family == "RSEMAPHORE" => format!("RSEMAPHORE.DRAIN {key} {owner} PX {lease_ms}"),
        14..19 if family == "RSEMAPHORE" => {
            let verb = *["INIT", "RESIZE"].choose(random).expect("not empty");
            format!("RSEMAPHORE.{verb} {key} {}", random.random_range(1..6))
        }
        11..55 => {
            let mut command = format!("{family}.ACQUIRE {key} {owner}{mode}{permits} PX {lease_ms}{request_id}");
            if random.random_ratio(1, 4) {
                command += &format!(" SESSION {}", random.random_range(0..lease_ms));
            }
            match family {
                "RFAIRLOCK" if random.random_ratio(1, 4) => command + &format!(" QUEUE {lease_ms}"),
                _ => command + &wait(random, rarely),
            }
        }
        55..80 => format!("{family}.RELEASE {key} {owner}{mode}{permits}{request_id}"),
        80..90 => format!("{family}.RENEW {key} {owner}{mode} PX {lease_ms}"),
        90..94 => format!("{family}.FORCERELEASE {key}"),
        94..96 => format!("RFAIRLOCK.CANCEL {key} {owner}"),
        _ => format!("RLOCK.{} {key}", ["INFO", "PTTL", "WAITERS"].choose(random).expect("not empty")),
    }
}

fn wait(random: &mut StdRng, rarely: u32) -> String {
    if random.random_ratio(1, rarely) { format!(" BLOCK {}", random.random_range(1..10)) } else { String::new() }
}
