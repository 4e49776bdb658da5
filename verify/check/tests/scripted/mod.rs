//! Scripted histories.

use rlock_check::history::{Call, History, Key, Kind, Mode, Operation, Outcome, Rule};
use rlock_check::rules::check;

/// A history of two locks of one kind, built call by call. Times are in milliseconds; nothing
/// fails.
pub struct Scripted(pub History);

pub const ALONE: Mode = Mode::Exclusive;

impl Scripted {
    pub fn of(kind: Kind, permits: u32) -> Scripted {
        let key = |name: &str| Key { name: name.into(), kind, permits };
        Scripted(History { keys: vec![key("k"), key("other")], is_undisturbed: true, ..History::default() })
    }

    pub fn mutex() -> Scripted {
        Scripted::of(Kind::Mutex, 1)
    }

    /// As in every campaign but that of the wall clock.
    pub fn under_faults(mut self) -> Scripted {
        self.0.is_undisturbed = false;
        self
    }

    pub fn on(mut self, key: u32, owner: u64, mode: Mode, ms: [u64; 2], call: Call, outcome: Outcome) -> Scripted {
        let order = self.0.operations.len() as u64 + 1;
        let [sent_us, answered_us] = ms.map(|ms| ms * 1000);
        self.0.operations.push(Operation { key, owner, mode, sent_us, answered_us, order, call, outcome });
        self
    }

    pub fn call(self, owner: u64, mode: Mode, ms: [u64; 2], call: Call, outcome: Outcome) -> Scripted {
        self.on(0, owner, mode, ms, call, outcome)
    }

    pub fn broken(mut self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&mut self.0).into_iter().map(|violation| violation.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}
