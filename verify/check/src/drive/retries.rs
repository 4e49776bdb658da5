//! Requests that are sent again, as client libraries do when an answer is lost, and commands for
//! one particular hold.

use anyhow::Result;
use rand::Rng;

use super::wire::Connection;
use super::worker::{Party, Wish, Worker};
use crate::history::{Call, Outcome};

impl Worker {
    /// Sends a request with ONCE two or three times: it is granted once, and one release ends it.
    /// Where connections are lost the answer may be unknown, and the next request uses a new
    /// connection.
    pub(super) fn send_again(&mut self) -> Result<()> {
        let mut party = self.party(|_| true);
        let wish = Wish { is_once: true, ..self.wait_or_try(&party) };
        let mut granted = None;
        for _ in 0..self.random.random_range(2..=3) {
            if self.connection.is_lost() {
                self.connection = Connection::open(self.address)?;
            }
            granted = self.acquire_token(&mut party, wish).or(granted);
        }
        if let Some(token) = granted {
            self.look(&party);
            self.release_by_token(&party, wish.count, token);
        }
        Ok(())
    }

    /// A hold, and a later one of the same owner: commands for the first leave the second alone.
    pub(super) fn use_an_earlier_token(&mut self) {
        let mut party = self.party(|_| true);
        let Some(earlier) = self.acquire_token(&mut party, Wish::WAIT) else { return };
        if self.release_by_token(&party, 1, earlier) != Outcome::Number(0) {
            return;
        }
        let Some(token) = self.acquire_token(&mut party, Wish::WAIT) else { return };
        let lease_ms = self.limit(Wish::WAIT).lease_ms;
        self.renew_by_token(&party, lease_ms, earlier);
        self.release_by_token(&party, 1, earlier);
        self.look(&party);
        self.renew_by_token(&party, 1, token);
        self.release_by_token(&party, 1, token);
    }

    pub(super) fn release_by_token(&mut self, party: &Party, count: u32, token: u64) -> Outcome {
        let permits = Self::permits(party, count);
        let words = format!("{}{permits} TOKEN {token}", self.words(party, "RELEASE"));
        self.ask(party, &words, Call::Release { count, token: Some(token), request_id: None })
    }

    fn renew_by_token(&mut self, party: &Party, lease_ms: u64, token: u64) {
        let words = format!("{} PX {lease_ms} TOKEN {token}", self.words(party, "RENEW"));
        self.ask(party, &words, Call::Renew { lease_ms, token: Some(token) });
    }
}
