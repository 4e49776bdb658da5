//! The jobs of the timer, and the results of its sources of work.

use crate::bytes::Key;
use crate::collections::Alarm;

/// A key with work for the timer.
#[derive(Clone, Debug)]
pub struct Job {
    /// The key to open.
    pub key: Key,
    /// The alarm that has fired.
    pub(super) fired: Option<Alarm>,
}

impl From<Key> for Job {
    fn from(key: Key) -> Self {
        Self { key, fired: None }
    }
}

/// The result of one source of work.
pub(super) enum TimerStep {
    /// It has no work now.
    Nothing,
    /// It did work that needs no key.
    Done,
    /// It has work to do on this key.
    Job(Job),
}

impl TimerStep {
    /// The work on a key, if there is one.
    pub(super) fn on(key: Option<Key>) -> Self {
        key.map_or(Self::Nothing, |key| Self::Job(key.into()))
    }
}
