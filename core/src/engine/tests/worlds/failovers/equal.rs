//! Two worlds are equal if no later step can tell them apart.

use std::rc::Rc;
use std::vec::Vec;

use super::LAG;
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
                seen.word(u64::from(claim.is_unclaimed()));
                // The grace of a session counts from when the last request was sent.
                let left = claim.until().saturating_sub(self.now);
                seen.word(left);
                seen.word(if left > 0 { claim.sent().map_or(0, |sent| self.now - sent) } else { 0 });
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
    /// order counts, and of noted offsets only those that may still extend the right.
    pub(super) fn see_rights(&self, seen: &mut Seen<'_>, server: &Server) {
        let (rules, now_us) = (self.setup.rules(), self.now * TICK_US);
        let quarantine = &server.quarantine;
        let left_ms = quarantine.left_ms(&rules, now_us);
        seen.word(left_ms);
        seen.word(if left_ms > 0 { quarantine.reason as u64 } else { 0 });
        seen.word(u64::from(quarantine.awaits_replicas) + 2 * u64::from(quarantine.was_paused));
        let until_us = quarantine.right.until_us.max(now_us);
        seen.word(until_us - now_us);
        let lag_us = LAG * TICK_US;
        let notes: Vec<(u64, u64)> = quarantine.right.noted.iter().map(|(offset, at_us)| (*offset, *at_us)).collect();
        let notes: Vec<(u64, u64)> = notes.into_iter().filter(|(_, at_us)| at_us + lag_us > until_us).collect();
        for (_, at_us) in &notes {
            seen.word(at_us.wrapping_sub(now_us));
        }
        let is_beyond = |acknowledged: Option<u64>| {
            acknowledged.map_or(u64::MAX, |by| notes.iter().filter(|(offset, _)| *offset < by).count() as u64)
        };
        for (number, link) in server.links.iter().enumerate() {
            seen.word(is_beyond(link.acknowledged));
            seen.word(is_beyond(link.in_socket));
            let follows =
                self.servers[number].follows.is_some_and(|master| Rc::as_ptr(&self.servers[master]) == server);
            seen.word(if follows { is_beyond(Some(self.servers[number].offset)) } else { u64::MAX });
        }
        seen.word(is_beyond(Some(server.offset)));
    }
}
