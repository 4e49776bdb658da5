//! Exhaustive search of small worlds: two or three owners, one or two keys, and every order of
//! commands, deadlines, late timers, disconnects, deletions and promotions up to a depth.
//!
//! The search goes level by level (`search.rs`). It reaches a state by replaying its path from the
//! beginning, so the engine needs no copies. It does not continue from a state that it has seen
//! (see `canonical.rs`). Each state satisfies the invariants of [`super::world::World`] and agrees
//! with a simple oracle (`oracle/`). The oracle is not part of a state, so engine and oracle are
//! compared after each step, even if the step leads to a known state.
//!
//! Long random walks follow the search (`walks.rs`).
//!
//! In each kind of world the search continues until it has tried everything up to some depth, and
//! found at least 1,000 states; with `RLOCK_WORLDS_STATES=n` at least n states in all worlds
//! together, as `make check-worlds` does. It keeps only 64 bits of a state: with ten million states
//! the probability that two different ones collide is three in a million.

mod action;
mod canonical;
mod commands;
mod compare;
mod departures;
mod failovers;
mod kept;
mod numbered;
mod oracle;
mod remembered;
mod search;
mod small_world;
mod walks;

use std::vec::Vec;

use self::action::{Action, Asks, Means};
use self::search::{PLAIN, Setup, search};
use crate::kind::{Kind, Mode};

/// The actions of every world.
fn of_time() -> Vec<Action> {
    [Action::Pause, Action::Timer, Action::Tick, Action::FailOver].to_vec()
}

/// The actions on a lock that is held exclusively, or in one of some modes.
fn commands(keys: usize, owners: u8, modes: &[(Mode, u32)], asks: &[Asks]) -> Vec<Action> {
    let mut actions = Vec::new();
    for key in 0..keys {
        for owner in 0..owners {
            for (mode, count) in modes.iter().copied() {
                actions.extend(asks.iter().map(|ask| Action::Acquire { key, owner, mode, count, ask: *ask, id: None }));
            }
            let mut released: Vec<Mode> = modes.iter().map(|(mode, _)| *mode).collect();
            released.dedup();
            actions.extend(released.iter().map(|mode| Action::Release { key, owner, mode: *mode, id: None }));
            actions.push(Action::Leave { key, owner });
        }
    }
    actions
}

const EXCLUSIVE: &[(Mode, u32)] = &[(Mode::Exclusive, 1)];
const BOTH: &[Asks] = &[Asks::Try, Asks::Wait];
const FOR_EVER: &[Asks] = &[Asks::Try, Asks::WaitForEver];

/// Each owner waits without a limit.
fn without_limit(owners: u8, mode: Mode) -> Vec<Action> {
    let ask = Asks::WaitForEver;
    (0..owners).map(|owner| Action::Acquire { key: 0, owner, mode, count: 1, ask, id: None }).collect()
}

fn with(actions: Vec<Action>, more: &[Action]) -> Vec<Action> {
    [of_time(), actions, more.to_vec()].concat()
}

#[test]
fn mutexes_match_the_oracle() {
    static TWO_OWNERS: Setup = Setup {
        keys: 2,
        actions: || {
            let renew = Action::Renew { key: 0, owner: 0, mode: Mode::Exclusive };
            let more = [renew, Action::Force { key: 0 }, Action::Delete { key: 0 }, Action::Hear];
            with(commands(2, 2, EXCLUSIVE, BOTH), &more)
        },
        ..PLAIN
    };
    static THREE_OWNERS: Setup = Setup {
        actions: || {
            let actions = [commands(1, 3, EXCLUSIVE, BOTH), without_limit(3, Mode::Exclusive)].concat();
            with(actions, &[Action::Delete { key: 0 }, Action::Hear])
        },
        ..PLAIN
    };
    search("mutex, 2 keys, 2 owners", &TWO_OWNERS);
    search("mutex, 1 key, 3 owners", &THREE_OWNERS);
}

#[test]
fn read_write_locks_match_the_oracle() {
    static SETUP: Setup = Setup {
        kind: Kind::RwLock,
        actions: || {
            let renew = Action::Renew { key: 0, owner: 0, mode: Mode::Read };
            let more = [renew, Action::Force { key: 0 }, Action::Delete { key: 0 }, Action::Hear];
            with(commands(1, 3, &[(Mode::Read, 1), (Mode::Write, 1)], BOTH), &more)
        },
        ..PLAIN
    };
    static TWO_KEYS: Setup = Setup {
        kind: Kind::RwLock,
        keys: 2,
        actions: || {
            let actions = commands(2, 2, &[(Mode::Read, 1), (Mode::Write, 1)], BOTH);
            with([actions, without_limit(2, Mode::Write)].concat(), &[Action::Hear])
        },
        ..PLAIN
    };
    search("rwlock, 1 key, 3 owners", &SETUP);
    search("rwlock, 2 keys, 2 owners", &TWO_KEYS);
}

#[test]
fn semaphores_match_the_oracle() {
    static SETUP: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 3,
        actions: || {
            let renew = Action::Renew { key: 0, owner: 0, mode: Mode::Permits };
            let server = [Action::Delete { key: 0 }, Action::Init { key: 0, idle_ms: None }];
            let more = [&[renew, Action::Force { key: 0 }, Action::Hear], &server[..]].concat();
            with(commands(1, 3, &[(Mode::Permits, 1), (Mode::Permits, 2)], BOTH), &more)
        },
        ..PLAIN
    };
    static TWO_KEYS: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 2,
        keys: 2,
        actions: || with(commands(2, 2, &[(Mode::Permits, 1), (Mode::Permits, 2)], BOTH), &[Action::Hear]),
        ..PLAIN
    };
    static RESIZED: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 3,
        actions: || {
            let drains = [0, 1].map(|owner| Action::Drain { owner });
            let more =
                [&[Action::Resize { permits: 1 }, Action::Resize { permits: 4 }, Action::Hear], &drains[..]].concat();
            with(commands(1, 3, &[(Mode::Permits, 1), (Mode::Permits, 2)], FOR_EVER), &more)
        },
        ..PLAIN
    };
    static IDLE: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 2,
        actions: || {
            let idle_ms = [None, Some(15), Some(0)];
            let inits = idle_ms.map(|idle_ms| Action::Init { key: 0, idle_ms });
            let more =
                [Action::Resize { permits: 1 }, Action::Force { key: 0 }, Action::Delete { key: 0 }, Action::Hear];
            with(commands(1, 2, &[(Mode::Permits, 1), (Mode::Permits, 2)], BOTH), &[&inits[..], &more].concat())
        },
        ..PLAIN
    };
    search("semaphore, 1 key, 3 owners", &SETUP);
    search("IDLE: semaphore, 1 key, 2 owners", &IDLE);
    search("semaphore, 2 keys, 2 owners", &TWO_KEYS);
    search("RESIZE, DRAIN: semaphore, 1 key, 3 owners", &RESIZED);
}

#[test]
fn fair_locks_match_the_oracle() {
    static SETUP: Setup = Setup {
        kind: Kind::Fair,
        actions: || {
            let renew = Action::Renew { key: 0, owner: 0, mode: Mode::Exclusive };
            let more = [
                renew,
                Action::Force { key: 0 },
                Action::Cancel { owner: 1, id: None },
                Action::Delete { key: 0 },
                Action::Hear,
            ];
            let actions = commands(1, 3, EXCLUSIVE, &[Asks::Try, Asks::Wait, Asks::Queue]);
            with([actions, without_limit(3, Mode::Exclusive)].concat(), &more)
        },
        ..PLAIN
    };
    static TWO_KEYS: Setup = Setup {
        kind: Kind::Fair,
        keys: 2,
        actions: || {
            let actions = commands(2, 2, EXCLUSIVE, &[Asks::Try, Asks::Wait, Asks::Queue]);
            with(
                actions,
                &[Action::Cancel { owner: 1, id: None }, Action::Delete { key: 0 }, Action::Promote, Action::Hear],
            )
        },
        ..PLAIN
    };
    static GRACE: Setup = Setup {
        kind: Kind::Fair,
        actions: || {
            let actions = commands(1, 2, EXCLUSIVE, &[Asks::Wait, Asks::Queue, Asks::Grace]);
            with(actions, &[Action::Cancel { owner: 1, id: None }, Action::Promote, Action::Hear])
        },
        ..PLAIN
    };
    search("fair, 1 key, 3 owners", &SETUP);
    search("GRACE: fair, 1 key, 2 owners", &GRACE);
    search("fair, 2 keys, 2 owners", &TWO_KEYS);
}

#[test]
fn sessions_match_the_oracle() {
    fn bound(owners: u8, modes: &[(Mode, u32)], asks: &[Asks]) -> Vec<Action> {
        let mode = modes[0].0;
        let closing = (0..owners).map(|owner| Action::Close { owner });
        let renewing = (0..owners).map(|owner| Action::Renew { key: 0, owner, mode });
        let made = if mode == Mode::Permits { &[Action::Init { key: 0, idle_ms: None }][..] } else { &[] };
        let server = [&[Action::Delete { key: 0 }, Action::Promote, Action::Hear], made].concat();
        let more: Vec<Action> = closing.chain(renewing).chain(server).collect();
        with(commands(1, owners, modes, asks), &more)
    }
    static MUTEX: Setup = Setup { actions: || bound(3, EXCLUSIVE, &[Asks::Try, Asks::Bound]), ..PLAIN };
    static READERS: Setup = Setup {
        kind: Kind::RwLock,
        actions: || bound(2, &[(Mode::Read, 1), (Mode::Write, 1)], &[Asks::Try, Asks::Bound]),
        ..PLAIN
    };
    static PERMITS: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 2,
        actions: || bound(2, &[(Mode::Permits, 1)], &[Asks::Try, Asks::Bound]),
        ..PLAIN
    };
    search("SESSION: mutex, 1 key, 3 owners", &MUTEX);
    search("SESSION: rwlock, 1 key, 2 owners", &READERS);
    search("SESSION: semaphore, 1 key, 2 owners", &PERMITS);
}

#[test]
fn claims_and_kept_locks_match_the_oracle() {
    fn kept(owners: u8) -> Vec<Action> {
        let mut actions = commands(1, owners, EXCLUSIVE, &[Asks::Claim]);
        for owner in 0..owners {
            actions.push(Action::Renew { key: 0, owner, mode: Mode::Exclusive });
            actions.extend([None, Some(2)].map(|id| Action::Keep { key: 0, owner, id }));
            actions.push(Action::ReleaseToken { key: 0, owner, mode: Mode::Exclusive, means: Means::Own });
        }
        let (mode, id) = (Mode::Exclusive, Some(1));
        actions.push(Action::Acquire { key: 0, owner: 0, mode, count: 1, ask: Asks::Claim, id });
        actions.extend([0, 1].map(|owner| Action::Acquire {
            key: 0,
            owner,
            mode,
            count: 1,
            ask: Asks::ClaimNow,
            id: None,
        }));
        with(actions, &[Action::Force { key: 0 }, Action::Delete { key: 0 }, Action::Promote, Action::Hear])
    }
    static MUTEX: Setup = Setup {
        actions: || {
            let (mode, ask) = (Mode::Exclusive, Asks::Once);
            [kept(3), [Action::Acquire { key: 0, owner: 0, mode, count: 1, ask, id: None }].to_vec()].concat()
        },
        ..PLAIN
    };
    static FAIR: Setup = Setup { kind: Kind::Fair, actions: || kept(2), ..PLAIN };
    static PERMITS: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 3,
        actions: || {
            let renew = [0, 1].map(|owner| Action::Renew { key: 0, owner, mode: Mode::Permits });
            let actions =
                commands(1, 3, &[(Mode::Permits, 1), (Mode::Permits, 2)], &[Asks::Try, Asks::Claim, Asks::ClaimNow]);
            with([actions, renew.to_vec()].concat(), &[Action::Hear])
        },
        ..PLAIN
    };
    search("CLAIM, KEEP: mutex, 1 key, 3 owners", &MUTEX);
    search("CLAIM, KEEP: fair, 1 key, 2 owners", &FAIR);
    search("CLAIM: semaphore, 1 key, 3 owners", &PERMITS);
}

#[test]
fn requests_for_many_keys_are_safe() {
    static SETUP: Setup = Setup {
        is_mixed: true,
        keys: 2,
        actions: || {
            let mut actions = commands(2, 3, EXCLUSIVE, &[Asks::Wait]);
            for owner in 0..3 {
                actions.extend([Action::AcquireMany { owner, ask: Asks::Wait }, Action::ReleaseMany { owner }]);
            }
            let asks = [Asks::Try, Asks::WaitForEver];
            actions.extend(asks.map(|ask| Action::AcquireMany { owner: 0, ask }));
            with(actions, &[Action::Delete { key: 0 }, Action::Hear])
        },
        ..PLAIN
    };
    search("many, 2 keys, 3 owners", &SETUP);
}

/// Server commands, and retries and sessions, where two kinds meet.
fn mixed(first: Mode, second: Mode) -> Vec<Action> {
    let mut actions = Vec::new();
    for owner in 0..2 {
        for (key, mode) in [(0, first), (1, second)] {
            let asks = [(Asks::Bound, None), (Asks::WaitForEver, Some(1))];
            actions.extend(asks.map(|(ask, id)| Action::Acquire { key, owner, mode, count: 1, ask, id }));
            let ids = if owner == 0 { &[None, Some(2)][..] } else { &[None] };
            actions.extend(ids.iter().map(|id| Action::Release { key, owner, mode, id: *id }));
            actions.push(Action::Leave { key, owner });
        }
        actions.push(Action::Close { owner });
    }
    actions.extend([Action::Rename, Action::Copy, Action::Swap, Action::Flush, Action::Promote, Action::Hear]);
    with(actions, &[Action::Foreign { key: 0 }, Action::Delete { key: 0 }, Action::Delete { key: 1 }])
}

#[test]
fn mixed_kinds_are_safe() {
    static MUTEX_AND_FAIR: Setup = Setup {
        other_kind: Kind::Fair,
        is_mixed: true,
        keys: 2,
        actions: || mixed(Mode::Exclusive, Mode::Exclusive),
        ..PLAIN
    };
    static FAIR_AND_RWLOCK: Setup = Setup {
        kind: Kind::Fair,
        other_kind: Kind::RwLock,
        is_mixed: true,
        keys: 2,
        actions: || mixed(Mode::Exclusive, Mode::Write),
        ..PLAIN
    };
    static SEMAPHORE_AND_MUTEX: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 2,
        is_mixed: true,
        keys: 2,
        actions: || with(mixed(Mode::Permits, Mode::Exclusive), &[Action::Resize { permits: 1 }]),
        ..PLAIN
    };
    search("mutex and fair", &MUTEX_AND_FAIR);
    search("fair and rwlock", &FAIR_AND_RWLOCK);
    search("semaphore and mutex", &SEMAPHORE_AND_MUTEX);
}

/// Retries, commands with a TOKEN, and notified waiters.
fn notified(keys: usize, owners: u8, modes: &[(Mode, u32)]) -> Vec<Action> {
    let mut actions = Vec::new();
    for owner in 0..owners {
        for key in 0..keys {
            for (mode, count) in modes.iter().copied() {
                let asks = [(Asks::Once, None), (Asks::Notified, Some(1))];
                actions.extend(asks.map(|(ask, id)| Action::Acquire { key, owner, mode, count, ask, id }));
            }
            let mode = modes[0].0;
            actions.extend([Means::Own, Means::Earlier].map(|means| Action::ReleaseToken { key, owner, mode, means }));
        }
        actions.push(Action::Disconnect { owner });
    }
    let (key, owner, mode) = (0, 0, modes[0].0);
    actions.extend([Means::Own, Means::Earlier].map(|means| Action::RenewToken { key, owner, mode, means }));
    actions.extend([
        Action::Cancel { owner: 1, id: None },
        Action::Cancel { owner: 1, id: Some(1) },
        Action::Publish { is_heard: true },
        Action::Publish { is_heard: false },
    ]);
    with(actions, &[])
}

#[test]
fn retried_and_notified_requests_match_the_oracle() {
    static TWO_KEYS: Setup = Setup { keys: 2, actions: || notified(2, 2, EXCLUSIVE), ..PLAIN };
    static THREE_OWNERS: Setup = Setup { actions: || notified(1, 3, EXCLUSIVE), ..PLAIN };
    static READERS: Setup =
        Setup { kind: Kind::RwLock, actions: || notified(1, 3, &[(Mode::Read, 1), (Mode::Write, 1)]), ..PLAIN };
    static PERMITS: Setup =
        Setup { kind: Kind::Semaphore, permits: 2, actions: || notified(1, 3, &[(Mode::Permits, 1)]), ..PLAIN };
    search("ONCE, TOKEN, NOTIFY: mutex, 2 keys, 2 owners", &TWO_KEYS);
    search("ONCE, TOKEN, NOTIFY: mutex, 1 key, 3 owners", &THREE_OWNERS);
    search("ONCE, TOKEN, NOTIFY: rwlock, 1 key, 3 owners", &READERS);
    search("ONCE, TOKEN, NOTIFY: semaphore, 1 key, 3 owners", &PERMITS);
}

#[test]
fn cut_off_waits_are_safe() {
    static MUTEX_AND_FAIR: Setup = Setup {
        other_kind: Kind::Fair,
        is_mixed: true,
        keys: 2,
        actions: || {
            let cut_off = [0, 1].map(|owner| Action::ChannelGone { owner });
            let more = [Action::Demote, Action::Promote, Action::Rename, Action::Delete { key: 1 }, Action::Swap];
            with([notified(2, 2, EXCLUSIVE), cut_off.to_vec()].concat(), &more)
        },
        ..PLAIN
    };
    search("ONCE, TOKEN, NOTIFY: mutex and fair", &MUTEX_AND_FAIR);
}

/// Imported locks that clients use before the review is finished.
fn arriving(mode: Mode, asks: &[(Asks, Option<u64>)]) -> Vec<Action> {
    let mut actions = Vec::new();
    for owner in 0..2 {
        for key in 0..2 {
            let of_owner =
                asks.iter().map(|(ask, id)| Action::Acquire { key, owner, mode, count: 1, ask: *ask, id: *id });
            actions.extend(of_owner);
        }
        actions.push(Action::Renew { key: 1, owner, mode });
        actions.push(Action::Release { key: 1, owner, mode, id: None });
        actions.push(Action::Close { owner });
    }
    with(actions, &[Action::Rename, Action::Promote, Action::Part, Action::Hear])
}

#[test]
fn work_in_parts_is_safe() {
    static READERS: Setup = Setup {
        kind: Kind::RwLock,
        other_kind: Kind::RwLock,
        is_mixed: true,
        keys: 2,
        is_in_parts: true,
        actions: || arriving(Mode::Read, &[(Asks::Bound, None)]),
        ..PLAIN
    };
    static FAIR: Setup = Setup {
        kind: Kind::Fair,
        other_kind: Kind::Fair,
        is_mixed: true,
        keys: 2,
        is_in_parts: true,
        actions: || arriving(Mode::Exclusive, &[(Asks::Bound, None), (Asks::Wait, Some(1))]),
        ..PLAIN
    };
    search("in parts: readers with sessions", &READERS);
    search("in parts: fair", &FAIR);
}
