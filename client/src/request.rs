//! One acquisition: asked once, waited for, or taken back.
//!
//! Whatever becomes of the future that asks, the server is left with a hold only if somebody has its guard. A request whose outcome is
//! unknown is *taken back*, see `taking_back.rs`.

mod taking_back;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::Error;
use crate::call::{Answered, Prepare};
use crate::clock::Moment;
use crate::gate::{Gate, Turn};
use crate::link::Link;
use crate::options::LONGEST;
use crate::servers::Line;
use crate::shared::Shared;
use crate::wire::{self, Acquire, Ask, Family, Subject};

pub(crate) use taking_back::Unsure;

/// A grant is as good as new while this part of its lease has passed.
const FRESH_PART: u32 = 6;

/// What is asked for, on which terms, by whom.
pub(crate) struct Request {
    pub(crate) client: Arc<Shared>,
    pub(crate) subject: Subject,
    pub(crate) lease: Duration,
    pub(crate) gate: Arc<Gate>,
    /// The note of the hold; without one, the server leaves the note that the hold has.
    pub(crate) note: Option<Arc<[u8]>>,
    /// What is promised to whoever is granted it.
    pub(crate) keeping: Keeping,
}

/// How a hold is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// Whether it renews itself.
    pub(crate) renews: bool,
    /// How long after the grant it ends whatever happens.
    pub(crate) max_hold: Option<Duration>,
    /// When it ends instead, however late it is granted: with the hold for which its owner has asked for this one.
    pub(crate) ends_by: Option<Moment>,
    /// How many replicas must have it, and within which time.
    pub(crate) replicas: Option<(u32, Duration)>,
}

/// A request was granted.
pub(crate) struct Grant {
    pub(crate) tokens: Vec<u64>,
    /// From when the lease counts.
    pub(crate) counts_from: Moment,
    /// The lease that was given.
    pub(crate) lease: Duration,
    /// The connection that the hold is bound to.
    pub(crate) link: Arc<Link>,
}

/// The id of a release, and how many copies of it with that id a server may have got, over all the times it was sent.
#[derive(Default)]
pub(crate) struct Numbered {
    id: AtomicU64,
    copies: AtomicU32,
    /// How long the lock stays closed after it.
    keep_ms: AtomicU64,
}

impl Numbered {
    /// From now on it is another request.
    pub(crate) fn renumber(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
        self.copies.store(0, Ordering::Relaxed);
    }

    /// The release keeps the lock closed for this long.
    pub(crate) fn keep(&self, keep: Duration) {
        self.keep_ms.store(wire::ms(keep), Ordering::Relaxed);
    }
}

impl Request {
    pub(crate) fn slot(&self) -> Option<u16> {
        self.client.slot_of(&self.subject.keys)
    }

    /// Lets other handles of this owner find the gate. Before they get to know its name: their requests would pass this one's otherwise.
    pub(crate) fn share_gate(&self) {
        let Subject { family, keys, owner, .. } = &self.subject;
        self.client.gates.let_be_found((*family, keys.clone(), owner.clone()), &self.gate);
    }

    pub(crate) fn acquire_command(&self, ask: Ask<'_>, request_id: u64) -> Cmd {
        let (session_grace, note) = (self.gate.session_grace, self.note.as_deref());
        self.subject.acquire(Acquire { lease: self.lease, session_grace, ask, request_id, note })
    }

    /// Sends a command of this request over the shared connection until it is answered.
    pub(crate) async fn call(&self, command: &Cmd, give_up: Moment) -> Result<Answered, Error> {
        self.call_within(command, self.client.settings.response_timeout, give_up).await
    }

    /// The same, with another time for an answer, if that is shorter.
    pub(crate) async fn call_within(
        &self,
        command: &Cmd,
        patience: Duration,
        give_up: Moment,
    ) -> Result<Answered, Error> {
        let patience = patience.min(self.client.settings.response_timeout);
        self.client.servers.call(self.slot(), command, patience, give_up).await
    }

    /// Goes on above the id that an error names: another process of this owner has used it, or the wall clock was set back. False if
    /// there is none above.
    pub(crate) fn raise_ids(&self, stale: &str) -> bool {
        let seen = wire::last_seen_id(stale).filter(|seen| *seen < wire::HIGHEST_ID);
        seen.is_some_and(|seen| {
            self.gate.raise_above(seen);
            true
        })
    }

    /// Asks once. `None` if the lock is not free.
    ///
    /// Cancel safety: dropping it takes back what was asked.
    pub(crate) async fn try_once(self: &Arc<Self>, give_up: Moment) -> Result<Option<Grant>, Error> {
        let turn = self.gate.pass().await;
        match self.try_in_turn(give_up, turn).await {
            Err(Error::Server { code, message }) if code == "STALE" && self.raise_ids(&message) => {
                let turn = self.gate.pass().await;
                self.try_in_turn(give_up, turn).await
            }
            outcome => outcome,
        }
    }

    async fn try_in_turn(self: &Arc<Self>, give_up: Moment, turn: Turn) -> Result<Option<Grant>, Error> {
        // If no answer came, the request is taken back as if this future had been dropped.
        let unsure = Unsure::new(self, turn, false);
        let request_id = unsure.request_id();
        let answered = self.ask(&self.acquire_command(Ask::Once, request_id), &unsure, give_up).await?;
        let says_all = match &answered.said {
            Ok(Value::Nil) => !self.may_be_granted_in_part(answered.is_resent),
            Ok(_) => true,
            // Of an earlier copy a refusal says nothing.
            Err(_) => !answered.is_resent,
        };
        if says_all {
            unsure.settled();
        }
        self.grant_in(answered)
    }

    /// Whether something may be held although the last copy was not granted: all of several keys were granted to an earlier one, and one of them was
    /// lost since. A repetition leaves the others as they are.
    pub(crate) fn may_be_granted_in_part(&self, has_earlier_copy: bool) -> bool {
        has_earlier_copy && self.subject.family == Family::Many
    }

    /// Sends an ACQUIRE until it is answered.
    pub(crate) async fn ask(
        &self,
        command: &impl Prepare,
        unsure: &Unsure<'_>,
        give_up: Moment,
    ) -> Result<Answered, Error> {
        let patience = self.client.settings.response_timeout;
        self.client.servers.call_noting(self.slot(), command, patience, give_up, &unsure.copies).await
    }

    /// What an answer to ACQUIRE says.
    fn grant_in(&self, answered: Answered) -> Result<Option<Grant>, Error> {
        let Answered { said, first_sent, link, .. } = answered;
        let value = said.map_err(|error| Error::from_answer(&error))?;
        let granted = |tokens| Grant { tokens, counts_from: first_sent, lease: self.lease, link };
        Ok(wire::tokens(&value)?.map(granted))
    }

    /// Gives back permits of one hold, or all of it: of the one with these tokens, and no other of the same owner. Done is also what an earlier copy did, if nothing else
    /// can have ended the hold: its lease ran until `ends`. `numbered` is the same in each copy of the request.
    ///
    /// Cancel safety: when dropped it may have been executed; sending it again with the same `numbered` does no harm.
    pub(crate) async fn release(
        &self,
        tokens: &[u64],
        permits: u32,
        numbered: &Numbered,
        ends: Moment,
        give_up: Moment,
    ) -> Result<(), Error> {
        let patience = self.client.settings.response_timeout;
        let mut is_renumbered = false;
        loop {
            let keep_ms = numbered.keep_ms.load(Ordering::Relaxed);
            let command = self.subject.release(tokens, permits, keep_ms, numbered.id.load(Ordering::Relaxed));
            let was_sent = numbered.copies.load(Ordering::Relaxed) > 0;
            let calling = self.client.servers.call_noting(self.slot(), &command, patience, give_up, &numbered.copies);
            let answered = calling.await?;
            let is_copy = was_sent || answered.is_resent;
            match answered.said.map_err(|error| Error::of_hold(&error)) {
                Ok(_) => return Ok(()),
                Err(Error::NotHeld) => {
                    // The hold that the first copy ended is not remembered.
                    let may_be_done = is_copy && Moment::now() < ends;
                    let is_one_of_many = self.subject.family == Family::Many;
                    let were_left = is_one_of_many && Box::pin(self.release_singly(tokens, numbered, give_up)).await;
                    return if may_be_done && !were_left { Ok(()) } else { Err(Error::NotHeld) };
                }
                // An earlier copy may have been executed, before a later request of this owner that came another way. A release with a new
                // id would be a second one then, and free the lock under whoever holds the other count. The lease ends what is left.
                Err(Error::Server { code, .. }) if code == "STALE" && is_copy => return Err(Error::Superseded),
                // No copy was executed: the only one was refused.
                Err(Error::Server { code, message })
                    if code == "STALE" && !is_renumbered && self.raise_ids(&message) =>
                {
                    is_renumbered = true;
                    numbered.renumber(self.gate.next_id());
                }
                // The owner has acquired the hold several times. Release this count without KEEP: no guard is left that would do it.
                Err(Error::Server { code, message }) if code == "ERR" && keep_ms > 0 => {
                    numbered.keep(Duration::ZERO);
                    numbered.renumber(self.gate.next_id());
                    let released = Box::pin(self.release(tokens, permits, numbered, ends, give_up)).await;
                    return released.and(Err(Error::Server { code, message }));
                }
                // One of the keys may not be asked for any more, and the server has released none.
                Err(error @ Error::Permission(_)) if self.subject.family == Family::Many => {
                    Box::pin(self.release_singly(tokens, numbered, give_up)).await;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Releases each of several keys for itself: one of them is not held any more, or may not be asked for, and then the server releases none.
    /// Returns whether another one may have been held.
    ///
    /// The requests have the verb and the id of the one for all keys, which was not executed. So whichever of them is sent next, it is done once for each.
    async fn release_singly(&self, tokens: &[u64], numbered: &Numbered, give_up: Moment) -> bool {
        let mut were_held = false;
        for (key, token) in self.subject.keys.iter().zip(tokens) {
            let subject = Subject { keys: Arc::from([key.clone()]), ..self.subject.clone() };
            let command = subject.release(&[*token], 1, 0, numbered.id.load(Ordering::Relaxed));
            let outcome = self.call(&command, give_up).await.and_then(|Answered { said, is_resent, .. }| {
                were_held |= is_resent;
                said.map_err(|error| Error::of_hold(&error))
            });
            match outcome {
                Err(Error::NotHeld) => {}
                Ok(_) => were_held = true,
                Err(error) => {
                    were_held = true;
                    let key = String::from_utf8_lossy(key);
                    tracing::warn!(%key, %error, "one of several locks was not released; its lease ends it");
                }
            }
        }
        were_held
    }

    /// Gives back what nobody wants.
    pub(crate) async fn give_back(&self, tokens: &[u64], give_up: Moment) {
        let numbered = Numbered::default();
        numbered.renumber(self.gate.next_id());
        match self.release(tokens, self.subject.permits, &numbered, Moment::NEVER, give_up).await {
            // Not held is what it should be.
            Ok(()) | Err(Error::NotHeld) => {}
            Err(error) => tracing::warn!(%error, "a grant that nobody wants could not be released; its lease ends it"),
        }
    }

    /// Whether so little time has passed since the request was sent that all terms of the hold may as well count from then.
    pub(crate) fn is_fresh(&self, sent: Moment, now: Moment) -> bool {
        let grace = self.gate.session_grace.filter(|grace| !grace.is_zero()).unwrap_or(self.lease);
        self.keeping.max_hold.is_none() && sent.until(now) < self.lease.min(grace) / FRESH_PART
    }

    /// Renews what was granted after a wait: that tells from when the lease counts.
    pub(crate) async fn confirm(&self, grant: &mut Grant, give_up: Moment) -> Result<(), Error> {
        *grant = self.take_over(grant.tokens.clone(), give_up).await?;
        Ok(())
    }

    /// Renews what this owner has been granted somewhere else.
    pub(crate) async fn take_over(&self, tokens: Vec<u64>, give_up: Moment) -> Result<Grant, Error> {
        let mut command = self.subject.renew(&tokens, self.lease);
        wire::add_note(&mut command, self.note.as_deref());
        let answered = self.call(&command, give_up).await?;
        let lease = wire::milliseconds(&answered.said.map_err(|error| Error::of_hold(&error))?)?;
        let (counts_from, link) = (answered.sent, answered.link);
        Ok(Grant { tokens, counts_from, lease, link })
    }

    /// Renews the hold, which propagates it once more, and waits for replicas behind that. Returns how many have it.
    ///
    /// It may be executed much later, behind the WAIT of others. If the hold has been released by then, a renewal begins no other one, as the
    /// request of the hold would.
    pub(crate) async fn replicate(&self, tokens: &[u64], wanted: u32, patience: Duration) -> Result<u32, Error> {
        let mut commands = redis::pipe();
        // 0 would be for ever.
        let wait_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1);
        let renewal = self.subject.renew(tokens, unlike(self.lease));
        commands.add_command(renewal).cmd("WAIT").arg(wanted).arg(wait_ms);
        let patience = patience.saturating_add(self.client.settings.response_timeout);
        let started = Moment::now();
        let outcome = async {
            let link = self.client.servers.link(self.slot(), Line::Witness).await?;
            let answers = link.ask_all(&commands, 2, patience).await?;
            Ok((answers, link))
        };
        let failed = |cause| Error::Connection { tried_for: started.until(Moment::now()), cause };
        let (answers, link) = outcome.await.map_err(failed)?;
        let mut answers = answers.into_iter();
        let mut next = || {
            let answer = answers.next().unwrap_or(Value::Nil);
            // The node may serve the slot no more since the grant, or be no master: then nothing is proven, and nothing refuted.
            answer.extract_error().map_err(|error| match self.client.servers.may_mend(&error, &link) {
                true => failed(error),
                false => Error::of_hold(&error),
            })
        };
        wire::milliseconds(&next()?)?;
        let acknowledged = wire::number(&next()?)?;
        Ok(u32::try_from(acknowledged).unwrap_or(0))
    }
}

/// A lease that differs from another one by as little as the wire tells: a renewal that changed nothing would not be propagated, and a WAIT behind
/// it would prove nothing.
fn unlike(lease: Duration) -> Duration {
    let least = Duration::from_millis(1);
    if lease + least <= LONGEST { lease + least } else { lease - least }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;
    use crate::metrics::Meter;
    use crate::servers::{Servers, Topology};
    use crate::shared::Settings;
    use redis::IntoConnectionInfo;

    /// One with a lease of a minute that is never sent.
    fn request(session_grace: Option<Duration>, max_hold: Option<Duration>) -> Request {
        let (second, home) = (Duration::from_secs(1), Arc::new(Home::here()));
        let topology = Topology::Standalone("redis://a:1".into_connection_info().expect("an address"));
        let servers = Servers::new(topology, second, second, home.clone());
        let settings = Settings {
            response_timeout: second,
            retry_for: second,
            ping_after: second,
            name: None,
            meter: Meter::default(),
        };
        let (keys, owner) = (Arc::from([b"k".to_vec()]), Arc::from(b"me".as_slice()));
        Request {
            client: Shared::new(servers, settings, home),
            subject: Subject { family: Family::Mutex, keys, owner, permits: 1 },
            lease: Duration::from_secs(60),
            gate: Gate::new(session_grace),
            note: None,
            keeping: Keeping { renews: true, max_hold, ends_by: None, replicas: None },
        }
    }

    /// Until a sixth of its lease is over, or of the grace of its session. The longest time of a hold counts from the grant itself.
    #[tokio::test]
    async fn a_grant_is_fresh_for_a_while_but_not_where_a_hold_has_a_longest_time() {
        let seconds = |number| Some(Duration::from_secs(number));
        let sent = Moment::from_us(1_000_000);
        for (grace, max_hold, fresh_ms, old_ms) in [
            (None, None, Some(9_900), 10_100),
            (seconds(6), None, Some(900), 1_100),
            (seconds(0), None, Some(9_900), 10_100),
            (seconds(600), None, Some(9_900), 10_100),
            (None, seconds(60), None, 0),
        ] {
            let is_fresh = |ms| request(grace, max_hold).is_fresh(sent, sent.after(Duration::from_millis(ms)));
            assert!(fresh_ms.is_none_or(is_fresh), "{grace:?}, {max_hold:?}");
            assert!(!is_fresh(old_ms), "{grace:?}, {max_hold:?}");
        }
    }

    #[test]
    fn the_server_takes_an_unlike_lease_for_another_one() {
        let sent = |lease: Duration| lease.as_micros().div_ceil(1000);
        let [half, least] = [500, 1000].map(Duration::from_micros);
        for lease in [least, least + half, LONGEST - least, LONGEST - half, LONGEST] {
            let other = unlike(lease);
            assert_ne!(sent(other), sent(lease));
            assert!((least..=LONGEST).contains(&other));
        }
    }
}
