//! A hold: what an owner has of a lock in one mode.

use alloc::boxed::Box;

use crate::bytes::Owner;
use crate::event::Terms;
use crate::lock::Mode;
use crate::request::RequestMark;
use crate::time::Now;

/// What an owner has in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    owner: Owner,
    token: u64,
    deadline_us: u64,
    lease_ms: u64,
    /// Most holds are neither numbered nor bound to a connection: those two live apart.
    extras: Option<Box<Extras>>,
    count: u32,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extras {
    request: Option<RequestMark>,
    session_ms: Option<u64>,
}

impl Hold {
    pub(crate) fn new(owner: Owner, mode: Mode, token: u64, terms: &Terms) -> Self {
        let mut hold = Self { owner, token, deadline_us: 0, lease_ms: 0, extras: None, count: 0, mode };
        hold.set_terms(terms);
        hold
    }

    pub(crate) fn set_terms(&mut self, terms: &Terms) {
        self.count = terms.count;
        self.deadline_us = terms.deadline_us;
        self.lease_ms = terms.lease_ms;
        let extras = Extras { request: terms.request, session_ms: terms.session_ms };
        self.extras = (extras.request.is_some() || extras.session_ms.is_some()).then(|| Box::new(extras));
    }

    /// Who holds.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// In which mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Re-entries, or permits.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// When the lease ends.
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// The last numbered request.
    #[must_use]
    pub fn request(&self) -> Option<RequestMark> {
        self.extras.as_ref()?.request
    }

    /// The grace after the last connection that the hold is bound to closes.
    #[must_use]
    pub fn session_ms(&self) -> Option<u64> {
        self.extras.as_ref()?.session_ms
    }

    /// The terms as they are.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            count: self.count,
            deadline_us: self.deadline_us,
            lease_ms: self.lease_ms,
            request: self.request(),
            session_ms: self.session_ms(),
        }
    }

    /// Whether the lease has not ended.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.deadline_us > now.mono_us
    }

    /// Milliseconds of lease left, rounded up.
    #[must_use]
    pub fn lease_left_ms(&self, now: Now) -> u64 {
        now.left_ms(self.deadline_us)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let extras = self.extras.as_ref().map_or(0, |_| size_of::<Extras>());
        self.owner.heap_bytes().saturating_add(extras)
    }
}
