//! Compares a small world with the oracles of its keys.

use std::vec::Vec;

use super::commands::refused;
use super::oracle::fair::FairOracle;
use super::oracle::fair_places::Place;
use super::oracle::kept::Kept;
use super::oracle::repeats::Mark;
use super::oracle::{Oracle, Told, accept_what_is_open};
use super::small_world::{SmallWorld, Spec, name};
use crate::engine::tests::world::Output;
use crate::kind::{Kind, Mode};
use crate::lock::Lock;
use crate::outbox::Answer;
use crate::place::Stay;
use crate::time::US_PER_MS;

impl SmallWorld {
    /// Compares the engine with the oracles when no work is due.
    pub(super) fn compare(&mut self) {
        for (_, output) in std::mem::take(&mut self.world.outputs) {
            let Output::Answer { ticket, answer, .. } = output else { continue };
            let Some(known) = self.tickets.iter().find(|known| known.ticket == ticket) else { continue };
            let told = match answer {
                Answer::Granted(_) => Told::Granted,
                Answer::TimedOut => Told::Nil,
                Answer::Superseded => Told::Superseded,
                Answer::Cancelled => Told::Cancelled,
                Answer::Refused(refusal) => refused(&refusal),
                // Sent to no client, or to a client that has disconnected.
                Answer::Continued | Answer::Closed | Answer::Ended | Answer::Demoted | Answer::Moved => continue,
            };
            self.answers.push((known.key, known.owner, told));
        }
        let mut answers = std::mem::take(&mut self.answers);
        let now = self.world.now;
        for key in 0..self.setup.keys {
            let (expected, expected_answers) = match &mut self.spec {
                Spec::Plain(oracles) => (seen_plain(&oracles[key]), std::mem::take(&mut oracles[key].answers)),
                Spec::Fair(oracles) => (seen_fair(&oracles[key]), std::mem::take(&mut oracles[key].answers)),
                Spec::None => return,
            };
            let mut told: Vec<(u8, Told)> =
                answers.extract_if(.., |(of, ..)| *of == key).map(|(_, owner, told)| (owner, told)).collect();
            let mut expected_answers = expected_answers;
            accept_what_is_open(&mut told, &expected_answers);
            told.sort();
            expected_answers.sort();
            assert_eq!(told, expected_answers, "the answers to the waiters for key {key}");
            let name = name(key);
            let lock = self.world.lock(&name);
            let mut seen: Vec<Seen> = lock
                .into_iter()
                .flat_map(|lock| lock.live_holds(now))
                .map(|hold| {
                    let number = number(hold.request().map(|last| (last.id, last.verb, last.added)));
                    let owner = hold.owner().as_slice()[0];
                    (0, owner, hold.mode(), hold.count(), hold.deadline_us() / US_PER_MS, number)
                })
                .collect();
            seen.sort();
            let kept = lock.and_then(|lock| lock.kept(now));
            seen.extend(kept.map(|hold| {
                let number = number(hold.request().map(|last| (last.id, last.verb, last.added)));
                (3, hold.owner().as_slice()[0], hold.mode(), 0, hold.deadline_us() / US_PER_MS, number)
            }));
            if let Some(queue) = lock.and_then(Lock::queue) {
                let reserved = queue.reserved_until_us();
                seen.extend(reserved.map(|at_us| (1, 0, Mode::Exclusive, 0, at_us / US_PER_MS, None)));
                let until_ms = |stay: Stay| stay.until_us().map_or(u64::MAX, |at_us| at_us / US_PER_MS);
                seen.extend(queue.iter().map(|place| {
                    let number = place.request_id.map(|id| (id, 0, 0));
                    (2, place.owner[0], Mode::Exclusive, 1, until_ms(place.stay), number)
                }));
            } else {
                seen.extend(lock.filter(|lock| lock.kind() == Kind::Semaphore).map(|lock| {
                    let idle = lock.idle().filter(|_| lock.live_holds(now).next().is_none());
                    seen_semaphore(lock.permits(), idle.map(|idle| idle.until_us / US_PER_MS))
                }));
                let waiters = self.world.engine.waiters(name.borrow(), now);
                seen.extend(waiters.map(|waiter| (2, waiter.owner[0], waiter.mode, waiter.count, 0, None)));
            }
            assert_eq!(seen, expected, "the holders of key {key} and its waiters");
        }
    }
}

/// A hold (0), a reservation (1), a waiter (2), a kept lock (3), or a semaphore (4): owner, mode,
/// count, deadline, and the owner's last request id, with its command and added count. The
/// comparison includes everything that is remembered beside a lock, because the search continues
/// only once from two states that differ in nothing else.
type Seen = (u8, u8, Mode, u32, u64, Option<(u64, u8, u32)>);

fn number(mark: Mark) -> Option<(u64, u8, u32)> {
    mark.map(|(id, verb, added)| (id, verb as u8, added))
}

fn seen_semaphore(permits: u32, idle_until_ms: Option<u64>) -> Seen {
    (4, 0, Mode::Permits, permits, idle_until_ms.unwrap_or(0), None)
}

fn seen_kept(kept: Option<Kept>) -> Option<Seen> {
    kept.map(|kept| (3, kept.owner, Mode::Exclusive, 0, kept.until_ms, number(kept.mark)))
}

fn seen_plain(oracle: &Oracle) -> Vec<Seen> {
    let held = oracle.holds.iter();
    let mut seen: Vec<Seen> =
        held.map(|held| (0, held.owner, held.mode, held.count, held.until_ms, number(held.mark))).collect();
    seen.sort();
    seen.extend(seen_kept(oracle.kept));
    seen.extend(oracle.permits().map(|permits| seen_semaphore(permits, oracle.idle_until_ms())));
    seen.extend(oracle.line.iter().map(|one| (2, one.owner, one.wish.mode, one.wish.count, 0, None)));
    seen
}

fn seen_fair(oracle: &FairOracle) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    let holder = oracle.holder;
    seen.extend(
        holder.map(|(owner, count, until_ms)| (0, owner, Mode::Exclusive, count, until_ms, number(oracle.mark))),
    );
    seen.extend(seen_kept(oracle.kept));
    seen.extend(oracle.reserved_ms.map(|until_ms| (1, 0, Mode::Exclusive, 0, until_ms, None)));
    let until_ms = |place: &Place| if place.is_connected { u64::MAX } else { place.until_ms };
    seen.extend(
        oracle
            .line
            .iter()
            .map(|place| (2, place.owner, Mode::Exclusive, 1, until_ms(place), place.id.map(|id| (id, 0, 0)))),
    );
    seen
}
