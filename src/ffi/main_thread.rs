//! State that the server's global lock protects.

use std::cell::{Cell, RefCell};

/// A part of the module's state. It belongs to the thread that holds the server's global lock. It
/// is not thread-local, because another module may run rlock's commands on its own thread.
///
/// A call into the server may call back into the module. So the module borrows a part only while it
/// makes no such call. If a part is borrowed nevertheless, [`Self::with`] returns `None` instead of
/// a crash.
pub(crate) struct MainThread<T>(RefCell<T>);

// SAFETY: every callback of the module that uses such a part runs under the server's global lock,
// one at a time. The exception, `free` of a value, uses none.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Runs `body` on the part, or returns `None` if it is borrowed.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut value = self.0.try_borrow_mut().ok()?;
        Some(body(&mut value))
    }
}

/// A number that the server's global lock protects; 0 outside [`Self::with_set`].
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

    /// Sets the number while `body` runs. `body` only calls the server, and does not panic.
    pub(crate) fn with_set<R>(&self, number: usize, body: impl FnOnce() -> R) -> R {
        let before = self.0.replace(number);
        let result = body();
        self.0.set(before);
        result
    }
}
