//! Functions that the module gives this library when it is loaded, for the server's callbacks to call.

use std::sync::OnceLock;

/// A value that is set once, while the module is loaded and before the server calls back.
pub(super) struct AtLoad<T>(OnceLock<T>);

impl<T: Copy> AtLoad<T> {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Sets the value. A second load, after one that failed, sets the same value again.
    pub(super) fn set(&self, value: T) {
        self.0.get_or_init(|| value);
    }

    /// The value. Called inside `guard` only.
    #[expect(clippy::expect_used, reason = "caught by guard() at the edge of the callback; unreachable after a load")]
    pub(super) fn get(&self) -> T {
        *self.0.get().expect("the module was not loaded")
    }
}
