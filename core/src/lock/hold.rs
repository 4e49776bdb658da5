//! A hold: an owner's claim on a lock in one mode.
//!
//! There may be a million holds, so the fields are packed. Most holds have a small count and no
//! numbered request, session or note. They take 72 bytes if the owner's name has up to 38 bytes.

use alloc::boxed::Box;

use smallvec::SmallVec;

use crate::bytes::Owner;
use crate::collections::Optional;
use crate::event::{Note, Phase, Terms};
use crate::kind::Mode;
use crate::request::RequestMark;
use crate::time::{MAX_LEASE_MS, Now, US_PER_MS};

/// The most connections that a hold is bound to. One more replaces the least recently bound one, so
/// that renewals over a pool of any size use bounded memory.
pub(crate) const MAX_BOUND_CLIENTS: usize = 8;

/// An owner's claim on a lock in one mode.
#[derive(Debug)]
pub struct Hold {
    owner: Owner,
    token: u64,
    deadline_us: u64,
    extras: Option<Box<Extras>>,
    /// The lease in milliseconds, at most 365 days: the low 32 bits, and 3 more in `lease_high`.
    /// The two highest bits of `lease_high` are the phase.
    lease_low: u32,
    lease_high: u8,
    mode: Mode,
    /// The low half of the count; the high half is in the extras.
    count_low: u16,
}

/// The bits of [`Hold::lease_high`] that belong to the lease.
const LEASE_HIGH: u8 = 0b111;
const UNCLAIMED: u8 = 1 << 6;
const KEPT: u8 = 1 << 7;
const _: () = assert!(MAX_LEASE_MS >> u32::BITS <= LEASE_HIGH as u64, "every lease fits");
const _: () = assert!(size_of::<Extras>() <= 64, "extras are one cache line, and a class of the allocator");

fn phase_bits(phase: Phase) -> u8 {
    match phase {
        Phase::Held => 0,
        Phase::Unclaimed => UNCLAIMED,
        Phase::Kept => KEPT,
    }
}

/// The fields that most holds do not need.
#[derive(Clone, Debug)]
struct Extras {
    request: Option<RequestMark>,
    session_ms: Optional,
    note: Option<Box<Note>>,
    /// The connections that the hold is bound to, the most recently bound last. Never saved, and
    /// not part of a copy.
    clients: SmallVec<[u64; 1]>,
    count_high: u16,
}

impl Extras {
    /// The extras that `terms` need, without connections.
    fn of(terms: &Terms) -> Self {
        let [_, count_high] = halves(terms.count);
        let note = terms.note.clone().map(Box::new);
        let (request, session_ms) = (terms.request, terms.session_ms.into());
        Self { request, session_ms, note, clients: SmallVec::new(), count_high }
    }

    fn are_needed(terms: &Terms) -> bool {
        let [_, count_high] = halves(terms.count);
        terms.request.is_some() || terms.session_ms.is_some() || terms.note.is_some() || count_high != 0
    }
}

/// A copy of a hold is bound to no connection.
impl Clone for Hold {
    fn clone(&self) -> Self {
        Self::new(self.owner.clone(), self.mode, self.token, &self.terms())
    }
}

/// Compares owner, mode, token and terms, but not connections.
impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        (&self.owner, self.mode, self.token) == (&other.owner, other.mode, other.token) && self.terms() == other.terms()
    }
}

impl Eq for Hold {}

impl Hold {
    #[inline]
    pub(crate) fn new(owner: Owner, mode: Mode, token: u64, terms: &Terms) -> Self {
        let mut hold =
            Self { owner, token, deadline_us: 0, extras: None, lease_low: 0, lease_high: 0, mode, count_low: 0 };
        hold.set_terms(terms);
        hold
    }

    #[inline]
    pub(crate) fn set_terms(&mut self, terms: &Terms) {
        self.deadline_us = terms.deadline_us;
        let [a, b, c, d, high, ..] = terms.lease_ms.to_le_bytes();
        (self.lease_low, self.lease_high) =
            (u32::from_le_bytes([a, b, c, d]), high & LEASE_HIGH | phase_bits(terms.phase));
        let [low, _] = halves(terms.count);
        self.count_low = low;
        if !Extras::are_needed(terms) {
            self.extras = None;
            return;
        }
        let wanted = Extras::of(terms);
        match &mut self.extras {
            Some(extras) => {
                let clients = core::mem::take(&mut extras.clients);
                **extras = Extras { clients, ..wanted };
            }
            None => self.extras = Some(Box::new(wanted)),
        }
    }

    /// The owner of the hold.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The mode of the hold.
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
        let high = self.extras.as_ref().map_or(0, |extras| extras.count_high);
        (u32::from(high) << u16::BITS) | u32::from(self.count_low)
    }

    /// When the lease expires.
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// The last granted lease, in milliseconds.
    #[must_use]
    pub fn lease_ms(&self) -> u64 {
        (u64::from(self.lease_high & LEASE_HIGH) << u32::BITS) | u64::from(self.lease_low)
    }

    /// The phase of the hold.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.lease_high & !LEASE_HIGH {
            UNCLAIMED => Phase::Unclaimed,
            KEPT => Phase::Kept,
            _ => Phase::Held,
        }
    }

    /// The last numbered request.
    #[must_use]
    pub fn request(&self) -> Option<RequestMark> {
        self.extras.as_ref()?.request
    }

    /// How long the hold outlives the last connection that it is bound to, if it has a session.
    #[must_use]
    pub fn session_ms(&self) -> Option<u64> {
        self.extras.as_ref()?.session_ms.get()
    }

    /// The note, if there is one.
    #[must_use]
    pub fn note(&self) -> Option<&[u8]> {
        self.extras.as_ref()?.note.as_ref().map(|note| &***note)
    }

    /// The current terms.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            count: self.count(),
            deadline_us: self.deadline_us,
            lease_ms: self.lease_ms(),
            request: self.request(),
            session_ms: self.session_ms(),
            phase: self.phase(),
            note: self.note().map(Into::into),
        }
    }

    /// Whether the lease has not expired.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.deadline_us > now.mono_us
    }

    /// Milliseconds since the grant, derived from the token. Wrong by as much as the wall clock has
    /// stepped since.
    #[must_use]
    pub fn held_ms(&self, now: Now) -> u64 {
        now.wall_us.saturating_sub(self.token) / US_PER_MS
    }

    /// Milliseconds of lease left, rounded up.
    #[must_use]
    pub fn lease_left_ms(&self, now: Now) -> u64 {
        now.left_ms(self.deadline_us)
    }

    /// The connections that the hold is bound to.
    pub(crate) fn clients(&self) -> &[u64] {
        self.extras.as_ref().map_or(&[], |extras| &extras.clients)
    }

    /// Binds the hold to a connection, if it has a session. Returns whether this is a new binding,
    /// and the connection whose binding it replaced.
    pub(crate) fn bind(&mut self, client: u64) -> (bool, Option<u64>) {
        let Some(extras) = self.extras.as_mut().filter(|extras| extras.session_ms.get().is_some()) else {
            return (false, None);
        };
        let known = extras.clients.iter().position(|bound| *bound == client);
        if let Some(known) = known {
            extras.clients.remove(known);
        }
        let is_full = extras.clients.len() >= MAX_BOUND_CLIENTS;
        let displaced = is_full.then(|| extras.clients.remove(0));
        extras.clients.push(client);
        (known.is_none(), displaced)
    }

    /// Unbinds the hold from all connections.
    pub(crate) fn unbind_all(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.clients.clear();
        }
    }

    /// Unbinds the hold from a connection.
    pub(crate) fn unbind(&mut self, client: u64) {
        if let Some(extras) = &mut self.extras {
            extras.clients.retain(|bound| *bound != client);
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let extras = self.extras.as_ref().map_or(0, |extras| {
            let spilled = if extras.clients.spilled() { extras.clients.capacity() } else { 0 };
            let note = extras.note.as_ref().map_or(0, |note| size_of::<Note>().saturating_add(note.len()));
            size_of::<Extras>().saturating_add(spilled.saturating_mul(size_of::<u64>())).saturating_add(note)
        });
        self.owner.heap_bytes().saturating_add(extras)
    }
}

/// The low and the high half of a count.
fn halves(count: u32) -> [u16; 2] {
    let [a, b, c, d] = count.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Verb;

    #[test]
    fn packed_fields_round_trip() {
        for count in [1, 65_535, 65_536, u32::MAX] {
            for lease_ms in [1, u64::from(u32::MAX), 1 << 32, MAX_LEASE_MS] {
                for (request, phase) in [
                    (None, Phase::Held),
                    (Some(RequestMark { id: 7, verb: Verb::Acquire, added: 1 }), Phase::Unclaimed),
                    (None, Phase::Kept),
                ] {
                    let terms = Terms { count, deadline_us: 9, lease_ms, request, session_ms: None, phase, note: None };
                    let mut hold = Hold::new((&b"o"[..]).into(), Mode::Read, 5, &terms);
                    assert_eq!(hold.terms(), terms);
                    hold.set_terms(&Terms { count: 1, request: None, ..terms.clone() });
                    assert!(hold.extras.is_none());
                    hold.set_terms(&terms);
                    assert_eq!(hold.terms(), terms);
                }
            }
        }
    }

    #[test]
    fn hold_is_bound_to_its_most_recent_connections() {
        let terms = Terms {
            count: 1,
            deadline_us: 9,
            lease_ms: 1,
            request: None,
            session_ms: Some(0),
            phase: Phase::Held,
            note: None,
        };
        let mut hold = Hold::new((&b"o"[..]).into(), Mode::Read, 5, &terms);
        for client in 0..8 {
            assert_eq!(hold.bind(client), (true, None));
        }
        assert_eq!(hold.bind(0), (false, None));
        assert_eq!(hold.bind(8), (true, Some(1)));
        assert_eq!(hold.clients(), [2, 3, 4, 5, 6, 7, 0, 8]);
        assert!(hold.clone().clients().is_empty());
    }
}
