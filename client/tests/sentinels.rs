//! When the client asks Sentinels about a master that refuses commands, and how it uses their
//! answers. The Sentinels are plain servers here, with answers set by the test.

use std::time::Duration;

use rlock_client::{Builder, Client, Error};

use crate::support::Server;
use crate::{PATIENCE, command_stat, eventually, url};

/// A server that names a master as a Sentinel does. Its command MGET is renamed to SENTINEL, and
/// the arguments are the names of two keys.
struct Sentinel(Server);

impl Sentinel {
    fn naming(master: &Server) -> Self {
        let sentinel = Self(Server::with(&["rename-command MGET SENTINEL"]));
        sentinel.name(master);
        sentinel
    }

    fn name(&self, master: &Server) {
        let set = format!("MSET GET-MASTER-ADDR-BY-NAME 127.0.0.1 fleet {}", master.port());
        assert_eq!(self.0.client().call(set), "OK");
    }

    /// The number of requests to it.
    fn asked(&self) -> i64 {
        command_stat(&self.0, "mget", "calls")
    }
}

async fn connect(options: Builder, sentinels: &[&Sentinel]) -> Client {
    let urls: Vec<_> = sentinels.iter().map(|sentinel| url(&sentinel.0)).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    options.connect_sentinel(&urls, "fleet", "redis://any/").await.expect("a master")
}

/// From now on the master answers NOREPLICAS to each write.
fn refuse(master: &Server) {
    assert_eq!(master.client().call("CONFIG SET min-replicas-to-write 1"), "OK");
}

/// The master may have thousands of clients.
#[tokio::test]
async fn refused_requests_do_not_each_query_the_sentinels() {
    let master = Server::start();
    let sentinel = Sentinel::naming(&master);
    let client = connect(Client::builder(), &[&sentinel]).await;
    assert_eq!(sentinel.asked(), 1);
    refuse(&master);
    for _ in 0..300 {
        let outcome = client.lock("k").try_acquire().await;
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    }
    eventually(|| sentinel.asked() > 1).await;
    // The interval grows: ten requests take half a minute.
    assert!(sentinel.asked() < 10, "{} times", sentinel.asked());
}

#[tokio::test]
async fn no_sentinel_is_asked_about_a_master_that_answers() {
    let master = Server::start();
    let sentinel = Sentinel::naming(&master);
    let client = connect(Client::builder().ping_after(Duration::from_millis(20)), &[&sentinel]).await;
    master.client().call("RLOCK.ACQUIRE k stranger PX 600000");
    let waiting = tokio::spawn(async move { client.lock("k").acquire().await.map(drop) });
    // While a caller waits, the client checks that the master is alive.
    let asked = || command_stat(&master, "RLOCK.CANCEL", "calls");
    eventually(|| asked() >= 20).await;
    assert_eq!(master.client().waiting_owners("k").len(), 1, "the wait goes on");
    assert_eq!(sentinel.asked(), 1, "one request, when the client connected");
    waiting.abort();
}

/// One Sentinel of two may be cut off together with a server that believes it is the master.
#[tokio::test]
async fn client_leaves_a_refusing_master_when_most_sentinels_name_another() {
    let (old, new) = (Server::start(), Server::start());
    let [first, second] = [(); 2].map(|()| Sentinel::naming(&old));
    let client = connect(Client::builder(), &[&first, &second]).await;
    first.name(&new);
    refuse(&old);
    let asking = tokio::spawn(async move { client.lock("k").acquire().await });
    // When the client asks the second time, it has acted on the first answers.
    eventually(|| asking.is_finished() || second.asked() >= 2).await;
    assert_eq!(command_stat(&new, "role", "calls"), 0, "the client has not checked the new server");
    second.name(&new);
    let guard = tokio::time::timeout(PATIENCE, asking).await.expect("in time").expect("no panic").expect("a grant");
    assert!(new.client().holder("k").is_some());
    guard.release().await.expect("it was held");
}

/// The client sends no other request. The master is alive, and answers liveness checks.
#[tokio::test]
async fn waiter_leaves_a_refusing_master_that_was_replaced() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = Sentinel::naming(&old);
    let client = connect(Client::builder().ping_after(Duration::from_millis(20)), &[&sentinel]).await;
    old.client().acquire("k stranger PX 600000");
    let waiting = tokio::spawn(async move { client.lock("k").acquire().await });
    eventually(|| old.client().waiting_owners("k").len() == 1).await;
    sentinel.name(&new);
    refuse(&old);
    let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("in time").expect("no panic").expect("a grant");
    assert!(new.client().holder("k").is_some());
    guard.release().await.expect("it was held");
}

/// Each connection to it is accepted, and gets no answer.
#[tokio::test]
async fn client_finds_its_master_although_most_sentinels_hang() {
    let master = Server::start();
    let sentinel = Sentinel::naming(&master);
    let hung = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let mut urls = hung.each_ref().map(|hung| format!("redis://{}/", hung.local_addr().expect("an address"))).to_vec();
    urls.push(url(&sentinel.0));
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let client = Client::builder().connect_sentinel(&urls, "fleet", "redis://any/").await.expect("a master");
    client.lock("k").acquire().await.expect("a free lock").release().await.expect("it was held");
}
