//! CANCEL: an owner takes requests of its own back that wait.

use alloc::vec::Vec;

use super::state::{Engine, Transaction};
use crate::event::{Event, LeaveCause};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::outbox::Answer;
use crate::request::{Cancel, Refusal};

const KEY: KeyId = KeyId(0);

/// How many requests one CANCEL ends at most, each counted once for each of its keys: all of them are taken out of line, and their clients told, at
/// once.
const AT_ONCE: usize = 1_000;

impl Engine {
    /// CANCEL. Brings the key up to date first, so what could be granted is. Returns how many requests were ended: 1000 at most, or as many
    /// for several keys as have 1000 keys together. A place on a fair lock counts as one, with or without a connection.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn cancel(&mut self, tx: &mut Transaction<'_, impl Keyspace>, request: &Cancel<'_>) -> Result<usize, Refusal> {
        self.work.begin_command(tx.keys.count());
        self.reconcile(tx, KEY, false);
        let ended = self.cancel_reconciled(tx, request);
        self.close(tx);
        ended
    }

    fn cancel_reconciled(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        request: &Cancel<'_>,
    ) -> Result<usize, Refusal> {
        match tx.keys.value(KEY).of_kind(request.kind, tx.now) {
            Ok(_) | Err(Refusal::NoSemaphore) => {}
            Err(refusal) => return Err(refusal),
        }
        let mut tickets = self.tickets_of(tx, request);
        let has_place = self.gives_place_up(tx, request)?;
        if has_place && tickets.is_empty() {
            // A request without an id of its own has taken the place over, and waits there.
            let arrival = self.place_of(tx, request.owner)?.map(|place| place.arrival);
            let name = self.name(tx, KEY);
            tickets.extend(name.and_then(|name| self.queues.first_for_place(request.owner, name, arrival)));
        }
        for ticket in &tickets {
            if request.kind == Kind::Fair {
                self.answer_place(tx, *ticket, Answer::Cancelled);
            } else {
                self.answer(tx, *ticket, Answer::Cancelled);
            }
        }
        if has_place {
            self.commit(tx, KEY, Event::Left { owner: request.owner.into(), cause: LeaveCause::Cancelled });
        }
        let ended = tickets.len().max(usize::from(has_place));
        if ended > 0 {
            self.reconcile(tx, KEY, false);
        }
        Ok(ended)
    }

    /// The requests that are meant.
    fn tickets_of(&self, tx: &mut Transaction<'_, impl Keyspace>, request: &Cancel<'_>) -> Vec<u64> {
        let (mut tickets, mut keys) = (Vec::new(), 0_usize);
        let Some((name, owner)) = self.name(tx, KEY).zip(self.queues.owners.find(request.owner)) else {
            return tickets;
        };
        for mode in Mode::ALL.into_iter().filter(|mode| request.kind.has_mode(*mode)) {
            if let Some(id) = request.request_id {
                let numbered = self.queues.numbered(request.owner, name, mode);
                tickets.extend(numbered.filter(|(_, waiting_id)| *waiting_id == id).map(|(ticket, _)| ticket));
                continue;
            }
            let mut behind = None;
            while let Some(position) = self.queues.next_of_owner(owner, name, mode, behind)
                && keys < AT_ONCE
            {
                tickets.push(position.ticket);
                keys = keys.saturating_add(self.queues.get(position.ticket).map_or(1, |waiter| waiter.names.len()));
                behind = Some(position);
            }
        }
        let is_of_kind =
            |ticket: &u64| self.queues.get(*ticket).is_some_and(|waiter| waiter.request().kind == request.kind);
        tickets.retain(is_of_kind);
        tickets
    }

    /// Whether the owner has a place on a fair lock that is meant.
    fn gives_place_up(&self, tx: &Transaction<'_, impl Keyspace>, request: &Cancel<'_>) -> Result<bool, Refusal> {
        if request.kind != Kind::Fair {
            return Ok(false);
        }
        let place = self.place_of(tx, request.owner)?.filter(|place| place.is_live(tx.now));
        Ok(place.is_some_and(|place| request.request_id.is_none_or(|id| place.request_id == Some(id))))
    }
}
