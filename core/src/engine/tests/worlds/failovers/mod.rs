//! Failovers: two to four servers that replicate, two owners, and every order of requests, ticks,
//! acknowledgements, promotions, restarts and time, up to a depth.
//!
//! Each server is a real [`crate::Engine`] beside a real [`crate::Quarantine`] (`server.rs`). The
//! effects of a master reach its replicas late, and a promoted replica lacks those that it has not
//! received. A former master keeps its clients, and notices nothing until it runs. Each request is
//! answered at once, because that gives the longest belief. The oracle is `beliefs.rs`.
//!
//! Time is discrete. The search is exhaustive: level by level, without continuing from a state that
//! it has seen (`search.rs`). `FailOver`, `Follow` and `SlowTick` stand for several steps that
//! usually come together, so that the search gets deeper.
//!
//! The search also runs with each rule made wrong (`fault.rs`), on the steps that matter to the
//! rule. It must then find two owners that believe at once. The same search with the right rules
//! must find none.

mod action;
mod beliefs;
mod equal;
mod fault;
mod replication;
mod requests;
mod search;
mod server;
mod turns;
mod world;

use std::vec::Vec;

use self::action::{Action, Ask};
use self::fault::Fault;
use self::search::Search;
use super::search::wanted_states;
use crate::kind::{Kind, Mode};
use crate::quarantine::{GrantRules, QuarantineAfter};

/// The lease of every request, which is also the longest one allowed.
const LEASE: u64 = 3;

/// How long a master may grant after its replicas have followed it. It is shorter than a lease,
/// since otherwise no hold would be left to renew when RENEW is accepted again.
const LAG: u64 = 2;

/// `SESSION`.
const SESSION: u64 = 1;

/// A kind of world.
struct Setup {
    kind: Kind,
    permits: u32,
    servers: usize,
    min_replicas: u64,
    quarantine_after: QuarantineAfter,
    quarantine: u64,
    are_owners_alike: bool,
    has_sessions: bool,
    /// Owners believe after a wait without RENEW, from when the wait was sent.
    believes_after_wait: bool,
    /// How far the wall clock of each server is ahead, in ticks.
    clocks_ahead: [u64; 4],
    /// The first steps of each path.
    begins_with: Vec<Action>,
    actions: Vec<Action>,
}

impl Setup {
    /// A master with two replicas of which one has to follow, and a mutex.
    fn new(actions: &[Action]) -> Self {
        Self {
            kind: Kind::Mutex,
            permits: 1,
            servers: 3,
            min_replicas: 1,
            quarantine_after: QuarantineAfter::Failover,
            // The shortest one that is long enough: in ticks the last moment of a right is
            // `LAG - 1` after the moment at which replicas followed.
            quarantine: LEASE + LAG - 1,
            are_owners_alike: true,
            has_sessions: false,
            believes_after_wait: false,
            clocks_ahead: [0; 4],
            begins_with: Vec::new(),
            actions: actions.to_vec(),
        }
    }

    fn rules(&self) -> GrantRules {
        GrantRules {
            quarantine_after: self.quarantine_after,
            quarantine_ms: self.quarantine,
            min_replicas: self.min_replicas,
            max_replica_lag_ms: LAG,
        }
    }
}

/// The least number of states of a search.
const MIN_STATES: usize = 8_000;

/// Searches a kind of world, in which no two owners may believe.
fn search(name: &str, setup: &Setup) {
    let search = Search::run(setup, Fault::None, wanted_states().unwrap_or(0).max(MIN_STATES), u8::MAX);
    std::println!("{}", search.line(name));
    let reached = search.reached;
    std::println!(
        "{name}: {} promotions lost effects, {} beliefs under both masters, {} quarantines ended, {} grants after them",
        reached.lost_suffixes,
        reached.under_both,
        reached.ended,
        reached.granted_after
    );
    assert!(search.overlap.is_none(), "two owners believe: {}", search.schedule());
    assert!(reached.ended > 0 && reached.granted_after > 0, "quarantines end: {reached:?}");
    if setup.servers > 1 {
        assert!(reached.lost_suffixes > 0 && reached.under_both > 0, "masters follow one another: {reached:?}");
    }
}

/// Searches with the right rules and with a wrong one, up to a depth.
fn finds(fault: Fault, depth: u8, setup: &Setup) {
    let right = Search::run(setup, Fault::None, usize::MAX, depth);
    assert!(right.overlap.is_none(), "two owners believe: {}", right.schedule());
    let wrong = Search::run(setup, fault, usize::MAX, depth);
    assert!(wrong.overlap.is_some(), "no schedule of {depth} steps shows that {}", fault.told());
    let first: Vec<_> = setup.begins_with.iter().map(std::string::ToString::to_string).collect();
    let schedule = [first.join("; "), wrong.schedule()].into_iter().filter(|part| !part.is_empty());
    let schedule = schedule.collect::<Vec<_>>().join("; ");
    std::println!("wrong rule, {} states: {}: {schedule}", wrong.states() + right.states(), fault.told());
}

/// The servers: the first master, its first successor, and a third and a fourth one.
const A: usize = 0;
const P: usize = 1;
const C: usize = 2;
const D: usize = 3;

/// The owners.
const X: u8 = 0;
const Y: u8 = 1;

const EXCLUSIVE: Mode = Mode::Exclusive;
const TRY: Ask = Ask::Try(EXCLUSIVE, 1);
const WAIT: Ask = Ask::Wait(EXCLUSIVE, 1);
const RENEW: Ask = Ask::Renew(EXCLUSIVE);
const RELEASE: Ask = Ask::Release(EXCLUSIVE);

const fn ask(owner: u8, server: usize, ask: Ask) -> Action {
    Action::Ask(owner, server, 0, ask)
}

/// The same requests from both owners to some servers.
fn of_both(servers: &[usize], asks: &[Ask]) -> Vec<Action> {
    let each = servers.iter().flat_map(|server| [X, Y].map(|owner| (owner, *server)));
    each.flat_map(|(owner, server)| asks.iter().map(move |request| ask(owner, server, *request))).collect()
}

/// Every step of the servers and of time, with some requests.
fn with_servers(asks: &[Action]) -> Setup {
    let servers = [
        Action::Pass(1),
        Action::Pass(3),
        Action::Tick(A),
        Action::Tick(P),
        Action::SlowTick(A),
        Action::Receive(P),
        Action::Receive(C),
        Action::Follow(A),
        Action::Follow(P),
        Action::Promote(P),
        Action::FailOver(P),
        Action::Attach(A, P),
        Action::Attach(C, P),
    ];
    Setup::new(&[&servers, asks].concat())
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn owners_of_mutexes_exclude_each_other() {
    search("failovers: mutex", &with_servers(&of_both(&[A, P], &[TRY, WAIT, RENEW, RELEASE, Ask::Leave])));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn readers_and_writers_exclude_each_other() {
    let (read, write) = (Mode::Read, Mode::Write);
    let asks = [Ask::Try(read, 1), Ask::Try(write, 1), Ask::Renew(read), Ask::Renew(write), Ask::Release(write)];
    search("failovers: rwlock", &Setup { kind: Kind::RwLock, ..with_servers(&of_both(&[A, P], &asks)) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn owners_have_no_more_permits_than_there_are() {
    let mut asks = of_both(&[A, P], &[Ask::Renew(Mode::Permits), Ask::Release(Mode::Permits), Ask::Drain]);
    for server in [A, P] {
        asks.extend([ask(X, server, Ask::Try(Mode::Permits, 2)), ask(Y, server, Ask::Try(Mode::Permits, 1))]);
    }
    let setup = Setup { kind: Kind::Semaphore, permits: 2, are_owners_alike: false, ..with_servers(&asks) };
    search("failovers: semaphore", &setup);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn owners_of_fair_locks_exclude_each_other() {
    let asks = of_both(&[A, P], &[TRY, WAIT, RENEW, RELEASE, Ask::Leave]);
    search("failovers: fair", &Setup { kind: Kind::Fair, ..with_servers(&asks) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn owners_of_many_keys_exclude_each_other() {
    let mut asks = of_both(&[A, P], &[TRY, RENEW, Ask::TryBoth]);
    asks.extend([A, P].map(|server| Action::Ask(Y, server, 1, TRY)));
    search("failovers: many", &Setup { are_owners_alike: false, ..with_servers(&asks) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn owners_with_sessions_exclude_each_other() {
    let asks = of_both(&[A, P], &[TRY, RENEW, Ask::Close]);
    search("failovers: SESSION", &Setup { has_sessions: true, ..with_servers(&asks) });
}

/// The wall clock of the former master is three ticks ahead: holds last longer at its successor.
#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn clocks_that_differ_leave_one_owner() {
    let asks = of_both(&[A, P], &[TRY, WAIT, RENEW, RELEASE]);
    search("failovers: clocks differ", &Setup { clocks_ahead: [3, 0, 0, 0], ..with_servers(&asks) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn restarts_between_failovers_leave_one_owner() {
    let restarts = [Action::Restart(A), Action::Lose(A), Action::Restart(P), Action::Lose(P)];
    let asks = [&of_both(&[A, P], &[TRY, RENEW, RELEASE])[..], &restarts].concat();
    search("failovers: restarts of three", &with_servers(&asks));
}

/// A single server with `quarantine-after restart`.
fn restarting() -> Setup {
    let asks = of_both(&[A], &[TRY, WAIT, RENEW, RELEASE, Ask::Once(EXCLUSIVE, 1), Ask::Leave]);
    let servers = [Action::Pass(1), Action::Pass(3), Action::Tick(A), Action::Restart(A), Action::Lose(A)];
    Setup {
        servers: 1,
        min_replicas: 0,
        quarantine_after: QuarantineAfter::Restart,
        quarantine: LEASE,
        ..Setup::new(&[&servers[..], &asks].concat())
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn restarts_leave_one_owner() {
    search("failovers: restarts of one", &restarting());
}

const PASS: Action = Action::Pass(1);

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn wrong_renewals_leave_two_owners() {
    let at_once = [
        PASS,
        Action::Follow(A),
        Action::Follow(P),
        Action::FailOver(P),
        ask(X, A, TRY),
        ask(X, P, RENEW),
        ask(Y, A, TRY),
    ];
    finds(Fault::RenewsAtOnce, 8, &Setup::new(&at_once));
    // The session of the former master's holder ends at once.
    let bound = [&at_once[..], &[ask(X, A, Ask::Close)]].concat();
    finds(Fault::RenewsAtOnce, 8, &Setup { has_sessions: true, ..Setup::new(&bound) });
    let waited = [
        Action::Pass(2),
        Action::Receive(P),
        Action::Follow(P),
        Action::FailOver(P),
        ask(X, A, TRY),
        ask(X, A, RELEASE),
        ask(Y, A, WAIT),
        ask(Y, A, Ask::Leave),
        ask(Y, P, RENEW),
    ];
    finds(Fault::RenewsUnclaimed, 10, &Setup::new(&waited));
    let held_before = [&waited[..], &[ask(Y, A, TRY), ask(Y, A, RELEASE)]].concat();
    let begins_with = [ask(X, A, TRY), Action::Receive(P)].to_vec();
    let held_before: Vec<Action> = held_before.into_iter().filter(|action| *action != Action::Receive(P)).collect();
    let of_x = |action: &Action| match *action {
        Action::Ask(owner, server, key, request) => Action::Ask(1 - owner, server, key, request),
        action => action,
    };
    let held_before: Vec<Action> = held_before.iter().map(of_x).collect();
    finds(Fault::RenewsAnyToken, 10, &Setup { begins_with, ..Setup::new(&held_before) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn wrong_answers_in_a_quarantine_leave_two_owners() {
    let begins_with = || [ask(X, A, TRY), Action::Receive(P), Action::FailOver(P)].to_vec();
    let exclusive = |again: Ask| {
        let actions = [PASS, Action::Follow(P), ask(X, A, RELEASE), ask(Y, A, TRY), ask(X, P, again)];
        Setup { begins_with: begins_with(), ..Setup::new(&actions) }
    };
    finds(Fault::Reenters, 8, &exclusive(TRY));
    finds(Fault::AnswersOnce, 8, &exclusive(Ask::Once(EXCLUSIVE, 1)));
    let numbered =
        Setup { begins_with: [ask(X, A, WAIT), Action::Receive(P), Action::FailOver(P)].to_vec(), ..exclusive(WAIT) };
    finds(Fault::AnswersRetries, 8, &numbered);
    for (held, asked) in [(Mode::Write, Mode::Read), (Mode::Read, Mode::Write)] {
        let actions = [
            PASS,
            Action::Follow(P),
            ask(X, A, Ask::Release(held)),
            ask(Y, A, Ask::Try(Mode::Write, 1)),
            ask(X, P, Ask::Try(asked, 1)),
        ];
        let begins_with = [ask(X, A, Ask::Try(held, 1)), Action::Receive(P), Action::FailOver(P)].to_vec();
        finds(Fault::ChangesModes, 8, &Setup { kind: Kind::RwLock, begins_with, ..Setup::new(&actions) });
    }
    let actions = [
        PASS,
        Action::Follow(P),
        Action::FailOver(P),
        ask(X, A, Ask::Try(Mode::Permits, 2)),
        ask(Y, P, Ask::Drain),
        ask(Y, P, Ask::Renew(Mode::Permits)),
    ];
    finds(
        Fault::Drains,
        7,
        &Setup { kind: Kind::Semaphore, permits: 2, are_owners_alike: false, ..Setup::new(&actions) },
    );
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn a_wrong_right_to_grant_leaves_two_owners() {
    let actions = [
        PASS,
        Action::Pass(3),
        Action::Tick(A),
        Action::Follow(P),
        Action::FailOver(P),
        ask(X, A, TRY),
        ask(Y, P, TRY),
    ];
    let setup = || Setup { are_owners_alike: false, ..Setup::new(&actions) };
    finds(Fault::CountsConnected, 8, &setup());
    finds(Fault::OneTooFew, 8, &setup());
    finds(Fault::StampsWhenRead, 8, &Setup { begins_with: [Action::Receive(C)].to_vec(), ..setup() });
    let slow = [PASS, Action::Tick(A), Action::SlowTick(A), Action::Follow(P), ask(X, A, TRY), ask(Y, P, TRY)];
    finds(Fault::ClockAfterOffset, 8, &Setup { are_owners_alike: false, ..Setup::new(&slow) });
    // Three replicas, of which two have to follow: one follows each master.
    let of_four = [
        PASS,
        Action::Pass(3),
        Action::Follow(A),
        Action::Follow(P),
        Action::Attach(D, P),
        ask(X, A, TRY),
        ask(Y, P, TRY),
    ];
    let begins_with = [Action::Promote(P)].to_vec();
    let setup = Setup { servers: 4, min_replicas: 2, are_owners_alike: false, begins_with, ..Setup::new(&of_four) };
    finds(Fault::OneTooFew, 8, &setup);
    // For owners that believe as soon as a wait ends. Owners that renew first are refused.
    let waited = [PASS, Action::Tick(A), Action::Follow(P), ask(Y, A, WAIT), ask(X, P, TRY)];
    let begins_with = [ask(X, A, TRY), Action::FailOver(P)].to_vec();
    finds(Fault::TimerGrants, 8, &Setup { believes_after_wait: true, begins_with, ..Setup::new(&waited) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn a_wrong_quarantine_leaves_two_owners() {
    let actions = [PASS, Action::Follow(A), Action::Follow(P), Action::FailOver(P), ask(X, A, TRY), ask(Y, P, TRY)];
    let setup = || Setup { are_owners_alike: false, ..Setup::new(&actions) };
    finds(Fault::NoQuarantine, 8, &setup());
    finds(Fault::TooShort, 8, &setup());
    finds(Fault::NoQuarantine, 6, &restarting());
    finds(Fault::TooShort, 6, &restarting());
    let followed = [
        PASS,
        Action::Pass(3),
        Action::Follow(A),
        Action::Follow(P),
        Action::Promote(P),
        Action::Attach(C, P),
        ask(X, A, TRY),
        ask(Y, P, TRY),
    ];
    let setup = Setup { are_owners_alike: false, ..Setup::new(&followed) };
    finds(Fault::NotBegunWhenFollowed, 8, &setup);
    // The first successor is promoted again within its quarantine. Meanwhile another one was
    // master.
    let again = [
        Action::Pass(2),
        Action::Follow(P),
        Action::Follow(C),
        Action::Promote(P),
        Action::Attach(A, P),
        ask(X, C, RENEW),
        ask(Y, P, TRY),
    ];
    let begins_with = [
        ask(X, A, TRY),
        Action::Follow(A),
        Action::FailOver(P),
        Action::Promote(C),
        Action::Attach(P, C),
        Action::Follow(C),
    ];
    let begins_with = begins_with.to_vec();
    let setup = Setup { are_owners_alike: false, begins_with, ..Setup::new(&again) };
    finds(Fault::NotBegunAnew, 9, &setup);
}
