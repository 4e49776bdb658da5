//! RELEASE … KEEP: after the release the lock stays closed for a time, for its former owner as
//! well.

use std::time::Duration;

use crate::support::{Command, Events, FAIR, Family, MUTEX, Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(5);

/// The families that have KEEP.
const WITH_KEEP: &[Family] = &[MUTEX, FAIR];

/// Rules K1, K4.
#[test]
fn kept_lock_has_no_holder_and_is_closed_to_all_owners() {
    for server in Server::for_each(WITH_KEEP) {
        let mut client = server.client();
        let token = client.acquire("job a PX 60000");
        assert_eq!(client.call("LOCK.RELEASE job a KEEP 600000"), 1);
        for owner in ["a", "b"] {
            assert_eq!(client.call(format!("LOCK.ACQUIRE job {owner}")), Reply::Nil);
            assert_eq!(client.call(format!("LOCK.ACQUIRE job {owner} ONCE BLOCK 5")), Reply::Nil);
            assert_eq!(client.call(format!("LOCK.HOLDS job {owner}")), 0);
            client.call(format!("LOCK.RENEW job {owner}")).expect_error("NOTOWNER");
        }
        client.call("LOCK.RELEASE job b").expect_error("NOTOWNER");
        assert!(client.call("LOCK.PTTL job").int() > 60_000, "later than the lease");
        assert_eq!(client.call(format!("LOCK.PTTL job TOKEN {token}")), -2, "no hold has this token");
        let shown = client.call("LOCK.INFO job");
        assert!(shown.field("holders").array().is_empty());
        assert_eq!(shown.field("holders-count"), 0);
        let kept = shown.field("kept");
        assert_eq!((kept.field("owner"), kept.field("token")), (Reply::Text(b"a".to_vec()), Reply::Int(token)));
        assert!((60_001..=600_000).contains(&kept.field("keep-ms").int()), "{kept:?}");
    }
}

/// Rule K2.
#[test]
fn waiter_is_granted_a_kept_lock_when_it_opens() {
    for server in Server::for_each(WITH_KEEP) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut former = None;
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        // The lock opens before the lease would have expired.
        assert_eq!(client.call("LOCK.RELEASE job a KEEP 300"), 1);
        former.get_or_insert(server.waiter("LOCK.ACQUIRE job a PX 60000 BLOCK 0"));
        waiter.assert_waits();
        waiter.reply().int();
        client.call("LOCK.RELEASE job b").int();
        former.expect("a waiter").reply().int();
        assert_eq!(client.info_number("rlock_expired"), 0, "no lease expired");
    }
}

/// Rules K3, K5.
#[test]
fn former_owner_and_operators_may_free_a_kept_lock() {
    for server in Server::for_each(WITH_KEEP) {
        let mut client = server.client();
        for (free, answer) in [
            ("LOCK.RELEASE job a TOKEN", 0),
            ("LOCK.RELEASE job a KEEP 0 TOKEN", 0),
            ("LOCK.FORCERELEASE job", 1),
            ("DEL job", 1),
        ] {
            let token = client.acquire("job a PX 60000 REQ 1");
            for again in ["", " REQ 2", " REQ 2"] {
                assert_eq!(client.call(format!("LOCK.RELEASE job a KEEP 600000 TOKEN {token}{again}")), 1);
            }
            client.call("LOCK.RELEASE job a KEEP 600000 REQ 1").expect_error("STALE");
            let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
            for other in ["", " KEEP 0", " REQ 3", " TOKEN 1"] {
                client.call(format!("LOCK.RELEASE job a{other}")).expect_error("NOTOWNER");
            }
            let free = free.replace("TOKEN", &format!("TOKEN {token}"));
            assert_eq!(client.call(free.as_str()), answer, "{free}");
            waiter.reply().int();
            client.call("LOCK.RELEASE job b").int();
        }
    }
}

/// Rule K3.
#[test]
fn repeated_keep_changes_nothing() {
    for server in Server::for_each(WITH_KEEP) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        client.call("LOCK.RELEASE job a KEEP 60000").int();
        let mut events = Events::subscribe(&server);
        assert_eq!(client.call("LOCK.RELEASE job a KEEP 600000"), 1);
        assert!(client.call("LOCK.PTTL job").int() <= 60_000);
        assert_eq!(events.so_far(), [""; 0]);
    }
}

/// Rule K4.
#[test]
fn kept_lock_has_events_when_it_closes_and_opens() {
    for server in Server::for_each(WITH_KEEP) {
        let mut events = Events::subscribe(&server);
        let mut client = server.client();
        client.acquire("job a PX 60000");
        client.call("LOCK.RELEASE job a KEEP 50").int();
        for event in ["rlock.acquire job", "rlock.keep job", "rlock.release job"] {
            assert_eq!(events.next(), event);
        }
        eventually(SOON, || client.call("EXISTS job") == 0);
    }
}

/// Rule K6.
#[test]
fn closing_the_connection_does_not_open_a_kept_lock() {
    for server in Server::for_each(WITH_KEEP) {
        let mut holder = server.client();
        holder.acquire("job a PX 60000 SESSION 0");
        holder.call("LOCK.RELEASE job a KEEP 600000").int();
        let id = holder.id();
        drop(holder);
        server.wait_for_departure_of(id);
        assert!(server.client().call("LOCK.PTTL job").int() > 60_000);
    }
}

/// Rule K5.
#[test]
fn hold_acquired_twice_cannot_be_kept() {
    for server in Server::for_each(WITH_KEEP) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        client.acquire("job a PX 60000");
        let refused = client.call("LOCK.RELEASE job a KEEP 600000");
        let text = "ERR KEEP ends a hold, but the owner has acquired this one 2 times; release the others first";
        assert_eq!(refused.expect_error("ERR"), text);
        assert_eq!(client.call("LOCK.HOLDS job a"), 2);
    }
}

/// Rule K3.
#[test]
fn mrelease_with_tokens_frees_a_kept_key() {
    let server = Server::start();
    let mut client = server.client();
    let [job, other] = ["job", "other"].map(|key| client.call(format!("RLOCK.ACQUIRE {key} a PX 60000")).int());
    client.call("RLOCK.RELEASE job a KEEP 600000").int();
    client.call("RLOCK.MRELEASE 2 job other a").expect_error("NOTOWNER");
    let freed = client.call(format!("RLOCK.MRELEASE 2 job other a TOKENS {job} {other}"));
    assert_eq!(freed, Reply::Array(vec![Reply::Int(0), Reply::Int(0)]));
    assert_eq!(client.call("EXISTS job other"), 0);
}

#[test]
fn commands_without_keep_refuse_it() {
    let server = Server::start();
    let mut client = server.client();
    for command in
        ["RRWLOCK.RELEASE job a WRITE KEEP 1", "RSEMAPHORE.RELEASE job a KEEP 1", "RLOCK.MRELEASE 1 job a KEEP 1"]
    {
        let refused = client.call(command);
        assert!(refused.expect_error("ERR").starts_with("ERR unknown option 'KEEP'"), "{refused:?}");
    }
}

/// Rule K6.
#[test]
fn kept_lock_stays_closed_after_replication_restart_and_restore() {
    for family in WITH_KEEP {
        let mut server = Server::with_aof(&["appendfsync always"]).speaking(*family);
        let replica = Server::replica_of(&server, &[]).speaking(*family);
        let mut client = server.client();
        let token = client.acquire("job a PX 60000");
        client.call("LOCK.RELEASE job a KEEP 600000").int();
        let payload = client.call("DUMP job").bytes().to_vec();
        let restore: Command = [b"RESTORE".as_slice(), b"copy", b"0", &payload].into();
        assert_eq!(client.call(restore), "OK");
        replica.catch_up_with(&server);
        replica.client().call("REPLICAOF NO ONE");
        server.kill_and_restart();
        for mut client in [server.client(), replica.client()] {
            for key in ["job", "copy"] {
                assert_eq!(client.call(format!("LOCK.ACQUIRE {key} a")), Reply::Nil);
                assert!(client.call(format!("LOCK.PTTL {key}")).int() > 60_000);
                assert_eq!(client.call(format!("LOCK.RELEASE {key} a TOKEN {token}")), 0);
            }
        }
    }
}
