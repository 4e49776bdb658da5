//! Holders, counts and leases of locks, mostly without waiters.

use std::time::{Duration, Instant, SystemTime};

use crate::support::{
    ALL, Client, Command, EXCLUSIVE, REENTRANT, Reply, Server, TRANSIENT, eventually, waits_by_notify,
};

const SOON: Duration = Duration::from_secs(5);

/// Asserts that a lease was set to `ms` a moment ago. No test machine stalls for five seconds.
#[track_caller]
fn assert_fresh(left_ms: i64, ms: i64) {
    assert!((ms - 5000..=ms).contains(&left_ms), "{left_ms} ms left, not about {ms}");
}

#[test]
fn free_lock_is_granted_and_held_lock_is_not() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut one, mut other) = (server.client(), server.client());
        assert!(one.acquire("job a") > 0);
        assert_eq!(other.call("LOCK.ACQUIRE job b"), Reply::Nil);
        assert_eq!(other.call("LOCK.HOLDS job b"), 0);
        assert_eq!(other.call("LOCK.HOLDS job a"), 1);
        other.make("another-job");
        assert!(other.acquire("another-job b") > 0);
    }
}

#[test]
fn denied_attempt_leaves_nothing_behind() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        assert_eq!(client.call("LOCK.ACQUIRE job b PX 60000"), Reply::Nil);
        assert_eq!(client.call("LOCK.RELEASE job a"), 0);
        assert!(client.is_free("job"), "a request that got nil is never granted later");
    }
}

#[test]
fn reentry_counts_and_keeps_the_token() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a");
        for holds in 2..=5 {
            assert_eq!(client.acquire("job a"), token);
            assert_eq!(client.call("LOCK.HOLDS job a"), holds);
        }
    }
}

#[test]
fn release_returns_the_remaining_holds_and_the_last_one_frees_the_lock() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        for _ in 0..3 {
            client.acquire("job a");
        }
        for left in [2, 1] {
            assert_eq!(client.call("LOCK.RELEASE job a"), left);
            assert_eq!(client.call("LOCK.ACQUIRE job b"), Reply::Nil);
        }
        assert_eq!(client.call("LOCK.RELEASE job a"), 0);
        assert_eq!(client.call("EXISTS job"), 0);
        assert!(client.acquire("job b") > 0);
    }
}

#[test]
fn owner_may_use_any_connection() {
    for server in Server::for_each(ALL) {
        let token = server.client().acquire("job a");
        assert_eq!(server.client().acquire("job a"), token);
        assert_fresh(server.client().call("LOCK.RENEW job a PX 50000").int(), 50000);
        assert_eq!(server.client().call("LOCK.RELEASE job a"), 1);
        assert_eq!(server.client().call("LOCK.RELEASE job a"), 0);
    }
}

#[test]
fn owners_are_arbitrary_bytes_up_to_512() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let longest = [0xff; 512];
        for owner in [b"\0\r\n \x80".as_slice(), &longest] {
            let acquire: Command = [b"LOCK.ACQUIRE".as_slice(), b"job", owner].into();
            assert!(client.call(acquire).int() > 0);
            let holders = client.call("LOCK.INFO job").field("holders");
            assert_eq!(holders.array()[0].field("owner").bytes(), owner);
            // A prefix of the name is another owner.
            let holds: Command = [b"LOCK.HOLDS".as_slice(), b"job", &owner[..owner.len() - 1]].into();
            assert_eq!(client.call(holds), 0);
            let release: Command = [b"LOCK.RELEASE".as_slice(), b"job", owner].into();
            assert_eq!(client.call(release), 0);
        }
    }
}

#[test]
fn keys_are_arbitrary_bytes() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        for key in [b"\0\r\n \xff".as_slice(), b"", &[b'k'; 100_000]] {
            let acquire = |owner| Command::from([b"LOCK.ACQUIRE".as_slice(), key, owner, b"BLOCK", b"0"]);
            client.call(acquire(b"a")).int();
            let mut next = server.waiter(acquire(b"b"));
            let release: Command = [b"LOCK.RELEASE".as_slice(), key, b"a"].into();
            assert_eq!(client.call(release), 0);
            next.reply().int();
            assert_eq!(client.call([b"LOCK.HOLDS".as_slice(), key, b"b"]), 1);
        }
    }
}

#[test]
fn only_the_owner_can_release_or_renew() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        for command in ["LOCK.RELEASE job b", "LOCK.RENEW job b", "LOCK.RENEW job b PX 60000"] {
            client.call(command).expect_error("NOTOWNER");
            assert!(client.is_free("job"));
        }
        let token = client.acquire("job a PX 20000");
        for command in ["LOCK.RELEASE job b", "LOCK.RENEW job b", "LOCK.RENEW job b PX 60000"] {
            client.call(command).expect_error("NOTOWNER");
            let holder = client.holder("job").expect("a holder");
            assert_eq!(holder.identity(), ("a", 1, token));
            assert_fresh(holder.lease_ms, 20000);
        }
    }
}

#[test]
fn reentry_and_renew_never_shorten_the_lease() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 100000");
        client.acquire("job a PX 1000");
        assert_fresh(client.call("LOCK.PTTL job").int(), 100_000);
        assert_fresh(client.call("LOCK.RENEW job a PX 1000").int(), 100_000);
        client.acquire("job a");
        assert_fresh(client.call("LOCK.PTTL job").int(), 100_000);
        client.acquire("job a EX 200");
        assert_fresh(client.call("LOCK.PTTL job").int(), 200_000);
        assert_fresh(client.call("LOCK.RENEW job a EX 300").int(), 300_000);
        assert_fresh(client.call("LOCK.PTTL job").int(), 300_000);
    }
}

#[test]
fn renew_without_a_lease_uses_the_last_one() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 2000");
        // After half of the lease RENEW restores all of it: neither the rest nor the default.
        eventually(SOON, || client.call("LOCK.PTTL job").int() <= 1000);
        let renewed = client.call("LOCK.RENEW job a").int();
        assert!((1001..=2000).contains(&renewed), "{renewed}");

        // A lease set by re-entry or RENEW counts as well.
        client.acquire("job a PX 90000");
        assert_fresh(client.call("LOCK.RENEW job a").int(), 90_000);
        client.call("LOCK.RENEW job a PX 120000");
        assert_fresh(client.call("LOCK.RENEW job a").int(), 120_000);
    }
}

#[test]
fn releasing_an_inner_hold_does_not_change_the_lease() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 20000");
        client.acquire("job a PX 100000");
        assert_eq!(client.call("LOCK.RELEASE job a"), 1);
        assert_fresh(client.call("LOCK.PTTL job").int(), 100_000);
    }
}

#[test]
fn default_lease_is_30_seconds() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a");
        assert_fresh(client.call("LOCK.PTTL job").int(), 30_000);
    }
}

#[test]
fn free_lock_has_no_ttl_info_holds_or_waiters() {
    for server in Server::for_each(TRANSIENT) {
        let mut client = server.client();
        let assert_absent = |client: &mut Client| {
            assert_eq!(client.call("LOCK.PTTL job"), -2);
            assert_eq!(client.call("LOCK.INFO job"), Reply::Nil);
            assert_eq!(client.call("LOCK.HOLDS job a"), 0);
            assert_eq!(client.call("LOCK.WAITERS job"), Reply::Array(vec![]));
            assert_eq!(client.call("LOCK.FORCERELEASE job"), 0);
            assert_eq!(client.call("EXISTS job"), 0);
        };
        assert_absent(&mut client);
        client.acquire("job a");
        client.call("LOCK.RELEASE job a");
        assert_absent(&mut client);
    }
}

#[test]
fn forcerelease_ends_all_holds_at_once() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a");
        client.acquire("job a");
        assert_eq!(client.call("LOCK.FORCERELEASE job"), 1);
        assert_eq!(client.call("LOCK.FORCERELEASE job"), 0);
        assert_eq!(client.call("LOCK.HOLDS job a"), 0);
        client.call("LOCK.RELEASE job a").expect_error("NOTOWNER");
    }
}

#[test]
fn forcerelease_with_token_ends_only_that_hold() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let old = client.acquire("job a");
        client.call("LOCK.RELEASE job a");
        let token = client.acquire("job b");
        assert_eq!(client.call(format!("LOCK.FORCERELEASE job TOKEN {old}")), 0);
        assert_eq!(client.call("LOCK.HOLDS job b"), 1);
        assert_eq!(client.call(format!("LOCK.FORCERELEASE job token {token}")), 1);
        assert!(client.is_free("job"));
    }
}

#[test]
fn info_and_waiters_show_holders_and_waiters() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        let token = client.acquire("job a PX 60000 SESSION 1000");
        client.acquire("job a");
        let begin = Instant::now();
        let _waiting = ["b", "c"].map(|owner| server.waiter(format!("LOCK.ACQUIRE job {owner} BLOCK 0")));

        for (protocol, has_maps) in [("HELLO 2", false), ("HELLO 3", true)] {
            client.call(protocol);
            let is_map = |reply: &Reply| matches!(reply, Reply::Map(_)) == has_maps;

            let info = client.call("LOCK.INFO job");
            assert!(is_map(&info), "{info:?}");
            assert_eq!(info.field_names(), ["holders", "holders-count", "kind", "waiters"]);
            assert_eq!(info.field("kind"), server.family().kind);
            assert_eq!(info.field("waiters"), 2);
            let holders = info.field("holders");
            let holder = &holders.array()[0];
            assert_eq!(holders.array().len(), 1);
            assert!(is_map(holder), "{holder:?}");
            assert_eq!(
                holder.field_names(),
                ["clients", "held-ms", "holds", "lease-ms", "mode", "owner", "session", "token"]
            );
            assert_eq!(holder.field("owner"), "a");
            assert_eq!(holder.field("mode"), server.family().shown_mode);
            assert_eq!(holder.field("holds"), 2);
            assert_eq!(holder.field("token"), token);
            assert_fresh(holder.field("lease-ms").int(), 60_000);
            assert_eq!(holder.field("session"), 1);

            let waiters = client.call("LOCK.WAITERS job");
            assert_eq!(client.waiting_owners("job"), ["b", "c"]);
            for waiter in waiters.array() {
                assert!(is_map(waiter), "{waiter:?}");
                assert_eq!(waiter.field_names(), ["client", "connected", "mode", "notify", "owner", "waited-ms"]);
                assert_eq!(waiter.field("mode"), server.family().shown_mode);
                assert_eq!(waiter.field("connected"), 1);
                assert_eq!(waiter.field("notify"), i64::from(waits_by_notify()));
                let waited_ms = u128::try_from(waiter.field("waited-ms").int()).expect("no time before the wait");
                assert!(waited_ms <= begin.elapsed().as_millis(), "{waiter:?}");
            }
            let first = client.call("LOCK.WAITERS job COUNT 1");
            assert_eq!(first.array().len(), 1);
            assert_eq!(first.array()[0].field("owner"), "b");
            assert_eq!(client.call("LOCK.WAITERS job count 10").array().len(), 2);
        }
    }
}

#[test]
fn hold_without_session_shows_session_0() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a");
        assert_eq!(client.holder("job").expect("a holder").session, 0);
    }
}

#[test]
fn expired_lease_is_hidden_before_its_removal() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 100");
        // A pause prevents the removal, so the reading commands below meet the expired hold.
        client.call("CLIENT PAUSE 60000 WRITE");
        eventually(SOON, || client.call("LOCK.PTTL job") == -2);
        assert_eq!(client.call("LOCK.HOLDS job a"), 0);
        assert_eq!(client.holder("job"), None);
        assert_eq!(client.call("LOCK.INFO job") == Reply::Nil, server.family().goes_when_idle());
        assert_eq!(client.call("EXISTS job"), 1, "the key is not removed yet");
        client.call("CLIENT UNPAUSE");
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn expired_lease_has_no_effect_before_its_removal() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let outlive_the_lease = || ["LOCK.ACQUIRE job a PX 20", "DEBUG SLEEP 0.05"].map(Command::from);
        // The server sleeps within the step, so the module's timer cannot have removed the expired
        // hold.
        for too_late in ["LOCK.RELEASE job a", "LOCK.RENEW job a PX 60000"] {
            let [acquire, sleep] = outlive_the_lease();
            let answers = client.call_in_one_step(&[acquire, sleep, too_late.into()]);
            answers[2].expect_error("NOTOWNER");
        }
        let [acquire, sleep] = outlive_the_lease();
        let answers = client.call_in_one_step(&[acquire, sleep, "LOCK.ACQUIRE job b".into()]);
        assert!(answers[2].int() > answers[0].int(), "{answers:?}");
        assert_eq!(client.holder("job").expect("a holder").owner, "b");

        client.call("LOCK.RELEASE job b");
        let [acquire, sleep] = outlive_the_lease();
        let answers = client.call_in_one_step(&[acquire, sleep, "LOCK.ACQUIRE job a".into()]);
        assert!(answers[2].int() > answers[0].int(), "a new hold of the same owner: {answers:?}");
        assert_eq!(client.call("LOCK.HOLDS job a"), 1);
    }
}

#[test]
fn locks_have_their_own_type_and_no_native_expiry() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        client.call("SET text x");
        assert_eq!(client.call("TYPE job"), "RedisLock");
        assert_eq!(client.call("PTTL job"), -1);
        let scanned = client.call("SCAN 0 COUNT 1000 TYPE RedisLock");
        assert_eq!(scanned.array()[1], Reply::Array(vec![Reply::Text(b"job".to_vec())]));
    }
}

#[test]
fn expire_on_a_lock_deletes_it_later() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        assert_eq!(client.call("PEXPIRE job 50"), 1);
        eventually(SOON, || client.call("LOCK.HOLDS job a") == 0);
        assert!(client.is_free("job"));
    }
}

#[test]
fn new_holder_clears_the_expire_of_the_old_one() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut next = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        assert_eq!(client.call("PEXPIRE job 60000"), 1);
        assert!(client.call("PTTL job").int() > 0, "the EXPIRE stays while the holder stays");
        client.acquire("job a PX 60000");
        assert!(client.call("PTTL job").int() > 0, "re-entry does not change the holder");
        client.call("LOCK.FORCERELEASE job");
        assert!(next.reply().int() > 0);
        assert_eq!(client.call("PTTL job"), -1);
    }
}

#[test]
fn expire_stays_while_others_hold_and_on_a_semaphore() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT pool 5");
    for key in ["pool", "shared"] {
        let acquire = |owner| match key {
            "pool" => format!("RSEMAPHORE.ACQUIRE {key} {owner} PX 90000"),
            _ => format!("RRWLOCK.ACQUIRE {key} {owner} READ PX 90000"),
        };
        client.call(acquire("a")).int();
        assert_eq!(client.call(format!("PEXPIRE {key} 60000")), 1);
        client.call(acquire("b")).int();
        assert!(client.call(format!("PTTL {key}")).int() > 0, "{key}");
    }
    client.call("RRWLOCK.FORCERELEASE shared");
    client.call("RRWLOCK.ACQUIRE shared a READ PX 90000").int();
    assert_eq!(client.call("PTTL shared"), -1);
    client.call("RSEMAPHORE.FORCERELEASE pool");
    client.call("RSEMAPHORE.ACQUIRE pool a PX 90000").int();
    assert!(client.call("PTTL pool").int() > 0, "the module does not change the EXPIRE of a semaphore");
}

#[test]
fn renew_and_pttl_respect_an_earlier_expire() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 90000");
        client.call("PEXPIRE job 30000");
        assert!((1..=30_000).contains(&client.call("LOCK.PTTL job").int()));
        assert!((1..=30_000).contains(&client.call("LOCK.RENEW job a PX 90000").int()));
        client.call("PEXPIRE job 900000");
        assert!((80_000..=90_000).contains(&client.call("LOCK.PTTL job").int()));
    }
}

#[test]
fn tokens_rise_across_keys_and_after_deletion() {
    for server in Server::for_each(TRANSIENT) {
        let mut client = server.client();
        let mut last = 0;
        for round in 0..500 {
            let key = format!("job-{}", round % 7);
            let token = client.acquire(&format!("{key} a"));
            assert!(token > last, "{token} after {last}");
            last = token;
            client.call(format!("LOCK.RELEASE {key} a"));
        }
        assert_eq!(client.call("DBSIZE"), 0, "the module keeps no counter per lock");
    }
}

#[test]
fn tokens_are_close_to_the_wall_clock_in_microseconds() {
    let server = Server::start();
    let token = server.client().acquire("job a");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let distance = (now.as_micros() as i64 - token).abs();
    assert!(distance < 5_000_000, "{distance} us from the clock");
    assert!(token < 1 << 53, "the token fits into a double");
}
