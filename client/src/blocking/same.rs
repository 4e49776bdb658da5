//! Macros for methods that wrap the asynchronous ones. Each type here has the asynchronous object
//! in `self.0.inner` and its runtime in `self.0.driver`.

/// Methods that block.
macro_rules! waits {
    ($of:literal $($name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[doc = concat!("See [`", $of, "::", stringify!($name), "`].")]
        ///
        /// # Errors
        ///
        /// As the asynchronous method.
        pub fn $name(&self, $($argument: $type),*) -> Result<$out, crate::Error> {
            self.0.driver.wait(self.0.inner.$name($($argument),*))
        }
    )*};
}
pub(super) use waits;

/// Methods that return at once.
macro_rules! looks {
    ($of:literal $($name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[doc = concat!("See [`", $of, "::", stringify!($name), "`].")]
        pub fn $name(&self, $($argument: $type),*) -> $out {
            self.0.inner.$name($($argument),*)
        }
    )*};
}
pub(super) use looks;

/// Options of an acquisition.
macro_rules! options {
    ($of:literal $($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("See [`", $of, "::", stringify!($name), "`].")]
        #[must_use]
        pub fn $name(self, $($argument: $type),*) -> Self {
            Self(self.0.map(|inner| inner.$name($($argument),*)))
        }
    )*};
}
pub(super) use options;

/// The options of every kind of lock.
macro_rules! all_options {
    () => {
        crate::blocking::same::options! { "crate::Lock"
            lease(lease: std::time::Duration);
            fixed_lease(lease: std::time::Duration);
            session_grace(grace: std::time::Duration);
            max_hold(most: std::time::Duration);
            owner(owner: impl AsRef<[u8]>);
            note(note: impl AsRef<[u8]>);
            replicas(replicas: u32, timeout: std::time::Duration);
        }
    };
}
pub(super) use all_options;

/// The methods that acquire, and `run`.
macro_rules! acquiring {
    ($guard:ty, $of:literal) => {
        #[doc = concat!("See [`", $of, "::try_acquire`].")]
        ///
        /// # Errors
        ///
        /// As the asynchronous method.
        pub fn try_acquire(&self) -> Result<Option<$guard>, crate::Error> {
            Ok(self.0.wait(self.0.inner.try_acquire())?.map(|guard| <$guard>::over(&self.0.driver, guard)))
        }

        #[doc = concat!("See [`", $of, "::acquire`].")]
        ///
        /// # Errors
        ///
        /// As the asynchronous method.
        pub fn acquire(&self) -> Result<$guard, crate::Error> {
            Ok(<$guard>::over(&self.0.driver, self.0.wait(self.0.inner.acquire())?))
        }

        #[doc = concat!("See [`", $of, "::acquire_timeout`].")]
        ///
        /// # Errors
        ///
        /// As the asynchronous method.
        pub fn acquire_timeout(&self, timeout: std::time::Duration) -> Result<$guard, crate::Error> {
            Ok(<$guard>::over(&self.0.driver, self.0.wait(self.0.inner.acquire_timeout(timeout))?))
        }

        /// Acquires the lock, calls `work`, and releases the lock, even if `work` panics. A lost
        /// lock does not stop `work`: call `is_held` in it before each step that needs the lock.
        ///
        /// # Errors
        ///
        /// As [`acquire`](Self::acquire). [`Error::Lost`](crate::Error::Lost) if the lock was lost
        /// before `work` returned, or if the release finds that the hold had ended; the result of
        /// `work` is then discarded. Any other failure of the release is only logged.
        pub fn run<T>(&self, work: impl FnOnce(&$guard) -> T) -> Result<T, crate::Error> {
            let guard = self.acquire()?;
            let done = work(&guard);
            if !guard.is_held() {
                return Err(crate::Error::Lost);
            }
            match guard.release() {
                Ok(()) => {}
                Err(crate::Error::Lost) => return Err(crate::Error::Lost),
                Err(error) => tracing::warn!(%error, "the work is done, but its lock could not be released"),
            }
            Ok(done)
        }

        /// Lets another thread interrupt the waits, which then fail with
        /// [`Error::Interrupted`](crate::Error::Interrupted). The client cleans up an interrupted
        /// request in the background.
        #[must_use]
        pub fn interrupted_by(mut self, interrupt: &crate::blocking::Interrupt) -> Self {
            self.0.interrupt = Some(interrupt.clone());
            self
        }
    };
}
pub(super) use acquiring;

/// The methods of every guard.
macro_rules! holding {
    ($inner:ty, $of:literal) => {
        pub(super) fn over(driver: &crate::blocking::driver::Driver, guard: $inner) -> Self {
            let released = guard.released();
            Self(crate::blocking::driver::Kept::new(driver, guard, released))
        }

        #[doc = concat!("See [`", $of, "::is_held`]. Check it before each step that needs the lock.")]
        pub fn is_held(&self) -> bool {
            self.0.inner.is_held()
        }

        #[doc = concat!("See [`", $of, "::valid_for`].")]
        pub fn valid_for(&self) -> std::time::Duration {
            self.0.inner.valid_for()
        }

        #[doc = concat!("See [`", $of, "::lost`]: blocks until the lock is lost.")]
        pub fn wait_until_lost(&self) {
            let lost = self.0.inner.lost();
            // Without a runtime nothing renews the hold, so treat it as lost.
            let _ = self.0.driver.wait(async { Ok(lost.await) });
        }

        crate::blocking::same::waits! { $of renew() -> (); }

        #[doc = concat!("See [`", $of, "::release`].")]
        ///
        /// # Errors
        ///
        /// As the asynchronous method.
        pub fn release(self) -> Result<(), crate::Error> {
            self.0.end(|inner| inner.release())
        }
    };
}
pub(super) use holding;
