//! What replicas and the append-only file are told, word for word: only effects, with absolute times and the token that was
//! given; and nothing at all of a command that changed nothing.

use std::time::{Duration, SystemTime};

use crate::support::{Command, Reply, Server, eventually, propagated};

const SOON: Duration = Duration::from_secs(5);

/// Deadlines are written in whole milliseconds of the wall clock.
const ROUNDING_MS: u64 = 2;

/// What a server propagated, read bit by bit.
struct Journal {
    server: Server,
    seen: usize,
    /// When what comes next began, in unix milliseconds.
    since_ms: u64,
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    now.as_millis() as u64
}

impl Journal {
    #[track_caller]
    fn new() -> Journal {
        let server = Server::with_aof(&["rlock.fair-grace-ms 60000"]);
        Journal { server, seen: 0, since_ms: unix_ms() }
    }

    /// Exactly these commands were propagated since the last look, in this order. The braces of a transaction and the
    /// name of the effect command are left out. `@ms` stands for a deadline so far in the future, `#` for any number.
    #[track_caller]
    fn expect(&mut self, what: &str, expected: &[&str]) {
        let mut lines = Vec::new();
        eventually(SOON, || {
            lines = propagated(&self.server)[self.seen..].to_vec();
            let told = lines.iter().filter(|words| !is_brace(words)).count();
            // What comes too much is there at the same moment: it belongs to the same command or the same timer.
            told >= expected.len()
        });
        self.seen += lines.len();
        let told: Vec<_> = lines.iter().filter(|words| !is_brace(words)).map(|words| show(words)).collect();
        let fits = told.len() == expected.len()
            && told.iter().zip(expected).all(|(told, expected)| self.is_line(told, expected));
        assert!(fits, "{what}:\n told     {told:#?}\n expected {expected:#?}");
        self.since_ms = unix_ms();
    }

    fn is_line(&self, told: &str, expected: &str) -> bool {
        let (told, expected): (Vec<_>, Vec<_>) = (told.split(' ').collect(), expected.split(' ').collect());
        told.len() == expected.len()
            && told.iter().zip(expected).all(|(told, expected)| match expected.split_once('@') {
                Some((before, ahead_ms)) => {
                    let ahead_ms: u64 = ahead_ms.parse().expect("a number");
                    let range = self.since_ms + ahead_ms..=unix_ms() + ahead_ms + ROUNDING_MS;
                    let at_ms = told.strip_prefix(before).and_then(|told| told.parse().ok());
                    at_ms.is_some_and(|at_ms| range.contains(&at_ms))
                }
                None if expected == "#" => told.bytes().all(|byte| byte.is_ascii_digit()),
                None => *told == expected,
            })
    }
}

fn is_brace(words: &[Vec<u8>]) -> bool {
    words == [b"MULTI"] || words == [b"EXEC"]
}

fn show(words: &[Vec<u8>]) -> String {
    let words = words.strip_prefix(&[b"RLOCK.APPLY".to_vec()]).unwrap_or(words);
    words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_command_on_a_mutex_tells_its_effect() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    let t = client.acquire("job a PX 60000");
    journal.expect("a grant", &[&format!("job granted mutex exclusive {t} 1 @60000 60000 - - a")]);
    client.acquire("job a PX 70000 REQ 5 SESSION 300");
    journal.expect("a re-entry", &[&format!("job reentered {t} 2 @70000 70000 5a 300")]);
    client.acquire("job a PX 80000 REQ 5");
    journal.expect("a repeat", &[&format!("job renewed {t} 2 @80000 80000 5a 300")]);
    client.call("RLOCK.RENEW job a PX 90000");
    journal.expect("a renewal", &[&format!("job renewed {t} 2 @90000 90000 5a 300")]);
    client.call("RLOCK.RELEASE job a REQ 6");
    journal.expect("an inner release", &[&format!("job partly-released {t} 1 # 90000 6r 300")]);
    client.call("RLOCK.RELEASE job a REQ 6");
    journal.expect("a repeated release", &[]);
    client.call("RLOCK.RELEASE job a REQ 7");
    journal.expect("the last release", &[&format!("job released {t}")]);
    let t = client.acquire("job b EX 7 REQ 1");
    journal.expect("seconds and an id", &[&format!("job granted mutex exclusive {t} 1 @7000 7000 1a - b")]);
    client.call("RLOCK.FORCERELEASE job");
    journal.expect("a forced release", &[&format!("job forced {t}")]);
    let t = client.acquire("job c");
    journal.expect("the default lease", &[&format!("job granted mutex exclusive {t} 1 @30000 30000 - - c")]);
    client.call(format!("RLOCK.FORCERELEASE job TOKEN {t}"));
    journal.expect("a forced release by token", &[&format!("job forced {t}")]);
    let t = client.acquire("job d PX 40");
    journal.expect(
        "a short lease",
        &[&format!("job granted mutex exclusive {t} 1 @40 40 - - d"), &format!("job expired {t}")],
    );
    let t = journal.server.client().acquire("job e PX 60000 SESSION 30");
    journal.expect(
        "a session",
        &[
            &format!("job granted mutex exclusive {t} 1 @60000 60000 - 30 e"),
            &format!("job session-ended {t} 1 @30 60000 - 30"),
            &format!("job expired {t}"),
        ],
    );
    let binary = Command::from([b"RLOCK.ACQUIRE".as_slice(), b"a key\0", b"an\r\nowner", b"PX", b"60000"]);
    let t = client.call(binary).int();
    journal.expect("any bytes", &[&format!("a key\0 granted mutex exclusive {t} 1 @60000 60000 - - an\r\nowner")]);
}

#[test]
fn each_command_on_a_fair_lock_tells_its_effect() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    let t = client.acquire_fair("job a PX 60000 SESSION 10 REQ 2");
    journal.expect("a grant", &[&format!("job granted fair exclusive {t} 1 @60000 60000 2a 10 a")]);
    client.acquire_fair("job a PX 70000 REQ 3");
    journal.expect("a re-entry", &[&format!("job reentered {t} 2 @70000 70000 3a 10")]);
    client.call("RFAIRLOCK.RENEW job a PX 90000");
    journal.expect("a renewal", &[&format!("job renewed {t} 2 @90000 90000 3a 10")]);
    client.call("RFAIRLOCK.ACQUIRE job b QUEUE 50000 REQ 4");
    journal.expect("a place", &["job queued polled:@50000 # 4 tail b"]);
    client.call("RFAIRLOCK.ACQUIRE job b QUEUE 70000 REQ 4");
    journal.expect("a longer life", &["job kept polled:@70000 4 b"]);
    let c = journal.server.waiter("RFAIRLOCK.ACQUIRE job c PX 20000 BLOCK 0");
    journal.expect("a connected place", &["job queued connected # - tail c"]);
    drop(c);
    journal.expect("a lost connection", &["job kept grace:@60000 - c"]);
    client.call("RFAIRLOCK.CANCEL job c");
    journal.expect("a cancelled place", &["job left cancelled c"]);
    client.call("RFAIRLOCK.RELEASE job a");
    journal.expect("an inner release", &[&format!("job partly-released {t} 1 # 90000 3a 10")]);
    client.call("RFAIRLOCK.FORCERELEASE job");
    journal.expect("a forced release", &[&format!("job forced {t}"), "job turn @60000 b"]);
    let t = client.acquire_fair("job b PX 40");
    journal.expect(
        "a turn that is used",
        &[&format!("job granted fair exclusive {t} 1 @40 40 - - b"), &format!("job expired {t}")],
    );
}

/// A lock that `a` holds and for which `b` waits comes to `b`, and exactly this is told of it.
#[track_caller]
fn assert_hand_over(family: &str, way: &str, told: &[&str]) {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    client.call("RLOCK.ACQUIRE other x PX 60000");
    client.call(format!("{family}.ACQUIRE job a PX 60000"));
    let mut b = journal.server.waiter(format!("{family}.ACQUIRE job b PX 20000 BLOCK 0"));
    journal.seen = propagated(&journal.server).len();
    journal.since_ms = unix_ms();
    let step: Vec<_> = way.split(" | ").map(Command::from).collect();
    for reply in client.call_in_one_step(&step) {
        assert!(!matches!(reply, Reply::Error(_)), "{way}: {reply:?}");
    }
    let token = b.reply().int();
    let granted = format!("job granted {} exclusive {token} 1 @20000 20000 - - b", kind_of(family));
    let told: Vec<_> = told.iter().map(|line| if *line == "granted" { granted.as_str() } else { line }).collect();
    journal.expect(&format!("{family}: {way}"), &told);
    // Whoever reads it all again comes to the same.
    let digest = client.call("DEBUG DIGEST");
    assert_eq!(client.call("DEBUG LOADAOF"), "OK");
    assert_eq!(client.call("DEBUG DIGEST"), digest, "{way}");
}

fn kind_of(family: &str) -> &'static str {
    if family == "RLOCK" { "mutex" } else { "fair" }
}

#[test]
fn each_way_to_change_hands_tells_its_effects() {
    for (way, told) in [
        ("RLOCK.RELEASE job a", &["job released #", "granted"][..]),
        ("MULTI | RLOCK.RELEASE job a | EXEC", &["job released #", "granted"]),
        ("RLOCK.FORCERELEASE job", &["job forced #", "granted"]),
        ("RLOCK.RELEASE job a | RLOCK.RENEW job b PX 5", &["job released #", "granted", "job renewed # 1 # 5 - -"]),
        ("DEL job", &["DEL job", "granted"]),
        ("UNLINK job", &["UNLINK job", "granted"]),
        ("SET job text | DEL job", &["SET job text", "DEL job", "granted"]),
        ("PEXPIREAT job 1", &["DEL job", "granted"]),
        ("FLUSHALL", &["FLUSHALL", "granted"]),
        ("FLUSHDB ASYNC", &["FLUSHDB ASYNC", "granted"]),
        ("RENAME job away", &["RENAME job away", "granted"]),
        ("MOVE job 1", &["MOVE job 1", "granted"]),
        ("SWAPDB 0 1", &["SWAPDB 0 1", "granted"]),
        ("COPY other job REPLACE | RLOCK.FORCERELEASE job", &["COPY other job REPLACE", "job forced #", "granted"]),
        ("RENAME other job | RLOCK.FORCERELEASE job", &["RENAME other job", "job forced #", "granted"]),
    ] {
        assert_hand_over("RLOCK", way, told);
    }
}

#[test]
fn each_way_to_change_hands_tells_its_effects_on_a_fair_lock() {
    // Under a name that is empty the waiter gets a new place, by its old arrival number.
    const REJOINED: &str = "job queued connected # - tail b";
    for (way, told) in [
        ("RFAIRLOCK.RELEASE job a", &["job released #", "granted"][..]),
        ("RFAIRLOCK.FORCERELEASE job", &["job forced #", "granted"]),
        ("DEL job", &["DEL job", REJOINED, "granted"]),
        ("PEXPIREAT job 1", &["DEL job", REJOINED, "granted"]),
        ("FLUSHALL", &["FLUSHALL", REJOINED, "granted"]),
        ("MOVE job 1", &["MOVE job 1", REJOINED, "granted", "job detached @60000"]),
        ("SWAPDB 0 1", &["SWAPDB 0 1", "job detached @60000", REJOINED, "granted"]),
        ("RENAME job away", &["RENAME job away", REJOINED, "granted", "away detached @60000"]),
    ] {
        assert_hand_over("RFAIRLOCK", way, told);
    }
}

#[test]
fn what_happens_without_a_command_tells_its_effects() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    let waiter =
        |journal: &Journal, owner: &str| journal.server.waiter(format!("RLOCK.ACQUIRE job {owner} PX 20000 BLOCK 0"));
    let a = client.acquire("job a PX 300");
    let mut waits = waiter(&journal, "b");
    journal.expect("a grant", &[&format!("job granted mutex exclusive {a} 1 @300 300 - - a")]);
    let b = waits.reply().int();
    journal.expect(
        "the end of a lease",
        &[&format!("job expired {a}"), &format!("job granted mutex exclusive {b} 1 @20000 20000 - - b")],
    );

    // Two requests of one owner are served together.
    let mut waits = [waiter(&journal, "c"), waiter(&journal, "d"), waiter(&journal, "c")];
    journal.expect("waiting", &[]);
    client.call("RLOCK.RELEASE job b");
    let c = waits[0].reply().int();
    assert_eq!(waits[2].reply(), c);
    journal.expect(
        "a hand-over to an owner that asked twice",
        &[
            &format!("job released {b}"),
            &format!("job granted mutex exclusive {c} 1 @20000 20000 - - c"),
            &format!("job reentered {c} 2 @20000 20000 - -"),
        ],
    );

    // d is gone in the turn of its grant, and never hears of it.
    let mut e = waiter(&journal, "e");
    let kill = format!("CLIENT KILL ID {}", waits[1].id());
    client.call_in_one_step(&["RLOCK.FORCERELEASE job".into(), kill.into()]);
    let e = e.reply().int();
    journal.expect(
        "a grant that nobody heard of",
        &[
            &format!("job forced {c}"),
            "job granted mutex exclusive # 1 @20000 20000 - - d",
            "job undone #",
            &format!("job granted mutex exclusive {e} 1 @20000 20000 - - e"),
        ],
    );

    let f = waiter(&journal, "f");
    client.call(format!("CLIENT KILL ID {}", f.id()));
    let mut g = waiter(&journal, "g");
    client.call(format!("CLIENT UNBLOCK {} TIMEOUT", g.id()));
    assert_eq!(g.reply(), Reply::Nil);
    assert_eq!(client.call("RLOCK.ACQUIRE job h BLOCK 5"), Reply::Nil);
    let mut h = waiter(&journal, "h REQ 1");
    let _taken_over = waiter(&journal, "h REQ 1");
    h.reply().expect_error("UNBLOCKED");
    client.call("PING");
    journal.expect("waiters that leave", &[]);
}

/// Commands that change nothing, on `free` where nothing is, on `job` that `a` holds with request 5, and on `text`.
const NOTHING_CHANGES: &[&str] = &[
    "FAMILY.ACQUIRE job b",
    "FAMILY.ACQUIRE job b PX 1000 BLOCK 5",
    "FAMILY.ACQUIRE job b SESSION 100 REQ 1",
    "FAMILY.ACQUIRE job a REQ 4",
    "FAMILY.ACQUIRE text a",
    "FAMILY.ACQUIRE free a PX 0",
    "FAMILY.ACQUIRE free a PX 1000 EX 1",
    "FAMILY.RELEASE job b",
    "FAMILY.RELEASE job a REQ 4",
    "FAMILY.RELEASE job a REQ 5",
    "FAMILY.RELEASE free a",
    "FAMILY.RELEASE text a",
    "FAMILY.RENEW job a PX 1000",
    "FAMILY.RENEW job b PX 60000",
    "FAMILY.RENEW free a",
    "FAMILY.RENEW text a",
    "FAMILY.FORCERELEASE free",
    "FAMILY.FORCERELEASE text",
    "FAMILY.FORCERELEASE job TOKEN 1",
    "FAMILY.HOLDS job a",
    "FAMILY.HOLDS free a",
    "FAMILY.TTL job",
    "FAMILY.TTL free",
    "FAMILY.INFO job",
    "FAMILY.INFO free",
    "FAMILY.WAITERS job COUNT 1",
    "FAMILY.WAITERS text",
];

#[test]
fn a_command_that_changes_nothing_tells_nothing() {
    for family in ["RLOCK", "RFAIRLOCK"] {
        let mut journal = Journal::new();
        let mut client = journal.server.client();
        client.call("SET text x");
        client.call(format!("{family}.ACQUIRE job a PX 1000 REQ 5"));
        client.call(format!("{family}.RENEW job a PX 60000"));
        client.call(format!("{family}.RENEW job a PX 1000"));
        journal.seen = propagated(&journal.server).len();
        let fair_only = ["RFAIRLOCK.CANCEL job b", "RFAIRLOCK.CANCEL free b", "RFAIRLOCK.CANCEL text b"];
        let commands = NOTHING_CHANGES.iter().map(|command| command.replace("FAMILY", family));
        for command in commands.chain(fair_only.map(str::to_owned)) {
            // A fair lock notes even a place that is soon given up.
            if family == "RFAIRLOCK" && command.contains("BLOCK") {
                continue;
            }
            client.call(command.as_str());
            journal.expect(&command, &[]);
            client.transaction(command.as_str());
            journal.expect(&format!("{command} in a transaction"), &[]);
            client.eval(command.as_str());
            journal.expect(&format!("{command} in a script"), &[]);
        }
    }
}

#[test]
fn a_replica_writes_what_it_is_told_into_its_own_append_only_file() {
    let primary = Server::with_aof(&["rlock.fair-grace-ms 60000"]);
    let mut replica = Server::replica_of(&primary, &["appendonly yes", "appendfsync always"]);
    // After a synchronisation the file is written anew.
    let second_hand = Server::replica_of(&replica, &["appendonly yes", "appendfsync always"]);
    for replica in [&replica, &second_hand] {
        let mut observer = replica.client();
        eventually(SOON, || observer.info("aof_rewrites") == "1" && observer.info("aof_rewrite_in_progress") == "0");
    }
    let mut client = primary.client();
    client.acquire("job a PX 60000 REQ 1");
    client.acquire_fair("fair a PX 60000");
    client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 60000");
    let mut waiter = primary.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.call("RLOCK.RELEASE job a");
    waiter.reply().int();
    client.call("RENAME job away");
    let told = |server: &Server| {
        let all = propagated(server);
        all.iter().filter(|words| !is_brace(words)).map(|words| show(words)).collect::<Vec<_>>()
    };
    replica.catch_up_with(&primary);
    second_hand.catch_up_with(&primary);
    assert_eq!(told(&primary).len(), 6);
    for replica in [&replica, &second_hand] {
        assert!(told(replica).ends_with(&told(&primary)), "{:#?}", told(replica));
    }
    replica.kill_and_restart();
    replica.catch_up_with(&primary);
    assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
}

#[test]
fn each_command_on_a_read_write_lock_tells_its_effect() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    let mut acquire = |command: &str| client.call(format!("RRWLOCK.ACQUIRE job {command}")).int();
    let a = acquire("a READ PX 60000 REQ 1");
    let b = acquire("b READ PX 50000 SESSION 100");
    assert_eq!(acquire("a READ PX 70000"), a);
    journal.expect(
        "readers",
        &[
            &format!("job granted rwlock read {a} 1 @60000 60000 1a - a"),
            &format!("job granted rwlock read {b} 1 @50000 50000 - 100 b"),
            &format!("job reentered {a} 2 @70000 70000 1a -"),
        ],
    );
    let mut client = journal.server.client();
    let mut writer = journal.server.waiter("RRWLOCK.ACQUIRE job w WRITE PX 20000 BLOCK 0");
    assert_eq!(client.call("RRWLOCK.ACQUIRE job r READ"), Reply::Nil);
    journal.expect("waiting", &[]);
    client.call("RRWLOCK.RENEW job b READ PX 80000");
    client.call("RRWLOCK.RELEASE job a READ");
    client.call("RRWLOCK.RELEASE job a READ");
    client.call("RRWLOCK.RELEASE job b READ");
    let w = writer.reply().int();
    journal.expect(
        "the last reader hands over to the writer",
        &[
            &format!("job renewed {b} 1 @80000 80000 - 100"),
            &format!("job partly-released {a} 1 # 70000 1a -"),
            &format!("job released {a}"),
            &format!("job released {b}"),
            &format!("job granted rwlock write {w} 1 @20000 20000 - - w"),
        ],
    );
    let mut readers =
        ["x", "y"].map(|owner| journal.server.waiter(format!("RRWLOCK.ACQUIRE job {owner} READ PX 20000 BLOCK 0")));
    client.call("RRWLOCK.FORCERELEASE job");
    let [x, y] = readers.each_mut().map(|reader| reader.reply().int());
    journal.expect(
        "the writer hands over to all readers",
        &[
            &format!("job forced {w}"),
            &format!("job granted rwlock read {x} 1 @20000 20000 - - x"),
            &format!("job granted rwlock read {y} 1 @20000 20000 - - y"),
        ],
    );
    client.call("RRWLOCK.FORCERELEASE job");
    journal.expect("all are forced", &[&format!("job forced {x}"), &format!("job forced {y}")]);
    for nothing in ["RELEASE job a READ", "RENEW job a WRITE", "HOLDS job a READ", "INFO job", "FORCERELEASE job"] {
        client.call(format!("RRWLOCK.{nothing}"));
        journal.expect(nothing, &[]);
    }
}

#[test]
fn each_command_on_a_semaphore_tells_its_effect() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    for command in ["INIT job 3", "INIT job 5", "RESIZE job 4", "RESIZE job 4"] {
        client.call(format!("RSEMAPHORE.{command}"));
    }
    journal.expect("its size", &["job sized 3", "job sized 4"]);
    let a = client.call("RSEMAPHORE.ACQUIRE job a PERMITS 3 PX 60000 REQ 1").int();
    let b = client.call("RSEMAPHORE.DRAIN job b PX 60000").int();
    assert_eq!(b, 1);
    journal.expect(
        "grants",
        &[
            &format!("job granted semaphore permits {a} 3 @60000 60000 1a - a"),
            "job granted semaphore permits # 1 @60000 60000 - - b",
        ],
    );
    let mut c = journal.server.waiter("RSEMAPHORE.ACQUIRE job c PERMITS 2 PX 20000 BLOCK 0");
    client.call("RSEMAPHORE.RELEASE job a PERMITS 2 REQ 2");
    let c = c.reply().int();
    journal.expect(
        "permits that are handed over",
        &[
            &format!("job partly-released {a} 1 # 60000 2r -"),
            &format!("job granted semaphore permits {c} 2 @20000 20000 - - c"),
        ],
    );
    for nothing in ["ACQUIRE job d", "ACQUIRE job d PERMITS 9", "RELEASE job a PERMITS 2", "DRAIN job d", "INIT job 9"]
    {
        client.call(format!("RSEMAPHORE.{nothing}"));
        journal.expect(nothing, &[]);
    }
}

#[test]
fn a_request_for_many_keys_tells_one_effect_for_each() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    let tokens = client.call("RLOCK.MACQUIRE 2 one two a PX 60000 REQ 1");
    let [one, two] = [0, 1].map(|at| tokens.array()[at].int());
    journal.expect(
        "grants",
        &[
            &format!("one granted mutex exclusive {one} 1 @60000 60000 1A - a"),
            &format!("two granted mutex exclusive {two} 1 @60000 60000 1A - a"),
        ],
    );
    let mut b = journal.server.waiter("RLOCK.MACQUIRE 2 two three b PX 20000 BLOCK 0");
    assert_eq!(client.call("RLOCK.MACQUIRE 2 three one c"), Reply::Nil);
    client.call("RLOCK.MRELEASE 2 three one a").expect_error("NOTOWNER");
    journal.expect("nothing", &[]);
    client.call("RLOCK.MRENEW 2 one two a PX 70000");
    client.call("RLOCK.MRELEASE 2 one two a REQ 2");
    b.reply();
    journal.expect(
        "a hand-over of several at once",
        &[
            &format!("one renewed {one} 1 @70000 70000 1A -"),
            &format!("two renewed {two} 1 @70000 70000 1A -"),
            &format!("one released {one}"),
            &format!("two released {two}"),
            "two granted mutex exclusive # 1 @20000 20000 - - b",
            "three granted mutex exclusive # 1 @20000 20000 - - b",
        ],
    );
}

/// Nobody has looked at the lapsed lock yet when the next command comes: no timer runs in between.
#[test]
fn a_lapsed_lock_makes_room_for_one_of_another_kind_on_every_copy() {
    let primary = Server::with_aof(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    let kinds = [
        ("RLOCK.ACQUIRE job a PX 5", "RFAIRLOCK.ACQUIRE job b PX 60000", "fair"),
        ("RFAIRLOCK.ACQUIRE job a PX 5", "RLOCK.ACQUIRE job b PX 60000", "mutex"),
        ("RLOCK.ACQUIRE job a PX 5", "RRWLOCK.ACQUIRE job b READ PX 60000", "rwlock"),
        ("RRWLOCK.ACQUIRE job a WRITE PX 5", "RLOCK.MACQUIRE 1 job b PX 60000", "mutex"),
        ("RLOCK.ACQUIRE job a PX 5", "RFAIRLOCK.ACQUIRE job b PX 60000 QUEUE 60000", "fair"),
        ("RLOCK.ACQUIRE job a PX 5", "RSEMAPHORE.INIT job 3", "semaphore"),
    ];
    for (lapsing, next, kind) in kinds {
        client.call_in_one_step(&[lapsing, "DEBUG SLEEP 0.05", next].map(Command::from));
        assert_eq!(client.call("RLOCK.INFO job").field("kind"), kind, "{next} after {lapsing}");
        replica.catch_up_with(&primary);
        let digest = client.call("DEBUG DIGEST");
        assert_eq!(replica.client().call("DEBUG DIGEST"), digest, "{next} after {lapsing}");
        assert_eq!(client.call("DEBUG LOADAOF"), "OK");
        assert_eq!(client.call("DEBUG DIGEST"), digest, "{next} after {lapsing}");
        client.call("DEL job");
    }
}
