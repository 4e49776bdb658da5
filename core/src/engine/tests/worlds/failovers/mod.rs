//! Failovers: two to four servers that replicate, two owners, and every order of requests, ticks,
//! acknowledgements, promotions, restarts and time, up to a depth.
//!
//! Each server is a real [`crate::Engine`] beside a real [`crate::Exclusion`] (`server.rs`). The
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

use std::vec;
use std::vec::Vec;

use self::action::{Action, Ask};
use self::fault::Fault;
use self::search::Search;
use super::search::wanted_states;
use crate::exclusion::{Mode as Promise, Settings};
use crate::kind::{Kind, Mode};

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
    /// `rlock.exclusion` and `rlock.replicas`.
    promise: Promise,
    replicas: u64,
    /// The lease and the lag of a server before and after its settings change.
    lease_and_lag: [(u64, u64); 2],
    are_owners_alike: bool,
    has_sessions: bool,
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
            promise: Promise::Failover,
            replicas: 2,
            lease_and_lag: [(LEASE, LAG); 2],
            are_owners_alike: true,
            has_sessions: false,
            clocks_ahead: [0; 4],
            begins_with: Vec::new(),
            actions: actions.to_vec(),
        }
    }

    fn settings(&self, is_changed: bool) -> Settings {
        let (max_lease_ms, max_lag_ms) = self.lease_and_lag[usize::from(is_changed)];
        Settings { mode: self.promise, replicas: self.replicas, max_lease_ms, max_lag_ms }
    }

    fn longest_lease(&self) -> u64 {
        self.lease_and_lag[0].0
    }

    fn longest_lag(&self) -> u64 {
        self.lease_and_lag[0].1
    }
}

/// The least number of states of a search.
const MIN_STATES: usize = 8_000;

/// A search with so many states reaches a belief under each of two masters.
const LONG_SEARCH: usize = 400_000;

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
    if setup.actions.contains(&Action::FailOver(P)) {
        assert!(reached.lost_suffixes > 0, "failovers lose effects: {reached:?}");
    }
    // That takes more steps than the short form has.
    if setup.servers > 1 && search.states() > LONG_SEARCH {
        assert!(reached.under_both > 0, "masters follow one another: {reached:?}");
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
        Action::SlowTick(A, 2),
        Action::Receive(P),
        Action::Receive(C),
        Action::Follow(A),
        Action::Follow(P),
        Action::Gain(P),
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

/// A single server.
fn restarting() -> Setup {
    let asks = of_both(&[A], &[TRY, WAIT, RENEW, RELEASE, Ask::Once(EXCLUSIVE, 1), Ask::Leave]);
    let servers = [Action::Pass(1), Action::Pass(3), Action::Tick(A), Action::Restart(A), Action::Lose(A)];
    let setup = Setup::new(&[&servers[..], &asks].concat());
    Setup { servers: 1, replicas: 0, promise: Promise::Restart, ..setup }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn restarts_leave_one_owner() {
    search("failovers: restarts of one", &restarting());
}

const PASS: Action = Action::Pass(1);
const PASS_3: Action = Action::Pass(3);
const FOLLOW_A: Action = Action::Follow(A);
const FOLLOW_P: Action = Action::Follow(P);

/// A server is promoted, restarts, and is followed only later.
fn promoted_and_restarted() -> Setup {
    let restart = [Action::Promote(P), Action::Restart(P), Action::Attach(C, P)];
    let asks = [ask(X, A, TRY), ask(X, P, RENEW), ask(Y, A, TRY), ask(Y, P, TRY)];
    Setup::new(&[&[PASS, PASS_3, FOLLOW_A, FOLLOW_P][..], &restart, &asks].concat())
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn promoted_server_that_restarts_leaves_one_owner() {
    search("failovers: promoted, restarted", &promoted_and_restarted());
}

/// A replica goes from one master to the other and back, whether they notice or not.
fn returning() -> Setup {
    let returns = [Action::Return(C, A), Action::Return(C, P), Action::Notice(A), Action::Notice(P)];
    let asks = [ask(X, A, TRY), ask(X, P, RENEW), ask(Y, P, TRY)];
    Setup::new(&[&[PASS, PASS_3, FOLLOW_A, FOLLOW_P, Action::FailOver(P)][..], &returns, &asks].concat())
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn replica_that_returns_leaves_one_owner() {
    search("failovers: a replica returns", &returning());
    // The promoted server becomes a replica of its former master again.
    let returns = [Action::Restart(P), Action::Return(P, A), Action::Promote(C), Action::Attach(P, C)];
    let asks = [ask(X, A, TRY), ask(X, P, RENEW), ask(Y, P, TRY), ask(Y, A, TRY), ask(Y, C, TRY)];
    let follows = [PASS, PASS_3, FOLLOW_A, FOLLOW_P, Action::Follow(C), Action::FailOver(P)];
    search("failovers: the promoted server returns", &Setup::new(&[&follows[..], &returns, &asks].concat()));
}

/// A lower value is set on the master first, a higher one on the replicas first.
fn changing(lease_and_lag: [(u64, u64); 2]) -> Setup {
    let [before, after] = lease_and_lag;
    let lowered = after < before;
    let first = if lowered { vec![Action::Change(A)] } else { vec![Action::Change(P), Action::Change(C)] };
    let begins_with = [&[ask(X, A, TRY)][..], &first].concat();
    let then = if lowered { Action::Change(P) } else { Action::Change(A) };
    let asks = [ask(X, A, TRY), ask(X, A, RENEW), ask(X, P, RENEW), ask(Y, A, WAIT), ask(Y, P, TRY)];
    let actions =
        [&[PASS, Action::Pass(2), FOLLOW_A, FOLLOW_P, Action::Receive(P), Action::FailOver(P), then][..], &asks]
            .concat();
    Setup { lease_and_lag, begins_with, are_owners_alike: false, ..Setup::new(&actions) }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn changed_settings_leave_one_owner() {
    search("failovers: a shorter lease", &changing([(5, 2), (3, 2)]));
    search("failovers: a longer lease", &changing([(3, 2), (5, 2)]));
    search("failovers: a shorter lag", &changing([(3, 4), (3, 2)]));
    search("failovers: a longer lag", &changing([(3, 2), (3, 4)]));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn wrong_renewals_leave_two_owners() {
    let at_once = [PASS, FOLLOW_A, FOLLOW_P, Action::FailOver(P), ask(X, A, TRY), ask(X, P, RENEW), ask(Y, A, TRY)];
    finds(Fault::RenewsAtOnce, 8, &Setup::new(&at_once));
    // The session of the former master's holder ends at once.
    let bound = [&at_once[..], &[ask(X, A, Ask::Close)]].concat();
    finds(Fault::RenewsAtOnce, 8, &Setup { has_sessions: true, ..Setup::new(&bound) });
    // After a restart, too.
    let begins_with = [ask(X, A, TRY), Action::Follow(A), Action::Promote(P), Action::Restart(P)].to_vec();
    let restarted = [PASS, FOLLOW_A, FOLLOW_P, Action::Attach(C, P), ask(X, P, RENEW), ask(Y, A, TRY)];
    finds(Fault::RenewsAtOnce, 8, &Setup { begins_with, ..Setup::new(&restarted) });
    // The wall clock of the former master is ahead, so a hold that has expired there still lasts at
    // the new one.
    let begins_with = [ask(X, A, TRY), Action::Receive(P)].to_vec();
    let ahead = Setup { begins_with, clocks_ahead: [2, 0, 0, 0], ..Setup::new(&at_once) };
    finds(Fault::RenewsLater, 10, &ahead);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn wrong_answers_in_a_quarantine_leave_two_owners() {
    let held = |held: Ask, again: Ask, other: Ask, kind: Kind| {
        let actions = [PASS, FOLLOW_P, ask(X, A, Ask::Release(mode_of(held))), ask(Y, A, other), ask(X, P, again)];
        // Y holds at A since before the failover, of which P knows nothing.
        let lost = [ask(X, A, Ask::Release(mode_of(held))), ask(Y, A, other)];
        let begins_with = [&[ask(X, A, held), Action::Receive(P)][..], &lost, &[Action::FailOver(P)]].concat();
        Setup { kind, begins_with, ..Setup::new(&actions) }
    };
    finds(Fault::Reenters, 6, &held(TRY, TRY, TRY, Kind::Mutex));
    finds(Fault::AnswersOnce, 6, &held(TRY, Ask::Once(EXCLUSIVE, 1), TRY, Kind::Mutex));
    finds(Fault::AnswersRetries, 6, &held(WAIT, WAIT, TRY, Kind::Mutex));
    let [read, write] = [Ask::Try(Mode::Read, 1), Ask::Try(Mode::Write, 1)];
    finds(Fault::ChangesModes, 6, &held(write, read, write, Kind::RwLock));
    finds(Fault::ChangesModes, 6, &held(read, write, write, Kind::RwLock));
    let actions = [PASS, FOLLOW_P, ask(Y, P, Ask::Drain), ask(Y, P, Ask::Renew(Mode::Permits))];
    let begins_with = [ask(X, A, Ask::Try(Mode::Permits, 2)), Action::FailOver(P)].to_vec();
    let drained = Setup { kind: Kind::Semaphore, permits: 2, are_owners_alike: false, ..Setup::new(&actions) };
    finds(Fault::Drains, 6, &Setup { begins_with, ..drained });
}

fn mode_of(ask: Ask) -> Mode {
    match ask {
        Ask::Try(mode, _) | Ask::Once(mode, _) | Ask::Wait(mode, _) => mode,
        _ => EXCLUSIVE,
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn a_wrong_right_to_grant_leaves_two_owners() {
    let actions = [PASS, PASS_3, Action::Tick(A), FOLLOW_P, Action::FailOver(P), ask(X, A, TRY), ask(Y, P, TRY)];
    let setup = || Setup { are_owners_alike: false, ..Setup::new(&actions) };
    finds(Fault::CountsConnected, 9, &setup());
    finds(Fault::OneTooFew, 9, &setup());
    finds(Fault::StampsWhenRead, 9, &Setup { begins_with: [Action::Receive(C)].to_vec(), ..setup() });
    let slow = [Action::SlowTick(A, 2), Action::SlowTick(A, 3)];
    let slow = [&[PASS, PASS_3, Action::Tick(A), FOLLOW_P][..], &slow, &[ask(X, A, TRY), ask(Y, P, TRY)]].concat();
    finds(Fault::ClockAfterOffset, 9, &Setup { are_owners_alike: false, ..Setup::new(&slow) });
    // Three replicas, of which two have to follow: one follows each master.
    let of_four = [PASS, PASS_3, FOLLOW_A, FOLLOW_P, Action::Attach(D, P), ask(X, A, TRY), ask(Y, P, TRY)];
    let begins_with = [Action::Promote(P)].to_vec();
    let setup = Setup { servers: 4, replicas: 3, are_owners_alike: false, begins_with, ..Setup::new(&of_four) };
    finds(Fault::OneTooFew, 9, &setup);
    let waited = [PASS, PASS_3, Action::Tick(A), FOLLOW_P, ask(Y, A, WAIT), ask(X, P, TRY)];
    let begins_with = [ask(X, A, TRY), Action::FailOver(P)].to_vec();
    finds(Fault::TimerGrants, 9, &Setup { begins_with, ..Setup::new(&waited) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn wrong_votes_leave_two_owners() {
    finds(Fault::CountsAtOnce, 9, &Setup { are_owners_alike: false, ..returning() });
    // The replica returns to the former master within the lag.
    let returns =
        [PASS, FOLLOW_A, FOLLOW_P, Action::Return(C, A), Action::Return(C, P), ask(X, A, TRY), ask(Y, P, TRY)];
    let begins_with = [Action::FailOver(P), Action::Pass(2), FOLLOW_P, PASS_3, FOLLOW_P, ask(Y, P, TRY)].to_vec();
    let returning = || Setup { begins_with: begins_with.clone(), are_owners_alike: false, ..Setup::new(&returns) };
    finds(Fault::CountsAtOnce, 8, &returning());
    finds(Fault::GoesOn, 8, &returning());
    let forged = [PASS, Action::Pass(2), Action::Tick(A), FOLLOW_P, ask(X, A, TRY), ask(Y, P, TRY)];
    let begins_with = [Action::Forge(A), Action::FailOver(P)].to_vec();
    finds(Fault::CountsForged, 9, &Setup { begins_with, are_owners_alike: false, ..Setup::new(&forged) });
    // One of three replicas follows each master, over two connections.
    let begins_with = [Action::Promote(P), Action::Attach(D, P), Action::Twin(A), Action::Twin(P)].to_vec();
    let twice = [PASS, Action::Pass(2), FOLLOW_A, FOLLOW_P, ask(X, A, TRY), ask(Y, P, TRY)];
    let of_four = Setup { servers: 4, replicas: 3, are_owners_alike: false, begins_with, ..Setup::new(&twice) };
    finds(Fault::CountsTwice, 9, &of_four);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn a_wrong_quarantine_leaves_two_owners() {
    let actions = [PASS, PASS_3, FOLLOW_A, FOLLOW_P, Action::FailOver(P), ask(X, A, TRY), ask(Y, P, TRY)];
    let setup = || Setup { are_owners_alike: false, ..Setup::new(&actions) };
    finds(Fault::NoQuarantine, 8, &setup());
    finds(Fault::TooShort, 9, &setup());
    finds(Fault::NoQuarantine, 6, &restarting());
    // In the quarantine of P its replica returns to A, where X renews, and then to P again.
    let left = [Action::FailOver(P), Action::Pass(2), FOLLOW_P, Action::Return(C, A), Action::Pass(2), FOLLOW_A];
    let begins_with = [&[ask(X, A, TRY)][..], &left].concat();
    let actions = [PASS, Action::Pass(2), FOLLOW_P, Action::Return(C, P), ask(X, A, RENEW), ask(Y, P, TRY)];
    finds(Fault::NotAnew, 7, &Setup { lease_and_lag: [(6, 2); 2], begins_with, ..Setup::new(&actions) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states")]
fn wrong_changes_of_settings_leave_two_owners() {
    finds(Fault::ChangesAtOnce, 8, &changing([(5, 2), (3, 2)]));
    // The new master first, against the rule, and then a failover before the change has settled.
    let begins_with = [Action::Change(P)].to_vec();
    finds(Fault::ChangesAtOnce, 8, &Setup { begins_with, ..changing([(3, 4), (3, 2)]) });
}
