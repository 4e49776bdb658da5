//! Grants holds and renews their leases.
//!
//! Invariant: holds are granted only in [`Engine::grant`].

use smallvec::SmallVec;

use super::Engine;
use super::transaction::{At, Transaction};
use crate::event::{ChangeCause, Event, Phase, Terms, note_after};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Mode;
use crate::lock::admission::Value;
use crate::request::{Refusal, Request, RequestMark};
use crate::sessions::Binding;

/// What a RENEW, or a repeated ACQUIRE, changes in a hold.
pub(super) struct Renewal<'a> {
    pub(super) lease_ms: Option<u64>,
    pub(super) session_ms: Option<u64>,
    pub(super) client: Option<u64>,
    /// The request mark that the hold has afterwards.
    pub(super) mark: Option<RequestMark>,
    /// `NOTE text`.
    pub(super) note: Option<&'a [u8]>,
    /// Propagate the renewal even if nothing changed.
    pub(super) always: bool,
}

/// Whether a request waited for its grant.
#[derive(Clone, Copy)]
pub(super) enum GrantTiming<'a> {
    /// It did not wait: its reply is the grant.
    AtOnce,
    /// It waited, so its owner may be gone. A count that it adds to an existing hold lasts for the
    /// claim too, and does not change the phase of the hold.
    AfterWait {
        /// `NOTE text` of the request that waited.
        note: Option<&'a [u8]>,
    },
}

impl GrantTiming<'_> {
    /// The duration of the grant, and the phase of a hold that begins with it.
    fn duration_and_phase(self, request: &Request, is_reentry: bool) -> (u64, Phase) {
        match request.claim_ms {
            Some(claim_ms) if !(is_reentry && matches!(self, GrantTiming::AtOnce)) => {
                (claim_ms.min(request.lease_ms), Phase::Unclaimed)
            }
            _ => (request.lease_ms, Phase::Held),
        }
    }
}

impl Engine {
    /// Checks that there is a token for each new hold of a request.
    pub(super) fn check_tokens(
        &self,
        tx: &Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<(), Refusal> {
        let left = self.tokens_left();
        if left >= tx.keys.count() as u64 {
            return Ok(());
        }
        let is_new = |id: &KeyId| {
            let hold = tx.keys.value(*id).hold(request.kind, owner, request.mode, tx.now);
            !matches!(hold, Ok(Some(_)))
        };
        if left < tx.ids().filter(is_new).count() as u64 { Err(Refusal::NoTokens) } else { Ok(()) }
    }

    /// The only function that grants: a new hold, or one more count of the owner's hold. The caller
    /// has checked that the lock admits it. `client` is the connection to bind the hold to, if it
    /// has a session.
    pub(super) fn grant(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        client: Option<u64>,
        timing: GrantTiming<'_>,
    ) -> Result<u64, Refusal> {
        let is_vacant = matches!(at.value(), Value::Vacant);
        if request.mode.is_exclusive() && !is_vacant {
            // An exclusive hold must be the only hold in the value, so expired holds of others end.
            // The owner's own is handled below.
            self.clear_expired(at, Some(owner));
        } else if request.mode == Mode::Read {
            self.end_expired_writer(at, owner);
        }
        let held = if is_vacant { None } else { at.live_terms(request.kind, owner, request.mode)? };
        let is_reentry = held.is_some();
        let note = match timing {
            GrantTiming::AtOnce => at.note,
            GrantTiming::AfterWait { note } => note,
        };
        let (lasts_ms, phase) = timing.duration_and_phase(request, is_reentry);
        let deadline_us = at.now.after_ms(lasts_ms);
        // Each arm commits its own event: inlined for a known variant, the code is smaller and
        // faster.
        let token = match held {
            Some((token, terms)) => {
                let terms = Terms {
                    count: terms.count.checked_add(request.count).ok_or(Refusal::CountOverflow)?,
                    deadline_us: terms.deadline_us.max(deadline_us),
                    lease_ms: request.lease_ms,
                    request: request.mark(request.count).or(terms.request),
                    session_ms: request.session_ms.or(terms.session_ms),
                    phase: if matches!(timing, GrantTiming::AtOnce) { Phase::Held } else { terms.phase },
                    note: note_after(terms.note, note),
                };
                self.commit_inline(at, Event::Changed { token, cause: ChangeCause::Reentered, terms });
                token
            }
            None => {
                let token = self.next_number(at.now)?;
                if !is_vacant {
                    self.end_expired_own(at, owner, request.mode);
                }
                let terms = Terms {
                    count: request.count,
                    deadline_us,
                    lease_ms: request.lease_ms,
                    request: request.mark(request.count),
                    session_ms: request.session_ms,
                    phase,
                    note: note_after(None, note),
                };
                let (kind, mode, owner) = (request.kind, request.mode, owner.into());
                self.commit_inline(at, Event::Granted { kind, owner, mode, token, terms });
                token
            }
        };
        match client {
            Some(client) => self.bind(at, token, client),
            None if is_reentry => self.keep_session(at, token),
            None => {}
        }
        Ok(token)
    }

    /// A retry or `ONCE` of what the owner already holds: renews the lease, counts nothing.
    pub(super) fn repeat(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        token: u64,
        request: &Request,
        client: Option<u64>,
        note: Option<&[u8]>,
    ) {
        let Some(terms) = at.terms_of(token) else {
            return;
        };
        let renewal = Renewal {
            lease_ms: Some(request.lease_ms),
            session_ms: request.session_ms,
            client,
            // A retry adds nothing to what its request has added before.
            mark: match terms.request {
                Some(last) if Some(last.id) == request.request_id => Some(last),
                last => request.mark(0).or(last),
            },
            note,
            // A WAIT after this request then proves that replicas have the hold.
            always: true,
        };
        self.renew_hold(at, token, terms, &renewal);
    }

    /// Gives a hold a new lease, which never shortens the deadline.
    pub(super) fn renew_hold(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        token: u64,
        terms: Terms,
        renewal: &Renewal<'_>,
    ) {
        let lease_ms = renewal.lease_ms.unwrap_or(terms.lease_ms).min(at.limits.max_lease_ms);
        let renewed = Terms {
            deadline_us: terms.deadline_us.max(at.now.after_ms(lease_ms)),
            lease_ms,
            session_ms: renewal.session_ms.or(terms.session_ms),
            request: renewal.mark,
            phase: Phase::Held,
            note: note_after(terms.note.clone(), renewal.note),
            ..terms
        };
        if renewal.always || renewed != terms {
            self.commit(at, Event::Changed { token, cause: ChangeCause::Renewed, terms: renewed });
        }
        match renewal.client {
            Some(client) => self.bind(at, token, client),
            None => self.keep_session(at, token),
        }
    }

    /// Keeps the session of a hold that was used without a connection, as in a script: the owner
    /// got an answer, so neither the pending review of an imported value nor the pending cleanup
    /// after a closed connection may end the session. Bindings to open connections stay.
    fn keep_session(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64) {
        self.unbind_closed(at, token);
        let name = self.name(at);
        if let Some(dirty) = name.and_then(|name| self.registry.dirty_mut(name))
            && dirty.review.is_some_and(|review| review.imported)
            && at.terms_of(token).is_some_and(|terms| terms.session_ms.is_some())
        {
            dirty.sessions_kept.insert(token);
        }
    }

    /// Unbinds a hold from closed connections, so that the cleanup after them does not affect it.
    fn unbind_closed(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64) {
        let Some(lock) = at.lock() else {
            return;
        };
        let is_closed = |client: &u64| {
            let binding = Binding { client: *client, token, key: at.key().to_key() };
            self.sessions.is_disconnected(&binding)
        };
        let closed: SmallVec<[u64; 1]> = lock.clients(token).iter().copied().filter(is_closed).collect();
        for client in closed {
            self.unbind(at, token, client);
        }
    }
}
