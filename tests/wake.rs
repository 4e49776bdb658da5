//! Every way in which a name gets free serves the next waiter, in every situation in which it can happen.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    BINARY, Client, Command, EXCLUSIVE, Family, Reply, Server, eventually, move_changes_the_database, skipped_here,
};

const SOON: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(300);
/// Long enough for all to be ready before it ends.
const LEASE: Duration = Duration::from_millis(1000);

/// How `job`, held by `a`, is taken from under its waiters.
enum Freeing {
    /// Makes ready what the command needs, and names it.
    Command(fn(&mut Client) -> Command),
    LeaseEnd,
    SessionEnd,
}

/// What becomes of the waiters `b` and `c`.
#[derive(Clone, Copy)]
enum Outcome {
    FirstIsGranted,
    /// The value is gone: the first is granted, but a semaphore has to be made anew.
    NameIsFree,
    AllGetWrongType,
    /// The name is held by `x` now, and they wait on.
    AllWaitForX,
}

use Freeing::{LeaseEnd, SessionEnd};
use Outcome::{AllGetWrongType, AllWaitForX, FirstIsGranted, NameIsFree};

type Way = (&'static str, Freeing, Outcome);

const WAYS: &[Way] = &[
    ("the end of the lease", LeaseEnd, FirstIsGranted),
    ("the end of the session", SessionEnd, FirstIsGranted),
    ("RELEASE", Freeing::Command(|_| "LOCK.RELEASE job a".into()), FirstIsGranted),
    ("FORCERELEASE", Freeing::Command(|_| "LOCK.FORCERELEASE job".into()), FirstIsGranted),
    ("DEL", Freeing::Command(|_| "DEL job".into()), NameIsFree),
    ("UNLINK", Freeing::Command(|_| "UNLINK job".into()), NameIsFree),
    ("FLUSHALL", Freeing::Command(|_| "FLUSHALL SYNC".into()), NameIsFree),
    ("FLUSHALL ASYNC", Freeing::Command(|_| "FLUSHALL ASYNC".into()), NameIsFree),
    ("FLUSHDB", Freeing::Command(|_| "FLUSHDB SYNC".into()), NameIsFree),
    ("FLUSHDB ASYNC", Freeing::Command(|_| "FLUSHDB ASYNC".into()), NameIsFree),
    ("RENAME away", Freeing::Command(|_| "RENAME job away".into()), NameIsFree),
    ("MOVE", Freeing::Command(|_| "MOVE job 1".into()), NameIsFree),
    ("SWAPDB", Freeing::Command(|_| "SWAPDB 0 1".into()), NameIsFree),
    ("EXPIRE", Freeing::Command(|_| "PEXPIRE job 100".into()), NameIsFree),
    ("EXPIRE in the past", Freeing::Command(|_| "PEXPIREAT job 1".into()), NameIsFree),
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

/// The ways that the server under test can show.
fn ways() -> impl Iterator<Item = &'static Way> {
    let has_move = |way: &Way| ["MOVE", "SWAPDB with another type", "SWAPDB with a lock"].contains(&way.0);
    let without_move = move_changes_the_database();
    if without_move {
        skipped_here("MOVE changes the database of the connection");
    }
    WAYS.iter().filter(move |way| !(without_move && has_move(way)))
}

/// A way made ready: `job` is held, and `b` and `c` wait for it.
struct Scene {
    client: Client,
    holder: Client,
    waiters: [Client; 2],
    /// None if the lock gets free without one.
    command: Option<Command>,
}

#[track_caller]
fn set_up(server: &Server, (name, freeing, _): &Way) -> Scene {
    // The output of a failed test ends with the row that failed.
    eprintln!("{name}");
    let (mut client, mut holder) = (server.client(), server.client());
    // The waiters of the row before this one have left; FLUSHALL must not serve them.
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
    client.call("FLUSHALL");
    client.make("job");
    let (lease_and_session, command) = match freeing {
        LeaseEnd => (format!("PX {}", LEASE.as_millis()), None),
        SessionEnd => ("PX 60000 SESSION 0".to_owned(), None),
        Freeing::Command(prepare) => ("PX 60000".to_owned(), Some(prepare(&mut client))),
    };
    client.make("job");
    holder.acquire(&format!("job a {lease_and_session}"));
    let waiters = ["b", "c"].map(|owner| server.waiter(format!("LOCK.ACQUIRE job {owner} PX 60000 BLOCK 0")));
    Scene { client, holder, waiters, command }
}

/// Plays one way, where `run` says how a command is run, and checks what becomes of the waiters.
#[track_caller]
fn play(server: &Server, way: &Way, run: fn(&mut Client, Command) -> Reply) {
    let Scene { mut client, holder, waiters, command } = set_up(server, way);
    match (&way.1, command) {
        (SessionEnd, _) => drop(holder),
        (_, Some(command)) => {
            let reply = run(&mut client, command);
            // So that no row passes because its command did nothing.
            assert!(!matches!(reply, Reply::Error(_) | Reply::Nil), "{reply:?}");
        }
        (_, None) => {}
    }
    check(&mut client, way.2, server.family(), waiters);
}

#[track_caller]
fn check(client: &mut Client, outcome: Outcome, family: Family, [mut b, mut c]: [Client; 2]) {
    match outcome {
        NameIsFree if family == BINARY => {
            b.reply().expect_error("NOSEMAPHORE");
            c.reply().expect_error("NOSEMAPHORE");
        }
        FirstIsGranted | NameIsFree => {
            let token = b.reply().int();
            assert_eq!(client.holder("job").expect("it is held").identity(), ("b", 1, token));
            assert_eq!(client.waiting_owners("job"), ["c"]);
        }
        AllGetWrongType => {
            b.reply().expect_error("WRONGTYPE");
            c.reply().expect_error("WRONGTYPE");
        }
        AllWaitForX => {
            eventually(SOON, || client.holder("job").is_some_and(|holder| holder.owner == "x"));
            assert_eq!(client.waiting_owners("job"), ["b", "c"]);
            // They are not forgotten: the end of the new holder serves them.
            client.call("LOCK.RELEASE job x");
            b.reply().int();
        }
    }
}

/// Type, owner, count and token: what every copy of the keyspace must agree on.
#[track_caller]
fn state_of_job(server: &Server) -> (String, Option<(String, i64, i64)>) {
    let mut client = server.client();
    let kind = client.call("TYPE job").text();
    let holder = (kind == "RedisLock").then(|| client.holder("job").expect("it is held"));
    (kind, holder.map(|holder| (holder.owner, holder.holds, holder.token)))
}

/// A way to run a command.
type Run = fn(&mut Client, Command) -> Reply;

const CONTEXTS: [(&str, Run); 3] =
    [("by itself", Client::call), ("in a transaction", Client::transaction), ("in a script", Client::eval)];

/// Plays every way in every context, and does something after each.
#[track_caller]
fn play_all(server: &mut Server, mut then: impl FnMut(&mut Server)) {
    for (context, run) in CONTEXTS {
        eprintln!("- {context}");
        for way in ways() {
            if context == "by itself" || matches!(way.1, Freeing::Command(_)) {
                play(server, way, run);
                then(server);
            }
        }
    }
}

#[test]
fn every_way_a_lock_gets_free_serves_the_next() {
    for mut server in Server::for_each(EXCLUSIVE) {
        play_all(&mut server, |_| {});
    }
}

/// All families at once, where each row waits for a restart or a pause.
fn for_each_family_at_once(play: impl Fn(Family) + Sync) {
    thread::scope(|scope| {
        for family in EXCLUSIVE {
            scope.spawn(|| play(*family));
        }
    });
}

#[test]
fn every_way_a_lock_gets_free_is_the_same_after_a_restart() {
    for_each_family_at_once(|family| {
        play_all(&mut Server::with_aof(&[]).speaking(family), |server| {
            let before = state_of_job(server);
            server.kill_and_restart();
            assert_eq!(state_of_job(server), before);
        });
    });
}

#[test]
fn every_way_a_lock_gets_free_is_the_same_on_a_replica() {
    let mut primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    for family in EXCLUSIVE {
        primary = primary.speaking(*family);
        play_all(&mut primary, |primary| {
            replica.catch_up_with(primary);
            assert_eq!(state_of_job(&replica), state_of_job(primary));
            let digests = [&replica, primary].map(|server| server.client().call("DEBUG DIGEST"));
            assert_eq!(digests[0], digests[1]);
        });
        primary.client().call("FLUSHALL");
    }
}

/// With an append-only file, for propagating during a pause is what kills a server.
#[test]
fn nothing_is_granted_while_the_server_is_paused_and_all_is_afterwards() {
    for_each_family_at_once(|family| {
        let server = Server::with_aof(&[]).speaking(family);
        for way in ways() {
            let Scene { mut client, mut holder, waiters, command } = set_up(&server, way);
            // A lease ends within the pause as well.
            let pause = if matches!(way.1, LeaseEnd) { LEASE + PAUSE } else { PAUSE };
            let start = Instant::now();
            client.call(format!("CLIENT PAUSE {} WRITE", pause.as_millis()));
            match (&way.1, command) {
                (SessionEnd, _) => drop(holder),
                (_, Some(command)) => holder.send(command),
                (_, None) => {}
            }
            check(&mut client, way.2, server.family(), waiters);
            assert!(start.elapsed() >= pause, "after {:?}", start.elapsed());
        }
    });
}

#[test]
fn an_evicted_lock_is_granted_to_the_next() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    client.call("CONFIG SET maxmemory-policy allkeys-random");
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
    // The limit is gone before anything else runs, so that only the first holder is evicted.
    let step = ["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"].map(Command::from);
    client.call_in_one_step(&step);
    let token = waiter.reply().int();
    assert_eq!(client.holder("job").expect("it is held").identity(), ("b", 1, token));
    assert_eq!(client.info_number("evicted_keys"), 1);
}
