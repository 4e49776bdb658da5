//! Lets one test run for all kinds of locks: its commands begin with `LOCK.`, and each family
//! translates them to its own commands.
//!
//! A client turns `LOCK.ACQUIRE job a PX 5000` into `RLOCK.ACQUIRE job a PX 5000` or
//! `RRWLOCK.ACQUIRE job a WRITE PX 5000`, depending on the family of its server. This also works
//! inside EVAL.

use super::client::Command;

/// A family of commands and, for read-write locks, the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    prefix: &'static str,
    mode: Option<&'static str>,
    /// Only semaphores have this: the number of permits to create them with.
    permits: Option<u32>,
    /// Shown by RLOCK.INFO.
    pub kind: &'static str,
    pub shown_mode: &'static str,
}

pub const MUTEX: Family = Family { prefix: "RLOCK", mode: None, permits: None, kind: "mutex", shown_mode: "exclusive" };
pub const FAIR: Family = Family { prefix: "RFAIRLOCK", kind: "fair", ..MUTEX };
pub const READ: Family = Family { prefix: "RRWLOCK", mode: Some("READ"), kind: "rwlock", shown_mode: "read", ..MUTEX };
pub const WRITE: Family = Family { mode: Some("WRITE"), shown_mode: "write", ..READ };
/// As many permits as one owner of a test ever takes.
pub const SEMAPHORE: Family =
    Family { prefix: "RSEMAPHORE", permits: Some(100), kind: "semaphore", shown_mode: "permits", ..MUTEX };
/// One permit, so that it behaves like an exclusive lock.
pub const BINARY: Family = Family { permits: Some(1), ..SEMAPHORE };

/// For properties of a hold that do not depend on other holders.
pub const ALL: &[Family] = &[MUTEX, FAIR, READ, WRITE, SEMAPHORE];
/// Like [`ALL`], without semaphores, whose key stays when idle.
pub const TRANSIENT: &[Family] = &[MUTEX, FAIR, READ, WRITE];
/// For locks that one owner holds while others wait.
pub const EXCLUSIVE: &[Family] = &[MUTEX, FAIR, WRITE, BINARY];
/// Like [`EXCLUSIVE`], without semaphores: there a repeated ACQUIRE by the holder is an ordinary
/// request.
pub const REENTRANT: &[Family] = &[MUTEX, FAIR, WRITE];

impl Family {
    /// A key name of this family alone, for tests that use locks of all kinds side by side.
    pub fn key(self, name: &str) -> String {
        format!("{name}-{}-{}", self.kind, self.shown_mode)
    }

    /// Whether the key is deleted when the lock has no holder.
    pub fn goes_when_idle(self) -> bool {
        self.permits.is_none()
    }

    /// The command that creates a lock, if the family needs one.
    pub(super) fn creation(self, key: &str) -> Option<String> {
        self.permits.map(|permits| format!("RSEMAPHORE.INIT {key} {permits}"))
    }

    /// Replaces `LOCK.` in a command by this family's name, and adds the mode.
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
