//! Observing locks, handing holds over to other owners, and errors that name what is missing.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::support::{Reply, Sentinels, Server};
use crate::{claimed, connect, eventually, kill_connections, url};

#[tokio::test]
async fn every_kind_of_lock_shows_its_holders_and_waiters() {
    let server = Server::start();
    let client = connect(&server).await;
    let (mutex, fair, rw, permits) =
        (client.lock("m"), client.fair_lock("f"), client.rw_lock("rw"), client.semaphore("s"));
    permits.init(3).await.expect("an answer");
    for key in ["m", "f", "rw", "s", "nothing"] {
        let lock = client.observe(key);
        assert!(!lock.is_locked().await.expect("an answer"));
        assert_eq!(lock.lease_left().await.expect("an answer"), None);
        assert_eq!(
            (lock.holders().await.expect("an answer"), lock.waiters().await.expect("an answer")),
            (vec![], vec![])
        );
        assert!(!lock.force_release().await.expect("an answer"));
    }
    let lease = Duration::from_secs(60);
    let held = mutex.clone().fixed_lease(lease).owner("me").acquire().await.expect("free");
    let _fair = fair.acquire().await.expect("free");
    let _write = rw.write().session_grace(Duration::from_secs(9)).acquire().await.expect("free");
    let _two = permits.permits(2).acquire().await.expect("free");

    claimed(&held).await;
    let holders = client.observe("m").holders().await.expect("an answer");
    assert_eq!((holders.len(), holders[0].owner.as_slice(), holders[0].token), (1, held.owner(), held.token()));
    assert!(holders[0].lease_left <= lease && holders[0].lease_left > lease / 2);
    assert_eq!((holders[0].holds, holders[0].mode.as_str(), holders[0].is_session), (1, "exclusive", false));
    let holders = client.observe("rw").holders().await.expect("an answer");
    assert_eq!((holders[0].mode.as_str(), holders[0].is_session), ("write", true));
    assert_eq!(client.observe("s").holders().await.expect("an answer")[0].holds, 2);
    assert_eq!(permits.available_permits().await.expect("an answer"), Some(1));
    assert_eq!(client.semaphore("nothing").available_permits().await.expect("an answer"), None);
    assert!(client.observe("f").is_locked().await.expect("an answer"));

    let mut waiting = server.waiter("RLOCK.ACQUIRE m other BLOCK 0");
    let waiters = client.observe("m").waiters().await.expect("an answer");
    assert_eq!((waiters.len(), waiters[0].owner.as_slice(), waiters[0].is_connected), (1, b"other".as_slice(), true));
    assert!(
        !client.observe("m").force_release_of(held.token() + 1).await.expect("an answer"),
        "no hold has this token"
    );
    assert!(client.observe("m").force_release_of(held.token()).await.expect("an answer"));
    assert!(waiting.reply().int() > 0);
    for key in ["f", "rw", "s"] {
        assert!(client.observe(key).force_release().await.expect("an answer"));
        assert!(!client.observe(key).is_locked().await.expect("an answer"));
    }
}

#[tokio::test]
async fn note_is_shown_with_its_holder_or_waiter() {
    let server = Server::start();
    let client = connect(&server).await;
    let note_of = async |key: &str| client.observe(key).holders().await.expect("an answer")[0].note.clone();
    let plain = client.lock("plain").acquire().await.expect("free");
    assert_eq!(note_of("plain").await, None);
    let guard = client.lock("k").note("host-1").acquire().await.expect("free");
    let again = guard.reenter().expect("a re-entry");
    assert_eq!(note_of("k").await.as_deref(), Some(b"host-1".as_slice()));
    let waiter = client.lock("k").note("host-2");
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    let waiters = client.observe("k").waiters().await.expect("an answer");
    assert_eq!(waiters[0].note.as_deref(), Some(b"host-2".as_slice()));
    again.release().await.expect("it was held");
    guard.release().await.expect("it was held");
    let next = waiter.await.expect("no panic").expect("a grant");
    assert_eq!(note_of("k").await.as_deref(), Some(b"host-2".as_slice()));

    // The owner that takes the hold over may have a note of its own.
    let detached = next.detach().await.expect("it is held");
    let taken_over = client.lock("k").attach(&detached).await.expect("it is held");
    assert_eq!(note_of("k").await.as_deref(), Some(b"host-2".as_slice()));
    let detached = taken_over.detach().await.expect("it is held");
    let _taken_over = client.lock("k").note("host-3").attach(&detached).await.expect("it is held");
    assert_eq!(note_of("k").await.as_deref(), Some(b"host-3".as_slice()));

    let both = client.multi_lock(["a", "b"]).note("host-4").acquire().await.expect("free");
    let notes = [note_of("a").await, note_of("b").await];
    assert_eq!(notes, [Some(b"host-4".to_vec()), Some(b"host-4".to_vec())]);
    both.release().await.expect("it was held");
    plain.release().await.expect("it was held");
}

#[tokio::test]
async fn hold_is_detached_and_taken_over() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let guard = one.lock("k").acquire().await.expect("a free lock");
    let token = guard.token();
    let lost = guard.lost();
    let detached = guard.detach().await.expect("it is held");
    lost.await;
    one.close().await.expect("nothing is left");
    assert_eq!(server.client().holder("k").map(|holder| holder.token), i64::try_from(token).ok());
    let guard = other.lock("k").attach(&detached).await.expect("it is held");
    assert!(guard.is_held() && guard.token() == token);
    guard.release().await.expect("it was held");
    assert!(matches!(other.lock("k").attach(&detached).await, Err(Error::Lost)));
    assert_eq!(server.client().call("EXISTS k"), Reply::Int(0));
}

#[tokio::test]
async fn run_stops_the_work_when_the_lock_is_lost() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k");
    let seen = lock.run(async |guard| (guard.is_held(), server.client().holder("k").is_some())).await;
    assert_eq!(seen.expect("it is held to the end"), (true, true));
    assert!(server.client().holder("k").is_none());
    let short = client.lock("k").fixed_lease(Duration::from_millis(200));
    let lost = short.run(async |_| std::future::pending::<()>().await).await;
    assert!(matches!(lost, Err(Error::Lost)));
    // `run` can be spawned as a task.
    let task = tokio::spawn(async move { lock.run(async |guard| guard.token()).await });
    assert!(task.await.expect("no panic").expect("a grant") > 0);
}

#[tokio::test]
async fn hold_is_suspected_until_it_is_renewed_or_lost() {
    let mut server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("a free lock");
    assert!(!guard.is_suspected());
    kill_connections(&server);
    eventually(|| guard.is_suspected()).await;
    assert!(guard.is_held());
    guard.renew().await.expect("it is held");
    assert!(!guard.is_suspected());
    let short = client.lock("l").fixed_lease(Duration::from_secs(1)).acquire().await.expect("a free lock");
    server.kill();
    eventually(|| short.is_suspected()).await;
    short.lost().await;
    assert!(!short.is_suspected(), "it is lost");
    server.restart();
}

#[tokio::test]
async fn user_without_permission_gets_an_error() {
    let server = Server::start();
    server.client().call("ACL SETUSER weak on >pw ~mine:* +@all");
    let client = Client::connect(&url(&server).replace("redis://", "redis://weak:pw@")).await.expect("a server");
    let refused = client.lock("k").acquire().await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn too_many_waiters_are_an_error() {
    let server = Server::start();
    let client = connect(&server).await;
    let _held = client.lock("k").acquire().await.expect("a free lock");
    server.client().call("CONFIG SET rlock.max-waiters 1");
    let _waiting = server.waiter("RLOCK.ACQUIRE k other BLOCK 0");
    let refused = client.lock("k").acquire().await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn server_without_the_module_is_an_error() {
    // A Sentinel is a server without the module.
    let server = Server::start();
    let sentinels = Sentinels::of(server.port(), 0);
    let url = format!("redis://127.0.0.1:{}/", sentinels.ports().next().expect("one"));
    let refused = Client::connect(&url).await;
    assert!(matches!(&refused, Err(Error::ModuleMissing(_))), "{refused:?}");
    let client = Client::builder().connect_later(&url).expect("an address");
    let refused = client.lock("k").acquire().await;
    assert!(matches!(refused, Err(Error::ModuleMissing(_))), "{refused:?}");
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
#[tokio::test]
async fn error_of_an_address_names_the_missing_feature() {
    let refused = Client::connect("rediss://user:hush@127.0.0.1/").await;
    let Err(Error::Argument(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("tls-rustls") && !text.contains("hush"), "{text}");
}
