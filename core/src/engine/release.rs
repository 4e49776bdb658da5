//! RELEASE, RENEW and FORCERELEASE, and their forms for many keys.
//!
//! These commands do not compete for the lock. They ignore expired leases, so these need not be
//! removed first.

use alloc::vec::Vec;

use smallvec::SmallVec;

use super::Engine;
use super::grant::Renewal;
use super::transaction::{At, Transaction};
use crate::event::{ChangeCause, EndCause, Event, Phase, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::lock::Hold;
use crate::lock::admission;
use crate::request::{Refusal, Release, Renew, is_meant};

/// The key of a request for one key.
const KEY: KeyId = KeyId(0);

/// The answer to RELEASE with KEEP: the lock is not free.
const KEPT: u32 = 1;

/// The remaining counts of the owner's holds, in the order of the keys. `None`: the owner does not
/// hold the key.
pub type HoldsLeft = SmallVec<[Option<u32>; 1]>;

/// The milliseconds left of the owner's holds, like [`HoldsLeft`].
pub type LeasesLeft = SmallVec<[Option<u64>; 1]>;

/// The hold that RELEASE refers to: its token and count, and whether the request is a repeat.
struct ReleaseTarget {
    token: u64,
    count: u32,
    /// The request repeats an earlier one: it changes nothing and gets the same answer.
    is_repeat: bool,
}

impl ReleaseTarget {
    /// Checks a release against the hold under a key, if there is one.
    fn under(at: &At<'_, '_, impl Keyspace>, request: &Release<'_>) -> Result<Option<Self>, Refusal> {
        let hold = at.value().hold_or_kept(request.kind, request.owner, request.mode, at.now)?;
        let hold = hold.filter(|hold| is_meant(request.tokens, at.id.0, hold.token()));
        Ok(hold.map(|hold| Self::of(hold, request)).transpose()?.flatten())
    }

    /// `None` if the lock is kept and the request does not name its token: it is about another,
    /// later request of the former owner.
    fn of(hold: &Hold, request: &Release<'_>) -> Result<Option<Self>, Refusal> {
        let is_kept = hold.phase() == Phase::Kept;
        let keeps = request.keep_ms.is_some();
        let is_repeat = admission::is_repeat(hold, request.request_id, request.verb)? || is_kept && keeps;
        if is_kept && !is_repeat && request.tokens.is_empty() {
            return Ok(None);
        }
        let count = hold.count();
        if !is_repeat && count < request.count {
            return Err(Refusal::CountUnderflow { held: count });
        }
        if !is_repeat && keeps && count > request.count {
            return Err(Refusal::KeepsReentered { held: count });
        }
        Ok(Some(Self { token: hold.token(), count, is_repeat }))
    }
}

impl Engine {
    /// RELEASE, MRELEASE. Returns the remaining count under each key. When a MRELEASE repeats one
    /// that was partly done, a key without a hold counts as done.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotOwner`] names the first key that the owner does not hold, or whose hold has
    /// another token than given, unless [`Release::is_each`]; nothing was changed.
    pub fn release(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        request: &Release<'_>,
    ) -> Result<HoldsLeft, Refusal> {
        if tx.keys.count() == 1 && request.request_id.is_none() && self.is_uncontended(&mut tx.at(KEY)) {
            return self.release_uncontended(tx, request);
        }
        self.run_plain(tx, |engine, tx| {
            let mut targets: SmallVec<[Option<ReleaseTarget>; 1]> = SmallVec::new();
            for id in tx.ids() {
                targets.push(ReleaseTarget::under(&tx.at(id), request)?);
            }
            let was_done = targets.iter().flatten().any(|target| target.is_repeat);
            if let Some(position) = targets.iter().position(Option::is_none).filter(|_| !was_done && !request.is_each) {
                return Err(Refusal::NotOwner { position });
            }
            let mut left = HoldsLeft::new();
            for (id, target) in tx.ids().zip(&targets) {
                left.push(match target {
                    None => None,
                    Some(ReleaseTarget { count, is_repeat: true, .. }) => Some(*count),
                    Some(target) => Some(engine.release_hold(&mut tx.at(id), request, target)),
                });
            }
            for id in tx.ids() {
                engine.hand_over(&mut tx.at(id));
            }
            Ok(left)
        })
    }

    /// The fast path of the most frequent request: one hold, nothing to reconcile and no waiters.
    fn release_uncontended(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        request: &Release<'_>,
    ) -> Result<HoldsLeft, Refusal> {
        let target = ReleaseTarget::under(&tx.at(KEY), request)?.ok_or(Refusal::NotOwner { position: 0 })?;
        if target.is_repeat {
            return Ok(HoldsLeft::from_elem(Some(target.count), 1));
        }
        let left = self.release_hold(&mut tx.at(KEY), request, &target);
        self.close_key(tx.keys, KEY);
        Ok(HoldsLeft::from_elem(Some(left), 1))
    }

    /// Subtracts the count of a request from a hold, or ends it. Returns what is left.
    fn release_hold(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        request: &Release<'_>,
        ReleaseTarget { token, count, .. }: &ReleaseTarget,
    ) -> u32 {
        let token = *token;
        self.confirm(at, token);
        if let Some(keep_ms) = request.keep_ms {
            self.keep(at, token, request, keep_ms);
            return KEPT;
        }
        let left = count.saturating_sub(request.count);
        let terms = if left == 0 { None } else { at.terms_of(token) };
        match terms {
            None => self.commit_inline(at, Event::Ended { token, cause: EndCause::Released }),
            Some(terms) => {
                let terms = Terms { count: left, request: request.mark().or(terms.request), ..terms };
                self.commit_inline(at, Event::Changed { token, cause: ChangeCause::Released, terms });
            }
        }
        left
    }

    /// Ends a hold and keeps the lock closed for `keep_ms`.
    fn keep(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, request: &Release<'_>, keep_ms: u64) {
        let Some(terms) = at.terms_of(token) else {
            return;
        };
        self.unbind_hold(at, token);
        let terms = Terms {
            deadline_us: at.now.after_ms(keep_ms),
            request: request.mark().or(terms.request),
            session_ms: None,
            phase: Phase::Kept,
            note: None,
            ..terms
        };
        self.commit(at, Event::Changed { token, cause: ChangeCause::Kept, terms });
    }

    /// Serves the queue after a hold ended or permits were returned. If the key is still dirty, the
    /// timer serves it.
    pub(super) fn hand_over(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        if !self.is_dirty(at) {
            self.grant_next(at, true);
        }
    }

    /// RENEW, MRENEW. Returns how long each hold lasts: until its lease ends, or its key expires.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotOwner`] names the first key that the owner does not hold, or whose hold has
    /// another token than given, unless [`Renew::is_each`]; nothing was changed.
    pub fn renew(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        request: &Renew<'_>,
    ) -> Result<LeasesLeft, Refusal> {
        self.run_plain(tx, |engine, tx| {
            let mut holds: SmallVec<[Option<(u64, Terms)>; 1]> = SmallVec::new();
            for id in tx.ids() {
                let held = tx
                    .at(id)
                    .live_terms(request.kind, request.owner, request.mode)?
                    .filter(|(token, _)| is_meant(request.tokens, id.0, *token));
                if held.is_none() && !request.is_each {
                    return Err(Refusal::NotOwner { position: id.0 });
                }
                holds.push(held);
            }
            tx.limits.may_grant.check_renewal()?;
            let mut left = LeasesLeft::new();
            for (id, held) in tx.ids().zip(holds) {
                let Some((token, terms)) = held else {
                    left.push(None);
                    continue;
                };
                engine.confirm(&mut tx.at(id), token);
                let client = if terms.session_ms.is_some() { tx.keys.client() } else { None };
                let mark = terms.request;
                let (lease_ms, note) = (request.lease_ms, tx.note);
                let renewal = Renewal { lease_ms, session_ms: None, client, mark, note, always: false };
                engine.renew_hold(&mut tx.at(id), token, terms, &renewal);
                left.push(Some(tx.now.left_ms(tx.ends_us([(id, token)]))));
            }
            Ok(left)
        })
    }

    /// FORCERELEASE: ends every live hold of a lock, or only the one with `token`. `kind` is the
    /// kind of the lock; `None` for any. Returns whether there was such a hold.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn force_release(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        kind: Option<Kind>,
        token: Option<u64>,
    ) -> Result<bool, Refusal> {
        self.run_plain(tx, |engine, tx| {
            let found = match (tx.keys.value(KEY), kind) {
                (admission::Value::Lock(lock), None) => Some(lock),
                (admission::Value::Vacant, None) => None,
                (value, kind) => value.of_kind(kind.unwrap_or(Kind::Mutex), tx.now)?,
            };
            let Some(lock) = found else {
                return Ok(false);
            };
            const ONE_BY_ONE: usize = 64;
            let is_live = |hold: &&Hold| hold.is_live(tx.now);
            let events: Vec<Event> = match token {
                Some(token) => lock.hold_with_token(token).filter(is_live).map(forced).into_iter().collect(),
                None if lock.holds().len() <= ONE_BY_ONE => lock.holds().iter().filter(is_live).map(forced).collect(),
                None if !lock.is_held(tx.now) => Vec::new(),
                None => [Event::Cleared { cause: EndCause::Forced, except: None }].into(),
            };
            let was_held = !events.is_empty();
            for event in events {
                engine.commit(&mut tx.at(KEY), event);
            }
            if was_held {
                engine.hand_over(&mut tx.at(KEY));
            }
            Ok(was_held)
        })
    }
}

fn forced(hold: &Hold) -> Event {
    Event::Ended { token: hold.token(), cause: EndCause::Forced }
}
