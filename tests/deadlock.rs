//! Deadlocks: a request that would close a cycle of waiting owners is refused at once. No other
//! request is.

use std::time::Duration;

use crate::support::{Client, Command, Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(5);

/// How an owner holds a key and how the next one waits for it. A cycle uses all of them in turn.
#[derive(Clone, Copy)]
enum Kind {
    Mutex,
    Fair,
    Writer,
    /// The holder has READ, the waiter wants WRITE.
    Reader,
    /// The key and a second one, with MACQUIRE.
    Many,
}

const KINDS: [Kind; 5] = [Kind::Mutex, Kind::Fair, Kind::Writer, Kind::Reader, Kind::Many];

impl Kind {
    fn hold(self, key: usize, owner: usize) -> String {
        match self {
            Kind::Reader => format!("RRWLOCK.ACQUIRE k{key} o{owner} READ PX 600000"),
            _ => self.want(key, owner),
        }
    }

    fn want(self, key: usize, owner: usize) -> String {
        match self {
            Kind::Mutex => format!("RLOCK.ACQUIRE k{key} o{owner} PX 600000"),
            Kind::Fair => format!("RFAIRLOCK.ACQUIRE k{key} o{owner} PX 600000"),
            Kind::Writer | Kind::Reader => format!("RRWLOCK.ACQUIRE k{key} o{owner} WRITE PX 600000"),
            Kind::Many => format!("RLOCK.MACQUIRE 2 k{key} extra{key} o{owner} PX 600000"),
        }
    }
}

/// Owner i holds key i and waits for key i + 1. The waits begin with owner `first`, and the last
/// one closes the cycle.
#[track_caller]
fn assert_refused(owners: usize, kind_of: impl Fn(usize) -> Kind, first: usize) {
    let server = Server::start();
    let mut client = server.client();
    for number in 0..owners {
        let held = client.call(kind_of(number).hold(number, number));
        assert!(!matches!(held, Reply::Nil | Reply::Error(_)), "{held:?}");
    }
    let step = |number: usize| ((first + number) % owners, (first + number + 1) % owners);
    let mut waiters: Vec<_> = (0..owners - 1)
        .map(|number| {
            let (owner, key) = step(number);
            server.waiter(kind_of(key).want(key, owner) + " BLOCK 0")
        })
        .collect();
    let (owner, key) = step(owners - 1);
    let line = client.call(kind_of(key).want(key, owner) + " BLOCK 0").expect_error("DEADLOCK").to_owned();
    // If the owner holds both keys, the error may name either.
    let named = [format!("k{key}"), format!("extra{key}")];
    let edges = named.map(|name| format!(": o{owner} waits for {name} held by o{key}"));
    assert!(edges.iter().any(|edge| line.contains(edge)), "{line}");
    assert_eq!(line.matches(" waits for ").count(), owners.min(4), "{line}");
    assert_eq!(client.call(kind_of(key).want(key, owner)), Reply::Nil, "a request that does not wait closes no cycle");
    assert_eq!(client.info_number("rlock_waiting"), owners as i64 - 1, "the refused request left nothing behind");

    // The refused owner gives up its key. Then each waiter is granted its key in turn.
    client.call(format!("DEL k{owner} extra{owner}"));
    for number in (0..owners - 1).rev() {
        let granted = waiters[number].reply();
        assert!(!matches!(granted, Reply::Nil | Reply::Error(_)), "{granted:?}");
        let (owner, _) = step(number);
        client.call(format!("DEL k{owner} extra{owner}"));
    }
}

#[test]
fn cycle_of_two_owners_is_refused_for_every_pair_of_kinds() {
    for one in KINDS {
        for other in KINDS {
            assert_refused(2, |key| [one, other][key], 0);
        }
    }
}

#[test]
fn cycle_of_three_owners_is_refused_wherever_it_begins() {
    for first in 0..3 {
        assert_refused(3, |key| KINDS[key], first);
        assert_refused(3, |key| KINDS[key + 2], first);
    }
}

#[test]
fn cycle_of_fifty_owners_over_all_kinds_is_refused() {
    assert_refused(50, |key| KINDS[key % KINDS.len()], 17);
}

/// The chain grows at its head, or from two parts that a later request joins.
#[test]
fn cycle_is_found_in_whatever_order_it_was_built() {
    for order in [[4, 3, 2, 1, 0], [0, 2, 4, 1, 3], [1, 0, 4, 3, 2]] {
        let server = Server::start();
        let mut client = server.client();
        for number in 0..5 {
            client.acquire(&format!("k{number} o{number} PX 600000"));
        }
        let want = |number: usize| format!("RLOCK.ACQUIRE k{} o{number} BLOCK 0", (number + 1) % 5);
        let _waiters: Vec<_> = order[..4].iter().map(|number| server.waiter(want(*number))).collect();
        client.call(want(order[4])).expect_error("DEADLOCK");
    }
}

#[test]
fn waiter_also_waits_for_requests_ahead_in_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    client.acquire("y c PX 60000");
    let _b = server.waiter("RLOCK.ACQUIRE x b BLOCK 0");
    let _a = server.waiter("RLOCK.ACQUIRE y a BLOCK 0");
    let line = client.call("RLOCK.ACQUIRE x c BLOCK 0").expect_error("DEADLOCK").to_owned();
    let circle = "c waits for x behind b, b waits for x held by a, a waits for y held by c";
    assert!(line.ends_with(circle), "{line}");
}

#[test]
fn open_chain_is_not_refused() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    client.acquire("y b PX 60000");
    let mut waiting = server.blocked_waiter("RLOCK.ACQUIRE y a PX 60000 BLOCK 0");
    // Another request for the same key, one behind a waiter, and re-entry close no cycle.
    let _third = server.blocked_waiter("RLOCK.ACQUIRE x c BLOCK 0");
    client.acquire("x a BLOCK 0");
    client.acquire("y b BLOCK 0");
    // When the waiter leaves, the same request closes no cycle any longer.
    let gone = waiting.id();
    client.call(format!("CLIENT UNBLOCK {gone} ERROR"));
    waiting.reply().expect_error("UNBLOCKED");
    let _now_allowed = server.blocked_waiter("RLOCK.ACQUIRE x b BLOCK 0");
}

#[test]
fn expired_lease_closes_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("y b PX 60000");
    let _waiting = server.waiter("RLOCK.ACQUIRE y a BLOCK 0");
    let step = ["RLOCK.ACQUIRE x a PX 20", "DEBUG SLEEP 0.05", "RLOCK.ACQUIRE x b BLOCK 0"].map(Command::from);
    assert!(client.call_in_one_step(&step)[2].int() > 0);
}

#[test]
fn waiting_for_a_semaphore_closes_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT s 1");
    client.call("RSEMAPHORE.ACQUIRE s a PX 60000").int();
    client.acquire("y b PX 60000");
    let mut waiting = server.waiter("RLOCK.ACQUIRE y a PX 60000 BLOCK 0");
    let mut on_semaphore = server.waiter("RSEMAPHORE.ACQUIRE s b BLOCK 0");
    client.call("RSEMAPHORE.RELEASE s a");
    on_semaphore.reply().int();
    client.call("RLOCK.RELEASE y b");
    waiting.reply().int();
}

#[test]
fn requests_ahead_in_a_semaphore_queue_close_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT s 1");
    client.call("RSEMAPHORE.ACQUIRE s holder PX 60000").int();
    client.acquire("y c PX 60000");
    let _b = server.waiter("RSEMAPHORE.ACQUIRE s b BLOCK 0");
    let _c = server.waiter("RSEMAPHORE.ACQUIRE s c BLOCK 0");
    let mut b = server.waiter("RLOCK.ACQUIRE y b PX 60000 BLOCK 0");
    client.call("RLOCK.RELEASE y c");
    b.reply().int();
}

#[test]
fn place_without_a_connection_closes_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("f holder PX 60000");
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE f a QUEUE 60000"), Reply::Nil);
    client.acquire("x b PX 60000");
    let _waiting = server.waiter("RLOCK.ACQUIRE x a BLOCK 0");
    // The place of `a` is ahead, and closes no cycle until it has a connection.
    let _behind = server.waiter("RFAIRLOCK.ACQUIRE f b BLOCK 0");
    client.call("RFAIRLOCK.ACQUIRE f a BLOCK 0").expect_error("DEADLOCK");
    assert_eq!(client.places("f"), ["a detached", "b connected"]);
}

#[test]
fn keys_already_held_by_an_macquire_owner_close_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    client.acquire("y c PX 60000");
    let _b = server.waiter("RLOCK.ACQUIRE x b BLOCK 0");
    let mut many = server.waiter("RLOCK.MACQUIRE 2 x y a PX 60000 BLOCK 0");
    client.call("RLOCK.RELEASE y c");
    assert_eq!(many.reply().array().len(), 2);
}

#[test]
fn deadlock_in_a_transaction_or_script_is_nil() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    client.acquire("y b PX 60000");
    let _waiting = server.waiter("RLOCK.ACQUIRE y a BLOCK 0");
    assert_eq!(client.transaction("RLOCK.ACQUIRE x b BLOCK 0"), Reply::Nil);
    assert_eq!(client.eval("RLOCK.ACQUIRE x b BLOCK 0"), Reply::Nil);
}

#[test]
fn deadlock_error_hides_keys_that_the_user_cannot_read() {
    let server = Server::start();
    let mut admin = server.client();
    admin.call("ACL SETUSER worker on >secret ~mine:* +@all");
    admin.call("ACL SETUSER writer on >secret ~mine:* %W~secret:* +@all");
    admin.acquire("mine:1 a PX 60000");
    admin.acquire("secret:1 b PX 60000");
    admin.acquire("secret:2 c PX 60000");
    let _a = server.waiter("RLOCK.ACQUIRE secret:1 a BLOCK 0");
    let _b = server.waiter("RLOCK.ACQUIRE secret:2 b BLOCK 0");
    for user in ["worker", "writer"] {
        let mut client = server.client();
        assert_eq!(client.call(format!("AUTH {user} secret")), "OK");
        let line = client.call("RLOCK.ACQUIRE mine:1 c BLOCK 0").expect_error("DEADLOCK").to_owned();
        let circle = "c waits for mine:1 held by a, * waits for * held by *, * waits for * held by c";
        assert!(line.ends_with(circle), "{line}");
    }
}

#[test]
fn deadlock_error_escapes_and_truncates_names() {
    let server = Server::start();
    let mut client = server.client();
    let one: &[u8] = b"a\"\\\r\n\t\0\xff z";
    let other = [b'o'; 512];
    let (x, y) = ([b'k'; 1000], b"y".as_slice());
    let acquire = |key, owner| Command::from([b"RLOCK.ACQUIRE".as_slice(), key, owner, b"BLOCK", b"0"]);
    client.call(acquire(&x, one)).int();
    client.call(acquire(y, &other)).int();
    let _waiting = server.waiter(acquire(y, one));
    let line = client.call(acquire(&x, &other)).expect_error("DEADLOCK").to_owned();
    let (cut_owner, cut_key) = ("o".repeat(64), "k".repeat(64));
    let escaped = r#"a\"\\\r\n\t\x00\xff z"#;
    let circle =
        format!("{cut_owner} waits for {cut_key} held by {escaped}, {escaped} waits for y held by {cut_owner}");
    assert!(line.ends_with(&format!(": {circle}")), "{line}");
}

#[test]
fn expiring_lease_breaks_a_cycle_closed_by_rename() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    client.acquire("y b PX 2000");
    client.acquire("elsewhere b PX 60000");
    let mut a = server.waiter("RLOCK.ACQUIRE y a PX 60000 BLOCK 0");
    client.acquire("z c PX 60000");
    let mut b = server.waiter("RLOCK.ACQUIRE z b PX 60000 BLOCK 0");
    // RENAME closes a cycle without a request that could be refused. Both wait until one of the
    // leases expires.
    assert_eq!(client.call("RENAME x z"), "OK");
    assert_eq!(client.holder("z").expect("a holder").owner, "a");
    client.acquire("q c PX 60000");
    // This request closes no cycle. The next one does: `c` would wait for the lock that was moved.
    let mut other = server.waiter("RLOCK.ACQUIRE q a PX 60000 BLOCK 0");
    client.call("RLOCK.ACQUIRE z c BLOCK 0").expect_error("DEADLOCK");
    client.call("RLOCK.RELEASE q c");
    other.reply().int();
    a.reply().int();
    let holder = |client: &mut Client, key: &str| client.holder(key).map(|holder| holder.owner);
    assert_eq!(holder(&mut client, "y").as_deref(), Some("a"));
    client.call("RLOCK.RELEASE z a");
    b.reply().int();
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
}
