//! Fair locks: the queue survives restarts, failovers and new key names.

use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::support::{Client, Command, Events, Reply, Server, eventually, propagated, seed};

const SOON: Duration = Duration::from_secs(5);

/// Long enough for 100 owners to reconnect on a busy machine.
const GRACE: Duration = Duration::from_secs(3);
const GRACE_LINE: &str = "rlock.fair-grace-ms 3000";

#[derive(Clone, Copy, PartialEq)]
enum Waits {
    /// Connected, and asks again with BLOCK.
    Connected,
    /// Polls with QUEUE, and asks again with QUEUE.
    Polling,
    /// Polls with QUEUE, and does not ask again before its turn.
    Patient,
    /// Connected, and never asks again.
    LostConnected,
    /// Polls with a QUEUE time so short that only the grace keeps its place, and never asks again.
    LostPolling,
}

use Waits::{Connected, LostConnected, LostPolling, Patient, Polling};

/// The kinds of waiters, and how many of 100 owners are of each kind.
const MIX: [(Waits, usize); 5] = [(Connected, 45), (Polling, 45), (Patient, 3), (LostConnected, 4), (LostPolling, 3)];

/// Owners in the queue of a lock that "first" holds.
struct Line {
    owners: Vec<(String, Waits)>,
    connections: Vec<Client>,
    token: i64,
}

impl Line {
    #[track_caller]
    fn form(server: &Server, random: &mut StdRng) -> Line {
        let mut client = server.client();
        let token = client.acquire_fair("job first PX 600000");
        let mut mix = MIX.map(|(waits, count)| vec![waits; count]).concat();
        mix.shuffle(random);
        let mut line = Line { owners: Vec::new(), connections: Vec::new(), token };
        for (number, waits) in (0..).zip(mix) {
            let owner = format!("w{number}");
            let ask = |how| format!("RFAIRLOCK.ACQUIRE job {owner} PX 600000 {how}");
            match waits {
                Connected | LostConnected => line.connections.push(server.waiter(ask("BLOCK 0"))),
                Polling | Patient | LostPolling => assert_eq!(client.call(ask("QUEUE 600000")), Reply::Nil),
            }
            line.owners.push((owner, waits));
        }
        for (owner, _) in line.owners.iter().filter(|(_, waits)| *waits == LostPolling) {
            assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job {owner} QUEUE 1500")), Reply::Nil);
        }
        line
    }

    fn places(&self, stay: impl Fn(Waits) -> Option<&'static str>) -> Vec<String> {
        let place = |(owner, waits): &(String, Waits)| Some(format!("{owner} {}", stay(*waits)?));
        self.owners.iter().filter_map(place).collect()
    }

    /// Asserts that owners who return are served in their old order and before newcomers, and that
    /// the others lose their places after the grace, which began after `start`.
    #[track_caller]
    fn assert_intact(mut self, server: &Server, key: &str, start: Instant, random: &mut StdRng) {
        let mut client = server.client();
        eventually(SOON, || client.places(key) == self.places(|_| Some("detached")));
        // A newcomer asks before any owner returns.
        let mut newcomer = server.waiter(format!("RFAIRLOCK.ACQUIRE {key} newcomer PX 600000 BLOCK 0"));
        let mut returning: Vec<_> = (0..self.owners.len()).collect();
        returning.shuffle(random);
        self.connections.clear();
        let mut connections: Vec<_> = self.owners.iter().map(|_| None).collect();
        for at in returning {
            let (owner, waits) = &self.owners[at];
            let ask = |how| format!("RFAIRLOCK.ACQUIRE {key} {owner} PX 600000 {how}");
            match waits {
                Connected => connections[at] = Some(server.waiter(ask("BLOCK 0"))),
                Polling => assert_eq!(client.call(ask("QUEUE 600000")), Reply::Nil),
                Patient | LostConnected | LostPolling => {}
            }
        }
        let mut all = self.places(|waits| Some(if waits == Connected { "connected" } else { "detached" }));
        all.push("newcomer connected".to_owned());
        assert_eq!(client.places(key), all, "returned within the grace, after {:?}", start.elapsed());

        eventually(GRACE + SOON, || client.places(key) != all);
        assert!(start.elapsed() >= GRACE, "dropped after {:?}", start.elapsed());
        let mut staying = self.places(|waits| match waits {
            Connected => Some("connected"),
            Polling | Patient => Some("detached"),
            LostConnected | LostPolling => None,
        });
        staying.push("newcomer connected".to_owned());
        eventually(SOON, || client.places(key) == staying);

        let mut last = self.token;
        assert_eq!(client.call(format!("RFAIRLOCK.RELEASE {key} first")), 0);
        for ((owner, waits), connection) in self.owners.iter().zip(connections) {
            let token = match (waits, connection) {
                (_, Some(mut connection)) => connection.reply().int(),
                (LostConnected | LostPolling, _) => continue,
                _ => client.acquire_fair(&format!("{key} {owner} PX 600000")),
            };
            assert!(token > last, "tokens rise in the order of the holds");
            last = token;
            assert_eq!(client.call(format!("RFAIRLOCK.RELEASE {key} {owner}")), 0);
        }
        assert!(newcomer.reply().int() > last);
    }
}

/// Builds a queue, brings it back with `bring_back`, and checks it.
#[track_caller]
fn assert_queue_survives(server: Server, bring_back: impl FnOnce(Server) -> Server) {
    let mut random = StdRng::seed_from_u64(seed());
    let line = Line::form(&server, &mut random);
    let start = Instant::now();
    let server = bring_back(server);
    line.assert_intact(&server, "job", start, &mut random);
}

fn kill_and_restart(mut server: Server) -> Server {
    server.kill_and_restart();
    server
}

#[test]
fn append_only_file_restores_the_queue_after_a_kill() {
    assert_queue_survives(Server::with_aof(&[GRACE_LINE]), kill_and_restart);
}

#[test]
fn rewritten_append_only_file_restores_the_queue() {
    for preamble in ["yes", "no"] {
        let server = Server::with_aof(&[GRACE_LINE, &format!("aof-use-rdb-preamble {preamble}")]);
        assert_queue_survives(server, |server| {
            server.client().rewrite_append_only_file();
            kill_and_restart(server)
        });
    }
}

#[test]
fn snapshot_restores_the_queue() {
    assert_queue_survives(Server::with(&[GRACE_LINE]), |server| {
        assert_eq!(server.client().call("SAVE"), "OK");
        kill_and_restart(server)
    });
}

#[test]
fn promoted_replica_has_the_queue() {
    let primary = Server::with(&[GRACE_LINE]);
    let replica = Server::replica_of(&primary, &[GRACE_LINE]);
    assert_queue_survives(primary, |primary| {
        replica.catch_up_with(&primary);
        drop(primary);
        assert_eq!(replica.client().call("REPLICAOF NO ONE"), "OK");
        replica
    });
}

#[test]
fn failover_keeps_the_queue() {
    let primary = Server::with(&[GRACE_LINE]);
    let replica = Server::replica_of(&primary, &[GRACE_LINE]);
    let mut demoted = None;
    assert_queue_survives(primary, |primary| {
        assert_eq!(primary.client().call("FAILOVER"), "OK");
        eventually(SOON, || replica.client().info("role") == "master");
        demoted = Some(primary);
        replica
    });
}

type Move = (&'static str, fn(&mut Client));

#[test]
fn moved_or_copied_lock_has_the_queue_without_connections() {
    let server = Server::with(&[GRACE_LINE]);
    let moves: [Move; 5] = [
        ("RENAME", |client| assert_eq!(client.call("RENAME job away"), "OK")),
        ("COPY", |client| assert_eq!(client.call("COPY job away"), 1)),
        ("RESTORE", |client| {
            let payload = client.call("DUMP job");
            let restore: Command = [b"RESTORE".as_slice(), b"away", b"0", payload.bytes()].into();
            assert_eq!(client.call(restore), "OK");
        }),
        ("MOVE", |client| {
            assert_eq!(client.call("RENAME job away"), "OK");
            assert_eq!(client.call("MOVE away 1"), 1);
            assert_eq!(client.call("SELECT 1"), "OK");
            assert_eq!(client.call("MOVE away 0"), 1);
        }),
        ("SWAPDB", |client| {
            assert_eq!(client.call("RENAME job away"), "OK");
            assert_eq!(client.call("MOVE away 1"), 1);
            assert_eq!(client.call("SWAPDB 0 1"), "OK");
        }),
    ];
    for (name, run) in moves {
        eprintln!("{name}");
        let mut random = StdRng::seed_from_u64(seed());
        let line = Line::form(&server, &mut random);
        let start = Instant::now();
        run(&mut server.client());
        line.assert_intact(&server, "away", start, &mut random);
        server.client().call("FLUSHALL");
    }
}

#[test]
fn copy_does_not_change_the_original_or_its_connections() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let mut b = server.waiter("RFAIRLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.call("RFAIRLOCK.ACQUIRE job c QUEUE 60000");
    assert_eq!(client.call("COPY job copy"), 1);
    eventually(SOON, || client.places("copy") == ["b detached", "c detached"]);
    assert_eq!(client.places("job"), ["b connected", "c detached"]);
    assert_eq!(client.call("RFAIRLOCK.RELEASE copy a"), 0);
    assert_eq!(client.places("copy"), ["b detached", "c detached"], "the connection does not belong to the copy");
    assert_eq!(client.call("RFAIRLOCK.RELEASE job a"), 0);
    b.reply().int();
}

#[test]
fn reload_keeps_the_order_and_the_connections() {
    let server = Server::with_aof(&[GRACE_LINE]);
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let mut b = server.waiter("RFAIRLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.call("RFAIRLOCK.ACQUIRE job c QUEUE 60000");
    let mut d = server.waiter("RFAIRLOCK.ACQUIRE job d PX 60000 BLOCK 0");
    for load in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        assert_eq!(client.call(load), "OK");
        eventually(SOON, || client.places("job") == ["b connected", "c detached", "d connected"]);
    }
    client.call("RFAIRLOCK.RELEASE job a");
    b.reply().int();
    client.call("RFAIRLOCK.RELEASE job b");
    client.acquire_fair("job c PX 60000");
    client.call("RFAIRLOCK.RELEASE job c");
    d.reply().int();
}

#[test]
fn running_turn_begins_again_after_a_restart() {
    let mut server = Server::with_aof(&[GRACE_LINE]);
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    for owner in ["b", "c"] {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job {owner} QUEUE 60000")), Reply::Nil);
    }
    client.call("RFAIRLOCK.RELEASE job a");
    // Half of the turn passes before the restart, and must not count.
    thread::sleep(GRACE / 2);
    let start = Instant::now();
    server.kill_and_restart();
    let mut client = server.client();
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job newcomer"), Reply::Nil);
    assert_eq!(client.places("job"), ["b detached", "c detached"]);
    // `b` never returns.
    eventually(GRACE + SOON, || client.places("job") == ["c detached"]);
    assert!(start.elapsed() >= GRACE, "{:?}", start.elapsed());
    client.acquire_fair("job c");
}

/// The propagated effects of locks, with `#` for each token and time.
#[track_caller]
fn effects(server: &Server) -> Vec<String> {
    let commands = propagated(server);
    let effects = commands.iter().filter(|words| words[0] == b"RLOCK.APPLY");
    let hide = |word: &str| match word.split_once(|letter: char| letter.is_ascii_digit()) {
        Some((name, _)) if word.len() > 12 => format!("{name}#"),
        _ => word.to_owned(),
    };
    effects
        .map(|words| {
            let line = String::from_utf8(words[2..].join(&b' ')).expect("these owners are text");
            line.split(' ').map(hide).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn changes_of_places_are_propagated_and_denied_attempts_are_not() {
    let server = Server::with_aof(&["rlock.fair-grace-ms 100"]);
    let mut client = server.client();
    let mut call = |command: &str| client.call(format!("RFAIRLOCK.{command}"));
    let mut seen = 0;
    let mut expect = |what: &str, expected: &[&str]| {
        let mut new = Vec::new();
        eventually(SOON, || {
            new = effects(&server).split_off(seen);
            new.len() >= expected.len()
        });
        assert_eq!(new, expected, "{what}");
        seen += new.len();
    };
    call("ACQUIRE job a PX 60000");
    expect("a grant", &["granted fair exclusive # 1 # 60000 - - a"]);
    call("ACQUIRE job b QUEUE 60000");
    call("ACQUIRE job b QUEUE 50000");
    expect("a poller", &["queued polled:# # - tail b", "kept polled:# - b"]);
    let c = server.waiter("RFAIRLOCK.ACQUIRE job c PX 20000 REQ 3 BLOCK 0");
    expect("a connection", &["queued connected # 3 tail c"]);
    for denied in ["ACQUIRE job d", "ACQUIRE job b", "CANCEL job d", "RELEASE job b", "WAITERS job", "INFO job"] {
        call(denied);
    }
    server.client().transaction("RFAIRLOCK.ACQUIRE job d BLOCK 0");
    server.client().eval("RFAIRLOCK.ACQUIRE job b BLOCK 0");
    expect("nothing", &[]);
    call("ACQUIRE job d BLOCK 1");
    call("ACQUIRE job e QUEUE 1");
    expect(
        "places that time out",
        &["queued connected # - tail d", "left timed-out d", "queued polled:# # - tail e", "left lapsed e"],
    );
    drop(c);
    expect("a lost connection", &["kept grace:# 3 c", "left lapsed c"]);
    let mut c = server.waiter("RFAIRLOCK.ACQUIRE job c PX 20000 REQ 3 BLOCK 0");
    call("ACQUIRE job d QUEUE 60000");
    call("CANCEL job d");
    expect("a cancelled place", &["queued connected # 3 tail c", "queued polled:# # - tail d", "left cancelled d"]);
    call("RELEASE job a");
    c.reply().int();
    expect(
        "a reservation",
        &["released #", "reserved # b", "left missed b", "granted fair exclusive # 1 # 20000 3a - c"],
    );
}

#[test]
fn replica_shows_the_places_and_decides_nothing() {
    let primary = Server::with(&["rlock.fair-grace-ms 1000"]);
    let replica = Server::replica_of(&primary, &["rlock.fair-grace-ms 1"]);
    let (mut on_primary, mut on_replica) = (primary.client(), replica.client());
    on_primary.acquire_fair("job a PX 60000");
    on_primary.call("RFAIRLOCK.ACQUIRE job b QUEUE 60000");
    let _c = primary.waiter("RFAIRLOCK.ACQUIRE job c PX 60000 BLOCK 0");
    on_primary.call("RFAIRLOCK.ACQUIRE job d QUEUE 3000");
    replica.catch_up_with(&primary);
    let places = ["b detached", "c connected", "d detached"];
    assert_eq!(on_primary.places("job"), places);
    assert_eq!(on_replica.places("job"), places);
    assert_eq!(on_replica.call("RFAIRLOCK.INFO job").field("waiters"), 3);
    for command in ["ACQUIRE job b", "ACQUIRE job e QUEUE 1000", "CANCEL job b"] {
        on_replica.call(format!("RFAIRLOCK.{command}")).expect_error("READONLY");
    }

    let mut events = Events::subscribe(&replica);
    on_primary.call("RFAIRLOCK.RELEASE job a");
    on_primary.call("CLIENT PAUSE 60000 WRITE");
    replica.catch_up_with(&primary);
    let digest = on_replica.call("DEBUG DIGEST");
    // When the place of `d` expires, the turn of `b` has ended, too. The replica hides the expired
    // place, but keeps it until the primary ends it.
    eventually(SOON, || on_replica.places("job") == ["b detached", "c connected"]);
    assert_eq!(on_replica.call("DEBUG DIGEST"), digest);
    assert_eq!(on_replica.call("RLOCK.PTTL job"), -2);
    on_primary.call("CLIENT UNPAUSE");
    eventually(SOON, || on_replica.call("RFAIRLOCK.HOLDS job c") == 1);
    assert_eq!(events.so_far(), ["rlock.release job", "rlock.turn job", "rlock.acquire job"]);
    replica.catch_up_with(&primary);
    assert_eq!(on_replica.call("DEBUG DIGEST"), on_primary.call("DEBUG DIGEST"));
}

/// Reattaching this many waiters takes several turns. In between a place with GRACE 0 has no
/// connection, and could look expired.
#[test]
fn waiter_keeps_its_place_while_many_waiters_are_reattached() {
    const WAITERS: usize = 2500;
    const AT: usize = 1550;
    let server = Server::start();
    let (mut client, mut asker) = (server.client(), server.client());
    client.acquire_fair("job a PX 600000");
    let asks = (0..WAITERS).map(|number| {
        let grace = if number == AT { " GRACE 0" } else { "" };
        format!("RFAIRLOCK.ACQUIRE job w{number} BLOCK 0 NOTIFY answers REQ {}{grace}", number + 1).into()
    });
    let asks: Vec<Command> = asks.collect();
    assert!(asker.call_in_one_step(&asks).iter().all(|answer| *answer == "WAITING"));
    client.call_in_one_step(&["RENAME job other".into(), "RENAME other job".into()]);
    for _ in 0..60 {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job w{AT}")), Reply::Nil);
    }
    // WAITERS shows the first 1000.
    let cancels: Vec<Command> = (0..1000).map(|number| format!("RFAIRLOCK.CANCEL job w{number}").into()).collect();
    assert!(client.call_in_one_step(&cancels).iter().all(|answer| *answer == 1));
    let waiters = client.call("RFAIRLOCK.WAITERS job");
    let owners: Vec<String> = waiters.array().iter().map(|waiter| waiter.field("owner").text()).collect();
    assert_eq!(owners.iter().position(|owner| *owner == format!("w{AT}")), Some(AT - 1000));
}
