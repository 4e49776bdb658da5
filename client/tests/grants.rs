//! How long a client believes a grant, and when it claims it.

use std::time::Duration;

use rlock_client::kinds::Mutex;
use rlock_client::{Error, Guard, Lock};
use tokio::task::JoinHandle;

use crate::proxy::{Direction, Fate, Proxy};
use crate::scopes::Ahead;
use crate::support::{Server, Stopwatch};
use crate::thief::holds;
use crate::{claimed, command_stat, connect, eventually, url};

/// How long a hold lasts until it is claimed.
const CLAIM: Duration = Duration::from_secs(2);

fn calls(server: &Server) -> [i64; 4] {
    ["ACQUIRE", "RENEW", "RELEASE", "CANCEL"].map(|verb| command_stat(server, &format!("RLOCK.{verb}"), "calls"))
}

/// Delays the next message or answer.
fn next_is_late(proxy: &Proxy, late_by: Duration) {
    let mut is_first = true;
    proxy.set(move |direction, _| match direction == Direction::ToClient && std::mem::take(&mut is_first) {
        true => Fate::Delay(late_by),
        false => Fate::Pass,
    });
}

/// A guard, and how long it was valid right after its grant.
type Waiter = JoinHandle<Result<(Guard<Mutex>, Duration), Error>>;

/// Waits behind another owner.
async fn waits(server: &Server, lock: Lock<Mutex>) -> Waiter {
    server.client().acquire("k other PX 600000");
    let waiter = tokio::spawn(async move {
        let guard = lock.acquire().await?;
        let valid_for = guard.valid_for();
        Ok((guard, valid_for))
    });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    waiter
}

#[tokio::test]
async fn hold_is_renewed_only_if_it_lasts() {
    let server = Server::start();
    let client = connect(&server).await;
    let waiter = waits(&server, client.lock("k")).await;
    server.client().call("RLOCK.RELEASE k other");
    let (guard, _) = waiter.await.expect("no panic").expect("a grant");
    guard.release().await.expect("it was held");
    assert_eq!(calls(&server), [2, 0, 2, 0], "after a message the client sends only the RELEASE");

    let waiter = waits(&server, client.lock("k")).await;
    server.client().call("RLOCK.RELEASE k other");
    let (awaited, valid_for) = waiter.await.expect("no panic").expect("a grant");
    let direct = client.lock("other").acquire().await.expect("free");
    assert!(valid_for <= CLAIM && direct.valid_for() <= CLAIM);
    // Time itself: without a renewal both would end within it.
    tokio::time::sleep(CLAIM + CLAIM / 2).await;
    assert!(awaited.valid_for().min(direct.valid_for()) > CLAIM * 10);
    assert_eq!(calls(&server)[1], 2, "the first renewal asks for the whole lease");
}

#[tokio::test]
async fn delay_of_a_message_does_not_prolong_the_belief() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let waiter = waits(&server, client.lock("k")).await;
    let late_by = CLAIM / 2;
    next_is_late(&proxy, late_by);
    server.client().call("RLOCK.RELEASE k other");
    let (guard, valid_for) = waiter.await.expect("no panic").expect("a grant");
    assert!(valid_for <= CLAIM - late_by, "{valid_for:?}");
    claimed(&guard).await;
    guard.release().await.expect("it was held");
    assert_eq!(calls(&server)[0], 2, "the message says enough");
}

/// The message is too late, a copy of the request has no answer, or a session has to be bound.
#[tokio::test]
async fn doubtful_message_makes_the_client_ask_again() {
    for doubt in ["late", "unanswered", "session"] {
        let server = Server::start();
        let proxy = Proxy::before(&server).await;
        let client = proxy.client().await;
        let lock = match doubt {
            "late" => client.lock("k").fixed_lease(CLAIM / 2),
            "session" => client.lock("k").session_grace(CLAIM),
            _ => client.lock("k"),
        };
        if doubt == "unanswered" {
            // Opens both connections, so that the next answer is that of ACQUIRE.
            client.lock("other").acquire().await.expect("free").release().await.expect("it was held");
            let mut is_first = true;
            proxy.set(move |direction, _| match direction == Direction::ToClient && std::mem::take(&mut is_first) {
                true => Fate::CutAfter(0),
                false => Fate::Pass,
            });
        }
        let waiter = waits(&server, lock).await;
        if doubt == "unanswered" {
            eventually(|| calls(&server)[0] == 4).await;
            eventually(|| server.client().waiting_owners("k").len() == 1).await;
        } else if doubt == "late" {
            next_is_late(&proxy, CLAIM);
        }
        let before = calls(&server);
        server.client().call("RLOCK.RELEASE k other");
        let (guard, _) = waiter.await.expect("no panic").expect("a grant");
        assert!(guard.is_held(), "{doubt}");
        assert_eq!((calls(&server)[0] - before[0], holds(&server)), (1, 1), "{doubt}");
        guard.release().await.expect("it was held");
        assert_eq!(holds(&server), 0, "{doubt}");
    }
}

/// The caller is gone when the message comes.
#[tokio::test]
async fn abandoned_grant_is_cancelled() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let waiter = waits(&server, client.lock("k")).await;
    proxy.set(|direction, _| if direction == Direction::ToClient { Fate::Stall } else { Fate::Pass });
    server.client().call("RLOCK.RELEASE k other");
    let watch = Stopwatch::start();
    waiter.abort();
    eventually(|| server.client().call("EXISTS k") == 0).await;
    watch.assert_took_ms(0..1500, "a cancellation, and not the end of the claim");
    assert_eq!(calls(&server)[1..], [0, 1, 1], "the other owner's RELEASE, and one CANCEL");
}

/// The server allows only shorter leases, so the client renews a fixed lease until its end.
#[tokio::test]
async fn fixed_lease_lasts_until_its_end_and_no_longer() {
    let server = Server::start();
    server.client().call("CONFIG SET rlock.max-lease-ms 1000");
    let client = connect(&server).await;
    let lease = Duration::from_secs(3);
    let watch = Stopwatch::start();
    let guard = client.lock("k").fixed_lease(lease).acquire().await.expect("free");
    let extended = client.lock("extended").fixed_lease(lease).acquire().await.expect("free");
    let many = client.multi_lock(["a", "b"]).fixed_lease(lease).acquire().await.expect("free");
    assert!(server.client().call("RLOCK.PTTL k").int() <= 1000);
    extended.renew_for(lease * 2).await.expect("it is held");
    guard.lost().await;
    many.lost().await;
    watch.assert_took_ms(2500..3000, "most of the fixed lease");
    extended.lost().await;
    watch.assert_took_ms(5500..6100, "most of the extended lease");
}

/// The server still has the hold when the client no longer believes in it.
#[tokio::test]
async fn owner_of_a_lost_hold_gets_a_new_one() {
    let (server, clock) = (Server::start(), Ahead::default());
    let client = clock.builder().connect(&url(&server)).await.expect("a server");
    for fixed in [false, true] {
        let lock = client.lock("k").owner("me");
        let lock = if fixed { lock.fixed_lease(Duration::from_secs(60)) } else { lock };
        let lost = lock.acquire().await.expect("free");
        let inner = lost.reenter().expect("a re-entry");
        claimed(&lost).await;
        clock.jump();
        let next = lock.acquire().await.expect("a new hold");
        assert!(next.token() > lost.token() && next.is_held() && !lost.is_held());
        assert_eq!(lost.release().await, Err(Error::Lost));
        assert_eq!(inner.release().await, Err(Error::Lost));
        assert!(next.is_held());
        assert_eq!(holds(&server), 1);
        next.release().await.expect("it was held");
    }
}
