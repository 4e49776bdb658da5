//! Scripted histories of one lock.

use rlock_check::history::{Call, History, Key, Kind, Mode, Operation, Outcome, Rule};
use rlock_check::rules::check;

/// A history of one key, built call by call. Times are in milliseconds.
pub struct Scripted(pub History);

impl Scripted {
    pub fn of(kind: Kind, permits: u32) -> Scripted {
        Scripted(History { keys: vec![Key { name: "k".into(), kind, permits }], ..History::default() })
    }

    pub fn mutex() -> Scripted {
        Scripted::of(Kind::Mutex, 1)
    }

    pub fn call(
        mut self,
        owner: u64,
        mode: Mode,
        sent_ms: u64,
        answered_ms: u64,
        call: Call,
        outcome: Outcome,
    ) -> Scripted {
        let order = self.0.operations.len() as u64 + 1;
        let (sent_us, answered_us) = (sent_ms * 1000, answered_ms * 1000);
        self.0.operations.push(Operation { key: 0, owner, mode, sent_us, answered_us, order, call, outcome });
        self
    }

    pub fn granted(self, owner: u64, mode: Mode, at_ms: u64, token: u64) -> Scripted {
        self.call(owner, mode, at_ms, at_ms + 1, acquire(1, None, None), Outcome::Granted(token))
    }

    pub fn released(self, owner: u64, mode: Mode, at_ms: u64, left: u64) -> Scripted {
        self.call(
            owner,
            mode,
            at_ms,
            at_ms + 1,
            Call::Release { count: 1, token: None, request_id: None },
            Outcome::Number(left),
        )
    }

    pub fn broken(mut self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&mut self.0).into_iter().map(|violation| violation.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

pub fn acquire(count: u32, block_ms: Option<u64>, request_id: Option<u64>) -> Call {
    acquire_for(30_000, count, block_ms, request_id)
}

pub fn acquire_for(lease_ms: u64, count: u32, block_ms: Option<u64>, request_id: Option<u64>) -> Call {
    Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place: false, is_once: false }
}

pub const ALONE: Mode = Mode::Exclusive;
