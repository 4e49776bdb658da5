//! CANCEL: an owner withdraws its waiting request.

use super::Engine;
use super::fair::place_of;
use super::transaction::Transaction;
use crate::event::{Event, LeaveCause};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::outbox::Answer;
use crate::place::Place;
use crate::registry::Waiter;
use crate::request::{Cancel, Refusal};

const KEY: KeyId = KeyId(0);

impl Engine {
    /// CANCEL. Reconciles the key first, and so grants a request that can be granted. Returns
    /// whether it ended a request or gave up a place on a fair lock.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn cancel(&mut self, tx: &mut Transaction<'_, impl Keyspace>, request: &Cancel<'_>) -> Result<bool, Refusal> {
        self.budget.begin_command(tx.keys.count());
        self.reconcile(&mut tx.at(KEY), false);
        let ended = self.cancel_reconciled(tx, request);
        self.close(tx);
        ended
    }

    fn cancel_reconciled(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        request: &Cancel<'_>,
    ) -> Result<bool, Refusal> {
        match tx.keys.value(KEY).of_kind(request.kind, tx.now) {
            Ok(_) | Err(Refusal::NoSemaphore) => {}
            Err(refusal) => return Err(refusal),
        }
        let has_place = self.cancels_place(tx, request)?;
        let own = self.name(&mut tx.at(KEY)).and_then(|name| self.registry.own_wait(request.owner, name));
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
            self.answer(tx, ticket, Answer::Cancelled);
        }
        if has_place {
            self.commit(&mut tx.at(KEY), Event::Left { owner: request.owner.into(), cause: LeaveCause::Cancelled });
        }
        let has_ended = ticket.is_some() || has_place;
        if has_ended {
            self.reconcile(&mut tx.at(KEY), false);
        }
        Ok(has_ended)
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
}
