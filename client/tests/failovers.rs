//! The lock server dies and its replica takes over, under Sentinel and in a cluster, while tasks
//! hold and wait.

use std::time::{Duration, Instant};

use rlock_client::{Builder, Client};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::crowd::{Crowd, End, HOLDERS};
use crate::support::{Cluster, Command, Sentinels, Server};
use crate::{PATIENCE, eventually, url};

/// Longer than a failover takes on a busy machine, and short enough that renewals follow it.
const LEASE: Duration = Duration::from_secs(15);

/// The number of holds that do not reach a replica before the master dies, and so are lost.
const UNREPLICATED: usize = 10;

fn waiting(server: &Server) -> i64 {
    server.client().info_number("rlock_waiting")
}

/// Whether INFO has this line. Sentinel closes all connections of a server when it changes its
/// role, including this one.
fn info_has(server: &Server, line: &str) -> bool {
    let answer = server.try_client().and_then(|mut client| client.try_call("INFO everything"));
    answer.is_ok_and(|info| info.text().lines().any(|told| told == line))
}

fn master_and_replicas() -> (Server, [Server; 2]) {
    let master = Server::with(&[]);
    let upstream = format!("replicaof 127.0.0.1 {}", master.port());
    let replicas = [Server::with(&[&upstream]), Server::with(&[&upstream])];
    for replica in &replicas {
        replica.catch_up_with(&master);
    }
    (master, replicas)
}

async fn connect(options: Builder, sentinels: &Sentinels) -> Client {
    let urls: Vec<_> = sentinels.ports().map(|port| format!("redis://127.0.0.1:{port}/")).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    options.connect_sentinel(&urls, "fleet", "redis://any/").await.expect("a master")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_follows_the_new_master_of_sentinel() {
    let (mut master, replicas) = master_and_replicas();
    let sentinels = Sentinels::of(master.port(), replicas.len());
    let client = connect(Client::builder(), &sentinels).await;
    let mut crowd = Crowd::of(&client, LEASE);
    crowd.hold(HOLDERS - UNREPLICATED).await;
    crowd.wait(|| waiting(&master)).await;
    assert_eq!(master.client().call("WAIT 2 10000"), 2);
    block_in_place(|| {
        replicas[0].while_stopped(|| {
            replicas[1].while_stopped(|| {
                // Otherwise the replicas would read what is in the sockets after the master's
                // death.
                assert_eq!(master.client().call("CLIENT KILL TYPE replica"), 2);
                Handle::current().block_on(crowd.hold(UNREPLICATED));
                master.kill();
            });
        });
    });
    let killed = Instant::now();
    let old = master.port();
    let next = || sentinels.primary().and_then(|port| replicas.iter().find(|replica| replica.port() == port));
    eventually(|| next().is_some_and(|next| next.has_role("master"))).await;
    let new = next().expect("a master");
    eprintln!("a new master after {:?}", killed.elapsed());
    assert_ne!(new.port(), old);

    // Each of these tasks learns of the loss at its next renewal.
    eventually(|| crowd.heard() == UNREPLICATED).await;
    eprintln!("the last loss was reported after {:?}", killed.elapsed());
    let ends = crowd.disperse().await;
    assert_eq!(ends[..HOLDERS - UNREPLICATED], [End::Released; HOLDERS - UNREPLICATED]);
    assert_eq!(ends[HOLDERS - UNREPLICATED..], [End::Lost; UNREPLICATED]);
    assert_eq!(waiting(new), 0);

    master.restart_in_place(&["--replicaof", &format!("127.0.0.1 {}", new.port())]);
}

/// The connections stay open, and the waiter is the client's only request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_leaves_a_hung_master() {
    let (master, replicas) = master_and_replicas();
    let sentinels = Sentinels::of(master.port(), replicas.len());
    let options = Client::builder().command_timeout(Duration::from_secs(1)).connect_timeout(Duration::from_secs(1));
    let client = connect(options.ping_after(Duration::from_secs(1)), &sentinels).await;
    master.client().call("RLOCK.ACQUIRE k other PX 600000");
    assert_eq!(master.client().call("WAIT 2 10000"), 2);
    let waiter = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    eventually(|| waiting(&master) == 1).await;
    block_in_place(|| {
        master.while_stopped(|| {
            let stopped = Instant::now();
            let waits_elsewhere = || replicas.iter().any(|replica| info_has(replica, "rlock_waiting:1"));
            Handle::current().block_on(eventually(waits_elsewhere));
            eprintln!("it waits at the new master after {:?}", stopped.elapsed());
        });
    });
    let new = replicas.iter().find(|replica| info_has(replica, "rlock_waiting:1")).expect("a new master");
    assert_eq!(new.client().call("RLOCK.RELEASE k other"), 0);
    waiter.await.expect("no panic").expect("a grant").release().await.expect("it was held");
}

/// The master answers each request with BUSY, and Sentinel cannot make it a replica of the new one.
/// The connections stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_a_busy_master_that_was_replaced() {
    let (mut master, replicas) = master_and_replicas();
    let sentinels = Sentinels::of(master.port(), replicas.len());
    let client = connect(Client::builder().ping_after(Duration::from_secs(1)), &sentinels).await;
    master.client().call("RLOCK.ACQUIRE k other PX 600000");
    assert_eq!(master.client().call("WAIT 2 10000"), 2);
    let waiter = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    eventually(|| waiting(&master) == 1).await;
    master.client().call("CONFIG SET lua-time-limit 20");
    // A script that has written cannot be killed.
    let endless: [&[u8]; 4] = [b"EVAL", b"redis.call('SET', KEYS[1], 1) while true do end", b"1", b"x"];
    let mut busy = master.client();
    busy.try_send(&[Command::from(endless)]).expect("it is sent");
    eventually(|| replicas.iter().any(|replica| info_has(replica, "rlock_waiting:1"))).await;
    let new = replicas.iter().find(|replica| info_has(replica, "rlock_waiting:1")).expect("a new master");
    assert_eq!(new.client().call("RLOCK.RELEASE k other"), 0);
    waiter.await.expect("no panic").expect("a grant").release().await.expect("it was held");
    // A request for another lock is served as well.
    client.lock("other").acquire().await.expect("a grant").release().await.expect("it was held");
    // The script never ends, so the server must be killed.
    master.kill_and_restart();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_follows_a_promoted_replica_in_a_cluster() {
    let mut cluster = Cluster::start();
    let seeds: Vec<_> = cluster.nodes().iter().map(url).collect();
    let seeds: Vec<_> = seeds.iter().map(String::as_str).collect();
    let client = Client::builder().connect_cluster(&seeds).await.expect("a cluster");
    let mut crowd = Crowd::of(&client, LEASE);
    crowd.hold(HOLDERS).await;
    crowd.wait(|| cluster.nodes().iter().map(waiting).sum()).await;
    // Only the renewals write, and the first is seconds away.
    for node in cluster.nodes() {
        let mut node = node.client();
        if node.info("role") == "master" {
            assert_eq!(node.call("WAIT 1 10000"), 1);
        }
    }

    // First a planned failover: no connection is closed, and the waiters are redirected.
    let next = cluster.replica_of("{a}").port();
    assert_eq!(cluster.node_mut(next).client().call("CLUSTER FAILOVER"), "OK");
    eventually(|| cluster.node_mut(next).client().info("role") == "master").await;
    cluster.wait_until_whole();

    // The node of slot 0.
    let old = cluster.primary_of("la2").port();
    cluster.node_mut(old).kill();
    let killed = Instant::now();
    // A client that connects now gets in as well.
    let latecomer = Client::builder().connect_cluster(&seeds).await.expect("the other nodes answer");
    let late = latecomer.lock("la2").acquire_timeout(PATIENCE).await.expect("a grant");
    eprintln!("a lock of the dead node was granted after {:?}", killed.elapsed());

    let ends = crowd.disperse().await;
    assert_eq!(ends, [End::Released; HOLDERS]);
    late.release().await.expect("it was held");
    cluster.node_mut(old).restart_in_place(&[]);
    let left: i64 = cluster.nodes().iter().map(waiting).sum();
    assert_eq!(left, 0);
}
