//! Counters of INFO, and what RLOCK.TOP and RLOCK.INFO show of contended locks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Client, Command, EXCLUSIVE, Reply, Server, Stopwatch, eventually, in_script};

const SOON: Duration = Duration::from_secs(10);

const KINDS: [&str; 4] = ["mutex", "fair", "rwlock", "semaphore"];

/// Returns a count of one kind, and checks that the total is the sum over all kinds.
#[track_caller]
fn counted(client: &mut Client, kind: &str, name: &str) -> i64 {
    let of_kinds: i64 = KINDS.iter().map(|kind| client.info_number(&format!("rlock_{kind}_{name}"))).sum();
    assert_eq!(client.info_number(&format!("rlock_{name}")), of_kinds, "{name}");
    client.info_number(&format!("rlock_{kind}_{name}"))
}

#[test]
fn counters_exist_for_each_kind_and_in_total() {
    for server in Server::for_each(EXCLUSIVE) {
        let kind = server.family().kind;
        let mut client = server.client();
        client.acquire("job a PX 600000");
        assert_eq!(client.call("LOCK.ACQUIRE job b"), Reply::Nil);
        assert_eq!(client.call("LOCK.ACQUIRE job b BLOCK 1"), Reply::Nil);
        client.call("SET text here");
        for _ in 0..2 {
            client.call("LOCK.ACQUIRE text b").expect_error("WRONGTYPE");
        }
        let mut next = server.waiter("LOCK.ACQUIRE job b PX 600000 BLOCK 0");
        assert_eq!(counted(&mut client, kind, "waiting"), 1);
        client.call("LOCK.RELEASE job a");
        next.reply().int();
        drop(server.waiter("LOCK.ACQUIRE job c BLOCK 0"));
        eventually(SOON, || client.info_number("rlock_waiting") == 0);
        if kind == "fair" {
            // Otherwise the place of the disconnected waiter would be kept for the grace.
            client.call("RFAIRLOCK.CANCEL job c");
        }
        client.call("LOCK.FORCERELEASE job");
        client.acquire("job d PX 1");
        eventually(SOON, || client.info_number("rlock_expired") == 1);
        for (name, count) in [
            ("granted_at_once", 2),
            ("granted_after_waiting", 1),
            ("handed_over", 1),
            ("denied", 1),
            ("refused", 2),
            ("deadlocks", 0),
            ("timed_out", 1),
            ("disconnected", 1),
            ("undone", 0),
            ("expired", 1),
            ("forced", 1),
        ] {
            assert_eq!(counted(&mut client, kind, name), count, "{kind} {name}");
        }
    }
}

#[test]
fn deadlocks_and_refused_waiters_are_counted() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("one a PX 600000");
    client.acquire("two b PX 600000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE two a BLOCK 0");
    client.call("RLOCK.ACQUIRE one b BLOCK 0").expect_error("DEADLOCK");
    assert_eq!(counted(&mut client, "mutex", "deadlocks"), 1);
    client.call("SET two text");
    waiter.reply().expect_error("WRONGTYPE");
    assert_eq!(counted(&mut client, "mutex", "refused"), 1);
}

#[test]
fn undone_grants_are_counted() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 600000");
    let waiter = server.waiter("RLOCK.ACQUIRE job b PX 600000 BLOCK 0");
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    client.call_in_one_step(&["RLOCK.RELEASE job a".into(), kill.into()]);
    eventually(SOON, || client.info_number("rlock_undone") == 1);
    assert_eq!(counted(&mut client, "mutex", "undone"), 1);
}

#[test]
fn timed_current_and_ended_waits_are_shown() {
    let server = Server::start();
    let mut client = server.client();
    let fields = ["rlock_oldest_wait_ms", "rlock_longest_hold_ms", "rlock_wait_p50_us", "rlock_wait_max_us"];
    assert_eq!(fields.map(|field| client.info_number(field)), [0; 4]);
    client.acquire("job a PX 600000");
    std::thread::sleep(Duration::from_millis(200));
    let watch = Stopwatch::start();
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b BLOCK 0");
    std::thread::sleep(Duration::from_millis(300));
    let [oldest_wait_ms, longest_hold_ms, ..] = fields.map(|field| client.info_number(field));
    assert!((300..5000).contains(&oldest_wait_ms), "{oldest_wait_ms}");
    assert!((500..5000).contains(&longest_hold_ms), "{longest_hold_ms}");
    client.call("RLOCK.RELEASE job a");
    waiter.reply().int();
    watch.assert_took_ms(299..1500, "the wait");
    // 100 very short waits.
    for number in 0..100 {
        let key = format!("job-{number}");
        client.acquire(&format!("{key} a"));
        let mut waiter = server.waiter(format!("RLOCK.ACQUIRE {key} b BLOCK 0"));
        client.call(format!("RLOCK.RELEASE {key} a"));
        waiter.reply().int();
    }
    let [oldest_wait_ms, longest_hold_ms, p50_us, max_us] = fields.map(|field| client.info_number(field));
    assert_eq!((oldest_wait_ms, longest_hold_ms), (0, 0), "no request waits");
    assert!((1..300_000).contains(&p50_us), "{p50_us}");
    assert!((299_000..5_000_000).contains(&max_us), "{max_us}");
    let p99_us = client.info_number("rlock_wait_p99_us");
    assert!((p50_us..=max_us).contains(&p99_us), "{p50_us} {p99_us} {max_us}");
    assert!(client.info_number("rlock_waited_us") >= max_us);
}

/// Clients that wait for a lock with another holder.
#[track_caller]
fn crowd(server: &Server, db: u32, key: &str, waiters: usize) -> Vec<Client> {
    let mut holder = server.client();
    holder.call(format!("SELECT {db}"));
    holder.acquire(&format!("{key} holder-of-{key} PX 600000"));
    let crowd: Vec<_> = (0..waiters)
        .map(|number| {
            let mut client = server.client();
            client.call(format!("SELECT {db}"));
            client.send(format!("RLOCK.ACQUIRE {key} w{number} BLOCK 0"));
            client
        })
        .collect();
    eventually(SOON, || holder.waiting_owners(key).len() == waiters);
    crowd
}

/// Rule I3.
#[test]
fn top_lists_the_most_contended_locks_first() {
    let server = Server::start();
    let mut client = server.client();
    assert!(client.call("RLOCK.TOP").array().is_empty());
    let _crowds =
        [("one", 0, 2), ("two", 0, 5), ("three", 3, 4)].map(|(key, db, waiters)| crowd(&server, db, key, waiters));
    client.acquire("quiet a PX 600000");
    let top = client.call("RLOCK.TOP");
    let shown = |top: &Reply| -> Vec<_> {
        let fields = |lock: &Reply| (lock.field("key").text(), lock.field("db").int(), lock.field("waiters").int());
        top.array().iter().map(fields).collect()
    };
    let expected = [("two", 0, 5), ("three", 3, 4), ("one", 0, 2)];
    assert_eq!(shown(&top), expected.map(|(key, db, waiters)| (key.to_owned(), db, waiters)));
    assert_eq!(shown(&client.call(in_script("RLOCK.TOP".into()))), shown(&top));
    let first = &top.array()[0];
    assert_eq!(first.field("kind"), "mutex");
    assert_eq!(first.field("owner"), "holder-of-two");
    assert!((0..60_000).contains(&first.field("oldest-wait-ms").int()));
    assert!(first.field("held-ms").int() >= first.field("oldest-wait-ms").int());
    assert_eq!(client.call("RLOCK.TOP COUNT 1").array().len(), 1);
    assert!(client.call("RLOCK.TOP COUNT 0").array().is_empty());
    // The reply contains enough to end the hold.
    let forced = format!("RLOCK.FORCERELEASE two TOKEN {}", first.field("token").int());
    assert_eq!(client.call(forced), 1);
}

#[test]
fn top_leaves_out_keys_that_the_user_cannot_read() {
    let server = Server::start();
    let mut client = server.client();
    let _crowds = ["secret", "shared"].map(|key| crowd(&server, 0, key, 2));
    for (rules, keys) in [("%R~shared", vec!["shared"]), ("%W~*", vec![]), ("~*", vec!["secret", "shared"])] {
        client.call(format!("ACL SETUSER worker reset on nopass {rules} +rlock.top"));
        let mut worker = server.client();
        worker.call("AUTH worker any");
        let top = worker.call("RLOCK.TOP");
        let mut shown: Vec<_> = top.array().iter().map(|lock| lock.field("key").text()).collect();
        shown.sort();
        assert_eq!(shown, keys, "{rules}");
    }
}

#[test]
fn info_shows_1000_holders_and_counts_all() {
    let server = Server::start();
    let mut client = server.client();
    let acquire = |number| Command::from(format!("RRWLOCK.ACQUIRE job reader-{number} READ PX 600000"));
    let commands: Vec<_> = (0..3000).map(acquire).collect();
    client.call_in_one_step(&commands);
    for info in ["RLOCK.INFO job", "RRWLOCK.INFO job"] {
        let info = client.call(info);
        assert_eq!(info.field("holders").array().len(), 1000);
        assert_eq!(info.field("holders-count"), 3000);
    }
    for number in [0, 1500, 2999] {
        let info = client.call(format!("RRWLOCK.INFO job OWNER reader-{number}"));
        let holders = info.field("holders");
        let owners: Vec<_> = holders.array().iter().map(|holder| holder.field("owner").text()).collect();
        assert_eq!(owners, [format!("reader-{number}")]);
        assert_eq!(info.field("holders-count"), 3000);
    }
    assert!(client.call("RLOCK.INFO job OWNER none").field("holders").array().is_empty());
    for wrong in ["RLOCK.INFO job OWNER", "RLOCK.INFO job all", "RLOCK.INFO job OWNER a b"] {
        client.call(wrong).expect_error("ERR");
    }
}

#[test]
fn info_fields_are_exactly_those_in_the_table() {
    let server = Server::start();
    let info = server.client().call("INFO rlock").text();
    let fields = info.lines().filter_map(|line| line.split_once(':')).map(|(field, _)| field.to_owned());
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations/monitoring.md"))
        .expect("a page");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `rlock_")?.split(" | ").next());
    let names =
        cells.flat_map(|cell| cell.split('`').map(|name| name.trim_start_matches("rlock_")).collect::<Vec<_>>());
    let documented = names.filter(|name| !name.trim_matches([',', ' ']).is_empty()).flat_map(|name| {
        match name.strip_prefix("KIND_") {
            Some(count) => KINDS.map(|kind| format!("rlock_{kind}_{count}")).to_vec(),
            None => vec![format!("rlock_{name}")],
        }
    });
    assert_eq!(fields.collect::<BTreeSet<_>>(), documented.collect::<BTreeSet<_>>());
}

/// The words of a text that are field names as Prometheus writes them.
fn fields_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && !letter.is_ascii_digit() && letter != '_');
    words.filter(|word| word.starts_with("rlock_")).map(str::to_owned).collect()
}

#[test]
fn dashboard_shows_every_field_and_alerts_use_only_existing_fields() {
    let server = Server::start();
    // packaging/monitoring/prometheus.yml turns the kind into a label.
    let kinds = KINDS.map(|kind| (format!("rlock_{kind}_"), "rlock_kind_"));
    let info = server.client().call("INFO rlock").text();
    // Prometheus knows numbers only.
    let numbers = |(_, value): &(&str, &str)| value.trim().parse::<f64>().is_ok();
    let fields = info.lines().filter_map(|line| line.split_once(':')).filter(numbers).map(|(name, _)| {
        let of_kind = kinds.iter().find(|(prefix, _)| name.starts_with(prefix));
        of_kind.map_or(name.to_owned(), |(prefix, label)| name.replace(prefix, label))
    });
    let fields: BTreeSet<_> = fields.collect();
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/monitoring").join(name);
        fields_in(&fs::read_to_string(path).expect("a file for monitoring"))
    };
    assert_eq!(read("dashboard.json"), fields);
    let alerts = read("alerts.yml");
    assert!(alerts.len() >= 10 && alerts.is_subset(&fields), "{:?}", alerts.difference(&fields));
    // A unit test of an alert with an unknown field would prove nothing.
    assert!(read("alerts_test.yml").is_subset(&fields));
}

/// Hits and misses of the keyspace, and the frequency by which the server chooses what to evict, are
/// those of the clients.
#[test]
fn looking_at_locks_counts_as_no_access() {
    let server = Server::with(&["maxmemory-policy volatile-lfu", "notify-keyspace-events KEm"]);
    let mut client = server.client();
    client.acquire("job a PX 600000 NOTE text");
    let _waiter = server.waiter("RLOCK.ACQUIRE job b BLOCK 0");
    let mut events = server.client();
    events.call("PSUBSCRIBE __keyevent@0__:keymiss");
    let frequency = client.call("OBJECT FREQ job");
    let counts = |client: &mut Client| ["keyspace_hits", "keyspace_misses"].map(|name| client.info_number(name));
    let before = counts(&mut client);
    for key in ["job", "vacant"] {
        for command in ["INFO", "WAITERS", "PTTL"] {
            client.call(format!("RLOCK.{command} {key}"));
        }
        client.call(format!("RLOCK.HOLDS {key} a"));
    }
    assert_eq!(client.call("RLOCK.TOP").array()[0].field("note"), "text");
    assert_eq!(counts(&mut client), before);
    assert_eq!(client.call("OBJECT FREQ job"), frequency);
    // The timer opens the key, too. COPY and OBJECT count one hit each.
    client.call("COPY job other");
    eventually(SOON, || client.info_number("rlock_held") == 2);
    assert_eq!(counts(&mut client), [before[0] + 2, before[1]]);
    crate::support::assert_silent(&mut events);
}
