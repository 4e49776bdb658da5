//! Every way in which a lock is freed grants the next waiter, in every context in which it can
//! happen.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    BINARY, Client, Command, EXCLUSIVE, Family, Reply, Server, eventually, move_changes_the_database, skipped_here,
};

const SOON: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(300);
/// Long enough for the setup of a scene.
const LEASE: Duration = Duration::from_millis(1000);

/// How `job`, held by `a`, is freed while others wait for it.
enum Freeing {
    /// Prepares what the command needs, and returns the command.
    Command(fn(&mut Client) -> Command),
    LeaseExpires,
    SessionEnds,
}

/// The fate of the waiters `b` and `c`.
#[derive(Clone, Copy)]
enum Outcome {
    FirstIsGranted,
    /// The value is gone. The first waiter is granted, except on a semaphore, which has to be
    /// created first.
    KeyIsFree,
    AllGetWrongType,
    /// `x` holds the lock now, and both waiters keep waiting.
    AllWaitForX,
}

use Freeing::{LeaseExpires, SessionEnds};
use Outcome::{AllGetWrongType, AllWaitForX, FirstIsGranted, KeyIsFree};

type Way = (&'static str, Freeing, Outcome);

const WAYS: &[Way] = &[
    ("an expired lease", LeaseExpires, FirstIsGranted),
    ("an ended session", SessionEnds, FirstIsGranted),
    ("RELEASE", Freeing::Command(|_| "LOCK.RELEASE job a".into()), FirstIsGranted),
    ("FORCERELEASE", Freeing::Command(|_| "LOCK.FORCERELEASE job".into()), FirstIsGranted),
    ("DEL", Freeing::Command(|_| "DEL job".into()), KeyIsFree),
    ("UNLINK", Freeing::Command(|_| "UNLINK job".into()), KeyIsFree),
    ("FLUSHALL", Freeing::Command(|_| "FLUSHALL SYNC".into()), KeyIsFree),
    ("FLUSHALL ASYNC", Freeing::Command(|_| "FLUSHALL ASYNC".into()), KeyIsFree),
    ("FLUSHDB", Freeing::Command(|_| "FLUSHDB SYNC".into()), KeyIsFree),
    ("FLUSHDB ASYNC", Freeing::Command(|_| "FLUSHDB ASYNC".into()), KeyIsFree),
    ("RENAME away", Freeing::Command(|_| "RENAME job away".into()), KeyIsFree),
    ("MOVE", Freeing::Command(|_| "MOVE job 1".into()), KeyIsFree),
    ("SWAPDB", Freeing::Command(|_| "SWAPDB 0 1".into()), KeyIsFree),
    ("EXPIRE", Freeing::Command(|_| "PEXPIRE job 100".into()), KeyIsFree),
    ("EXPIRE in the past", Freeing::Command(|_| "PEXPIREAT job 1".into()), KeyIsFree),
    ("SET", Freeing::Command(|_| "SET job text".into()), AllGetWrongType),
    ("RESTORE of another type", Freeing::Command(restore_text), AllGetWrongType),
    ("RENAME of another type", Freeing::Command(rename_text), AllGetWrongType),
    ("SWAPDB with another type", Freeing::Command(swap_text), AllGetWrongType),
    ("RENAME of a lock", Freeing::Command(rename_lock), AllWaitForX),
    ("COPY of a lock", Freeing::Command(copy_lock), AllWaitForX),
    ("RESTORE of a lock", Freeing::Command(restore_lock), AllWaitForX),
    ("SWAPDB with a lock", Freeing::Command(swap_lock), AllWaitForX),
];

fn rename_lock(client: &mut Client) -> Command {
    client.make("other");
    client.acquire("other x PX 60000");
    "RENAME other job".into()
}

fn copy_lock(client: &mut Client) -> Command {
    client.make("other");
    client.acquire("other x PX 60000");
    "COPY other job REPLACE".into()
}

fn restore_lock(client: &mut Client) -> Command {
    client.make("other");
    client.acquire("other x PX 60000");
    restore_over_job(client)
}

fn swap_lock(client: &mut Client) -> Command {
    client.acquire("job x PX 60000");
    assert_eq!(client.call("MOVE job 1"), 1);
    "SWAPDB 1 0".into()
}

fn rename_text(client: &mut Client) -> Command {
    client.call("SET other text");
    "RENAME other job".into()
}

fn swap_text(client: &mut Client) -> Command {
    client.call("SET job text");
    assert_eq!(client.call("MOVE job 1"), 1);
    "SWAPDB 0 1".into()
}

fn restore_text(client: &mut Client) -> Command {
    client.call("SET other text");
    restore_over_job(client)
}

fn restore_over_job(client: &mut Client) -> Command {
    let payload = client.call("DUMP other");
    [b"RESTORE".as_slice(), b"job", b"0", payload.bytes(), b"REPLACE"].into()
}

/// The ways that the server under test supports.
fn ways() -> impl Iterator<Item = &'static Way> {
    let has_move = |way: &Way| ["MOVE", "SWAPDB with another type", "SWAPDB with a lock"].contains(&way.0);
    let without_move = move_changes_the_database();
    if without_move {
        skipped_here("MOVE changes the database of the connection");
    }
    WAYS.iter().filter(move |way| !(without_move && has_move(way)))
}

/// A prepared way: `a` holds `job`, and `b` and `c` wait for it.
struct Scene {
    client: Client,
    holder: Client,
    waiters: [Client; 2],
    /// None if no command frees the lock.
    command: Option<Command>,
}

#[track_caller]
fn set_up(server: &Server, (name, freeing, _): &Way) -> Scene {
    // On failure the last line names the way that failed.
    eprintln!("{name}");
    let (mut client, mut holder) = (server.client(), server.client());
    // The waiters of the previous way must be gone, so that FLUSHALL does not grant them.
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
    client.call("FLUSHALL");
    client.make("job");
    let (lease_and_session, command) = match freeing {
        LeaseExpires => (format!("PX {}", LEASE.as_millis()), None),
        SessionEnds => ("PX 60000 SESSION 0".to_owned(), None),
        Freeing::Command(prepare) => ("PX 60000".to_owned(), Some(prepare(&mut client))),
    };
    client.make("job");
    holder.acquire(&format!("job a {lease_and_session}"));
    let waiters = ["b", "c"].map(|owner| server.waiter(format!("LOCK.ACQUIRE job {owner} PX 60000 BLOCK 0")));
    Scene { client, holder, waiters, command }
}

/// Runs one way, with the command in the context `run`, and checks the waiters.
#[track_caller]
fn run_way(server: &Server, way: &Way, run: fn(&mut Client, Command) -> Reply) {
    let Scene { mut client, holder, waiters, command } = set_up(server, way);
    match (&way.1, command) {
        (SessionEnds, _) => drop(holder),
        (_, Some(command)) => {
            let reply = run(&mut client, command);
            // Fail if the command did nothing.
            assert!(!matches!(reply, Reply::Error(_) | Reply::Nil), "{reply:?}");
        }
        (_, None) => {}
    }
    check(&mut client, way.2, server.family(), waiters);
}

#[track_caller]
fn check(client: &mut Client, outcome: Outcome, family: Family, [mut b, mut c]: [Client; 2]) {
    match outcome {
        KeyIsFree if family == BINARY => {
            b.reply().expect_error("NOSEMAPHORE");
            c.reply().expect_error("NOSEMAPHORE");
        }
        FirstIsGranted | KeyIsFree => {
            let token = b.reply().int();
            assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
            assert_eq!(client.waiting_owners("job"), ["c"]);
        }
        AllGetWrongType => {
            b.reply().expect_error("WRONGTYPE");
            c.reply().expect_error("WRONGTYPE");
        }
        AllWaitForX => {
            eventually(SOON, || client.holder("job").is_some_and(|holder| holder.owner == "x"));
            assert_eq!(client.waiting_owners("job"), ["b", "c"]);
            // They are still queued: when the new holder releases, the first one is granted.
            client.call("LOCK.RELEASE job x");
            b.reply().int();
        }
    }
}

/// Type, owner, count and token, on which every copy of the keyspace must agree.
#[track_caller]
fn state_of_job(server: &Server) -> (String, Option<(String, i64, i64)>) {
    let mut client = server.client();
    let kind = client.call("TYPE job").text();
    let holder = (kind == "RedisLock").then(|| client.holder("job").expect("a holder"));
    (kind, holder.map(|holder| (holder.owner, holder.holds, holder.token)))
}

/// Runs a command in a context.
type Run = fn(&mut Client, Command) -> Reply;

const CONTEXTS: [(&str, Run); 3] =
    [("by itself", Client::call), ("in a transaction", Client::transaction), ("in a script", Client::eval)];

/// Runs every way in every context, and calls `then` after each.
#[track_caller]
fn run_all_ways(server: &mut Server, mut then: impl FnMut(&mut Server)) {
    for (context, run) in CONTEXTS {
        eprintln!("- {context}");
        for way in ways() {
            if context == "by itself" || matches!(way.1, Freeing::Command(_)) {
                run_way(server, way, run);
                then(server);
            }
        }
    }
}

#[test]
fn every_way_to_free_a_lock_grants_the_next_waiter() {
    for mut server in Server::for_each(EXCLUSIVE) {
        run_all_ways(&mut server, |_| {});
    }
}

/// Runs all families at once, because each way waits for a restart or a pause.
fn for_each_family_at_once(play: impl Fn(Family) + Sync) {
    thread::scope(|scope| {
        for family in EXCLUSIVE {
            scope.spawn(|| play(*family));
        }
    });
}

#[test]
fn every_way_to_free_a_lock_survives_a_restart() {
    for_each_family_at_once(|family| {
        run_all_ways(&mut Server::with_aof(&[]).speaking(family), |server| {
            let before = state_of_job(server);
            server.kill_and_restart();
            assert_eq!(state_of_job(server), before);
        });
    });
}

#[test]
fn every_way_to_free_a_lock_is_replicated() {
    let mut primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    for family in EXCLUSIVE {
        primary = primary.speaking(*family);
        run_all_ways(&mut primary, |primary| {
            replica.catch_up_with(primary);
            assert_eq!(state_of_job(&replica), state_of_job(primary));
            let digests = [&replica, primary].map(|server| server.client().call("DEBUG DIGEST"));
            assert_eq!(digests[0], digests[1]);
        });
        primary.client().call("FLUSHALL");
    }
}

/// With an append-only file, because propagation during a pause would crash the server.
#[test]
fn nothing_is_granted_during_a_pause_and_everything_afterwards() {
    for_each_family_at_once(|family| {
        let server = Server::with_aof(&[]).speaking(family);
        for way in ways() {
            let Scene { mut client, mut holder, waiters, command } = set_up(&server, way);
            // With a lease, the pause has to outlast the lease.
            let pause = if matches!(way.1, LeaseExpires) { LEASE + PAUSE } else { PAUSE };
            let start = Instant::now();
            client.call(format!("CLIENT PAUSE {} WRITE", pause.as_millis()));
            match (&way.1, command) {
                (SessionEnds, _) => drop(holder),
                (_, Some(command)) => holder.send(command),
                (_, None) => {}
            }
            check(&mut client, way.2, server.family(), waiters);
            // The server counts whole milliseconds, so a pause may be up to one shorter.
            assert!(start.elapsed() + Duration::from_millis(1) >= pause, "after {:?}", start.elapsed());
        }
    });
}

#[test]
fn evicted_lock_is_granted_to_the_next_waiter() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    client.call("CONFIG SET maxmemory-policy allkeys-random");
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
    // The limit is lifted again in the same step, so that only the first holder is evicted.
    let step = ["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"].map(Command::from);
    client.call_in_one_step(&step);
    let token = waiter.reply().int();
    assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
    assert_eq!(client.info_number("evicted_keys"), 1);
}
