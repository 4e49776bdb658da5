//! A lock that moves to another key, database or server stays the same: holder, count, token,
//! request ids, queue and deadline.

use std::time::Duration;

use crate::support::{
    ALL, Client, Command, Reply, Server, Stopwatch, eventually, move_changes_the_database, skipped_here,
};

const SOON: Duration = Duration::from_secs(5);

/// Where a lock is after a move.
struct Place {
    is_elsewhere: bool,
    db: i64,
    key: &'static str,
}

const RENAMED: Place = Place { is_elsewhere: false, db: 0, key: "away" };
const MOVED: Place = Place { is_elsewhere: false, db: 1, key: "job" };
const ELSEWHERE: Place = Place { is_elsewhere: true, db: 0, key: "job" };

/// A way to move or copy the lock `job`.
struct Way {
    name: &'static str,
    /// Commands in which PORT stands for the port of the other server.
    commands: &'static [&'static str],
    to: Place,
    stays: bool,
}

const fn way(name: &'static str, commands: &'static [&'static str], to: Place, stays: bool) -> Way {
    Way { name, commands, to, stays }
}

const IN_DB_2: Place = Place { is_elsewhere: true, db: 2, key: "job" };

const WAYS: &[Way] = &[
    way("RENAME", &["RENAME job away"], RENAMED, false),
    way("RENAME over a lock", &["RLOCK.ACQUIRE away x", "RENAME job away"], RENAMED, false),
    way("RENAMENX", &["RENAMENX job away"], RENAMED, false),
    way("MOVE", &["MOVE job 1"], MOVED, false),
    way("SWAPDB", &["SWAPDB 0 1"], MOVED, false),
    way("SWAPDB the other way round", &["SWAPDB 1 0"], MOVED, false),
    way("COPY", &["COPY job away"], RENAMED, true),
    way("COPY over a lock", &["RLOCK.ACQUIRE away x", "COPY job away REPLACE"], RENAMED, true),
    way("COPY to another database", &["COPY job job DB 1"], MOVED, true),
    way("DUMP and RESTORE", &["dump-and-restore away"], RENAMED, true),
    way("MIGRATE", &["MIGRATE 127.0.0.1 PORT job 0 5000"], ELSEWHERE, false),
    way("MIGRATE to another database", &["MIGRATE 127.0.0.1 PORT job 2 5000"], IN_DB_2, false),
    way("MIGRATE COPY", &["MIGRATE 127.0.0.1 PORT job 0 5000 COPY"], ELSEWHERE, true),
    way("MIGRATE REPLACE", &["MIGRATE 127.0.0.1 PORT job 0 5000 REPLACE"], ELSEWHERE, false),
];

/// The ways that the server under test supports.
fn ways() -> impl Iterator<Item = &'static Way> {
    let without_move = move_changes_the_database();
    if without_move {
        skipped_here("MOVE changes the database of the connection");
    }
    WAYS.iter().filter(move |way| !without_move || !["MOVE", "COPY to another database"].contains(&way.name))
}

/// Two servers. The first one has a replica and holds `job`.
struct Scene {
    here: Server,
    replica: Server,
    elsewhere: Server,
}

impl Scene {
    #[track_caller]
    fn new() -> Scene {
        let lines = ["rlock.fair-grace-ms 60000"];
        let here = Server::with_aof(&lines);
        let replica = Server::replica_of(&here, &lines);
        Scene { here, replica, elsewhere: Server::with_aof(&lines) }
    }

    /// Runs the commands, and returns a client that sees the lock at its new location.
    #[track_caller]
    fn execute(&self, way: &Way) -> Client {
        // On failure the last line names the way that failed.
        eprintln!("{}", way.name);
        let mut client = self.here.client();
        for command in way.commands {
            let reply = match command.strip_prefix("dump-and-restore ") {
                Some(key) => {
                    let payload = client.call("DUMP job");
                    client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", payload.bytes()])
                }
                None => client.call(command.replace("PORT", &self.elsewhere.port().to_string())),
            };
            assert!(!matches!(reply, Reply::Error(_)) && reply != 0, "{command}: {reply:?}");
        }
        let mut there = if way.to.is_elsewhere { self.elsewhere.client() } else { self.here.client() };
        there.call(format!("SELECT {}", way.to.db));
        there
    }

    /// Asserts that the replica and the append-only files agree, and removes all locks.
    #[track_caller]
    fn check_copies_and_clean_up(&self) {
        let mut client = self.here.client();
        client.call("CLIENT PAUSE 60000 WRITE");
        self.replica.catch_up_with(&self.here);
        let digest = client.call("DEBUG DIGEST");
        assert_eq!(self.replica.client().call("DEBUG DIGEST"), digest);
        assert_eq!(client.call("DEBUG LOADAOF"), "OK");
        assert_eq!(client.call("DEBUG DIGEST"), digest);
        client.call("CLIENT UNPAUSE");
        let mut elsewhere = self.elsewhere.client();
        let digest = elsewhere.call("DEBUG DIGEST");
        assert_eq!(elsewhere.call("DEBUG LOADAOF"), "OK");
        assert_eq!(elsewhere.call("DEBUG DIGEST"), digest);
        for client in [&mut client, &mut elsewhere] {
            eventually(SOON, || client.info_number("rlock_waiting") == 0);
            client.call("FLUSHALL");
            eventually(SOON, || client.info_number("rlock_held") == 0);
        }
    }
}

#[test]
fn moved_lock_is_the_same_and_waiters_stay_with_the_old_key() {
    let scene = Scene::new();
    for way in ways() {
        let mut client = scene.here.client();
        let token = client.acquire("job a PX 60000 REQ 1");
        client.acquire("job a PX 60000 REQ 2");
        let mut b = scene.here.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let mut there = scene.execute(way);
        let key = way.to.key;
        assert_eq!(there.holder(key).expect("a holder").identity(), ("a", 2, token));
        assert_eq!(there.acquire(&format!("{key} a REQ 2")), token, "the last request is known");
        there.call(format!("RLOCK.ACQUIRE {key} a REQ 1")).expect_error("STALE");
        let left = there.call(format!("RLOCK.PTTL {key}")).int();
        assert!((40_000..=60_005).contains(&left), "{left} ms");
        assert_eq!(there.call(format!("RLOCK.ACQUIRE {key} c")), Reply::Nil);

        if way.stays {
            assert_eq!(client.waiting_owners("job"), ["b"]);
            client.call("RLOCK.FORCERELEASE job");
        }
        let granted = b.reply().int();
        assert!(granted > token);
        assert_eq!(there.holder(key).expect("a holder").owner, "a", "b was granted another lock");
        scene.check_copies_and_clean_up();
    }
}

#[test]
fn timed_moved_lease_expires_at_its_old_deadline() {
    let scene = Scene::new();
    for way in ways() {
        let watch = Stopwatch::start();
        let token = scene.here.client().acquire("job a PX 500");
        let mut there = scene.execute(way);
        // No command reads the key: the new location expires the lease by itself.
        eventually(SOON, || there.call(format!("EXISTS {}", way.to.key)) == 0);
        watch.assert_took_ms(499..1500, "the lease");
        assert!(there.acquire(&format!("{} b PX 60000", way.to.key)) > token);
        scene.check_copies_and_clean_up();
    }
}

#[test]
fn moved_queue_keeps_its_order() {
    let scene = Scene::new();
    for way in ways() {
        let mut client = scene.here.client();
        let token = client.acquire_fair("job a PX 60000");
        for owner in ["b", "c"] {
            client.call(format!("RFAIRLOCK.ACQUIRE job {owner} QUEUE 60000"));
        }
        let d = scene.here.waiter("RFAIRLOCK.ACQUIRE job d PX 60000 BLOCK 0");
        let mut there = scene.execute(way);
        let key = way.to.key;
        assert_eq!(there.holder(key).expect("a holder").identity(), ("a", 1, token));
        eventually(SOON, || there.places(key) == ["b detached", "c detached", "d detached"]);
        drop(d);
        let mut last = token;
        let mut holder = "a";
        for owner in ["b", "c", "d"] {
            assert_eq!(there.call(format!("RFAIRLOCK.RELEASE {key} {holder}")), 0);
            assert_eq!(there.call(format!("RFAIRLOCK.ACQUIRE {key} newcomer")), Reply::Nil);
            let token = there.acquire_fair(&format!("{key} {owner} PX 60000"));
            assert!(token > last, "{owner}");
            (last, holder) = (token, owner);
        }
        scene.check_copies_and_clean_up();
    }
}

#[test]
fn failed_move_does_not_change_the_lock_or_its_waiters() {
    if move_changes_the_database() {
        return skipped_here("MOVE changes the database of the connection");
    }
    let scene = Scene::new();
    let mut client = scene.here.client();
    let token = client.acquire("job a PX 60000");
    let mut b = scene.here.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.call("SET away text");
    client.call("COPY away job DB 1");
    scene.elsewhere.client().acquire("job x PX 60000");
    let migrate = format!("MIGRATE 127.0.0.1 {} job 0 5000", scene.elsewhere.port());
    let unreachable = format!("MIGRATE 127.0.0.1 {} job 0 5000", crate::support::free_port());
    for refused in ["RENAMENX job away", "MOVE job 1", "COPY job away", &migrate, &unreachable] {
        let reply = client.call(Command::from(refused));
        assert!(reply == 0 || matches!(reply, Reply::Error(_)), "{refused}: {reply:?}");
        assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, token));
        assert_eq!(client.waiting_owners("job"), ["b"]);
    }
    client.call("RLOCK.RELEASE job a");
    b.reply().int();
}

#[test]
fn copy_of_a_held_lock_is_an_independent_hold() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a PX 600000");
        let session = client.acquire("job a PX 600000 SESSION 300000");
        assert_eq!(client.call("COPY job copy"), 1);
        let copied = client.holder("copy").expect("a holder");
        assert_eq!((copied.owner.as_str(), copied.token, copied.session), ("a", token, 0));
        assert_eq!(session, token);
        assert!(copied.lease_ms <= 300_000, "the session of a copy has ended: {} ms", copied.lease_ms);
        assert_eq!(client.call("RLOCK.FORCERELEASE copy"), 1);
        assert_eq!(client.holder("copy"), None);
        assert_eq!(client.call("LOCK.HOLDS job a"), 2);
    }
}
