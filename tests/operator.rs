//! What an operator does to a lock without knowing its kind.

use crate::support::{ALL, Reply, Server};

#[test]
fn a_lock_of_any_kind_is_looked_at_and_ended_by_the_commands_of_rlock() {
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
fn whoever_waits_for_a_lock_of_any_kind_has_it_after_its_hold_was_ended() {
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
fn all_holders_of_a_lock_lose_it() {
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
