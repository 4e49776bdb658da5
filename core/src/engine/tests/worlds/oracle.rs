//! What a mutex, a read-write lock and a semaphore do, as plainly as it can be said: a list of holds, a line of waiters, and one
//! loop that serves it from its head. Two of them know nothing of each other; who waits for whom is looked up over all.
//!
//! Nothing is done by the way: what is due is done when somebody asks for the lock, when somebody uses a hold after the server
//! has told something, and when the timer goes off. A wait whose time is over ends with the timer, or when it is first in line;
//! until then its owner may send it again, or take it back.
//!
//! `fuzz/` uses this file too: it knows nothing of the engine, and of the crate only what is below.

use std::vec::Vec;

use crate::kind::Mode;
use crate::request::Verb;

/// What somebody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Granted,
    Nil,
    Waits,
    TakenOver,
    Cancelled,
    Deadlock,
    Refused,
    NotOwner,
    Left(u32),
}

/// The last numbered request of a hold.
type Mark = Option<(u64, Verb)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) owner: u8,
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) until_ms: u64,
    mark: Mark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InLine {
    pub(super) owner: u8,
    pub(super) wish: Wish,
    pub(super) until_ms: u64,
    /// A reader that wants to write stands ahead of all who do not.
    upgrades: bool,
    /// It stands where the same request stood before.
    is_repeated: bool,
    /// So does this, and the time of the other one was over, which was in nobody's way any more. When the timer goes off it is asked for circles: the
    /// lowest number first, and a number it gets in [`closes_a_circle`].
    suspect: Option<u64>,
}

/// What ACQUIRE asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) lease_ms: u64,
    /// How long it waits, if it does.
    pub(super) wait_ms: Option<u64>,
    /// REQ.
    pub(super) id: Option<u64>,
    /// An owner that holds already gets no more.
    pub(super) is_once: bool,
    /// Who waits is answered on a channel: sent again, it is the same wait.
    pub(super) is_notified: bool,
}

/// What RELEASE gives back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Back {
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) id: Option<u64>,
    /// With a token that is not that of the hold, it is as if there were none.
    pub(super) is_meant: bool,
}

/// A grant of which it is not known that it was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unheard {
    owner: u8,
    mode: Mode,
    count: u32,
    /// The number it came with, and what the hold said before.
    marks: (Mark, Mark),
}

/// What a lock says to a wish, whoever waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Grant,
    /// This very request was granted before.
    Repeat,
    /// The owner has what it asks for once.
    Has,
    Wait,
    Refuse,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Oracle {
    permits: u32,
    pub(super) holds: Vec<Held>,
    pub(super) line: Vec<InLine>,
    unheard: Vec<Unheard>,
    /// Whose grants were never heard of and are over, and who holds anew: when they leave, the lock is told something.
    over: Vec<u8>,
    /// Of the grants that were not heard of, those that nobody will hear of.
    undone: Vec<Unheard>,
    /// The server has told something that was not acted upon.
    is_told: bool,
    /// A command of the server's has removed the value, and the lock was not looked at since: nobody waits here for anybody.
    is_gone: bool,
    /// What waiters were answered.
    pub(super) answers: Vec<(u8, Told)>,
}

/// Whether a numbered request is the last one of a hold once more; an error if it is an earlier one.
fn is_repeat(last: Mark, id: Option<u64>, verb: Verb) -> Result<bool, Told> {
    match (last, id) {
        (Some((last, by)), Some(id)) if id < last || (id == last && by != verb) => Err(Told::Refused),
        (Some((last, _)), Some(id)) => Ok(id == last),
        _ => Ok(false),
    }
}

impl Oracle {
    /// A lock that nobody holds; a semaphore with so many permits.
    pub(super) fn new(permits: u32) -> Self {
        Self { permits, ..Self::default() }
    }

    pub(super) fn live(&self, now_ms: u64) -> impl Iterator<Item = &Held> {
        self.holds.iter().filter(move |held| held.until_ms > now_ms)
    }

    fn position(&self, owner: u8, mode: Mode, now_ms: u64) -> Option<usize> {
        self.holds.iter().position(|held| held.owner == owner && held.mode == mode && held.until_ms > now_ms)
    }

    fn has_room(&self, owner: u8, mode: Mode, count: u32, now_ms: u64) -> bool {
        let mut others = self.live(now_ms).filter(|held| held.owner != owner);
        match mode {
            Mode::Exclusive | Mode::Write => others.next().is_none(),
            Mode::Read => !others.any(|held| held.mode == Mode::Write),
            Mode::Permits => self.live(now_ms).map(|held| held.count).sum::<u32>() + count <= self.permits,
        }
    }

    fn verdict(&self, owner: u8, wish: Wish, now_ms: u64) -> Verdict {
        if let Some(at) = self.position(owner, wish.mode, now_ms) {
            let held = &self.holds[at];
            match is_repeat(held.mark, wish.id, Verb::Acquire) {
                Err(_) => return Verdict::Refuse,
                Ok(true) => return Verdict::Repeat,
                Ok(false) => {}
            }
            if wish.is_once {
                let is_enough = wish.mode != Mode::Permits || held.count == wish.count;
                return if is_enough { Verdict::Has } else { Verdict::Refuse };
            }
        }
        if self.has_room(owner, wish.mode, wish.count, now_ms) { Verdict::Grant } else { Verdict::Wait }
    }

    /// Gives what was asked for, or a new lease to who has it already. Returns what to take back if it is not heard of.
    fn give(&mut self, owner: u8, wish: Wish, verdict: Verdict, now_ms: u64) -> Unheard {
        let Wish { mode, lease_ms, id, .. } = wish;
        let count = if verdict == Verdict::Grant { wish.count } else { 0 };
        let (until_ms, mark) = (now_ms + lease_ms, id.map(|id| (id, Verb::Acquire)));
        let mut before = None;
        match self.position(owner, mode, now_ms) {
            Some(at) => {
                let held = &mut self.holds[at];
                before = held.mark;
                held.count += count;
                held.until_ms = held.until_ms.max(until_ms);
                held.mark = mark.or(before);
            }
            None => {
                let earlier = self.unheard.extract_if(.., |one| (one.owner, one.mode) == (owner, mode));
                self.over.extend(earlier.map(|one| one.owner));
                self.holds.push(Held { owner, mode, count, until_ms, mark });
            }
        }
        Unheard { owner, mode, count, marks: (mark, before) }
    }

    /// What is due when the timer goes off: also waits whose time is over, wherever they stand.
    pub(super) fn run_timer(&mut self, now_ms: u64) {
        let over: Vec<InLine> = self.line.extract_if(.., |one| one.until_ms <= now_ms).collect();
        self.answers.extend(over.iter().map(|one| (one.owner, Told::Nil)));
        self.settle(now_ms);
    }

    /// Does what is due.
    fn settle(&mut self, now_ms: u64) {
        (self.is_told, self.is_gone) = (false, false);
        for Unheard { owner, mode, count, marks: (mark, before) } in std::mem::take(&mut self.undone).into_iter().rev()
        {
            if let Some(at) = self.position(owner, mode, now_ms) {
                let held = &mut self.holds[at];
                held.count = held.count.saturating_sub(count);
                if mark.is_some() && held.mark == mark {
                    held.mark = before;
                }
            }
        }
        self.holds.retain(|held| held.count > 0 && held.until_ms > now_ms);
        while let Some(InLine { owner, wish, until_ms, .. }) = self.line.first().cloned() {
            let verdict = self.verdict(owner, wish, now_ms);
            let told = match verdict {
                _ if until_ms <= now_ms => Told::Nil,
                Verdict::Wait => return,
                Verdict::Refuse => Told::Refused,
                Verdict::Grant | Verdict::Repeat | Verdict::Has => {
                    let unheard = self.give(owner, wish, verdict, now_ms);
                    self.unheard.push(unheard);
                    Told::Granted
                }
            };
            self.line.remove(0);
            self.answers.push((owner, told));
        }
    }

    pub(super) fn acquire(&mut self, owner: u8, wish: Wish, now_ms: u64) -> Told {
        let Wish { mode, count, id, .. } = wish;
        self.settle(now_ms);
        if let Some(told) = self.repeated(owner, wish, now_ms) {
            return told;
        }
        let until_ms = wish.wait_ms.map(|wait_ms| now_ms + wait_ms);
        let is_earlier = |one: &InLine| one.owner == owner && one.wish.mode == mode && one.wish.id.is_some();
        if let (Some(at), Some(id)) = (self.line.iter().position(is_earlier), id) {
            let earlier = self.line[at].clone();
            if Some(id) < earlier.wish.id || (Some(id) == earlier.wish.id && count != earlier.wish.count) {
                return Told::Refused;
            }
            self.line.remove(at);
            let is_same = Some(id) == earlier.wish.id;
            if !(is_same && wish.is_notified && earlier.wish.is_notified) {
                self.answers.push((owner, Told::TakenOver));
            }
            if let (true, Some(until_ms)) = (is_same, until_ms) {
                // The same request once more stands where it stood.
                let is_suspect = earlier.suspect.is_some() || earlier.until_ms <= now_ms;
                let suspect = is_suspect.then_some(NOT_NUMBERED);
                self.line.insert(at, InLine { wish, until_ms, is_repeated: true, suspect, ..earlier });
                return Told::Waits;
            }
            self.settle(now_ms);
            if is_same {
                return Told::Nil;
            }
            if let Some(told) = self.repeated(owner, wish, now_ms) {
                return told;
            }
        }
        let verdict = self.verdict(owner, wish, now_ms);
        let holds = |mode| self.position(owner, mode, now_ms).is_some();
        let is_reentry = verdict == Verdict::Has || (mode != Mode::Permits && holds(mode));
        let is_downgrade = mode == Mode::Read && holds(Mode::Write);
        let upgrades = mode == Mode::Write && holds(Mode::Read);
        let is_next = match upgrades {
            true => !self.line.iter().any(|one| one.upgrades),
            false => self.line.is_empty(),
        };
        if is_reentry || is_downgrade || (is_next && verdict == Verdict::Grant) {
            self.give(owner, wish, verdict, now_ms);
            self.hear(owner, mode);
            return Told::Granted;
        }
        let Some(until_ms) = until_ms else { return Told::Nil };
        let ahead = self.line.iter().filter(|one| one.upgrades).count();
        let at = if upgrades { ahead } else { self.line.len() };
        self.line.insert(at, InLine { owner, wish, until_ms, upgrades, is_repeated: false, suspect: None });
        Told::Waits
    }

    /// What a request is answered that was granted before, or cannot be.
    fn repeated(&mut self, owner: u8, wish: Wish, now_ms: u64) -> Option<Told> {
        match self.verdict(owner, wish, now_ms) {
            Verdict::Refuse => Some(Told::Refused),
            Verdict::Repeat => {
                self.give(owner, wish, Verdict::Repeat, now_ms);
                self.hear(owner, wish.mode);
                Some(Told::Granted)
            }
            Verdict::Grant | Verdict::Has | Verdict::Wait => None,
        }
    }

    /// An owner uses its hold, and so knows of it.
    fn hear(&mut self, owner: u8, mode: Mode) {
        self.unheard.retain(|one| (one.owner, one.mode) != (owner, mode));
    }

    fn use_hold(&mut self, owner: u8, mode: Mode, now_ms: u64) -> Option<usize> {
        if self.is_told {
            self.settle(now_ms);
        }
        self.position(owner, mode, now_ms)
    }

    pub(super) fn release(&mut self, owner: u8, back: Back, now_ms: u64) -> Told {
        let Back { mode, count, id, is_meant } = back;
        let Some(at) = self.use_hold(owner, mode, now_ms).filter(|_| is_meant) else { return Told::NotOwner };
        match is_repeat(self.holds[at].mark, id, Verb::Release) {
            Err(stale) => return stale,
            Ok(true) => {
                let left = self.holds[at].count;
                self.settle(now_ms);
                return Told::Left(left);
            }
            Ok(false) if self.holds[at].count < count => return Told::Refused,
            Ok(false) => {}
        }
        self.hear(owner, mode);
        let held = &mut self.holds[at];
        held.count -= count;
        held.mark = id.map(|id| (id, Verb::Release)).or(held.mark);
        let left = held.count;
        self.settle(now_ms);
        Told::Left(left)
    }

    pub(super) fn renew(&mut self, owner: u8, mode: Mode, is_meant: bool, lease_ms: u64, now_ms: u64) -> Told {
        let Some(at) = self.use_hold(owner, mode, now_ms).filter(|_| is_meant) else { return Told::NotOwner };
        self.hear(owner, mode);
        self.holds[at].until_ms = self.holds[at].until_ms.max(now_ms + lease_ms);
        Told::Left(self.holds[at].count)
    }

    pub(super) fn force(&mut self, now_ms: u64) {
        if self.is_told {
            self.settle(now_ms);
        }
        if self.live(now_ms).next().is_some() {
            self.holds.clear();
            self.settle(now_ms);
        }
    }

    /// Who waits gives up.
    pub(super) fn cancel(&mut self, owner: u8, now_ms: u64) {
        self.settle(now_ms);
        if self.line.iter().any(|one| one.owner == owner) {
            self.line.retain(|one| one.owner != owner);
            self.answers.push((owner, Told::Cancelled));
            self.settle(now_ms);
        }
    }

    pub(super) fn hear_all(&mut self) {
        self.unheard.clear();
        self.over.clear();
    }

    /// Nobody has listened to what was published in this turn.
    pub(super) fn nobody_hears(&mut self) {
        self.is_told |= !self.unheard.is_empty() || !self.over.is_empty();
        self.undone.append(&mut self.unheard);
        self.over.clear();
    }

    /// The value is gone; who waits stays.
    pub(super) fn delete(&mut self) {
        self.holds.clear();
        (self.is_told, self.is_gone) = (true, true);
    }

    /// The connection of a waiter, or of a grant that was not heard of, is gone. Of the end of any other one the lock is told nothing.
    pub(super) fn leave(&mut self, owner: u8) {
        let is_unheard = self.unheard.iter().any(|one| one.owner == owner) || self.over.contains(&owner);
        if !is_unheard && !self.line.iter().any(|one| one.owner == owner) {
            return;
        }
        self.line.retain(|one| one.owner != owner);
        self.over.retain(|of| *of != owner);
        self.undone.extend(self.unheard.extract_if(.., |one| one.owner == owner));
        self.is_told = true;
    }

    /// Another server takes over: nobody is connected to it.
    pub(super) fn fail_over(&mut self) {
        self.line.clear();
        self.hear_all();
        self.undone.clear();
        self.is_told = true;
    }

    /// When something is due next.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let ends = self.holds.iter().map(|held| held.until_ms);
        ends.chain(self.line.iter().map(|one| one.until_ms)).min()
    }

    /// For whom an owner waits here: who holds in its way, and everybody ahead of it.
    pub(super) fn waits_for(&self, owner: u8, now_ms: u64) -> Vec<u8> {
        let Some(at) = self.line.iter().position(|one| one.owner == owner && one.until_ms > now_ms) else {
            return Vec::new();
        };
        let mode = self.line[at].wish.mode;
        if mode == Mode::Permits || self.is_gone {
            return Vec::new();
        }
        let in_the_way = self.live(now_ms).filter(|held| (mode, held.mode) != (Mode::Read, Mode::Read));
        let ahead = self.line[..at].iter().filter(|one| one.until_ms > now_ms);
        in_the_way.map(|held| held.owner).chain(ahead.map(|one| one.owner)).filter(|other| *other != owner).collect()
    }
}

/// Of those in [`InLine::suspect`].
const NOT_NUMBERED: u64 = u64::MAX;

/// What is due on all locks when the timer goes off.
pub(super) fn run_timers(oracles: &mut [Oracle], now_ms: u64) {
    oracles.iter_mut().for_each(|oracle| oracle.run_timer(now_ms));
    while let Some((number, key)) = first_suspect(oracles) {
        let Some(at) = oracles[key].line.iter().position(|one| one.suspect == Some(number)) else { return };
        let owner = oracles[key].line[at].owner;
        oracles[key].line[at].suspect = None;
        if waits_for_itself(oracles, owner, now_ms) {
            oracles[key].line.remove(at);
            oracles[key].answers.push((owner, Told::Deadlock));
            oracles[key].settle(now_ms);
        }
    }
}

/// The number and the lock of who is to be asked next for circles.
fn first_suspect(oracles: &[Oracle]) -> Option<(u64, usize)> {
    let of = |(key, oracle): (usize, &Oracle)| {
        oracle.line.iter().filter_map(|one| one.suspect).min().map(|number| (number, key))
    };
    oracles.iter().enumerate().filter_map(of).min()
}

/// Whether an owner that begins to wait for a lock waits for itself, over all of them. Who goes on waiting was asked that before, or is asked
/// later; who waits for permits is not asked.
pub(super) fn closes_a_circle(oracles: &mut [Oracle], key: usize, owner: u8, now_ms: u64) -> bool {
    let numbers = oracles.iter().flat_map(|oracle| &oracle.line).filter_map(|one| one.suspect);
    let next = numbers.filter(|number| *number != NOT_NUMBERED).max().map_or(0, |last| last + 1);
    let Some(one) = oracles[key].line.iter_mut().find(|one| one.owner == owner) else { return false };
    if one.suspect == Some(NOT_NUMBERED) {
        one.suspect = (one.wish.mode != Mode::Permits).then_some(next);
    }
    !one.is_repeated && one.wish.mode != Mode::Permits && waits_for_itself(oracles, owner, now_ms)
}

fn waits_for_itself(oracles: &[Oracle], owner: u8, now_ms: u64) -> bool {
    let mut seen: Vec<u8> = Vec::new();
    let mut next = [owner].to_vec();
    while let Some(one) = next.pop() {
        for other in oracles.iter().flat_map(|oracle| oracle.waits_for(one, now_ms)) {
            if other == owner {
                return true;
            }
            if !seen.contains(&other) {
                seen.push(other);
                next.push(other);
            }
        }
    }
    false
}
