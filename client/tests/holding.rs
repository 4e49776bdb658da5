//! Acquiring, holding, renewing and releasing.

use std::time::Duration;

use rlock_client::{Error, Guard};
use rustix::time::{ClockId, clock_gettime};

use crate::support::{Reply, Server, Stopwatch};
use crate::{command_stat, connect, eventually};

#[tokio::test]
async fn lock_has_one_holder_after_the_other() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k");

    let guard = lock.try_acquire().await.expect("an answer").expect("a free lock");
    assert!(guard.is_held());
    let holder = server.client().holder("k").expect("a holder");
    assert_eq!(holder.owner.as_bytes(), guard.owner());
    assert_eq!(u64::try_from(holder.token).ok(), Some(guard.token()));
    assert!(lock.try_acquire().await.expect("an answer").is_none(), "it is held");

    let token = guard.token();
    guard.release().await.expect("it was held");
    let next = lock.acquire().await.expect("a free lock");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[tokio::test]
async fn dropped_guard_releases() {
    let server = Server::start();
    let client = connect(&server).await;
    drop(client.lock("k").acquire().await.expect("a free lock"));
    eventually(|| server.client().holder("k").is_none()).await;
}

#[tokio::test]
async fn lease_is_renewed_until_the_release() {
    let server = Server::start();
    let client = connect(&server).await;
    // Long enough for a busy machine to renew late.
    let lease = Duration::from_secs(1);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_held());
    assert_eq!(server.client().holder("k").map(|holder| holder.owner.into_bytes()), Some(guard.owner().to_vec()));
    guard.release().await.expect("it was held");

    let mut monitor = server.client();
    let renewals = |monitor: &mut crate::support::Client| monitor.info("cmdstat_RLOCK.RENEW");
    let before = renewals(&mut monitor);
    tokio::time::sleep(lease).await;
    assert_eq!(renewals(&mut monitor), before, "nothing is renewed after a release");
}

#[tokio::test]
async fn lease_follows_the_longest_one_that_the_server_lowers() {
    let server = Server::start();
    let client = connect(&server).await;
    let held = client.lock("held").lease(Duration::from_secs(6)).acquire().await.expect("a free lock");
    server.client().call("CONFIG SET rlock.max-lease-ms 4000");
    let tried = client.lock("tried").try_acquire().await.expect("an answer").expect("a free lock");
    let awaited = client.lock("awaited").acquire().await.expect("a free lock");
    assert!(tried.valid_for().max(awaited.valid_for()) <= Duration::from_secs(4));
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(held.is_held() && tried.is_held() && awaited.is_held());
    held.renew_for(Duration::from_secs(60)).await.expect("it is held");
    assert!(held.valid_for() <= Duration::from_secs(4));
}

/// The CPU time of this thread.
fn time_of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().expect("not negative"), time.tv_nsec.try_into().expect("not negative"))
}

/// Everything runs on one thread, so polling would show in the thread's CPU time.
#[tokio::test]
async fn idle_holds_use_almost_no_cpu() {
    for lines in [&[] as &[&str], &["notify-keyspace-events KEA"]] {
        let server = Server::with(lines);
        let client = connect(&server).await;
        let guards = [
            client.lock("plain").acquire().await.expect("free"),
            client.lock("session").session_grace(Duration::from_secs(60)).acquire().await.expect("free"),
            client.lock("renewed").lease(Duration::from_secs(6)).acquire().await.expect("free"),
        ];
        // A hold subscribes to its key's events when it is 1 s old.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        // The last hold is renewed after 2 s, and gets no answer for another second.
        server.client().call("CLIENT PAUSE 1500 ALL");
        let before = time_of_this_thread();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let used = time_of_this_thread() - before;
        assert!(used < Duration::from_millis(100), "{used:?} of two seconds");
        assert!(guards.iter().all(Guard::is_held));
    }
}

#[tokio::test]
async fn timed_fixed_lease_is_lost_and_released_before_it_expires() {
    let server = Server::start();
    let client = connect(&server).await;
    // Long enough that the safety margin is longer than a request takes.
    let lease = Duration::from_secs(4);
    let watch = Stopwatch::start();
    let guard = client.lock("k").fixed_lease(lease).acquire().await.expect("a free lock");
    guard.lost().await;
    assert!(!guard.is_held());
    watch.assert_took_ms(3900..4000, "the time that the guard counted as held");
    eventually(|| server.client().holder("k").is_none()).await;
    assert_eq!(command_stat(&server, "RLOCK.RENEW", "calls"), 1, "it was claimed, and not renewed");
    assert!(matches!(guard.renew().await, Err(Error::Lost)));
    assert!(matches!(guard.release().await, Err(Error::Lost)));
}

#[tokio::test]
async fn manual_renewal_extends_the_hold() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").fixed_lease(Duration::from_secs(5)).acquire().await.expect("a free lock");
    for refused in [Duration::ZERO, Duration::from_secs(400 * 24 * 60 * 60), Duration::MAX] {
        let outcome = guard.renew_for(refused).await;
        assert!(matches!(outcome, Err(Error::Argument(_))), "{outcome:?}");
        assert!(!guard.is_suspected(), "no request reached the server");
    }
    guard.renew_for(Duration::from_secs(60)).await.expect("it is held");
    assert!(guard.valid_for() > Duration::from_secs(50));
    assert!(server.client().call("RLOCK.PTTL k").int() > 50_000);
    guard.renew().await.expect("it is held");
    assert!(guard.valid_for() > Duration::from_secs(50), "a renewal never shortens the hold");
}

#[tokio::test]
async fn timed_max_hold_ends_the_hold_despite_renewals() {
    let server = Server::start();
    let client = connect(&server).await;
    let most = Duration::from_millis(500);
    let watch = Stopwatch::start();
    let guard = client.lock("k").max_hold(most).acquire().await.expect("a free lock");
    guard.renew_for(Duration::from_secs(60)).await.expect("it is held");
    guard.lost().await;
    watch.assert_took_ms(0..600, "the longest hold");
    eventually(|| server.client().holder("k").is_none()).await;
}

#[tokio::test]
async fn reentry_does_not_outlast_max_hold() {
    let server = Server::start();
    let client = connect(&server).await;
    let most = Duration::from_secs(20);
    let outer = client.lock("k").max_hold(most).acquire().await.expect("a free lock");
    let since_then = Stopwatch::start();
    // Time itself: a part of the hold's time passes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let inner = outer.reenter().expect("a re-entry");
    let at_the_server = Duration::from_millis(server.client().holder("k").expect("it is held").lease_ms as u64);
    let left = most - since_then.elapsed() + Duration::from_millis(500);
    assert!(
        at_the_server < left,
        "the server must end the hold even if the holder hangs; {at_the_server:?} of {left:?}"
    );
    inner.renew_for(most * 3).await.expect("it is held");
    let left = most - since_then.elapsed();
    assert!(inner.valid_for() <= left, "{:?} of {left:?}", inner.valid_for());
}

/// The upgrade waits for another reader meanwhile.
#[tokio::test]
async fn timed_upgrade_does_not_outlast_max_hold_of_its_reader() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.rw_lock("k");
    let other = lock.read().acquire().await.expect("free");
    let most = Duration::from_secs(2);
    let watch = Stopwatch::start();
    let reader = lock.read().max_hold(most).acquire().await.expect("free");
    let releasing = tokio::spawn(async move {
        // Time itself: a part of the hold's time passes.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        other.release().await
    });
    let writer = reader.upgrade().await.expect("the other reader leaves");
    releasing.await.expect("no panic").expect("it was held");
    writer.lost().await;
    watch.assert_took_ms(0..2900, "the longest hold");
}

#[tokio::test]
async fn max_hold_counts_from_the_grant() {
    let server = Server::start();
    let client = connect(&server).await;
    let most = Duration::from_secs(20);
    server.client().call("RLOCK.ACQUIRE k other");
    let waiter = client.lock("k").max_hold(most);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    eventually(|| server.client().info_number("rlock_waiting") == 1).await;
    // Time itself: a hold that counted from the request would end this much earlier.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let since_then = Stopwatch::start();
    server.client().call("RLOCK.RELEASE k other");
    let guard = waiter.await.expect("no panic").expect("a grant");
    // The client ends the hold 1% early; allow 1 s more for a busy machine.
    eventually(|| guard.valid_for() >= most - since_then.elapsed() - Duration::from_millis(1200)).await;
}

#[tokio::test]
async fn owner_may_hold_twice() {
    let server = Server::start();
    let client = connect(&server).await;
    let outer = client.lock("k").acquire().await.expect("a free lock");
    let inner = outer.reenter().expect("a re-entry");
    let second = client.lock("k").owner(outer.owner()).acquire().await.expect("a re-entry");
    assert_eq!((inner.token(), second.token()), (outer.token(), outer.token()));
    assert_eq!(server.client().holder("k").map(|holder| holder.holds), Some(1));
    outer.release().await.expect("it was held");
    inner.release().await.expect("it was held");
    assert_eq!(server.client().holder("k").map(|holder| holder.holds), Some(1));
    second.release().await.expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[tokio::test]
async fn errors_name_the_problem() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call("SET s string");
    let refused = client.lock("s").acquire().await;
    assert!(matches!(&refused, Err(Error::Refused { code, .. }) if code == "WRONGTYPE"), "{refused:?}");

    let is_argument = |outcome: Result<_, Error>, name: &str| match outcome {
        Err(Error::Argument(text)) => assert!(text.starts_with(name), "{text}"),
        other => panic!("{other:?}"),
    };
    is_argument(client.lock("k").fixed_lease(Duration::ZERO).try_acquire().await, "lease");
    is_argument(client.lock("k").owner("").try_acquire().await, "owner");
    is_argument(client.lock("k").owner([b'o'; 513]).try_acquire().await, "owner");
    is_argument(client.lock("k").note([b'n'; 257]).try_acquire().await, "note has 257 bytes; expected 0 to 256");
    let year = Duration::from_secs(366 * 24 * 60 * 60);
    is_argument(client.lock("k").session_grace(year).try_acquire().await, "session_grace");
    is_argument(client.lock("k").session_grace(Duration::from_millis(9)).try_acquire().await, "session_grace");
    assert_eq!(server.client().call("EXISTS k"), Reply::Int(0));

    assert!(matches!(rlock_client::Client::connect("nonsense").await, Err(Error::Argument(_))));
    let unreachable = format!("redis://127.0.0.1:{}/", crate::support::free_port());
    assert!(matches!(rlock_client::Client::connect(&unreachable).await, Err(Error::Unavailable { .. })));
}

/// A request with such a duration would fail at the server, or never end.
#[tokio::test]
async fn durations_out_of_range_are_arguments() {
    let server = Server::start();
    let client = connect(&server).await;
    let is_argument = |outcome: Result<(), Error>, name: &str| match outcome {
        Err(Error::Argument(text)) => assert!(text.starts_with(name), "{text}"),
        other => panic!("{other:?}"),
    };
    let year = Duration::from_secs(366 * 24 * 60 * 60);
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(9999), year, Duration::MAX] {
        is_argument(client.lock("k").lease(lease).acquire().await.map(drop), "lease");
        is_argument(client.lock("k").fixed_lease(lease).acquire().await.map(drop), "lease");
        is_argument(client.lock("k").max_hold(lease).acquire().await.map(drop), "max_hold");
        is_argument(client.lock("k").session_grace(lease).acquire().await.map(drop), "session_grace");
    }
    for long in [year, Duration::MAX] {
        is_argument(client.lock("k").replicas(0, long).acquire().await.map(drop), "replicas timeout");
        is_argument(client.fair_lock("k").grace(long).acquire().await.map(drop), "grace");
        is_argument(client.semaphore("k").init_with_idle(1, long).await.map(drop), "idle");
        let guard = client.lock("kept").acquire().await.expect("a free lock");
        is_argument(guard.renew_for(long).await, "lease");
        is_argument(guard.renew_for(Duration::ZERO).await, "lease");
        is_argument(guard.release_and_keep(long).await, "keep");
        eventually(|| server.client().holder("kept").is_none()).await;
    }
    let quorum = rlock_client::Quorum::new([client.clone()]).expect("a client");
    for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let refused = quorum.lock("k").server_timeout(timeout).acquire().await;
        assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
    }
    assert_eq!(server.client().call("DBSIZE"), 0);
}

/// A client with write access to the key can make it expire. The next renewal reports that, and the
/// guard believes it.
#[tokio::test]
async fn expire_on_the_key_shortens_the_guard() {
    let server = Server::start();
    let client = crate::connect(&server).await;
    let guard = client.lock("k").fixed_lease(Duration::from_secs(600)).acquire().await.expect("a grant");
    assert_eq!(server.client().call("PEXPIRE k 60000"), 1);
    guard.renew().await.expect("it is held");
    let valid_for = guard.valid_for();
    assert!(valid_for <= Duration::from_secs(60), "{valid_for:?}");
    // The same if the renewal asks for less time than the key has left.
    assert_eq!(server.client().call("PEXPIRE k 30000"), 1);
    guard.renew_for(Duration::from_secs(1)).await.expect("it is held");
    let valid_for = guard.valid_for();
    assert!(valid_for <= Duration::from_secs(30), "{valid_for:?}");
    assert_eq!(server.client().call("PERSIST k"), 1);
    guard.renew().await.expect("it is held");
    let valid_for = guard.valid_for();
    assert!(valid_for > Duration::from_secs(60), "{valid_for:?}");
}
