//! A reply that is lost with its connection: the request was executed, and its sender does not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rlock_client::{Client, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::eventually;
use crate::proxy::{Direction, Fate, Proxy};
use crate::support::Server;

/// Stands between a client and a server. When told to, it swallows the next reply, and cuts the connection on which it came.
struct Thief {
    port: u16,
    steals_next: Arc<AtomicBool>,
}

impl Thief {
    async fn before(server: &Server) -> Thief {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let steals_next = Arc::new(AtomicBool::new(false));
        let (upstream, steals) = (server.port(), steals_next.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", upstream)).await.expect("the server takes connections");
                tokio::spawn(pass_on(client, server, steals.clone()));
            }
        });
        Thief { port, steals_next }
    }

    async fn client(&self) -> Client {
        Client::connect(&format!("redis://127.0.0.1:{}/", self.port)).await.expect("the server takes connections")
    }

    fn steal_next(&self) {
        self.steals_next.store(true, Ordering::SeqCst);
    }

    fn has_stolen(&self) -> bool {
        !self.steals_next.load(Ordering::SeqCst)
    }
}

/// Until one side closes, or a reply is stolen. Both connections are closed then.
async fn pass_on(client: TcpStream, server: TcpStream, steals: Arc<AtomicBool>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let replies = async {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let length = from_server.read(&mut bytes).await?;
            if length == 0 || steals.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            to_client.write_all(&bytes[..length]).await?;
        }
    };
    let _: std::io::Result<()> = tokio::select! { done = requests => done, done = replies => done };
}

fn holds(server: &Server) -> i64 {
    server.client().holder("k").map_or(0, |holder| holder.holds)
}

#[tokio::test]
async fn an_acquisition_is_counted_once_and_a_release_is_done() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let lock = client.lock("k");
    for _ in 0..10 {
        thief.steal_next();
        let guard = lock.try_acquire().await.expect("an answer").expect("a free lock");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 1);

        thief.steal_next();
        let inner = guard.reenter().await.expect("a re-entry");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 2);

        thief.steal_next();
        inner.release().await.expect("it was held");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 1);

        thief.steal_next();
        guard.release().await.expect("it was held");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 0);
    }
}

#[tokio::test]
async fn a_grant_that_a_waiter_did_not_hear_of_is_heard_of_and_counted_once() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    for _ in 0..10 {
        server.client().acquire("k other");
        let waiter = tokio::spawn({
            let lock = client.lock("k");
            async move { lock.acquire().await }
        });
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        thief.steal_next();
        server.client().call("RLOCK.RELEASE k other");
        let guard = waiter.await.expect("no panic").expect("a grant");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 1);
        guard.release().await.expect("it was held");
        assert_eq!(holds(&server), 0);
    }
}

#[tokio::test]
async fn permits_and_several_keys_are_counted_once() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let semaphore = client.semaphore("s");
    semaphore.init(6).await.expect("an answer");
    thief.steal_next();
    let guard = semaphore.permits(2).acquire().await.expect("six are free");
    assert_eq!(semaphore.resize(6).await.expect("an answer"), 4);
    thief.steal_next();
    let (drained, rest) = semaphore.drain().await.expect("an answer").expect("four are left");
    assert_eq!(drained, 4);
    thief.steal_next();
    guard.release().await.expect("it was held");
    assert_eq!(semaphore.resize(6).await.expect("an answer"), 2);
    rest.release().await.expect("it was held");

    thief.steal_next();
    let all = client.multi_lock(["k", "l"]).acquire().await.expect("free");
    assert_eq!(holds(&server), 1);
    thief.steal_next();
    all.release().await.expect("it was held");
    assert!(thief.has_stolen());
    assert_eq!(server.client().call("EXISTS k l"), 0);
}

/// The lease counts from the sending, so it is over when the reply arrives. Somebody who waits for the lock goes on waiting.
#[tokio::test]
async fn a_grant_that_is_heard_of_when_its_lease_is_over_is_asked_for_again() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let lease = Duration::from_millis(500);
    let lock = client.lock("k").lease(lease);
    // So that nothing else is to be answered before the next request.
    lock.acquire().await.expect("a free lock").release().await.expect("it was held");
    let next_is_late = || {
        let mut is_late = false;
        proxy.set(move |direction, _| {
            match direction == Direction::ToClient && !std::mem::replace(&mut is_late, true) {
                true => Fate::Delay(lease * 2),
                false => Fate::Pass,
            }
        });
    };
    next_is_late();
    let guard = lock.acquire().await.expect("a grant");
    assert!(guard.is_held());
    assert_eq!(holds(&server), 1);
    guard.release().await.expect("it was held");

    // What has to end after a time of its own is not asked for again.
    next_is_late();
    let outcome = lock.max_hold(lease).acquire().await;
    assert!(matches!(outcome, Err(Error::NotHeld)), "{outcome:?}");
    eventually(|| holds(&server) == 0).await;
}

/// So does a renewal, by hand or by the keeper: what was on its way for long is older than it looks.
#[tokio::test]
async fn a_renewal_that_is_heard_of_late_counts_from_its_sending() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let (lease, late_by) = (Duration::from_secs(4), Duration::from_millis(400));
    let renewed = client.lock("k").lease(lease).renewing(true).acquire().await.expect("a free lock");
    let plain = client.lock("l").lease(lease).acquire().await.expect("a free lock");
    proxy.set(move |direction, _| match direction {
        Direction::ToClient => Fate::Delay(late_by),
        Direction::ToServer => Fate::Pass,
    });
    plain.renew_for(lease * 2).await.expect("it is held");
    assert!(plain.valid_for() <= lease * 2 - late_by, "{:?}", plain.valid_for());

    let mut valid_for = renewed.valid_for();
    eventually(|| {
        let before = std::mem::replace(&mut valid_for, renewed.valid_for());
        valid_for > before
    })
    .await;
    assert!(valid_for <= lease - late_by, "{valid_for:?}");
}
