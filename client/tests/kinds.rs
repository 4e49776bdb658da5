//! Read-write locks, semaphores, and locks of several keys.

use std::time::Duration;

use rlock_client::{Client, Error, Guard, Lock, MultiLock};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{Reply, Server};
use crate::{PATIENCE, connect, eventually, url};

/// Acquires in a task of its own.
fn acquire<K: rlock_client::Kind>(lock: Lock<K>) -> tokio::task::JoinHandle<Result<Guard<K>, Error>> {
    tokio::spawn(async move { lock.acquire().await })
}

fn waiting(server: &Server) -> i64 {
    server.client().info_number("rlock_waiting")
}

#[tokio::test]
async fn many_readers_or_one_writer_hold() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let first = one.rw_lock("k").read().acquire().await.expect("free");
    let second = other.rw_lock("k").read().acquire().await.expect("shared");
    assert!(one.rw_lock("k").write().try_acquire().await.expect("an answer").is_none());
    let writer = acquire(one.rw_lock("k").write());
    eventually(|| waiting(&server) == 1).await;
    assert!(other.rw_lock("k").read().try_acquire().await.expect("an answer").is_none(), "a writer waits");
    first.release().await.expect("it was held");
    second.release().await.expect("it was held");
    let writer = writer.await.expect("no panic").expect("a grant");

    let readers: Vec<_> = (0..20).map(|_| acquire(other.rw_lock("k").read())).collect();
    eventually(|| waiting(&server) == 20).await;
    writer.release().await.expect("it was held");
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.expect("no panic").expect("a grant"));
    }
    assert_eq!(server.client().call("RRWLOCK.INFO k").field("holders").array().len(), 20, "all read together");
}

#[tokio::test]
async fn writer_downgrades_without_a_gap() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let writer = one.rw_lock("k").write().acquire().await.expect("free");
    let next_writer = acquire(other.rw_lock("k").write());
    eventually(|| waiting(&server) == 1).await;
    let reader = writer.downgrade().await.expect("it was held");
    assert!(reader.is_held());
    assert_eq!(waiting(&server), 1, "the next writer waits on");
    reader.release().await.expect("it was held");
    next_writer.await.expect("no panic").expect("a grant").release().await.expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[tokio::test]
async fn only_reader_upgrades_before_the_waiters() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.rw_lock("k");
    let reader = lock.read().acquire().await.expect("free");
    let writer = reader.upgrade().await.expect("the only reader");
    writer.release().await.expect("it was held");
    assert!(reader.is_held());

    let other = lock.read().acquire().await.expect("shared");
    // Others are in the queue: the upgrade passes them.
    let behind = [acquire(lock.write()), acquire(lock.write())];
    eventually(|| waiting(&server) == 2).await;
    let upgrading = tokio::spawn(async move { (reader.upgrade().await, reader) });
    eventually(|| waiting(&server) == 3).await;
    other.release().await.expect("it was held");
    let (writer, reader) = upgrading.await.expect("no panic");
    writer.expect("a grant").release().await.expect("it was held");
    reader.release().await.expect("it was held");
    for writer in behind {
        writer.await.expect("no panic").expect("a grant").release().await.expect("it was held");
    }
}

/// The server grants the write lock, and does not answer whether the read lock is still held.
#[tokio::test]
async fn upgrade_lasts_no_longer_than_its_timeout() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let read = client.rw_lock("k").read().owner("me").fixed_lease(Duration::from_secs(600));
    let reader = read.acquire().await.expect("a free lock");
    let mut answers = 0;
    proxy.set(move |direction, _| {
        answers += u32::from(direction == Direction::ToClient);
        if answers > 1 { Fate::Stall } else { Fate::Pass }
    });
    let upgraded =
        tokio::time::timeout(PATIENCE, reader.upgrade_timeout(Duration::from_secs(1))).await.expect("in time");
    assert!(matches!(upgraded, Err(Error::Unavailable { .. })), "{upgraded:?}");
    assert_eq!(server.client().call("RRWLOCK.HOLDS k me WRITE"), 1);
    proxy.clear();
    eventually(|| server.client().call("RRWLOCK.HOLDS k me WRITE") == 0).await;
    reader.release().await.expect("it was held");
}

#[tokio::test]
async fn one_of_two_upgrading_readers_is_refused() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.rw_lock("k");
    let (one, other) = (lock.read().acquire().await.expect("free"), lock.read().acquire().await.expect("shared"));
    let upgrading = tokio::spawn(async move { one.upgrade().await });
    eventually(|| waiting(&server) == 1).await;
    let refused = tokio::time::timeout(PATIENCE, other.upgrade()).await.expect("an answer");
    assert!(matches!(refused, Err(Error::Deadlock(_))), "{refused:?}");
    assert!(other.is_held());
    other.release().await.expect("it was held");
    upgrading.await.expect("no panic").expect("a grant").release().await.expect("it was held");
}

#[tokio::test]
async fn request_that_would_close_a_cycle_of_owners_is_refused() {
    let server = Server::start();
    let client = connect(&server).await;
    let (a, b) = (client.lock("a").owner("alice"), client.lock("b").owner("bob"));
    let (_a, b) = (a.acquire().await.expect("free"), b.acquire().await.expect("free"));
    let waiter = acquire(client.lock("b").owner("alice"));
    eventually(|| waiting(&server) == 1).await;
    // Another owner is first in the queue. This request waits behind it, and there the server
    // detects the cycle.
    let ahead = acquire(client.lock("a"));
    eventually(|| waiting(&server) == 2).await;
    let closing = client.lock("a").owner("bob");
    let refused = tokio::time::timeout(PATIENCE, closing.acquire()).await.expect("an answer");
    assert!(matches!(&refused, Err(Error::Deadlock(circle)) if circle.contains("alice")), "{refused:?}");
    b.release().await.expect("it was held");
    waiter.await.expect("no panic").expect("a grant").release().await.expect("it was held");
    ahead.abort();
}

#[tokio::test]
async fn permits_are_acquired_awaited_and_released() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    assert!(matches!(semaphore.permits(1).try_acquire().await, Err(Error::Refused { .. })));
    assert!(matches!(semaphore.permits(0).try_acquire().await, Err(Error::Argument(_))));
    assert!(semaphore.init(3).await.expect("an answer"));
    assert!(!semaphore.init(3).await.expect("an answer"));
    let two = semaphore.permits(2).acquire().await.expect("two are free");
    assert!(semaphore.permits(2).try_acquire().await.expect("an answer").is_none());
    let waiter = acquire(semaphore.permits(2));
    eventually(|| waiting(&server) == 1).await;
    assert_eq!(semaphore.resize(4).await.expect("an answer"), 0, "the waiter has got them");
    let waiter = waiter.await.expect("no panic").expect("a grant");
    waiter.release().await.expect("it was held");
    two.release().await.expect("it was held");
    assert_eq!(semaphore.resize(2).await.expect("an answer"), 2);
    assert!(matches!(semaphore.permits(3).acquire().await, Err(Error::Refused { .. })), "more than there are");
}

#[tokio::test]
async fn unused_semaphore_with_an_idle_time_is_deleted() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    let year = Duration::from_secs(365 * 86_400);
    assert!(matches!(semaphore.init_with_idle(1, 2 * year).await, Err(Error::Argument(_))));
    assert!(semaphore.init_with_idle(1, year).await.expect("an answer"));
    assert!(!semaphore.init_with_idle(1, Duration::from_millis(50)).await.expect("an answer"));
    eventually(|| server.client().call("EXISTS s") == 0).await;
    assert!(matches!(semaphore.permits(1).try_acquire().await, Err(Error::Refused { .. })));
}

#[tokio::test]
async fn several_keys_are_held_together_or_not_at_all() {
    let server = Server::start();
    let client = connect(&server).await;
    let single = client.lock("b").acquire().await.expect("free");
    let all = client.multi_lock(["c", "a", "b"]);
    assert!(all.try_acquire().await.expect("an answer").is_none());
    assert_eq!(server.client().call("EXISTS a c"), 0);
    assert!(matches!(all.acquire_timeout(Duration::from_millis(100)).await, Err(Error::Timeout)));
    let waiter = tokio::spawn({
        let all = all.clone();
        async move { all.acquire().await }
    });
    eventually(|| waiting(&server) == 1).await;
    single.release().await.expect("it was held");
    let guard = waiter.await.expect("no panic").expect("a grant");
    assert_eq!(server.client().call("EXISTS a b c"), 3);
    let holder = server.client().holder("c").expect("a holder");
    assert_eq!(guard.token("c"), u64::try_from(holder.token).ok());
    assert_eq!(guard.token("d"), None);
    guard.renew().await.expect("it is held");
    assert!(guard.is_held());
    guard.release().await.expect("it was held");
    assert_eq!(server.client().call("EXISTS a b c"), 0);
    assert!(matches!(client.multi_lock(["a", "a"]).try_acquire().await, Err(Error::Argument(_))));
    assert!(matches!(client.multi_lock([] as [&str; 0]).try_acquire().await, Err(Error::Argument(_))));
}

#[tokio::test]
async fn loss_of_one_of_several_keys_loses_all() {
    let server = Server::start();
    let client = connect(&server).await;
    let all = client.multi_lock(["a", "b"]).lease(Duration::from_millis(900));
    let guard = all.acquire().await.expect("free");
    assert_eq!(server.client().call("RLOCK.FORCERELEASE b"), 1);
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the loss is reported");
    assert!(!guard.is_held());
    drop(guard);
    eventually(|| server.client().call("DBSIZE") == 0).await;
}

/// All tasks acquire the places in the same order, whatever order they named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_in_several_places_are_acquired_in_one_order() {
    let servers = [Server::start(), Server::start()];
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(connect(server).await);
    }
    let lock = |first: usize| -> MultiLock { clients[first].multi_lock(["a", "b"]).and(&clients[1 - first], ["c"]) };
    let tasks: Vec<_> = (0..40)
        .map(|number| {
            // Keys "a" and "b" are on different servers for odd and even tasks, and so is "c".
            let all = lock(number % 2).and(&clients[number % 2], ["c"]).and(&clients[1 - number % 2], ["b", "a"]);
            tokio::spawn(async move { all.acquire().await?.release().await })
        })
        .collect();
    for task in tasks {
        let outcome = tokio::time::timeout(PATIENCE, task).await.expect("no deadlock").expect("no panic");
        outcome.expect("a grant, and its release");
    }
    for server in &servers {
        assert_eq!(server.client().call("DBSIZE"), 0);
    }
}

#[tokio::test]
async fn grant_on_too_few_replicas_is_released() {
    let server = Server::start();
    let client = connect(&server).await;
    let refused = client.lock("k").replicas(1, Duration::from_millis(200)).acquire().await;
    assert!(matches!(refused, Err(Error::Replicas { wanted: 1, acknowledged: 0 })), "{refused:?}");
    assert_eq!(server.client().call("EXISTS k"), 0);

    let replica = Server::replica_of(&server, &[]);
    let guard = client.lock("k").replicas(1, PATIENCE).acquire().await.expect("one replica has it");
    assert_ne!(replica.client().call("RLOCK.INFO k"), Reply::Nil);
    guard.release().await.expect("it was held");
}

/// A semaphore under load: its permits are never exceeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_never_exceeded() {
    const PERMITS: u32 = 5;
    let server = Server::start();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::connect(&url(&server)).await.expect("a server"));
    }
    clients[0].semaphore("s").init(PERMITS).await.expect("an answer");
    let in_use = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tasks: Vec<_> = (0..200u32)
        .map(|number| {
            let permits = number % PERMITS + 1;
            let lock = clients[number as usize % clients.len()].semaphore("s").permits(permits);
            let in_use = in_use.clone();
            tokio::spawn(async move {
                let guard = lock.acquire().await.expect("a grant");
                let order = std::sync::atomic::Ordering::SeqCst;
                assert!(in_use.fetch_add(permits, order) + permits <= PERMITS);
                tokio::task::yield_now().await;
                in_use.fetch_sub(permits, order);
                guard.release().await.expect("it was held");
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// The owner's two requests do not wait for each other, because they are for different modes.
#[tokio::test]
async fn reader_that_waits_to_upgrade_may_reenter() {
    let server = Server::start();
    let client = connect(&server).await;
    let readers = client.rw_lock("k").read();
    let (reader, other) = (readers.acquire().await.expect("free"), readers.acquire().await.expect("free"));
    let entering = async {
        eventually(|| waiting(&server) == 1).await;
        let entered = reader.reenter();
        other.release().await.expect("it was held");
        entered
    };
    let (writer, again) = tokio::join!(reader.upgrade(), entering);
    assert!(writer.expect("the other reader has left").is_held());
    again.expect("a re-entry").release().await.expect("it was held");
}

/// A caller that learns that one lock is taken may immediately request the others.
#[tokio::test]
async fn locks_in_one_place_are_released_before_another_place_is_reported_taken() {
    let servers = [Server::start(), Server::start()];
    let mut clients = Vec::new();
    for (server, name) in servers.iter().zip(["first", "second"]) {
        clients.push(Client::builder().name(name).connect(&url(server)).await.expect("a server"));
    }
    let both = clients[0].multi_lock(["k"]).and(&clients[1], ["k"]);
    servers[1].client().call("RLOCK.ACQUIRE k other");
    assert!(both.try_acquire().await.expect("an answer").is_none());
    assert!(servers[0].client().holder("k").is_none());
    assert!(matches!(both.acquire_timeout(Duration::from_millis(50)).await, Err(Error::Timeout)));
    assert!(servers[0].client().holder("k").is_none());
}

/// The first copy did not arrive, so it released nothing. If one of the holds was lost, the caller
/// gets an error.
#[tokio::test]
async fn repeated_release_of_several_reports_a_lost_one() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    for lost in ["a", "b"] {
        let guard = client.multi_lock(["a", "b"]).fixed_lease(Duration::from_secs(3600)).acquire().await.expect("free");
        assert_eq!(server.client().call(format!("RLOCK.FORCERELEASE {lost}")), 1);
        let mut is_first = true;
        proxy.set(move |direction, _| match direction == Direction::ToServer && std::mem::take(&mut is_first) {
            true => Fate::CutAfter(0),
            false => Fate::Pass,
        });
        let outcome = guard.release().await;
        assert!(matches!(outcome, Err(Error::Lost)), "{lost}: {outcome:?}");
        assert_eq!(server.client().call("DBSIZE"), 0);
    }
}

/// Something happens to the server before the grant or the request that checks the replicas. The
/// client retries what a retry may fix, and reports any other error unchanged.
#[tokio::test]
async fn error_reports_why_replicas_could_not_confirm() {
    for (happening, may_be_mended) in
        [("CONFIG SET min-replicas-to-write 1", true), ("ACL SETUSER default -rlock.acquire", false)]
    {
        let server = Server::start();
        let options = Client::builder().command_timeout(Duration::from_secs(1));
        let client = options.connect(&url(&server)).await.expect("a server");
        server.client().acquire("k other");
        let lock = client.lock("k").replicas(1, Duration::from_millis(100));
        let waiter = tokio::spawn(async move { lock.acquire_timeout(Duration::from_secs(2)).await });
        eventually(|| waiting(&server) == 1).await;
        let step = ["MULTI", "RLOCK.RELEASE k other", happening, "EXEC"].map(Into::into);
        server.client().call_in_one_step(&step);
        let outcome = waiter.await.expect("no panic");
        match may_be_mended {
            true => assert!(matches!(&outcome, Err(error) if error.code() == "NOREPLICAS"), "{outcome:?}"),
            false => assert!(matches!(outcome, Err(Error::Refused { .. })), "{outcome:?}"),
        }
    }
}
