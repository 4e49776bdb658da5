//! Two worlds are equal if no later step can tell them apart.

use std::rc::Rc;
use std::vec::Vec;

use super::server::Server;
use super::world::{TICK_US, World};
use crate::engine::tests::worlds::canonical::{OneServer, Seen};

impl World<'_> {
    pub(super) fn hash(&self) -> u64 {
        let mut terms: Vec<u64> = self.servers.iter().map(|server| server.term).collect();
        terms.sort_unstable();
        terms.dedup();
        let mut seen = Seen::new(self.one(0));
        for (number, server) in self.servers.iter().enumerate() {
            seen.of = self.one(number);
            seen.see();
            seen.word(server.follows.map_or(u64::MAX, |master| master as u64));
            seen.word(terms.iter().position(|term| *term == server.term).unwrap_or(0) as u64);
            seen.word(u64::from(server.needs_copy));
            seen.word(server.on_the_way.len() as u64);
            self.see_rights(&mut seen, server);
            for waiting in &server.waiting {
                seen.word(u64::from(waiting.owner));
                seen.word(u64::from(server.engine.is_waiting(waiting.ticket)));
                seen.word(self.now - waiting.sent);
            }
            for connection in server.connections {
                seen.client(Some(connection));
            }
        }
        seen.word(self.has_begun);
        for owner in &self.owners {
            seen.word(owner.claims().len() as u64);
            for claim in owner.claims() {
                seen.word(claim.key as u64);
                seen.word(claim.mode as u64);
                seen.word(claim.count);
                seen.number(claim.token);
                // The grace of a session counts from when the last request was sent.
                let left = claim.until().saturating_sub(self.now);
                seen.word(left);
                seen.word(if left > 0 { self.now - claim.sent } else { 0 });
            }
        }
        seen.finish()
    }

    pub(super) fn one(&self, number: usize) -> OneServer<'_> {
        let server = &self.servers[number];
        let now_us = self.now_of(number).mono_us;
        OneServer { engine: &server.engine, values: &server.values.0, unpublished: &[], now_us }
    }

    /// The quarantine and the right to grant, as far as they may still matter. Of offsets only the
    /// order counts, and of noted offsets only those that a vote has not passed.
    pub(super) fn see_rights(&self, seen: &mut Seen<'_>, server: &Server) {
        let (terms, now_us) = (server.exclusion.terms, self.now * TICK_US);
        let (exclusion, right) = (&server.exclusion, &server.exclusion.right);
        seen.word(exclusion.quarantine_until_us.saturating_sub(now_us));
        seen.word(u64::from(exclusion.paused_since_us.is_some()) + 2 * u64::from(right.has_begun));
        seen.word(u64::from(server.is_changed) + 2 * u64::from(server.has_forged) + 4 * u64::from(server.has_twins));
        seen.word(exclusion.settings.settles_in_us(now_us));
        // How long ago, as far as that matters.
        let age = |at_us: u64| now_us.saturating_sub(at_us).min(terms.longest_lag_us + TICK_US);
        seen.word(right.until_us.saturating_sub(now_us));
        // A right that lapsed goes on if the connections are older than the lapse.
        let lapsed_us = right.until_us.min(now_us).saturating_sub(terms.longest_lag_us);
        let oldest_us = now_us.saturating_sub(terms.longest_lag_us);
        let notes: Vec<(u64, u64)> = right.noted.iter().map(|(offset, at_us)| (*offset, *at_us)).collect();
        let notes: Vec<(u64, u64)> = notes.into_iter().filter(|(_, at_us)| *at_us >= oldest_us).collect();
        for (_, at_us) in &notes {
            seen.word(age(*at_us));
        }
        for (address, vote) in &right.votes {
            seen.word(address.parse::<u64>().expect("a number"));
            seen.word(age(vote.since_us));
            seen.word(u64::from(vote.since_us <= lapsed_us));
            seen.word(vote.written_us.map_or(u64::MAX, age));
        }
        let is_beyond = |acknowledged: Option<u64>| {
            acknowledged.map_or(u64::MAX, |by| notes.iter().filter(|(offset, _)| *offset < by).count() as u64)
        };
        for (number, link) in server.links.iter().enumerate() {
            seen.word(is_beyond(link.acknowledged));
            seen.word(is_beyond(link.in_socket));
            seen.word(is_beyond(link.lost));
            let follows =
                self.servers[number].follows.is_some_and(|master| Rc::as_ptr(&self.servers[master]) == server);
            seen.word(if follows { is_beyond(Some(self.servers[number].offset)) } else { u64::MAX });
        }
        seen.word(is_beyond(Some(server.offset)));
    }
}
