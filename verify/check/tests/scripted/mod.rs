//! Histories that are made call by call.

use rlock_check::history::{Call, History, Key, Kind, Mode, Operation, Outcome, Rule};
use rlock_check::rules::check;

/// A history of two locks of one kind. Times are in milliseconds; nothing fails in it.
pub struct Told(pub History);

pub const ALONE: Mode = Mode::Exclusive;

impl Told {
    pub fn of(kind: Kind, permits: u32) -> Told {
        let key = |name: &str| Key { name: name.into(), kind, permits };
        Told(History { keys: vec![key("k"), key("other")], is_undisturbed: true, ..History::default() })
    }

    pub fn mutex() -> Told {
        Told::of(Kind::Mutex, 1)
    }

    /// As in any campaign but that of the wall clock.
    pub fn under_faults(mut self) -> Told {
        self.0.is_undisturbed = false;
        self
    }

    pub fn on(mut self, key: u32, owner: u64, mode: Mode, ms: [u64; 2], call: Call, outcome: Outcome) -> Told {
        let order = self.0.operations.len() as u64 + 1;
        let [sent_us, answered_us] = ms.map(|ms| ms * 1000);
        self.0.operations.push(Operation { key, owner, mode, sent_us, answered_us, order, call, outcome });
        self
    }

    pub fn call(self, owner: u64, mode: Mode, ms: [u64; 2], call: Call, outcome: Outcome) -> Told {
        self.on(0, owner, mode, ms, call, outcome)
    }

    pub fn broken(mut self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&mut self.0).into_iter().map(|violation| violation.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}
