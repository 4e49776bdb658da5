//! Events of locks, as a subscriber or a metrics recorder sees them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use rlock_client::{Client, Error, Event, Metrics};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::Server;
use crate::{PATIENCE, connect, eventually, kill_connections, url};

async fn next(events: &mut rlock_client::Events) -> Event {
    tokio::time::timeout(PATIENCE, events.next()).await.expect("in time").expect("an event")
}

#[tokio::test]
async fn subscribers_get_the_events_of_a_lock() {
    let server = Server::with(&["notify-keyspace-events KA"]);
    let client = connect(&server).await;
    let mut events = client.observe("k").events().await.expect("the server sends events");
    let mut others = client.observe("k").events().await.expect("the server sends events");
    let _elsewhere = client.lock("other").acquire().await.expect("free");
    client.lock("k").acquire().await.expect("free").release().await.expect("it was held");
    let forced = client.lock("k").acquire().await.expect("free");
    client.observe("k").force_release().await.expect("an answer");
    server.client().acquire("k other PX 50");
    let expected = [Event::Acquired, Event::Released, Event::Acquired, Event::Forced, Event::Acquired, Event::Expired];
    for event in expected {
        assert_eq!(next(&mut events).await, event);
        assert_eq!(next(&mut others).await, event);
    }
    // Dropping one stream does not end the others.
    drop(others);
    drop(forced);
    let _held = client.lock("k").acquire().await.expect("free");
    assert_eq!(next(&mut events).await, Event::Acquired);
    server.client().call("DEL k");
    assert_eq!(next(&mut events).await, Event::Removed);
}

#[tokio::test]
async fn subscriber_learns_that_a_lost_connection_may_have_hidden_events() {
    let server = Server::with(&["notify-keyspace-events Kd"]);
    let client = connect(&server).await;
    let mut events = client.observe("k").events().await.expect("the server sends events");
    kill_connections(&server);
    assert_eq!(next(&mut events).await, Event::Missed);
    let _held = client.lock("k").acquire().await.expect("free");
    assert_eq!(next(&mut events).await, Event::Acquired);
}

/// The network swallows whatever is sent over the connection, and the client has no other request
/// to send.
#[tokio::test]
async fn silently_dead_connection_of_a_subscriber_is_replaced() {
    let server = Server::with(&["notify-keyspace-events Kd"]);
    let proxy = Proxy::before(&server).await;
    let options = Client::builder().ping_after(Duration::from_millis(100)).connect_timeout(Duration::from_millis(500));
    let client = options.connect(&proxy.url()).await.expect("a server");
    let mut events = client.observe("k").events().await.expect("the server sends events");
    let mut is_first = true;
    proxy.set(move |direction, _| match direction == Direction::ToServer && std::mem::take(&mut is_first) {
        true => Fate::Swallow,
        false => Fate::Pass,
    });
    assert_eq!(next(&mut events).await, Event::Missed);
    server.client().acquire("k other");
    assert_eq!(next(&mut events).await, Event::Acquired);
}

/// The connection is cut at the request that precedes the subscription.
#[tokio::test]
async fn connection_lost_during_a_subscription_is_replaced() {
    let server = Server::with(&["notify-keyspace-events Kd"]);
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let question = "*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$22\r\nnotify-keyspace-events\r\n".len();
    let is_cut = Arc::<AtomicBool>::default();
    let cut = is_cut.clone();
    proxy.set(move |direction, length| {
        let is_question = direction == Direction::ToServer && length == question;
        if is_question && !cut.swap(true, Ordering::Relaxed) { Fate::CutAfter(0) } else { Fate::Pass }
    });
    let mut events = client.observe("k").events().await.expect("the server sends events");
    assert!(is_cut.load(Ordering::Relaxed));
    let _held = client.lock("k").acquire().await.expect("free");
    assert_eq!(next(&mut events).await, Event::Acquired);
}

/// Polls `work` at most this many times, and lets other tasks run in between. Returns the number of
/// polls, and the result if there is one.
async fn poll_up_to<T>(polls: usize, work: impl Future<Output = T>) -> (usize, Option<T>) {
    let mut work = std::pin::pin!(work);
    for poll in 1..=polls {
        if let Poll::Ready(done) = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
            return (poll, Some(done));
        }
        tokio::task::yield_now().await;
    }
    (polls, None)
}

/// Wherever a subscriber gives up, it leaves no subscription behind, and later subscribers to the
/// key still get its events.
#[tokio::test]
async fn abandoned_subscription_leaves_nothing() {
    const KEYS: usize = 300;
    let server = Server::with(&["notify-keyspace-events KA"]);
    let client = connect(&server).await;
    let (polls, events) = poll_up_to(usize::MAX, client.observe("first").events()).await;
    drop(events.expect("all of it").expect("the server sends events"));
    for number in 0..KEYS {
        // The last ones run to completion.
        let polls = 1 + polls * number * 5 / 4 / KEYS;
        drop(poll_up_to(polls, client.observe(format!("k{number}")).events()).await);
    }
    eventually(|| server.client().call("PUBSUB CHANNELS __keyspace*").array().is_empty()).await;
    let mut operator = server.client();
    for number in 0..KEYS {
        let mut events = client.observe(format!("k{number}")).events().await.expect("the server sends events");
        operator.call(format!("RLOCK.ACQUIRE k{number} other"));
        operator.call(format!("RLOCK.FORCERELEASE k{number}"));
        assert_eq!((next(&mut events).await, next(&mut events).await), (Event::Acquired, Event::Forced));
    }
}

/// The client has ended one of two unused subscriptions, and not yet the other one.
#[tokio::test]
async fn subscriber_that_comes_while_others_are_removed_gets_its_events() {
    let server = Server::with(&["notify-keyspace-events Kd"]);
    let proxy = Proxy::before(&server).await;
    let client = Client::builder().ping_after(Duration::from_millis(100)).connect(&proxy.url()).await;
    let client = client.expect("a server");
    for key in ["a", "b"] {
        drop(client.observe(key).events().await.expect("the server sends events"));
    }
    let request = "*2\r\n$11\r\nUNSUBSCRIBE\r\n$16\r\n__keyspace@0__:a\r\n".len();
    let is_stalled = Arc::<AtomicBool>::default();
    let stalled = is_stalled.clone();
    proxy.set(move |direction, length| {
        let stalls = direction == Direction::ToServer && length == request;
        stalled.fetch_or(stalls, Ordering::Relaxed);
        if stalls { Fate::Stall } else { Fate::Pass }
    });
    eventually(|| is_stalled.load(Ordering::Relaxed)).await;
    let followers = ["a", "b"].map(|key| {
        let lock = client.observe(key);
        tokio::spawn(async move { (key, lock.events().await) })
    });
    eventually(|| followers.iter().any(tokio::task::JoinHandle::is_finished)).await;
    proxy.clear();
    // Time itself, in which the client could end the other subscription.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for follower in followers {
        let (key, events) = follower.await.expect("no panic");
        server.client().acquire(&format!("{key} other"));
        assert_eq!(next(&mut events.expect("the server sends events")).await, Event::Acquired);
    }
}

#[tokio::test]
async fn events_without_keyspace_notifications_are_an_error() {
    let server = Server::start();
    let client = connect(&server).await;
    assert!(matches!(client.observe("k").events().await, Err(Error::NoEvents)));
    server.client().call("CONFIG SET notify-keyspace-events Kd");
    client.observe("k").events().await.expect("the server now sends events");
}

/// All events, as text.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn add(&self, what: &str, key: &[u8]) {
        self.0.lock().expect("no panic").push(format!("{what} {}", String::from_utf8_lossy(key)));
    }
}

impl Metrics for Log {
    fn acquired(&self, key: &[u8], _: Duration) {
        self.add("acquired", key);
    }

    fn refused(&self, key: &[u8]) {
        self.add("refused", key);
    }

    fn failed(&self, key: &[u8], error: &Error, after: Duration) {
        assert!(matches!(error, Error::Timeout) && after >= Duration::from_millis(20));
        self.add("failed", key);
    }

    fn renewal_failed(&self, key: &[u8], _: &Error) {
        self.add("renewal failed", key);
    }

    fn lost(&self, key: &[u8]) {
        self.add("lost", key);
    }

    fn released(&self, key: &[u8], error: Option<&Error>) {
        self.add(if error.is_some() { "not released" } else { "released" }, key);
    }
}

#[tokio::test]
async fn metrics_count_events() {
    let mut server = Server::start();
    let log = Arc::new(Log::default());
    let builder = Client::builder().metrics(log.clone());
    let client = builder.connect(&url(&server)).await.expect("a server");
    let guard = client.lock("a").acquire().await.expect("free");
    assert!(client.lock("a").try_acquire().await.expect("an answer").is_none());
    let late = client.lock("a").acquire_timeout(Duration::from_millis(20)).await;
    assert!(matches!(late, Err(Error::Timeout)));
    guard.release().await.expect("it was held");
    let taken = client.multi_lock(["b", "c"]).acquire().await.expect("free");
    for key in ["b", "c"] {
        client.observe(key).force_release().await.expect("an answer");
    }
    assert!(taken.renew().await.is_err());
    assert!(taken.release().await.is_err());
    let guard = client.lock("d").fixed_lease(Duration::from_millis(600)).acquire().await.expect("free");
    server.kill();
    assert!(guard.renew().await.is_err());
    guard.lost().await;
    eventually(|| log.0.lock().expect("no panic").contains(&"not released b".to_owned())).await;
    let mut heard = std::mem::take(&mut *log.0.lock().expect("no panic"));
    heard.sort();
    heard.dedup();
    let mut expected = [
        "acquired a",
        "refused a",
        "failed a",
        "released a",
        "acquired b",
        "lost b",
        "not released b",
        "acquired d",
        "renewal failed d",
        "lost d",
    ];
    expected.sort();
    assert_eq!(heard, expected);
    server.restart();
}

/// Each renewal that finds the hold gone reports the loss.
#[tokio::test]
async fn loss_found_twice_is_counted_once() {
    let server = Server::start();
    let log = Arc::new(Log::default());
    let client = Client::builder().metrics(log.clone()).connect(&url(&server)).await.expect("a server");
    let guard = client.lock("s").acquire().await.expect("free");
    client.observe("s").force_release().await.expect("an answer");
    for _ in 0..2 {
        assert!(matches!(guard.renew().await, Err(Error::Lost)));
    }
    drop(guard);
    client.close().await.expect("nothing is left to be done");
    let heard = std::mem::take(&mut *log.0.lock().expect("no panic"));
    assert_eq!(heard.iter().filter(|what| *what == "lost s").count(), 1, "{heard:?}");
}
