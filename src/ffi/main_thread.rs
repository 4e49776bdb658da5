//! State under the server's global lock.

use std::cell::{Cell, RefCell};

/// A part of the module's state. It belongs to whichever thread holds the server's global lock: another module may make
/// commands of ours run on a thread of its own, so this is not thread-local.
///
/// Calls into the server may call back into the module. So a part is borrowed only while none is made, and who finds it
/// taken all the same gets `None` instead of a crash.
pub(crate) struct MainThread<T>(RefCell<T>);

// SAFETY: every callback of the module that reaches such a part runs under the server's global lock, one at a time; the
// one that may not, `free` of a value, reaches none.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Gives the part to `body`, or returns `None` if it is taken.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut value = self.0.try_borrow_mut().ok()?;
        Some(body(&mut value))
    }
}

/// A number under the server's global lock, 0 unless it is set.
pub(crate) struct MainThreadNumber(Cell<usize>);

// SAFETY: as for `MainThread`.
unsafe impl Sync for MainThreadNumber {}

impl MainThreadNumber {
    pub(crate) const fn new() -> Self {
        Self(Cell::new(0))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.get()
    }

    /// Sets the number while `body` runs. `body` calls the server, which does not panic.
    pub(crate) fn with_set<R>(&self, number: usize, body: impl FnOnce() -> R) -> R {
        let before = self.0.replace(number);
        let result = body();
        self.0.set(before);
        result
    }
}
