//! Scenes of a client that need more than one connection or key.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use redis::{RedisError, Value};

use super::wire::{Connection, as_grant, now_us, outcome};
use super::worker::{Party, Wish, Worker};
use crate::history::{Call, Kind, Mode, Outcome};
use crate::timeline::SLACK_US;

/// A lease that expires while a request waits for it.
const FORGOTTEN_LEASE_MS: u64 = 100;

/// By how much an owner misses the end of its claim.
const EXPIRED_BY_MS: u64 = 15;

/// The longest time for which a lock is kept closed.
const LONGEST_KEEP_MS: u64 = 100;

/// The longest session that is meant to last.
const LONG_SESSION_US: u64 = 300_000;

/// When such a session must be over: after the server has noticed the close, or was promoted.
const LONG_SESSION_LOOKS_US: u64 = 2 * SLACK_US + 500_000;

/// The longest time until a request waits. A request that the server refused never does.
const COMES_TO_WAIT_US: u64 = 1_500_000;

/// A request that waits for a client's own key, behind the request that a scene is about.
pub(super) struct Behind {
    party: Party,
    wish: Wish,
    connection: Connection,
    sent_us: u64,
}

impl Worker {
    /// MACQUIRE of two or three mutexes.
    pub(super) fn hold_many(&mut self) -> Result<()> {
        use rand::seq::SliceRandom;
        let is_mutex =
            |(_, key): &(usize, &crate::history::Key)| key.kind == Kind::Mutex && !key.name.starts_with("own");
        let mut keys: Vec<usize> = self.keys.iter().enumerate().filter(is_mutex).map(|(number, _)| number).collect();
        keys.shuffle(&mut self.random);
        keys.truncate(rand::Rng::random_range(&mut self.random, 2..=3));
        let Some(first) = keys.first() else { bail!("a campaign needs mutexes") };
        let party = Party { asked: 1, ..self.party_of(*first, Mode::Exclusive) };
        let names: Vec<&str> = keys.iter().filter_map(|key| self.keys.get(*key)).map(|key| key.name.as_str()).collect();
        let about = format!("{} {} o{}", names.len(), names.join(" "), party.owner);
        let wish = self.limit(Wish::WAIT);
        let Wish { lease_ms, block_ms, .. } = wish;
        let block_ms = block_ms.unwrap_or_default();
        let answer = self.connection.call_value(&format!("RLOCK.MACQUIRE {about} PX {lease_ms} BLOCK {block_ms}"));
        let (sent_us, answered_us) = (self.connection.sent_us(), now_us());
        let outcomes = of_each(answer, keys.len(), as_grant);
        let is_granted = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Granted(_)));
        for (key, outcome) in keys.iter().zip(outcomes) {
            self.record(&Party { key: *key, ..party }, sent_us, answered_us, wish.call(), outcome);
        }
        if !is_granted {
            return Ok(());
        }
        self.pause(200);
        if rand::Rng::random_bool(&mut self.random, 0.3) {
            self.renew_many(&party, &keys, &about, lease_ms);
        }
        let answer = self.connection.call_value(&format!("RLOCK.MRELEASE {about}"));
        let (sent_us, answered_us) = (self.connection.sent_us(), now_us());
        let left = of_each(answer, keys.len(), |left| left);
        for (key, outcome) in keys.iter().zip(left) {
            self.record(
                &Party { key: *key, ..party },
                sent_us,
                answered_us,
                Call::Release { count: 1, token: None, request_id: None },
                outcome,
            );
        }
        Ok(())
    }

    /// MRENEW of keys that were granted together. It answers with the shortest lease that is left.
    fn renew_many(&mut self, party: &Party, keys: &[usize], about: &str, lease_ms: u64) {
        let left = self.connection.call(&format!("RLOCK.MRENEW {about} PX {lease_ms}"));
        let (sent_us, answered_us) = (self.connection.sent_us(), now_us());
        for key in keys {
            let party = Party { key: *key, ..*party };
            self.record(&party, sent_us, answered_us, Call::Renew { lease_ms, token: None }, left);
        }
    }

    /// Takes all free permits. The client does not know their number before, and the reply has no
    /// token.
    pub(super) fn drain(&mut self) -> Result<()> {
        let party = Party { asked: 1, ..self.party(|kind| kind == Kind::Semaphore) };
        let lease_ms = self.limit(Wish::TRY).lease_ms;
        let taken = self.connection.call(&format!("{} PX {lease_ms}", self.words(&party, "DRAIN")));
        let (sent_us, answered_us) = (self.connection.sent_us(), now_us());
        let token = match taken {
            Outcome::Number(1..) => self.token_of(&party),
            _ => Ok(None),
        };
        let (count, outcome) = match (taken, &token) {
            // As for a request for one permit without a wait.
            (Outcome::Number(0), _) => (1, Outcome::Nil),
            (Outcome::Number(count), Ok(Some(token))) => (u32::try_from(count)?, Outcome::Granted(*token)),
            (Outcome::Number(_), _) => (1, Outcome::Unknown),
            (taken, _) => (1, taken),
        };
        let wish = Wish { count, lease_ms, ..Wish::TRY };
        self.record(&party, sent_us, answered_us, wish.call(), outcome);
        token?;
        if matches!(outcome, Outcome::Granted(_)) {
            self.pause(300);
            self.release(&party, count, None);
        }
        Ok(())
    }

    /// The token of an owner's hold, if it holds.
    fn token_of(&mut self, party: &Party) -> Result<Option<u64>> {
        let name = self.keys.get(party.key).map(|key| key.name.clone()).unwrap_or_default();
        let answer = self.connection.call_value(&format!("RLOCK.INFO {name} OWNER o{}", party.owner))?;
        let Value::Array(fields) = answer else { return Ok(None) };
        let named = |fields: &[Value], name: &str| {
            let at = fields.iter().step_by(2).position(|field| *field == Value::BulkString(name.into()))?;
            fields.get(2 * at + 1).cloned()
        };
        let Some(Value::Array(holders)) = named(&fields, "holders") else { return Ok(None) };
        let token = holders.first().and_then(|holder| match holder {
            Value::Array(fields) => named(fields, "token"),
            _ => None,
        });
        Ok(match token {
            Some(Value::Int(token)) => Some(u64::try_from(token)?),
            _ => None,
        })
    }

    /// Sends the same request over two connections: one takes the other's place.
    pub(super) fn be_taken_over(&mut self) -> Result<()> {
        let party = self.party(|_| true);
        let wish = self.limit(Wish { request_id: Some(1), ..Wish::WAIT });
        let words = self.wish(&party, wish);
        let mut second = Connection::open(self.address)?;
        // A request that cannot be sent gets no answer, because the connection is lost.
        let first_us = now_us();
        let _ = self.connection.send(&words);
        let second_us = now_us();
        let _ = second.send(&words);
        let first = as_grant(self.connection.receive());
        let first_answered_us = now_us();
        let outcome = as_grant(second.receive());
        // The server may have read the second request first. If it refused one of the two, the
        // position of the other one is unknown.
        let is_refused = [first, outcome].contains(&Outcome::Refused);
        let asked = if is_refused { [0, 0] } else { [1, 2] };
        self.record(&Party { asked: asked[0], ..party }, first_us, first_answered_us, wish.call(), first);
        self.record(&Party { asked: asked[1], ..party }, second_us, now_us(), wish.call(), outcome);
        if [first, outcome].iter().any(|outcome| matches!(outcome, Outcome::Granted(_))) {
            self.release(&party, 1, Some(2));
        }
        Ok(())
    }

    /// Takes a hold with a session whose only connection closes.
    pub(super) fn close_session(&mut self) -> Result<()> {
        // On the client's own key a session may last long, so that servers change their roles
        // meanwhile.
        let lasts = self.survives && rand::Rng::random_bool(&mut self.random, 0.2);
        let party = if lasts { self.own_waiter() } else { Party { asked: 1, ..self.party(|_| true) } };
        let grace_ms = rand::Rng::random_range(&mut self.random, 0..40);
        let mut wish = self.limit(Wish { session_ms: Some(grace_ms), ..Wish::WAIT });
        let looks_us = if lasts { LONG_SESSION_LOOKS_US } else { SLACK_US };
        if lasts {
            // No other request waits for it, and the session must still exist when it is checked.
            wish.lease_ms *= 2;
        }
        let mut connection = Connection::open(self.address)?;
        let outcome = as_grant(connection.call(&self.wish(&party, wish)));
        let (sent_us, answered_us) = (connection.sent_us(), now_us());
        self.record(&party, sent_us, answered_us, wish.call(), outcome);
        if matches!(outcome, Outcome::Granted(_)) {
            self.pause(if lasts { LONG_SESSION_US } else { 200 });
        }
        // Where connections get lost, this one may have been lost since its last answer.
        let closed_us = if self.survives { answered_us } else { now_us() };
        drop(connection);
        self.record(&party, closed_us, now_us(), Call::Close { grace_ms }, Outcome::Unknown);
        if matches!(outcome, Outcome::Granted(_)) {
            // The server may notice the close late.
            self.closed.get_or_insert((party, now_us() + grace_ms * 1000 + looks_us));
        }
        Ok(())
    }

    /// Kills the connection of a waiter in the turn in which it is granted, with another waiter
    /// behind it. On a key that no other client uses, so it is known which waiter is next.
    pub(super) fn be_killed_in_turn(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let (killed, wish) = (self.own_waiter(), self.limit(Wish::WAIT));
        let mut to_kill = Connection::open(self.address)?;
        let Value::Int(client) = to_kill.ask("CLIENT ID")? else { bail!("CLIENT ID is no number") };
        let killed_us = now_us();
        let sent = to_kill.send(&self.wish(&killed, wish));
        let next = self.stand_behind(&killed, wish, killed_us, sent)?;
        let sent_us = now_us();
        let released = self.release_and_kill(&holder, client);
        let answered_us = now_us();
        self.record(&holder, sent_us, answered_us, Call::Release { count: 1, token: None, request_id: None }, released);
        // The effect of a transaction without an answer is unknown.
        let undone = if released == Outcome::Unknown { Outcome::Unknown } else { Outcome::Undone };
        self.record(&killed, killed_us, answered_us, wish.call(), undone);
        if undone == Outcome::Undone && self.server_is_steady {
            // Where connections get lost all the time, the waiter behind does not wait long enough
            // to tell.
            self.closed.get_or_insert((killed, now_us() + SLACK_US));
        }
        self.take_turn(next);
        Ok(())
    }

    /// A waiter quits over its waiting connection as soon as it is granted, and goes on over
    /// another one. The waiter behind it has to wait.
    pub(super) fn quit_when_granted(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let (party, wish) = (self.own_waiter(), self.limit(Wish::WAIT));
        let mut quits = Connection::open(self.address)?;
        let sent_us = now_us();
        let sent = quits.send_both(&self.wish(&party, wish), "QUIT");
        let next = self.stand_behind(&party, wish, sent_us, sent)?;
        self.release(&holder, 1, None);
        let outcome = as_grant(quits.receive());
        self.record(&party, sent_us, now_us(), wish.call(), outcome);
        if matches!(outcome, Outcome::Granted(_)) {
            self.pause(2_000);
            self.release(&party, 1, None);
        }
        self.take_turn(next);
        Ok(())
    }

    /// Releases a hold and closes a waiter's connection in one transaction. Returns the answer to
    /// the release.
    fn release_and_kill(&mut self, holder: &Party, client: i64) -> Outcome {
        let release = self.words(holder, "RELEASE");
        for words in ["MULTI", &release, &format!("CLIENT KILL ID {client}")] {
            if self.connection.ask(words).is_err() {
                // Otherwise the transaction would take in all further commands of this client.
                let _ = self.connection.ask("DISCARD");
                return Outcome::Unknown;
            }
        }
        match self.connection.ask("EXEC") {
            Ok(Value::Array(answers)) => answers.first().map_or(Outcome::Unknown, number),
            _ => Outcome::Unknown,
        }
    }

    /// A new owner with one request for this client's own key.
    pub(super) fn own_waiter(&mut self) -> Party {
        Party { asked: 1, ..self.own_party() }
    }

    /// Takes a short lease, abandons it, and lets a request wait for its end. On a key that no
    /// other client uses, so no other request makes the server notice the expiry.
    pub(super) fn lapse(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if self.acquire(&mut holder, Wish { lease_ms: FORGOTTEN_LEASE_MS, ..Wish::WAIT }) {
            // The lock that it waits for may be free at once.
            let next = self.stand_in_line(0)?;
            self.take_turn(next);
        }
        Ok(())
    }

    /// Waits with CLAIM on a blocked connection, and claims the grant, or comes after the claim has
    /// expired. On a key that no other client uses, so it is known that the request waited.
    pub(super) fn claim(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let wish = self.limit(Wish::WAIT);
        let is_claimed = rand::Rng::random_bool(&mut self.random, 0.5);
        let claim_ms = if is_claimed { wish.lease_ms.div_ceil(3) } else { FORGOTTEN_LEASE_MS };
        let Behind { party, wish, connection, sent_us } =
            self.wait_in_line(Wish { claim_ms: Some(claim_ms), ..wish }, 1)?;
        self.release(&holder, 1, None);
        let behind = Behind { party, wish: wish.after_wait(), connection, sent_us };
        let Some(party) = self.be_answered(behind) else { return Ok(()) };
        if !is_claimed {
            thread::sleep(Duration::from_millis(claim_ms + EXPIRED_BY_MS));
        }
        self.renew(&party, wish.lease_ms);
        self.look(&party);
        self.release(&party, 1, None);
        Ok(())
    }

    /// Keeps a lock closed after its hold has ended, until its time is over or its former owner
    /// frees it with its token.
    pub(super) fn keep_closed(&mut self) -> Result<()> {
        // On a key that no other client uses, no other request makes the server notice the end.
        let is_alone = rand::Rng::random_bool(&mut self.random, 0.3);
        let mut party =
            if is_alone { self.own_party() } else { self.party(|kind| matches!(kind, Kind::Mutex | Kind::Fair)) };
        let Some(token) = self.acquire_token(&mut party, Wish::WAIT) else { return Ok(()) };
        let keep_ms = rand::Rng::random_range(&mut self.random, 1..=LONGEST_KEEP_MS);
        if self.release_and_keep(&party, keep_ms) != Outcome::Number(1) {
            return Ok(());
        }
        // The lock may open at once.
        let next = if is_alone { Some(self.stand_in_line(0)?) } else { None };
        // The owner's own wait would be behind the other request, which releases its grant only
        // later.
        let last = if is_alone { 5 } else { 6 };
        match rand::Rng::random_range(&mut self.random, 0..=last) {
            0 => {}
            1 => {
                self.release_by_token(&party, 1, token);
            }
            2 => {
                self.release(&party, 1, None);
            }
            3 => {
                self.release_and_keep(&party, LONGEST_KEEP_MS);
            }
            4 => {
                self.renew(&party, LONGEST_KEEP_MS);
                self.look(&party);
            }
            tries => {
                if self.acquire(&mut party, if tries == 5 { Wish::TRY } else { Wish::WAIT }) {
                    self.release(&party, 1, None);
                }
            }
        }
        if let Some(next) = next {
            self.take_turn(next);
        }
        Ok(())
    }

    /// Another client ends a hold, with the key or without it, while a request waits. On a key that
    /// no other client uses, so it is known which waiter is next.
    pub(super) fn be_ended_by_another(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let next = self.stand_in_line(1)?;
        let name = self.own_name();
        let removals = ["DEL {}", "UNLINK {}", "PEXPIRE {} 0", "RENAME {} removed-{}", "RLOCK.FORCERELEASE {}"];
        let removal =
            rand::seq::IndexedRandom::choose(removals.as_slice(), &mut self.random).copied().unwrap_or_default();
        let answer = self.connection.call_value(&removal.replace("{}", &name));
        let removed = match answer {
            Ok(Value::Int(0)) => Outcome::NotOwner,
            // This ends all of its counts.
            Ok(_) => Outcome::Number(0),
            Err(error) => outcome(Err(error)),
        };
        let release = Call::Release { count: 1, token: None, request_id: None };
        let call = if removal.starts_with("RLOCK") { release } else { Call::Remove };
        self.record(&holder, self.connection.sent_us(), now_us(), call, removed);
        if removed == Outcome::Refused {
            self.release(&holder, 1, None);
        }
        self.take_turn(next);
        Ok(())
    }

    /// Lets a request wait for this client's own key, behind a request that was sent. If either
    /// never waits, the outcome of the first is unknown.
    pub(super) fn stand_behind(&mut self, first: &Party, wish: Wish, sent_us: u64, sent: Result<()>) -> Result<Behind> {
        let next = sent.and_then(|()| self.wait_for_waiters(1)).and_then(|()| self.stand_in_line(2));
        if next.is_err() {
            self.record(first, sent_us, now_us(), wish.call(), Outcome::Unknown);
        }
        next
    }

    /// Lets a request wait for this client's own key, until `waiters` requests wait.
    pub(super) fn stand_in_line(&mut self, waiters: usize) -> Result<Behind> {
        let wish = self.limit(Wish::WAIT);
        self.wait_in_line(wish, waiters)
    }

    fn wait_in_line(&mut self, wish: Wish, waiters: usize) -> Result<Behind> {
        let party = self.own_waiter();
        let mut connection = Connection::open(self.address)?;
        let sent_us = now_us();
        let sent = connection.send(&self.wish(&party, wish));
        let waits = sent.and_then(|()| self.wait_for_waiters(waiters));
        if let Err(error) = waits {
            self.record(&party, sent_us, now_us(), wish.call(), Outcome::Unknown);
            return Err(error);
        }
        Ok(Behind { party, wish, connection, sent_us })
    }

    /// Receives the answer of the request behind, and releases its grant.
    pub(super) fn take_turn(&mut self, behind: Behind) {
        if let Some(party) = self.be_answered(behind) {
            self.release(&party, 1, None);
        }
    }

    /// Receives the answer of the request behind. Returns its owner, if it was granted the lock.
    fn be_answered(&mut self, behind: Behind) -> Option<Party> {
        let Behind { party, wish, mut connection, sent_us } = behind;
        let outcome = as_grant(connection.receive());
        self.record(&party, sent_us, now_us(), wish.call(), outcome);
        matches!(outcome, Outcome::Granted(_)).then_some(party)
    }

    /// Waits until `count` requests wait for this client's own key.
    pub(super) fn wait_for_waiters(&mut self, count: usize) -> Result<()> {
        let give_up_us = now_us() + COMES_TO_WAIT_US;
        while self.count_waiters()? < count {
            ensure!(now_us() < give_up_us, "a request did not begin to wait within 1.5 s");
            self.pause(200);
        }
        Ok(())
    }

    /// How many requests wait for this client's own key.
    pub(super) fn count_waiters(&mut self) -> Result<usize> {
        let name = self.own_name();
        match self.connection.ask(&format!("RLOCK.WAITERS {name}"))? {
            Value::Array(waiters) => Ok(waiters.len()),
            _ => bail!("the answer to WAITERS is no array"),
        }
    }
}

/// The answers to a request for many keys, one for each key. If their number is wrong, each gets
/// the number of answers received, which no rule accepts.
fn of_each(answer: Result<Value, RedisError>, keys: usize, read: impl Fn(Outcome) -> Outcome) -> Vec<Outcome> {
    match answer {
        Ok(Value::Array(each)) if each.len() == keys => each.iter().map(|one| read(number(one))).collect(),
        Ok(Value::Array(each)) => vec![Outcome::Number(each.len() as u64); keys],
        answer => vec![outcome(answer); keys],
    }
}

fn number(value: &Value) -> Outcome {
    match value {
        Value::Int(number) => Outcome::Number(u64::try_from(*number).unwrap_or(0)),
        _ => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_for_many_keys_is_answered_per_key() {
        let tokens = |each: &[i64]| Ok(Value::Array(each.iter().copied().map(Value::Int).collect()));
        let outcomes = |answer| of_each(answer, 2, as_grant);
        assert_eq!(outcomes(tokens(&[5, 6])), [Outcome::Granted(5), Outcome::Granted(6)]);
        assert_eq!(outcomes(tokens(&[5])), [Outcome::Number(1); 2], "a part is no grant");
        assert_eq!(outcomes(Ok(Value::Nil)), [Outcome::Nil; 2]);
        let refused = redis::make_extension_error("OOM".into(), Some("used memory > 'maxmemory'".into()));
        assert_eq!(outcomes(Err(refused)), [Outcome::Refused; 2], "an error changes nothing");
    }
}
