//! Grants one waiter, or refuses it.

use smallvec::smallvec;

use super::Engine;
use super::grant::GrantTiming;
use super::transaction::{At, Transaction};
use crate::bytes::Owner;
use crate::event::{Event, LeaveCause};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::lock::admission::Decision;
use crate::outbox::{Answer, Belief, Grant, Tokens};
use crate::pending_grants::PendingGrant;
use crate::registry::{Left, Waiter};
use crate::request::Refusal;

impl Engine {
    /// Applies a decision about a waiter for one key. Returns whether it was granted: it is
    /// refused, for example, if no token is left.
    pub(super) fn serve(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64, decision: Decision) -> bool {
        let refusal = match &decision {
            Decision::Refuse(refusal) => Some(refusal.clone()),
            _ => (!self.is_permitted(at, ticket)).then_some(Refusal::NoPermission),
        };
        if let Some(refusal) = refusal {
            self.end_without_grant(at, ticket, Answer::Refused(refusal));
            return false;
        }
        let Some(Left { waiter, owner }) = self.registry.leave(ticket) else {
            return false;
        };
        let given = self.grant_pending(at, ticket, owner.as_slice(), &waiter, &decision);
        let is_granted = given.is_ok();
        if is_granted {
            self.stats.count_wait(waiter.request().kind, waiter.since_us(), at.now);
            self.pending.expect(ticket, waiter.client(), waiter.request().notify.is_some());
        }
        let answer = match given {
            Ok(token) => Answer::Granted(granted_after_wait(at, &waiter, [at.id], smallvec![token])),
            Err(refusal) => Answer::Refused(refusal),
        };
        at.out.answer(ticket, waiter.notice(), answer);
        if !is_granted {
            self.leave_place(at, owner);
        }
        is_granted
    }

    /// Whether the user of the waiter's connection still has the rights for the request.
    pub(super) fn is_permitted(&self, tx: &Transaction<'_, impl Keyspace>, ticket: u64) -> bool {
        let waiter = self.registry.get(ticket).and_then(|waiter| Some((waiter.client()?, waiter.request())));
        waiter.is_none_or(|(client, request)| tx.keys.is_permitted(client, &request))
    }

    /// Answers a waiter that has timed out or was cut off. Returns whether its wait has ended.
    pub(super) fn answer_if_wait_ended(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64) -> bool {
        let Some(waiter) = self.registry.get(ticket) else {
            return true;
        };
        if waiter.has_timed_out(at.now) {
            self.end_without_grant(at, ticket, Answer::TimedOut);
            return true;
        }
        let cut_off = self.registry.cut_off(waiter);
        let is_cut_off = cut_off.is_some();
        if let Some(answer) = cut_off {
            self.answer(at, ticket, answer);
        }
        is_cut_off
    }

    /// Answers a waiter that is not granted, and removes its place on a fair lock.
    fn end_without_grant(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64, answer: Answer) {
        let waiter = self.registry.get(ticket).filter(|waiter| waiter.request().kind == Kind::Fair);
        let owner: Option<Owner> = waiter.map(|waiter| self.registry.owner_of(waiter).into());
        self.answer(at, ticket, answer);
        if let Some(owner) = owner {
            self.leave_place(at, owner);
        }
    }

    fn leave_place(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: Owner) {
        if at.lock().is_some_and(|lock| lock.place(owner.as_slice()).is_some()) {
            self.commit(at, Event::Left { owner, cause: LeaveCause::TimedOut });
        }
    }

    /// Grants a waiter one of its keys, and records the pending grant.
    pub(super) fn grant_pending(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        ticket: u64,
        owner: &[u8],
        waiter: &Waiter,
        decision: &Decision,
    ) -> Result<u64, Refusal> {
        let request = &waiter.request().within(at.limits.max_lease_ms);
        // An expired lock of another kind with very many holds is removed in parts, so it may still
        // be here.
        self.make_room(at, request.kind);
        let mut before = at.live_terms(request.kind, owner, request.mode)?;
        if let Some((token, terms)) = &mut before {
            self.settle_earlier(at, *token, terms);
        }
        let bound = |at: &At<'_, '_, _>, token| waiter.client().filter(|client| at.clients(token).contains(client));
        let was_bound = before.as_ref().is_some_and(|(token, _)| bound(at, *token).is_some());
        let (token, count) = match decision {
            Decision::Repeat(token) | Decision::Held(token) => {
                self.repeat(at, *token, request, waiter.client(), waiter.note());
                (*token, 0)
            }
            _ => {
                let timing = GrantTiming::AfterWait { note: waiter.note() };
                (self.grant(at, owner, request, waiter.client(), timing)?, request.count)
            }
        };
        if let Some(name) = self.name(at) {
            let grant = PendingGrant {
                ticket,
                before: before.map(|(_, terms)| terms),
                count,
                has_request: request.request_id.is_some(),
                has_session: request.session_ms.is_some(),
                has_note: waiter.note().is_some(),
                arrival: waiter.arrival(),
                grace_ms: request.grace_ms,
                has_bound: bound(at, token).filter(|_| !was_bound),
                is_over: false,
            };
            self.pending.add(name, token, grant);
            self.registry.set_pending(name, true);
        }
        Ok(token)
    }
}

/// The answer to a waiter that was granted its request.
pub(super) fn granted_after_wait(
    tx: &Transaction<'_, impl Keyspace>,
    waiter: &Waiter,
    keys: impl IntoIterator<Item = KeyId>,
    tokens: Tokens,
) -> Grant {
    let holds = keys.into_iter().zip(tokens.iter().copied());
    let request = waiter.request();
    let is_told = request.is_timed || request.notify.is_some();
    let belief = is_told.then(|| Belief { from_us: waiter.since_us(), until_us: tx.ends_us(holds) });
    Grant { tokens, is_many: waiter.is_many(), belief }
}
