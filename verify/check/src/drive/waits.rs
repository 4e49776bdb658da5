//! Requests that wait without a blocked connection (`NOTIFY`), and the ends of such waits.

use anyhow::{Result, bail, ensure};

use super::subscriber::{Subscriber, Subscribes};
use super::wire::{Connection, as_grant, now_us};
use super::worker::{Party, Wish, Worker};
use crate::history::{Call, Mode, Outcome};
use crate::timeline::SLACK_US;

/// How often a client asks whether the server has noticed a closed connection. The server reads
/// from all of its connections before it polls again, so one or two answers are enough.
const LOOKS: usize = 50;

impl Worker {
    /// This client's own channel.
    fn channel(&self) -> String {
        format!("answers-{}", self.own_name())
    }

    /// The subscriber of that channel.
    fn listen(&mut self) -> Result<Subscriber> {
        // In a cluster it must listen to the node that it sends requests to.
        let address = match self.subscribes {
            Subscribes::ToServer => self.connection.address(),
            Subscribes::ToShard => self.connection.resolve_address()?,
        };
        match self.subscriber.take().filter(|subscriber| subscriber.address() == address) {
            Some(subscriber) => Ok(subscriber),
            None => Subscriber::open(address, self.subscribes, &self.channel()),
        }
    }

    /// Waits without a blocked connection and claims the grant. Before that the lease of the hold
    /// is that of CLAIM.
    pub(super) fn be_notified(&mut self) -> Result<()> {
        let mut subscriber = self.listen()?;
        let party = self.party(|_| true);
        let party = Party { asked: 1, ..party };
        let wish = self.limit(Wish { request_id: Some(party.owner), ..Wish::WAIT });
        let wish = Wish { claim_ms: Some(wish.lease_ms.div_ceil(3)), ..wish };
        let words = format!("{} NOTIFY {}", self.wish(&party, wish), self.channel());
        let answer = self.connection.call(&words);
        let sent_us = self.connection.sent_us();
        let has_waited = answer == Outcome::Waiting;
        let lease_ms = wish.lease_ms;
        let wish = if has_waited { wish.after_wait() } else { wish };
        let outcome = match answer {
            Outcome::Waiting => self.hear(&mut subscriber, party.owner, wish),
            answer => Ok(as_grant(answer)),
        };
        let heard = outcome.as_ref().map_or(Outcome::Unknown, |outcome| *outcome);
        self.record(&party, sent_us, now_us(), wish.call(), heard);
        self.record_answered_twice(&party, &mut subscriber);
        outcome?;
        self.subscriber = Some(subscriber);
        if matches!(heard, Outcome::Granted(_)) {
            if has_waited {
                self.renew(&party, lease_ms);
            }
            self.release(&party, 1, None);
        }
        Ok(())
    }

    /// The answer on a channel. The wait ends when the connection that asked is lost.
    fn hear(&mut self, subscriber: &mut Subscriber, id: u64, wish: Wish) -> Result<Outcome> {
        let give_up_us = now_us() + wish.block_ms.unwrap_or_default() * 1000 + 2 * SLACK_US;
        let is_here = subscriber.address() == self.connection.address();
        ensure!(is_here, "the request was redirected to a node without a subscriber");
        loop {
            if let Some(outcome) = subscriber.answer(id)? {
                return Ok(outcome);
            }
            if self.connection.ask("PING").is_err() {
                bail!("the connection that asked was lost");
            }
            ensure!(now_us() < give_up_us, "no answer was published in time");
        }
    }

    /// Records requests that got a second answer. The channel belongs to this client, so they are
    /// its own.
    fn record_answered_twice(&mut self, party: &Party, subscriber: &mut Subscriber) {
        for owner in subscriber.take_answered_twice() {
            let at_us = now_us();
            self.record(&Party { owner, ..*party }, at_us, at_us, Call::Look, Outcome::AnsweredTwice);
        }
    }

    /// Sends a request whose channel has no subscriber. Another request waits behind it, and must
    /// get the lock.
    pub(super) fn wait_without_a_subscriber(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let deaf = self.own_waiter();
        let numbered = self.limit(Wish { request_id: Some(1), ..Wish::WAIT });
        let deaf_us = now_us();
        let words = format!("{} NOTIFY nobody-{}", self.wish(&deaf, numbered), self.own_name());
        let sent = self.connection.ask(&words).map(drop);
        let next = self.stand_behind(&deaf, numbered, deaf_us, sent)?;
        self.release(&holder, 1, None);
        self.record(&deaf, deaf_us, now_us(), numbered.call(), Outcome::Undone);
        self.take_turn(next);
        Ok(())
    }

    /// Cancels a waiting request. On this client's own key the request surely waits; on another key
    /// it may be granted first.
    pub(super) fn cancel_wait(&mut self) -> Result<()> {
        use rand::Rng;
        let mut holder = self.random.random_bool(0.5).then(|| self.own_party());
        if let Some(holder) = &mut holder
            && !self.acquire(holder, Wish::WAIT)
        {
            return Ok(());
        }
        let party = if holder.is_some() { self.own_waiter() } else { Party { asked: 1, ..self.party(|_| true) } };
        let mut subscriber = self.listen()?;
        let wish = self.limit(Wish { request_id: Some(party.owner), ..Wish::WAIT });
        let mut answer = self.connection.call(&format!("{} NOTIFY {}", self.wish(&party, wish), self.channel()));
        let sent_us = self.connection.sent_us();
        let waits = answer == Outcome::Waiting;
        if waits {
            self.pause(300);
            // CANCEL applies to every mode of the owner.
            let words = self.words(&Party { mode: Mode::Exclusive, ..party }, "CANCEL");
            // Where servers change their roles or die, that may have ended the wait.
            self.ask(&party, &words, Call::Cancel { is_waiting: !self.survives });
        }
        if let Some(holder) = &holder {
            self.release(holder, 1, None);
        }
        let mut heard = Ok(());
        if waits {
            (answer, heard) = match self.hear(&mut subscriber, party.owner, wish) {
                Ok(outcome) => (outcome, Ok(())),
                Err(error) => (Outcome::Unknown, Err(error)),
            };
        }
        let outcome = as_grant(answer);
        self.record(&party, sent_us, now_us(), wish.call(), outcome);
        self.record_answered_twice(&party, &mut subscriber);
        heard?;
        self.subscriber = Some(subscriber);
        match outcome {
            Outcome::Granted(_) => self.release(&party, 1, None),
            Outcome::Unblocked | Outcome::Nil => self.look(&party),
            _ => {}
        }
        Ok(())
    }

    /// Lets a request wait over a connection that closes, while another connection listens to its
    /// channel. Another request waits behind it, and must get the lock.
    pub(super) fn close_while_waiting(&mut self) -> Result<()> {
        let mut holder = self.own_party();
        if !self.acquire(&mut holder, Wish::WAIT) {
            return Ok(());
        }
        let subscriber = self.listen()?;
        let gone = self.own_waiter();
        let numbered = self.limit(Wish { request_id: Some(gone.owner), ..Wish::WAIT });
        let mut asking = Connection::open(self.address)?;
        let gone_us = now_us();
        asking.ask(&format!("{} NOTIFY {}", self.wish(&gone, numbered), self.channel()))?;
        let next = self.stand_in_line(2)?;
        drop(asking);
        for _ in 0..LOOKS {
            if self.count_waiters()? < 2 {
                break;
            }
            self.pause(2_000);
        }
        self.release(&holder, 1, None);
        self.record(&gone, gone_us, now_us(), numbered.call(), Outcome::Undone);
        self.subscriber = Some(subscriber);
        self.take_turn(next);
        Ok(())
    }
}
