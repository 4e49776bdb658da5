//! Worlds with numbered requests (REQ), each of which may be a retry, late, or the next one; and
//! with semaphores whose permits change meanwhile.

use std::vec::Vec;

use super::action::{Action, Asks};
use super::search::{PLAIN, Setup, search};
use super::{EXCLUSIVE, with};
use crate::kind::{Kind, Mode};

const IDS: [u64; 2] = [1, 2];

/// Each owner acquires and releases with each number, and acquires more without one.
fn numbered(keys: usize, modes: &[(Mode, u32)], asks: &[Asks]) -> Vec<Action> {
    let mut actions = Vec::new();
    for (key, owner) in (0..keys).flat_map(|key| [0, 1].map(|owner| (key, owner))) {
        for (mode, count) in modes.iter().copied() {
            for id in IDS.map(Some) {
                actions.extend(asks.iter().map(|ask| Action::Acquire { key, owner, mode, count, ask: *ask, id }));
            }
        }
        let (mode, count) = modes[0];
        actions.extend(IDS.map(|id| Action::Release { key, owner, mode, id: Some(id) }));
        actions.push(Action::Acquire { key, owner, mode, count, ask: Asks::Try, id: None });
        if key == 0 {
            actions.extend(IDS.map(|id| Action::Cancel { owner, id: Some(id) }));
        }
        actions.push(Action::Leave { key, owner });
    }
    with(actions, &[Action::Delete { key: 0 }, Action::Hear])
}

#[test]
fn numbered_requests_match_the_oracle() {
    const ASKS: &[Asks] = &[Asks::Try, Asks::Wait];
    static MUTEX: Setup = Setup { actions: || numbered(1, EXCLUSIVE, &[Asks::Try, Asks::WaitForEver]), ..PLAIN };
    static MUTEXES: Setup = Setup { keys: 2, actions: || numbered(2, EXCLUSIVE, &[Asks::Wait]), ..PLAIN };
    static RWLOCK: Setup =
        Setup { kind: Kind::RwLock, actions: || numbered(1, &[(Mode::Read, 1), (Mode::Write, 1)], ASKS), ..PLAIN };
    static SEMAPHORE: Setup = Setup {
        kind: Kind::Semaphore,
        permits: 2,
        actions: || {
            let resized = [1, 2].map(|permits| Action::Resize { permits });
            [numbered(1, &[(Mode::Permits, 1), (Mode::Permits, 2)], ASKS), resized.to_vec()].concat()
        },
        ..PLAIN
    };
    static FAIR: Setup =
        Setup { kind: Kind::Fair, actions: || numbered(1, EXCLUSIVE, &[Asks::Try, Asks::Wait, Asks::Queue]), ..PLAIN };
    search("REQ: mutex, 1 key, 2 owners", &MUTEX);
    search("REQ: mutex, 2 keys, 2 owners", &MUTEXES);
    search("REQ: rwlock, 1 key, 2 owners", &RWLOCK);
    search("REQ: semaphore, 1 key, 2 owners", &SEMAPHORE);
    search("REQ: fair, 1 key, 2 owners", &FAIR);
}
