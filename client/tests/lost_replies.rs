//! A reply that is lost with its connection: the request was executed, and its sender does not know.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlock_client::{Client, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{Server, Stopwatch};
use crate::{command_stat, eventually};

/// Stands between a client and a server. When told to, it swallows the next reply, or a later one, and cuts the connection on which it came.
struct Thief {
    port: u16,
    /// Which reply from now on it steals; 0 for none.
    steals: Arc<AtomicUsize>,
    /// What it does then, before the client can know.
    then: Arc<Mutex<Option<Deed>>>,
}

type Deed = Box<dyn FnOnce() + Send>;

impl Thief {
    async fn before(server: &Server) -> Thief {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let steals = Arc::new(AtomicUsize::new(0));
        let then = Arc::new(Mutex::new(None));
        let (upstream, of_all, deed) = (server.port(), steals.clone(), then.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", upstream)).await.expect("the server takes connections");
                tokio::spawn(pass_on(client, server, of_all.clone(), deed.clone()));
            }
        });
        Thief { port, steals, then }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server takes connections")
    }

    fn steal_next(&self) {
        self.steal(1);
    }

    /// The next reply is 1.
    fn steal(&self, number: usize) {
        self.steals.store(number, Ordering::SeqCst);
    }

    /// The next reply, and then it does something.
    fn steal_next_and(&self, deed: impl FnOnce() + Send + 'static) {
        *self.then.lock().expect("no panic") = Some(Box::new(deed));
        self.steal_next();
    }

    fn has_stolen(&self) -> bool {
        self.steals.load(Ordering::SeqCst) == 0
    }
}

/// Until one side closes, or a reply is stolen. Both connections are closed then.
async fn pass_on(client: TcpStream, server: TcpStream, steals: Arc<AtomicUsize>, then: Arc<Mutex<Option<Deed>>>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let replies = async {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let length = from_server.read(&mut bytes).await?;
            let count_down = |number: usize| number.checked_sub(1);
            if length == 0 {
                return Ok(());
            }
            if steals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down) == Ok(1) {
                if let Some(deed) = then.lock().expect("no panic").take() {
                    deed();
                }
                return Ok(());
            }
            to_client.write_all(&bytes[..length]).await?;
        }
    };
    let _: std::io::Result<()> = tokio::select! { done = requests => done, done = replies => done };
}

/// The first to wait over a connection asks for messages before: what comes next is an answer to ACQUIRE.
async fn use_once(client: &Client) {
    client.lock("warm").acquire().await.expect("free").release().await.expect("it was held");
}

/// Has an attempt ask, and gives it up when something has come of it.
async fn give_up_when<T>(attempt: impl Future<Output = T>, has_come: impl FnMut() -> bool) {
    let mut attempt = std::pin::pin!(attempt);
    let asks = std::future::poll_fn(|context| {
        assert!(attempt.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    });
    asks.await;
    eventually(has_come).await;
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
    let next_is_late = || next_is_late(&proxy, lease * 2);
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

/// Hours may lie between two grants that one waiter misses: whoever waits goes on waiting all the same.
#[tokio::test]
async fn a_grant_that_is_missed_long_after_another_one_is_asked_for_again() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let (lease, retry_for) = (Duration::from_millis(300), Duration::from_millis(1500));
    let client = Client::builder().retry_for(retry_for).connect(&proxy.url()).await.expect("it takes connections");
    let lock = client.lock("k").lease(lease);
    lock.acquire().await.expect("a free lock").release().await.expect("it was held");
    server.client().acquire("k first");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    for (present, next) in [("first", "second"), ("second", "third")] {
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        // Whoever comes next is granted it when the lease of the missed grant is over.
        let _next = server.waiter(format!("RLOCK.ACQUIRE k {next} PX 600000 BLOCK 0"));
        next_is_late(&proxy, lease * 2);
        server.client().call(format!("RLOCK.RELEASE k {present}"));
        eventually(|| server.client().holder("k").is_some_and(|holder| holder.owner == next)).await;
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        // Time itself: a wait that is longer than failures may follow on one another.
        tokio::time::sleep(retry_for * 2).await;
    }
    server.client().call("RLOCK.RELEASE k third");
    assert!(waiter.await.expect("no panic").expect("a grant").is_held());
}

/// What comes next to the client comes late.
fn next_is_late(proxy: &Proxy, late_by: Duration) {
    let mut is_late = false;
    proxy.set(move |direction, _| match direction == Direction::ToClient && !std::mem::replace(&mut is_late, true) {
        true => Fate::Delay(late_by),
        false => Fate::Pass,
    });
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

/// The first reply is that of INFO, which says of what kind the lock is.
#[tokio::test]
async fn a_forced_release_hits_one_holder() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let first = server.client().acquire("k first PX 600000");
    let _waiters = ["second", "third"].map(|owner| {
        let waiter = server.waiter(format!("RLOCK.ACQUIRE k {owner} PX 600000 BLOCK 0"));
        assert!(server.client().waiting_owners("k").contains(&owner.to_owned()));
        waiter
    });
    let holder = || server.client().holder("k").map(|holder| (holder.owner, holder.token));
    thief.steal(2);
    assert!(
        client.observe("k").force_release_of(first as u64).await.expect("an answer"),
        "it was held, and is no more"
    );
    assert!(thief.has_stolen());
    let (owner, second) = holder().expect("somebody was served");
    assert_eq!(owner, "second");
    assert!(!client.observe("k").force_release_of(first as u64).await.expect("an answer"), "it was not held any more");

    thief.steal(2);
    let outcome = client.observe("k").force_release().await;
    assert!(matches!(outcome, Err(Error::Connection { .. })), "{outcome:?}");
    assert!(thief.has_stolen());
    let (owner, third) = holder().expect("somebody was served");
    assert!(owner == "third" && third > second);
}

/// Nobody asks again: the request is given up when its first answer does not come.
#[tokio::test]
async fn a_drain_that_failed_leaves_no_permits_behind() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let hasty = Client::builder().retry_for(Duration::ZERO).connect(&thief.url()).await.expect("it takes connections");
    hasty.semaphore("s").init(5).await.expect("an answer");
    let available = || server.client().call("RSEMAPHORE.INFO s").field("available");
    for number in [1, 2] {
        thief.steal(number);
        let outcome = hasty.semaphore("s").draining().lease(Duration::from_secs(600)).take().await;
        assert!(matches!(outcome, Err(Error::Connection { .. })), "{outcome:?}");
        assert!(thief.has_stolen());
        eventually(|| available() == 5).await;
    }
}

/// A server whose memory is full refuses the request that is sent again, without a look at what it was granted.
#[tokio::test]
async fn what_was_granted_before_the_memory_was_full_is_taken_back() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let lease = Duration::from_secs(600);
    let (lock, semaphore) = (client.lock("k").lease(lease), client.semaphore("s"));
    semaphore.init(5).await.expect("an answer");
    let available = || server.client().call("RSEMAPHORE.INFO s").field("available");
    for way in ["try", "wait", "drain"] {
        use_once(&client).await;
        let mut control = server.client();
        thief.steal_next_and(move || {
            let is_drained = control.call("RSEMAPHORE.INFO s").field("available") == 0;
            assert!(is_drained || control.holder("k").is_some(), "it was granted");
            assert_eq!(control.call("CONFIG SET maxmemory 1"), "OK");
        });
        let outcome = match way {
            "try" => lock.try_acquire().await.map(drop),
            "wait" => lock.acquire().await.map(drop),
            _ => semaphore.draining().lease(lease).take().await.map(drop),
        };
        assert!(matches!(&outcome, Err(Error::Server { code, .. }) if code == "OOM"), "{way}: {outcome:?}");
        server.client().call("CONFIG SET maxmemory 0");
        eventually(|| holds(&server) == 0 && available() == 5).await;
    }
}

/// The connection that a release was lost with has ended the hold, and so may one before it have that closed unnoticed.
#[tokio::test]
async fn a_lost_release_of_a_hold_that_ends_with_its_connection_is_no_proof() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let guard = client.lock("k").session_grace(Duration::ZERO).acquire().await.expect("a grant");
    thief.steal_next();
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::NotHeld)), "{outcome:?}");
    assert_eq!(holds(&server), 0);
}

/// The repetition leaves those alone that the first copy was granted, and is answered nil, or waits for the one that is gone.
#[tokio::test]
async fn several_locks_of_which_one_is_lost_with_the_answer_are_not_kept() {
    for ends_by in ["nil", "a message", "nobody who waits"] {
        let server = Server::start();
        let thief = Thief::before(&server).await;
        let client = thief.client().await;
        let outer = client.lock("k").owner("me").acquire().await.expect("free");
        let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
        let mut operator = server.client();
        thief.steal_next_and(move || {
            operator.call("RLOCK.FORCERELEASE l");
            operator.call("RLOCK.ACQUIRE l stranger PX 600000");
        });
        match ends_by {
            "nil" => assert!(all.try_acquire().await.expect("an answer").is_none()),
            "a message" => {
                let outcome = all.acquire_timeout(Duration::from_millis(300)).await;
                assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
            }
            _ => {
                let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
                eventually(|| server.client().waiting_owners("l").len() == 1).await;
                assert_eq!(holds(&server), 2);
                waiting.abort();
            }
        }
        assert!(thief.has_stolen());
        eventually(|| holds(&server) == 1).await;
        assert!(server.client().waiting_owners("l").is_empty());
        outer.release().await.expect("it was held");
    }
}

/// The release has to wait until it is known what the request was granted: the server remembers one id for an owner and a key.
#[tokio::test]
async fn several_locks_that_are_given_up_before_their_owner_releases_one_leave_the_others_free() {
    let server = Server::start();
    let client = crate::connect(&server).await;
    let outer = client.lock("k").owner("me").acquire().await.expect("free");
    let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
    give_up_when(all.try_acquire(), || holds(&server) == 2).await;
    outer.release().await.expect("it was held");
    client.close().await.expect("it is tidied up");
    assert!(server.client().holder("l").is_none());
    assert_eq!(holds(&server), 0);
}

#[tokio::test]
async fn several_locks_that_are_given_up_before_their_owner_acquires_one_leave_it_free_in_the_end() {
    let server = Server::start();
    let client = crate::connect(&server).await;
    use_once(&client).await;
    let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
    give_up_when(all.try_acquire(), || holds(&server) == 1).await;
    client.lock("k").owner("me").acquire().await.expect("it is mine").release().await.expect("it was held");
    client.close().await.expect("it is tidied up");
    assert!(server.client().holder("l").is_none());
    assert_eq!(holds(&server), 0);
}

/// Another process of the owner asks between the two copies, of which the first was granted.
#[tokio::test]
async fn several_locks_that_are_asked_for_twice_around_another_request_of_their_owner_are_not_kept() {
    for way in ["try", "wait"] {
        let server = Server::start();
        let thief = Thief::before(&server).await;
        let client = thief.client().await;
        let outer = client.lock("k").owner("me").acquire().await.expect("free");
        let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
        let (mut operator, token) = (server.client(), outer.token());
        thief.steal_next_and(move || {
            assert!(operator.holder("l").is_some(), "the first copy was granted");
            let id = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
            assert_eq!(operator.call(format!("RLOCK.RELEASE k me REQ {id} TOKEN {token}")), 1);
        });
        match way {
            "try" => drop(all.try_acquire().await.expect("an answer").expect("it is mine")),
            _ => {
                let outcome = all.acquire().await;
                assert!(matches!(outcome, Err(Error::Superseded)), "{outcome:?}");
            }
        }
        assert!(thief.has_stolen());
        drop(outer);
        client.close().await.expect("it is tidied up");
        assert_eq!((holds(&server), server.client().holder("l").map(|holder| holder.holds)), (0, None), "{way}");
    }
}

/// One of them is no lock any more when it is asked for again, or may not be asked for.
#[tokio::test]
async fn several_locks_of_which_one_is_written_over_or_forbidden_meanwhile_are_not_kept() {
    for deed in ["SET l x", "ACL SETUSER default resetkeys ~k"] {
        for way in ["try", "wait"] {
            let server = Server::start();
            let thief = Thief::before(&server).await;
            let client = thief.client().await;
            use_once(&client).await;
            let all = client.multi_lock(["k", "l"]).lease(Duration::from_secs(3600));
            let mut operator = server.client();
            thief.steal_next_and(move || {
                assert!(operator.holder("k").is_some(), "the first copy was granted");
                assert_eq!(operator.call(deed), "OK");
            });
            let outcome = match way {
                "try" => all.try_acquire().await.map(drop),
                _ => all.acquire().await.map(drop),
            };
            let is_refused = match &outcome {
                Err(Error::Server { code, .. }) => code == "WRONGTYPE",
                other => matches!(other, Err(Error::Permission(_))),
            };
            assert!(is_refused, "{deed}, {way}: {outcome:?}");
            client.close().await.expect("it is tidied up");
            assert_eq!(holds(&server), 0, "{deed}, {way}");
        }
    }
}

#[tokio::test]
async fn several_locks_of_which_one_is_forbidden_or_written_over_are_released() {
    for deed in ["ACL SETUSER default resetkeys ~k", "SET l x"] {
        let server = Server::start();
        let client = crate::connect(&server).await;
        let guard = client.multi_lock(["k", "l"]).lease(Duration::from_secs(3600)).acquire().await.expect("free");
        assert_eq!(server.client().call(deed), "OK");
        let outcome = guard.release().await;
        assert!(matches!(outcome, Err(Error::Permission(_) | Error::NotHeld)), "{deed}: {outcome:?}");
        client.close().await.expect("it is tidied up");
        assert_eq!(holds(&server), 0, "{deed}");
    }
}

/// One is lost with the answer, and then the memory is full, so that the other one cannot be asked for.
#[tokio::test]
async fn several_locks_that_are_taken_back_one_by_one_outlast_a_full_memory() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    use_once(&client).await;
    let all = client.multi_lock(["k", "l"]).lease(Duration::from_secs(3600));
    let mut operator = server.client();
    thief.steal_next_and(move || {
        operator.call("RLOCK.FORCERELEASE l");
        operator.call("RLOCK.ACQUIRE l stranger PX 600000");
    });
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    eventually(|| server.client().waiting_owners("l").len() == 1).await;
    let asked = || command_stat(&server, "RLOCK.MACQUIRE", "rejected_calls");
    assert_eq!(server.client().call("CONFIG SET maxmemory 1"), "OK");
    waiting.abort();
    eventually(|| asked() > 0).await;
    server.client().call("CONFIG SET maxmemory 0");
    client.close().await.expect("it is tidied up");
    assert_eq!(holds(&server), 0);
}

/// While the memory is full it cannot be found out what a request was granted; the owner's release must not wait for that.
#[tokio::test]
async fn timed_an_owner_whose_request_is_taken_back_can_release_though_the_memory_is_full() {
    let server = Server::start();
    let response_timeout = Duration::from_millis(500);
    let builder = Client::builder().response_timeout(response_timeout).retry_for(Duration::from_secs(10));
    let client = builder.connect(&crate::url(&server)).await.expect("a server");
    let lock = client.lock("k").owner("me").lease(Duration::from_secs(3600));
    let several = client.multi_lock(["k", "l1", "l2", "l3", "l4", "l5"]).owner("me").lease(Duration::from_secs(3600));
    for attempt in ["one", "several"] {
        let guard = lock.acquire().await.expect("free");
        assert_eq!(server.client().call("CONFIG SET maxmemory 1"), "OK");
        let verb = match attempt {
            "one" => {
                give_up_when(lock.try_acquire(), || true).await;
                "RLOCK.ACQUIRE"
            }
            _ => {
                give_up_when(several.try_acquire(), || true).await;
                "RLOCK.MACQUIRE"
            }
        };
        eventually(|| command_stat(&server, verb, "rejected_calls") > 0).await;
        let watch = Stopwatch::start();
        guard.release().await.expect("it was held");
        watch.assert_took_ms(0..2_000, "one response timeout, and what the last pause takes");
        assert_eq!(holds(&server), 0, "{attempt}");
        assert_eq!(server.client().call("CONFIG SET maxmemory 0"), "OK");
    }
}
