//! One test for all kinds of locks: its commands begin with `LOCK.`, and each family says them in its own words.
//!
//! A client turns `LOCK.ACQUIRE job a PX 5000` into `RLOCK.ACQUIRE job a PX 5000` or `RRWLOCK.ACQUIRE job a WRITE PX 5000`,
//! whichever family its server was started for. Inside EVAL, too.

use super::client::Command;

/// A family of commands, and on a read-write lock the mode that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    prefix: &'static str,
    mode: Option<&'static str>,
    /// A semaphore has to be made before it is used.
    permits: Option<u32>,
    /// What RLOCK.INFO says.
    pub kind: &'static str,
    pub shown_mode: &'static str,
}

pub const MUTEX: Family = Family { prefix: "RLOCK", mode: None, permits: None, kind: "mutex", shown_mode: "exclusive" };
pub const FAIR: Family = Family { prefix: "RFAIRLOCK", kind: "fair", ..MUTEX };
pub const READ: Family = Family { prefix: "RRWLOCK", mode: Some("READ"), kind: "rwlock", shown_mode: "read", ..MUTEX };
pub const WRITE: Family = Family { mode: Some("WRITE"), shown_mode: "write", ..READ };
/// Enough permits for whatever one owner takes.
pub const SEMAPHORE: Family =
    Family { prefix: "RSEMAPHORE", permits: Some(100), kind: "semaphore", shown_mode: "permits", ..MUTEX };
/// One permit, which makes it a lock that one owner has at a time.
pub const BINARY: Family = Family { permits: Some(1), ..SEMAPHORE };

/// For what is true of a hold, whoever else holds.
pub const ALL: &[Family] = &[MUTEX, FAIR, READ, WRITE, SEMAPHORE];
/// The same of those that go when nobody holds.
pub const TRANSIENT: &[Family] = &[MUTEX, FAIR, READ, WRITE];
/// For what is true of a lock that one owner holds and others want.
pub const EXCLUSIVE: &[Family] = &[MUTEX, FAIR, WRITE, BINARY];
/// The same where the owner that holds asks again, which on a semaphore is a request like any other.
pub const REENTRANT: &[Family] = &[MUTEX, FAIR, WRITE];

impl Family {
    /// A name that is like no other family's, where locks of all kinds are side by side.
    pub fn key(self, name: &str) -> String {
        format!("{name}-{}-{}", self.kind, self.shown_mode)
    }

    /// Whether the key goes when nobody holds.
    pub fn goes_when_idle(self) -> bool {
        self.permits.is_none()
    }

    /// What makes a lock under a key ready to be asked for, if that needs a command.
    pub(super) fn making(self, key: &str) -> Option<String> {
        self.permits.map(|permits| format!("RSEMAPHORE.INIT {key} {permits}"))
    }

    /// A command in the words of this family.
    pub(super) fn translate(self, command: &mut Command) {
        let words = &mut command.0;
        let Some(at) = words.iter().position(|word| word.starts_with(b"LOCK.")) else {
            return;
        };
        let name = words[at].split_off(b"LOCK.".len());
        let has_mode = [b"ACQUIRE".as_slice(), b"RELEASE", b"RENEW", b"HOLDS"].contains(&name.as_slice());
        words[at] = [self.prefix.as_bytes(), b".", &name].concat();
        if let Some(mode) = self.mode.filter(|_| has_mode) {
            words.insert(at + 3, mode.into());
        }
    }
}
