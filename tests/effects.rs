//! Effects that replicas and the append-only file receive, compared word by word: only effects,
//! with absolute times and the token that was granted. A command that changes nothing propagates
//! nothing.

use crate::support::{Command, Journal, Reply};

#[test]
fn commands_on_a_mutex_propagate_their_effects() {
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
fn commands_on_a_fair_lock_propagate_their_effects() {
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
    journal.expect("a longer QUEUE time", &["job kept polled:@70000 4 b"]);
    let c = journal.server.blocked_waiter("RFAIRLOCK.ACQUIRE job c PX 20000 BLOCK 0");
    journal.expect("a connected place", &["job queued connected # - tail c"]);
    drop(c);
    journal.expect("a lost connection", &["job kept grace:@60000 - c"]);
    client.call("RFAIRLOCK.CANCEL job c");
    journal.expect("a cancelled place", &["job left cancelled c"]);
    client.call("RFAIRLOCK.RELEASE job a");
    journal.expect("an inner release", &[&format!("job partly-released {t} 1 # 90000 3a 10")]);
    client.call("RFAIRLOCK.FORCERELEASE job");
    journal.expect("a forced release", &[&format!("job forced {t}"), "job reserved @60000 b"]);
    let t = client.acquire_fair("job b PX 40");
    journal.expect(
        "the owner acquires at its turn",
        &[&format!("job granted fair exclusive {t} 1 @40 40 - - b"), &format!("job expired {t}")],
    );
}

#[test]
fn commands_on_a_read_write_lock_propagate_their_effects() {
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
    let mut writer = journal.server.blocked_waiter("RRWLOCK.ACQUIRE job w WRITE PX 20000 BLOCK 0");
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
    let mut readers = ["x", "y"]
        .map(|owner| journal.server.blocked_waiter(format!("RRWLOCK.ACQUIRE job {owner} READ PX 20000 BLOCK 0")));
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
    journal.expect("forced release of all readers", &[&format!("job forced {x}"), &format!("job forced {y}")]);
    for nothing in ["RELEASE job a READ", "RENEW job a WRITE", "HOLDS job a READ", "INFO job", "FORCERELEASE job"] {
        client.call(format!("RRWLOCK.{nothing}"));
        journal.expect(nothing, &[]);
    }
}

#[test]
fn commands_on_a_semaphore_propagate_their_effects() {
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
            &format!("job granted semaphore permits {a} 3 @60000 60000 1a3 - a"),
            "job granted semaphore permits # 1 @60000 60000 - - b",
        ],
    );
    let mut c = journal.server.blocked_waiter("RSEMAPHORE.ACQUIRE job c PERMITS 2 PX 20000 BLOCK 0");
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
fn macquire_propagates_one_effect_per_key() {
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
    let mut b = journal.server.blocked_waiter("RLOCK.MACQUIRE 2 two three b PX 20000 BLOCK 0");
    assert_eq!(client.call("RLOCK.MACQUIRE 2 three one c"), Reply::Nil);
    client.call("RLOCK.MRELEASE 2 three one a").expect_error("NOTOWNER");
    journal.expect("nothing", &[]);
    client.call("RLOCK.MRENEW 2 one two a PX 70000");
    client.call("RLOCK.MRELEASE 2 one two a REQ 2");
    b.reply();
    journal.expect(
        "a hand-over of several keys",
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

/// Commands that change nothing. `free` does not exist, `a` holds `job` with request id 5, and
/// `text` is a string.
const WITHOUT_CHANGE: &[&str] = &[
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
    "FAMILY.PTTL job",
    "FAMILY.PTTL free",
    "FAMILY.INFO job",
    "FAMILY.INFO free",
    "FAMILY.WAITERS job COUNT 1",
    "FAMILY.WAITERS text",
];

#[test]
fn command_without_change_propagates_nothing() {
    for family in ["RLOCK", "RFAIRLOCK"] {
        let mut journal = Journal::new();
        let mut client = journal.server.client();
        client.call("SET text x");
        client.call(format!("{family}.ACQUIRE job a PX 1000 REQ 5"));
        client.call(format!("{family}.RENEW job a PX 60000"));
        client.call(format!("{family}.RENEW job a PX 1000"));
        journal.skip();
        let fair_only = ["RFAIRLOCK.CANCEL job b", "RFAIRLOCK.CANCEL free b", "RFAIRLOCK.CANCEL text b"];
        let commands = WITHOUT_CHANGE.iter().map(|command| command.replace("FAMILY", family));
        for command in commands.chain(fair_only.map(str::to_owned)) {
            // On a fair lock even a short wait creates a place, which is an effect.
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
