//! CANCEL and MCANCEL: an owner withdraws a request, which waits or was granted.

use super::Engine;
use super::fair::place_of;
use super::transaction::{At, Transaction};
use crate::event::{ChangeCause, EndCause, Event, LeaveCause, Terms};
use crate::keyspace::Keyspace;
use crate::kind::{Kind, Mode};
use crate::outbox::Answer;
use crate::place::Place;
use crate::registry::Waiter;
use crate::request::{Cancel, Refusal, RequestMark, Verb};

impl Engine {
    /// CANCEL, MCANCEL. Reconciles the keys first, and so grants a request that can be granted.
    /// Returns whether it ended a wait, gave up a place on a fair lock, or took back what the
    /// request had added to a hold.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if a key holds something else; nothing was changed.
    pub fn cancel(&mut self, tx: &mut Transaction<'_, impl Keyspace>, request: &Cancel<'_>) -> Result<bool, Refusal> {
        self.budget.begin_command(tx.keys.count());
        for id in tx.ids() {
            self.reconcile(&mut tx.at(id), false);
        }
        let ended = self.cancel_reconciled(tx, request);
        self.close(tx);
        ended
    }

    fn cancel_reconciled(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        request: &Cancel<'_>,
    ) -> Result<bool, Refusal> {
        for id in tx.ids() {
            match tx.keys.value(id).of_kind(request.kind, tx.now) {
                Ok(_) | Err(Refusal::NoSemaphore) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let mut has_ended = false;
        for id in tx.ids() {
            let at = &mut tx.at(id);
            // Both: a request that holds may wait for more.
            let ends_wait = self.cancel_wait(at, request)?;
            let ends_hold = self.cancel_holds(at, request);
            if ends_wait {
                self.reconcile(at, false);
            }
            if ends_hold {
                self.hand_over(at);
            }
            has_ended |= ends_wait || ends_hold;
        }
        Ok(has_ended)
    }

    /// Ends the wait of the owner, and gives up its place on a fair lock. Returns whether there was
    /// one.
    fn cancel_wait(&mut self, at: &mut At<'_, '_, impl Keyspace>, request: &Cancel<'_>) -> Result<bool, Refusal> {
        let has_place = self.cancels_place(at, request)?;
        let own = self.name(at).and_then(|name| self.registry.own_wait(request.owner, name));
        let is_meant = |ticket: &u64| {
            self.registry.get(*ticket).map(Waiter::request).is_some_and(|waiting| {
                let has_id = request.request_id.is_none_or(|id| waiting.request_id == Some(id));
                // A request without an id may have taken over the place of the request with this
                // id.
                waiting.kind == request.kind && (has_id || has_place)
            })
        };
        let ticket = own.filter(is_meant);
        if let Some(ticket) = ticket {
            self.answer(at, ticket, Answer::Cancelled);
        }
        if has_place {
            self.commit(at, Event::Left { owner: request.owner.into(), cause: LeaveCause::Cancelled });
        }
        Ok(ticket.is_some() || has_place)
    }

    /// Whether the owner has a place on a fair lock that the request cancels.
    fn cancels_place(&self, tx: &Transaction<'_, impl Keyspace>, request: &Cancel<'_>) -> Result<bool, Refusal> {
        if request.kind != Kind::Fair {
            return Ok(false);
        }
        let lasts = |place: &Place<'_>| {
            place.is_live(tx.now) || place.stay.until_us().is_some_and(|until_us| self.begins_again(tx, until_us))
        };
        let place = place_of(tx, request.owner)?.filter(lasts);
        Ok(place.is_some_and(|place| request.request_id.is_none_or(|id| place.request_id == Some(id))))
    }

    /// Takes back the counts that the request has added to the owner's holds. A hold that it found
    /// with `ONCE` ends.
    fn cancel_holds(&mut self, at: &mut At<'_, '_, impl Keyspace>, request: &Cancel<'_>) -> bool {
        let Some(id) = request.request_id else {
            return false;
        };
        let mut has_ended = false;
        for mode in Mode::ALL {
            let Ok(Some((token, terms))) = at.live_terms(request.kind, request.owner, mode) else {
                continue;
            };
            let Some(mark) = terms.request.filter(|mark| mark.is_cancelled_by(id)) else {
                continue;
            };
            if let Some(name) = self.name(at) {
                self.pending.end(name, |of| of == token);
            }
            let left = if mark.added == 0 { 0 } else { terms.count.saturating_sub(mark.added) };
            self.commit(
                at,
                if left == 0 {
                    Event::Ended { token, cause: EndCause::Released }
                } else {
                    // A copy of the request that arrives late is stale.
                    let mark = RequestMark { id, verb: Verb::Cancel, added: 0 };
                    let terms = Terms { count: left, request: Some(mark), ..terms };
                    Event::Changed { token, cause: ChangeCause::Released, terms }
                },
            );
            has_ended = true;
        }
        has_ended
    }
}
