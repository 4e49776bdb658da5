//! Functions that the module sets when it loads, and that the server's callbacks call.

use std::sync::OnceLock;

/// A value that the module sets once, when it loads, before the server calls back.
pub(super) struct AtLoad<T>(OnceLock<T>);

impl<T: Copy> AtLoad<T> {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Sets the value. A second load, after one that failed, sets the same value again.
    pub(super) fn set(&self, value: T) {
        self.0.get_or_init(|| value);
    }

    /// The value. Call this only inside `guard`.
    #[expect(clippy::expect_used, reason = "caught by guard() at the edge of the callback; unreachable after a load")]
    pub(super) fn get(&self) -> T {
        *self.0.get().expect("the module was not loaded")
    }
}
