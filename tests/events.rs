//! Keyspace events: one for each change of holder, on every copy of the lock, and none for anything
//! else.

use std::time::Duration;

use crate::support::{ALL, Client, EXCLUSIVE, Events, REENTRANT, Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(5);

/// Passes a lock through three holders, whose holds end by release, force and expiry.
#[track_caller]
fn run_three_holders(server: &Server, client: &mut Client) {
    client.acquire("job a PX 60000 REQ 1");
    // None of these commands changes the holder.
    client.acquire("job a PX 60000 REQ 1");
    client.acquire("job a PX 60000 REQ 2");
    client.call("LOCK.RENEW job a PX 90000");
    assert_eq!(client.call("LOCK.RELEASE job a REQ 3"), 1);
    assert_eq!(client.call("LOCK.ACQUIRE job b"), Reply::Nil);
    client.call("LOCK.RELEASE job b").expect_error("NOTOWNER");
    assert_eq!(client.call("LOCK.ACQUIRE job b BLOCK 5"), Reply::Nil);

    let mut b = server.blocked_waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
    assert_eq!(client.call("LOCK.RELEASE job a REQ 4"), 0);
    b.reply().int();
    let mut c = server.blocked_waiter("LOCK.ACQUIRE job c PX 50 BLOCK 0");
    assert_eq!(client.call("LOCK.FORCERELEASE job"), 1);
    assert_eq!(client.call("LOCK.FORCERELEASE job TOKEN 1"), 0);
    c.reply().int();
    eventually(SOON, || client.call("EXISTS job") == 0);
}

const THREE_HOLDERS: [&str; 6] = [
    "rlock.acquire job",
    "rlock.release job",
    "rlock.acquire job",
    "rlock.force job",
    "rlock.acquire job",
    "rlock.expire job",
];

#[test]
fn each_change_of_holder_has_one_event_and_reentry_has_none() {
    for server in Server::for_each(REENTRANT) {
        let mut events = Events::subscribe(&server);
        run_three_holders(&server, &mut server.client());
        assert_eq!(events.so_far(), THREE_HOLDERS);
    }
}

#[test]
fn replica_emits_the_same_events() {
    for primary in Server::for_each(REENTRANT) {
        let replica = Server::replica_of(&primary, &[]);
        let mut events = Events::subscribe(&replica);
        run_three_holders(&primary, &mut primary.client());
        replica.catch_up_with(&primary);
        assert_eq!(events.so_far(), THREE_HOLDERS);
    }
}

#[test]
fn events_contain_the_key_and_the_database() {
    let server = Server::start();
    let mut subscriber = server.client();
    let mut client = server.client();
    client.call("CONFIG SET notify-keyspace-events KEd");
    subscriber.call("PSUBSCRIBE __key*__:*");
    client.call("SELECT 3");
    client.acquire("job:{1} a");
    let [by_key, by_event] = [subscriber.reply(), subscriber.reply()];
    assert_eq!(by_key.array()[2], "__keyspace@3__:job:{1}");
    assert_eq!(by_key.array()[3], "rlock.acquire");
    assert_eq!(by_event.array()[2], "__keyevent@3__:rlock.acquire");
    assert_eq!(by_event.array()[3], "job:{1}");
}

#[test]
fn events_belong_to_the_module_class() {
    let server = Server::start();
    let mut events = Events::subscribe(&server);
    let mut client = server.client();
    // All classes except `d`, the module class.
    client.call("CONFIG SET notify-keyspace-events Kg$lshzxetmn");
    client.acquire("job a PX 60000");
    client.call("RLOCK.FORCERELEASE job");
    let ours = events.so_far().into_iter().filter(|event| event.starts_with("rlock")).count();
    assert_eq!(ours, 0);
}

#[test]
fn end_of_a_session_is_an_expire_event() {
    for server in Server::for_each(ALL) {
        let mut events = Events::subscribe(&server);
        server.client().acquire("job a PX 60000 SESSION 0");
        assert_eq!(events.next(), "rlock.acquire job");
        assert_eq!(events.next(), "rlock.expire job");
    }
}

#[test]
fn undone_grant_has_an_event() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let leaver = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let mut next = server.waiter("LOCK.ACQUIRE job c PX 60000 BLOCK 0");
        let mut events = Events::subscribe(&server);
        let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
        client.call_in_one_step(&["LOCK.RELEASE job a".into(), kill]);
        next.reply().int();
        let seen = events.so_far();
        // A subscriber never sees two holders at once.
        let (mut acquired, mut ended) = (0, 0);
        for event in &seen {
            match event.as_str() {
                "rlock.acquire job" => acquired += 1,
                // A fair lock keeps the place of the killed client for the grace.
                "rlock.turn job" => {}
                _ => ended += 1,
            }
            assert!(acquired <= ended, "{seen:?}");
        }
        assert_eq!(acquired, ended, "{seen:?}");
    }
}

#[test]
fn loading_emits_no_events() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    client.acquire("ended a PX 60000");
    client.call("RLOCK.RELEASE ended a");
    let mut events = Events::subscribe(&server);
    // Both load while the subscriber stays connected: the first one a snapshot, the second one
    // every effect.
    for load in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        assert_eq!(client.call(load), "OK");
        assert_eq!(client.call("RLOCK.HOLDS job a"), 1, "{load}");
        assert_eq!(events.so_far(), [""; 0], "{load}");
    }
}

#[test]
fn full_synchronisation_emits_no_events() {
    let primary = Server::start();
    primary.client().acquire("job a PX 60000");
    let replica = Server::start();
    let mut events = Events::subscribe(&replica);
    let mut client = replica.client();
    client.call(format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    replica.catch_up_with(&primary);
    assert_eq!(client.call("RLOCK.HOLDS job a"), 1);
    assert_eq!(events.so_far(), [""; 0]);
}

#[test]
fn locks_publish_nothing_without_notify() {
    let server = Server::start();
    let (mut subscriber, mut client) = (server.client(), server.client());
    subscriber.call("PSUBSCRIBE *");
    run_three_holders(&server, &mut client);
    client.call("PUBLISH end -");
    assert_eq!(subscriber.reply().array()[2], "end");
}
