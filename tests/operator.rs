//! Commands of an operator who does not know the kind of a lock.

use std::time::Duration;

use crate::support::{ALL, Client, Command, Reply, Server, eventually};

#[test]
fn rlock_commands_inspect_and_end_locks_of_any_kind() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a PX 60000");
        let info = client.call("RLOCK.INFO job");
        assert_eq!(info.field("kind"), server.family().kind);
        assert!(client.call("RLOCK.PTTL job").int() > 50_000);
        assert!(client.call("RLOCK.WAITERS job").array().is_empty());
        assert_eq!(client.call(format!("RLOCK.FORCERELEASE job TOKEN {}", token + 1)), 0);
        assert_eq!(client.call("LOCK.HOLDS job a"), 1);
        assert_eq!(client.call(format!("RLOCK.FORCERELEASE job TOKEN {token}")), 1);
        assert_eq!(client.call("LOCK.HOLDS job a"), 0);
        assert_eq!(client.call("RLOCK.FORCERELEASE job"), 0);
        assert_eq!(client.call("RLOCK.FORCERELEASE nothing"), 0);
    }
}

#[test]
fn forcerelease_grants_the_next_waiter_of_any_kind() {
    for server in Server::for_each(ALL) {
        if server.family().shown_mode == "read" || server.family().kind == "semaphore" {
            continue;
        }
        let mut client = server.client();
        client.acquire("job a PX 600000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b BLOCK 0");
        assert_eq!(client.call("RLOCK.FORCERELEASE job"), 1);
        waiter.reply().int();
    }
}

#[test]
fn forcerelease_ends_all_holders() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT permits 3");
    for owner in ["a", "b"] {
        client.call(format!("RSEMAPHORE.ACQUIRE permits {owner}")).int();
        client.call(format!("RRWLOCK.ACQUIRE readers {owner} READ")).int();
    }
    for key in ["permits", "readers"] {
        assert_eq!(client.call(format!("RLOCK.FORCERELEASE {key}")), 1);
    }
    assert_eq!(client.call("RSEMAPHORE.INFO permits").field("available"), 3);
    assert_eq!(client.call("RLOCK.INFO readers"), Reply::Nil);
}

/// More ended waits than one WAITERS command skips.
const ENDED: usize = 2000;

#[test]
fn waiters_skips_a_limited_number_of_ended_waits_and_all_ended_places() {
    const SOON: Duration = Duration::from_secs(60);
    const ASKS: [(&str, &str); 2] = [
        ("fair", "RFAIRLOCK.ACQUIRE fair OWNER QUEUE"),
        ("mutex", "RLOCK.ACQUIRE mutex OWNER NOTIFY answers REQ 1 BLOCK"),
    ];
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("fair first PX 600000");
    client.acquire("mutex first PX 600000");
    for (_, ask) in ASKS {
        let ask = |owner: &str, ms: u64| format!("{} {ms}", ask.replace("OWNER", owner)).into();
        let mut asks: Vec<Command> = (0..ENDED).map(|owner| ask(&owner.to_string(), 4000)).collect();
        asks.push(ask("last", 600_000));
        client.call_in_one_step(&asks);
    }
    // All of these waits end during the sleep. The timer runs only after the last command.
    let looks = ASKS.map(|(key, _)| Command::from(format!("RLOCK.WAITERS {key} COUNT 1")));
    let seen = client.call_in_one_step(&[&["DEBUG SLEEP 4.5".into()], &looks[..]].concat());
    assert_eq!(seen[1].array()[0].field("owner").text(), "last", "WAITERS reads all places");
    assert!(seen[2].array().is_empty(), "WAITERS reads only some of the waits");
    let first = |client: &mut Client, key| client.call(format!("RLOCK.WAITERS {key} COUNT 1"));
    for (key, _) in ASKS {
        eventually(SOON, || first(&mut client, key).array().first().is_some_and(|one| one.field("owner") == "last"));
    }
}

fn digest(client: &mut Client, key: &str) -> Reply {
    client.call(format!("DEBUG DIGEST-VALUE {key}")).array()[0].clone()
}

/// Operators and many tests compare two servers with DEBUG DIGEST-VALUE. A copy has the same digest
/// until it is changed.
#[test]
fn digest_covers_holders_and_places_but_no_deadline() {
    let server = Server::start();
    let mut client = server.client();
    let mutex = "RLOCK.ACQUIRE job a PX 60000";
    let permits = ["RSEMAPHORE.INIT job 3", "RSEMAPHORE.ACQUIRE job a PX 60000"];
    let queue = ["RFAIRLOCK.ACQUIRE job a PX 60000", "RFAIRLOCK.ACQUIRE job b QUEUE 60000"];
    let cases: [(&[&str], &str); 10] = [
        (&[mutex], "RLOCK.ACQUIRE copy a PX 60000"),
        (&[mutex], "RLOCK.RENEW copy a PX 70000"),
        (&[mutex], "RLOCK.ACQUIRE copy a PX 60000 ONCE REQ 5"),
        (&[mutex], "RLOCK.ACQUIRE copy a PX 60000 ONCE SESSION 1000"),
        (&["RRWLOCK.ACQUIRE job a READ PX 60000"], "RRWLOCK.ACQUIRE copy b READ PX 60000"),
        (&permits, "RSEMAPHORE.ACQUIRE copy b PX 60000"),
        (&permits, "RSEMAPHORE.RESIZE copy 4"),
        (&queue, "RFAIRLOCK.ACQUIRE copy c QUEUE 60000"),
        (&queue, "RFAIRLOCK.ACQUIRE copy b QUEUE 60000 REQ 5"),
        (&queue, "RFAIRLOCK.CANCEL copy b"),
    ];
    for (made_by, change) in cases {
        assert_eq!(client.call("FLUSHALL"), "OK");
        for command in made_by {
            client.call(*command);
        }
        assert_eq!(client.call("COPY job copy"), 1);
        let original = digest(&mut client, "job");
        assert_eq!(digest(&mut client, "copy"), original, "{change}");
        let changed = client.call(change);
        assert!(!matches!(changed, Reply::Error(_)), "{change}: {changed:?}");
        assert_ne!(digest(&mut client, "copy"), original, "{change}");
    }
    // Only the deadline differs.
    client.call("FLUSHALL");
    client.acquire("job a PX 60000");
    let before = digest(&mut client, "job");
    client.call("RLOCK.RENEW job a PX 60000").int();
    assert_eq!(digest(&mut client, "job"), before);
}

#[test]
fn memory_usage_includes_holders_and_places() {
    const MANY: usize = 1000;
    let server = Server::start();
    let mut client = server.client();
    // Owner names long enough for their own allocation.
    let owner = |number: usize| format!("{}{number}", "o".repeat(100));
    for (command, option) in [("RSEMAPHORE.ACQUIRE", "PX 60000"), ("RFAIRLOCK.ACQUIRE", "QUEUE 60000")] {
        client.call("FLUSHALL");
        client.call("RSEMAPHORE.INIT permits 1000");
        let key = if option.starts_with("PX") { "permits" } else { "queue" };
        let lines: Vec<Command> =
            (0..MANY).map(|number| format!("{command} {key} {} {option}", owner(number)).into()).collect();
        client.call(lines[0].clone());
        let of_one = client.call(format!("MEMORY USAGE {key}")).int();
        for reply in client.call_in_one_step(&lines[1..]) {
            assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        }
        let of_many = client.call(format!("MEMORY USAGE {key}")).int();
        let of_names = 100 * i64::try_from(MANY).expect("a small number");
        assert!((20..2000).contains(&of_one), "{key}: {of_one} bytes");
        assert!((of_names..10 * of_names).contains(&of_many), "{key}: {of_many} bytes");
    }
}
