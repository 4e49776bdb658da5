//! What a client does that takes more than one connection, or more than one key.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use redis::{RedisError, Value};

use super::wire::{Connection, as_grant, now_us, outcome};
use super::worker::{Party, Wish, Worker};
use crate::history::{Call, Kind, Mode, Outcome};
use crate::timeline::SLACK_US;

/// A lease that ends while somebody waits for it.
const FORGOTTEN_LEASE_MS: u64 = 100;

/// How much later than its claim an owner comes that has not claimed in time.
const EXPIRED_BY_MS: u64 = 15;

/// How long a lock is kept closed at most.
const LONGEST_KEEP_MS: u64 = 100;

/// How long a session lasts at most that is to last.
const LONG_SESSION_US: u64 = 300_000;

/// When it is looked whether such a session is over: when the server has seen that, or has been promoted.
const LONG_SESSION_LOOKS_US: u64 = 2 * SLACK_US + 500_000;

/// How long a request takes at most until it waits. One that the server has refused never does.
const COMES_TO_WAIT_US: u64 = 1_500_000;

/// A request that waits for a client's own key, behind the one that a scene is about.
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
        let Some(first) = keys.first() else { bail!("there are no mutexes") };
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

    /// MRENEW of what was granted together. Its answer is what the shortest of the leases has left.
    fn renew_many(&mut self, party: &Party, keys: &[usize], about: &str, lease_ms: u64) {
        let left = self.connection.call(&format!("RLOCK.MRENEW {about} PX {lease_ms}"));
        let (sent_us, answered_us) = (self.connection.sent_us(), now_us());
        for key in keys {
            let party = Party { key: *key, ..*party };
            self.record(&party, sent_us, answered_us, Call::Renew { lease_ms, token: None }, left);
        }
    }

    /// All permits that are free, of which it is not said before how many they are, nor afterwards with which token.
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
            // As for one who asks for a permit and does not want to wait.
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

    /// The token of what an owner holds, if it does.
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

    /// The same request over two connections: one takes the other's place.
    pub(super) fn be_taken_over(&mut self) -> Result<()> {
        let party = self.party(|_| true);
        let wish = self.limit(Wish { request_id: Some(1), ..Wish::WAIT });
        let words = self.wish(&party, wish);
        let mut second = Connection::open(self.address)?;
        // What could not be sent has no answer: the connection is lost.
        let first_us = now_us();
        let _ = self.connection.send(&words);
        let second_us = now_us();
        let _ = second.send(&words);
        let first = as_grant(self.connection.receive());
        let first_answered_us = now_us();
        let outcome = as_grant(second.receive());
        // The server may have read the second one first. If it refused one of them, it is not known which place in its order is the other one's.
        let is_refused = [first, outcome].contains(&Outcome::Refused);
        let asked = if is_refused { [0, 0] } else { [1, 2] };
        self.record(&Party { asked: asked[0], ..party }, first_us, first_answered_us, wish.call(), first);
        self.record(&Party { asked: asked[1], ..party }, second_us, now_us(), wish.call(), outcome);
        if [first, outcome].iter().any(|outcome| matches!(outcome, Outcome::Granted(_))) {
            self.release(&party, 1, Some(2));
        }
        Ok(())
    }

    /// A hold with a session, whose only connection closes.
    pub(super) fn close_session(&mut self) -> Result<()> {
        // On a key of its own a session may last, so that servers change their roles while it does.
        let lasts = self.survives && rand::Rng::random_bool(&mut self.random, 0.2);
        let party = if lasts { self.own_waiter() } else { Party { asked: 1, ..self.party(|_| true) } };
        let grace_ms = rand::Rng::random_range(&mut self.random, 0..40);
        let mut wish = self.limit(Wish { session_ms: Some(grace_ms), ..Wish::WAIT });
        let looks_us = if lasts { LONG_SESSION_LOOKS_US } else { SLACK_US };
        if lasts {
            // Nobody else waits for it, and it is to be there still when it is looked for.
            wish.lease_ms *= 2;
        }
        let mut connection = Connection::open(self.address)?;
        let outcome = as_grant(connection.call(&self.wish(&party, wish)));
        let (sent_us, answered_us) = (connection.sent_us(), now_us());
        self.record(&party, sent_us, answered_us, wish.call(), outcome);
        if matches!(outcome, Outcome::Granted(_)) {
            self.pause(if lasts { LONG_SESSION_US } else { 200 });
        }
        // Where connections are lost, this one may have been so since it was answered.
        let closed_us = if self.survives { answered_us } else { now_us() };
        drop(connection);
        self.record(&party, closed_us, now_us(), Call::Close { grace_ms }, Outcome::Unknown);
        if matches!(outcome, Outcome::Granted(_)) {
            // The server may hear of it late.
            self.closed.get_or_insert((party, now_us() + grace_ms * 1000 + looks_us));
        }
        Ok(())
    }

    /// A waiter whose connection is closed in the very turn in which it is granted, and another one behind it. On a key that
    /// nobody else uses, so that it is known who is next.
    pub(super) fn be_killed_in_turn(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let (killed, wish) = (self.own_waiter(), self.limit(Wish::WAIT));
        let mut to_kill = Connection::open(self.address)?;
        let Value::Int(client) = to_kill.ask("CLIENT ID")? else { bail!("a client has an id") };
        let killed_us = now_us();
        let sent = to_kill.send(&self.wish(&killed, wish));
        let next = self.stand_behind(&killed, wish, killed_us, sent)?;
        let sent_us = now_us();
        let released = self.release_and_kill(&holder, client);
        let answered_us = now_us();
        self.record(&holder, sent_us, answered_us, Call::Release { count: 1, token: None, request_id: None }, released);
        // Of a transaction without an answer it is not known what it did.
        let undone = if released == Outcome::Unknown { Outcome::Unknown } else { Outcome::Undone };
        self.record(&killed, killed_us, answered_us, wish.call(), undone);
        if undone == Outcome::Undone && self.server_stays {
            // Where connections are lost all the time, the one behind does not wait for long enough to tell.
            self.closed.get_or_insert((killed, now_us() + SLACK_US));
        }
        self.take_turn(next);
        Ok(())
    }

    /// A waiter that quits as soon as it is granted, over the connection that waits, and goes on over another one. The one behind it has to wait.
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

    /// In one transaction, a hold is released, and the connection of a waiter is closed. What the release was answered.
    fn release_and_kill(&mut self, holder: &Party, client: i64) -> Outcome {
        let release = self.words(holder, "RELEASE");
        for words in ["MULTI", &release, &format!("CLIENT KILL ID {client}")] {
            if self.connection.ask(words).is_err() {
                // Else it would take in all that this client asks from now on.
                let _ = self.connection.ask("DISCARD");
                return Outcome::Unknown;
            }
        }
        match self.connection.ask("EXEC") {
            Ok(Value::Array(answers)) => answers.first().map_or(Outcome::Unknown, number),
            _ => Outcome::Unknown,
        }
    }

    /// A new owner that asks once for this client's own key.
    pub(super) fn own_waiter(&mut self) -> Party {
        Party { asked: 1, ..self.own_party() }
    }

    /// A short lease that its owner forgets, and a request that waits for its end. On a key that nobody else uses, so that no other request
    /// finds that the lease is over.
    pub(super) fn lapse(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if self.acquire(&mut holder, Wish { lease_ms: FORGOTTEN_LEASE_MS, ..Wish::WAIT }) {
            // What it waits for may be over at once.
            let next = self.stand_in_line(0)?;
            self.take_turn(next);
        }
        Ok(())
    }

    /// A request that waits with CLAIM on a blocked connection, and claims what it is granted, or comes when the claim has expired. On a key that nobody
    /// else uses, so that it is known that it has waited.
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

    /// A lock that stays closed when its hold has ended, until its time is over or its former owner frees it.
    pub(super) fn keep_closed(&mut self) -> Result<()> {
        // On a key that nobody else uses no other request finds that the time is over.
        let is_alone = rand::Rng::random_bool(&mut self.random, 0.3);
        let mut party =
            if is_alone { self.own_party() } else { self.party(|kind| matches!(kind, Kind::Mutex | Kind::Fair)) };
        if !self.acquire(&mut party, Wish::WAIT) {
            return Ok(());
        }
        let keep_ms = rand::Rng::random_range(&mut self.random, 1..=LONGEST_KEEP_MS);
        if self.release_and_keep(&party, keep_ms) != Outcome::Number(1) {
            return Ok(());
        }
        // It may be open at once.
        let next = if is_alone { Some(self.stand_in_line(0)?) } else { None };
        // Its own wait would be behind the other one, whose grant is given back later.
        let last = if is_alone { 4 } else { 5 };
        match rand::Rng::random_range(&mut self.random, 0..=last) {
            0 => {}
            1 => self.release_and_remember(party, 1),
            2 => {
                self.release_and_keep(&party, LONGEST_KEEP_MS);
            }
            3 => {
                self.renew(&party, LONGEST_KEEP_MS);
                self.look(&party);
            }
            tries => {
                if self.acquire(&mut party, if tries == 4 { Wish::TRY } else { Wish::WAIT }) {
                    self.release(&party, 1, None);
                }
            }
        }
        if let Some(next) = next {
            self.take_turn(next);
        }
        Ok(())
    }

    /// A hold that somebody else ends, with the key or without, and a request that waits for it. On a key that nobody else uses, so that it is known
    /// who is next.
    pub(super) fn be_removed(&mut self) -> Result<()> {
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
            // All counts of it.
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

    /// Lets a request wait for this client's own key behind one that was sent. If either does not come to wait, it is not known what became of the
    /// first.
    pub(super) fn stand_behind(&mut self, first: &Party, wish: Wish, sent_us: u64, sent: Result<()>) -> Result<Behind> {
        let next = sent.and_then(|()| self.wait_for_waiters(1)).and_then(|()| self.stand_in_line(2));
        if next.is_err() {
            self.record(first, sent_us, now_us(), wish.call(), Outcome::Unknown);
        }
        next
    }

    /// Lets a request wait for this client's own key, and looks until so many wait.
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

    /// The one behind is answered, and gives back what it was granted.
    pub(super) fn take_turn(&mut self, behind: Behind) {
        if let Some(party) = self.be_answered(behind) {
            self.release(&party, 1, None);
        }
    }

    /// The one behind is answered. Returns who it is, if it was granted the lock.
    fn be_answered(&mut self, behind: Behind) -> Option<Party> {
        let Behind { party, wish, mut connection, sent_us } = behind;
        let outcome = as_grant(connection.receive());
        self.record(&party, sent_us, now_us(), wish.call(), outcome);
        matches!(outcome, Outcome::Granted(_)).then_some(party)
    }

    /// Waits until so many wait for this client's own key.
    pub(super) fn wait_for_waiters(&mut self, count: usize) -> Result<()> {
        let give_up_us = now_us() + COMES_TO_WAIT_US;
        while self.count_waiters()? < count {
            ensure!(now_us() < give_up_us, "a request does not come to wait");
            self.pause(200);
        }
        Ok(())
    }

    /// How many wait for this client's own key.
    pub(super) fn count_waiters(&mut self) -> Result<usize> {
        let name = self.own_name();
        match self.connection.ask(&format!("RLOCK.WAITERS {name}"))? {
            Value::Array(waiters) => Ok(waiters.len()),
            _ => bail!("WAITERS is an array"),
        }
    }
}

/// What a request for many keys was answered for each of them. An answer of another length is the number of what it has: not what anybody expects.
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
    fn a_request_for_many_keys_is_answered_for_each_of_them() {
        let tokens = |each: &[i64]| Ok(Value::Array(each.iter().copied().map(Value::Int).collect()));
        let told = |answer| of_each(answer, 2, as_grant);
        assert_eq!(told(tokens(&[5, 6])), [Outcome::Granted(5), Outcome::Granted(6)]);
        assert_eq!(told(tokens(&[5])), [Outcome::Number(1); 2], "a part of it is no grant");
        assert_eq!(told(Ok(Value::Nil)), [Outcome::Nil; 2]);
        let refused = redis::make_extension_error("OOM".into(), Some("used memory > 'maxmemory'".into()));
        assert_eq!(told(Err(refused)), [Outcome::Refused; 2], "nothing was done, as is known");
    }
}
