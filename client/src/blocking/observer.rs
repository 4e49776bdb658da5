//! Observes a lock without holding it.

use std::time::Duration;

#[cfg(feature = "events")]
use crate::Error;
#[cfg(feature = "events")]
use crate::blocking::driver::Interrupt;
use crate::blocking::driver::On;
use crate::blocking::same::waits;
#[cfg(feature = "events")]
use crate::listeners::Event;
use crate::observer::{Holder, Waiter};

/// Observes one lock of any kind, see [`crate::Observer`].
#[derive(Clone, Debug)]
pub struct Observer(pub(super) On<crate::Observer>);

impl Observer {
    waits! { "crate::Observer"
        is_locked() -> bool;
        lease_left() -> Option<Duration>;
        holders() -> Vec<Holder>;
        waiters() -> Vec<Waiter>;
        force_release() -> bool;
        force_release_of(token: u64) -> bool;
    }

    /// See [`crate::Observer::events`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    #[cfg(feature = "events")]
    pub fn events(&self) -> Result<Events, Error> {
        Ok(Events(self.0.driver.with(self.0.driver.wait(self.0.inner.events())?)))
    }
}

/// An endless iterator over the events of a lock, see [`crate::Events`]. Each `next` blocks until
/// an event comes, as [`crate::Events::next`] waits.
#[cfg(feature = "events")]
#[derive(Debug)]
pub struct Events(On<crate::Events>);

#[cfg(feature = "events")]
impl Events {
    /// Lets another thread interrupt the waits, which then fail with [`Error::Interrupted`].
    #[must_use]
    pub fn interrupted_by(mut self, interrupt: &Interrupt) -> Self {
        self.0.interrupt = Some(interrupt.clone());
        self
    }
}

#[cfg(feature = "events")]
impl Iterator for Events {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let On { inner, driver, interrupt } = &mut self.0;
        Some(driver.wait_unless(interrupt.as_ref(), inner.next()))
    }
}
