//! Clusters and Sentinel.

use serde_json::json;

use super::scenarios;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::servers::{Sentinel, Server, cluster};
use crate::world::{Client, PATIENCE, World, ms, pause};

scenarios! {
    short "cluster", "B7 B25", ["cluster"], in_cluster;
    long "cluster-slot-moves", "B7 B8 B12", ["cluster"], slot_moves;
    long "cluster-node-stopped", "B13 B16", ["cluster"], node_stopped;
    long "cluster-failover", "B7 B8 B12", ["cluster"], cluster_failover;
    long "sentinel-failover", "B12 B16 B25", ["sentinel"], failover;
}

async fn client_of(w: &World, nodes: &[Server]) -> Result<Client, Broken> {
    w.client_with(&w.program, json!({"url": nodes[0].url(), "cluster": true})).await
}

async fn are_clean(nodes: &[Server]) -> Result<(), Broken> {
    for node in nodes {
        node.is_clean(ms(3000)).await?;
    }
    Ok(())
}

async fn waiting(nodes: &[Server], count: i64) -> Result<(), Broken> {
    let deadline = now_us() + us(15_000);
    loop {
        let mut sum = 0;
        for node in nodes {
            sum += node.gauge("rlock_waiting").await?;
        }
        if sum == count {
            return Ok(());
        }
        ensure!(now_us() < deadline, "B6 B7", "{sum} requests wait, not {count}");
        pause(10).await;
    }
}

async fn in_cluster(w: &World) -> Result<(), Broken> {
    let nodes = cluster(&w.programs, 0, &[]).await?;
    let (one, other) = (client_of(w, &nodes).await?, client_of(w, &nodes).await?);
    // The keys are spread over the nodes.
    let kinds = [("mutex", "a"), ("mutex", "b"), ("mutex", "c"), ("fair", "f"), ("write", "w"), ("many", "{t}1 {t}2")];
    let mut holds = Vec::new();
    for (kind, keys) in kinds {
        holds.push(one.acquire(kind, keys, json!({"wait_ms": 5000, "lease_ms": 1500})).await?);
    }
    let waits: Vec<_> = kinds
        .iter()
        .map(|(kind, keys)| other.begin(kind, keys, json!({"wait_ms": 20_000, "lease_ms": 1500})))
        .collect();
    waiting(&nodes, kinds.len() as i64).await?;
    pause(2000).await;
    for hold in &holds {
        hold.is_held("B16", &format!("{:?} in a cluster", hold.keys)).await?;
        hold.release().await?;
    }
    for waits in waits {
        let hold = waits.acquired(ms(5000)).await.under("B7")?;
        hold.release().await?;
    }
    let hold = one.acquire("mutex", "a", json!({"wait_ms": 0})).await?;
    let waits = other.begin("mutex", "a", json!({}));
    waiting(&nodes, 1).await?;
    waits.cancelled().await?;
    waiting(&nodes, 0).await?;
    hold.release().await?;
    are_clean(&nodes).await
}

/// A slot migrates to another node while one client holds its lock and another one waits.
async fn slot_moves(w: &World) -> Result<(), Broken> {
    let nodes = cluster(&w.programs, 0, &[]).await?;
    let (one, other) = (client_of(w, &nodes).await?, client_of(w, &nodes).await?);
    for (kind, key) in [("mutex", "{m}k"), ("fair", "{f}k")] {
        let hold = one.acquire(kind, key, json!({"wait_ms": 0, "lease_ms": 4000})).await?;
        let waits = other.begin(kind, key, json!({"wait_ms": 30_000}));
        waiting(&nodes, 1).await?;
        move_slot(&nodes, key).await?;
        pause(3000).await;
        hold.is_held("B16", "its slot went to another node").await?;
        hold.release().await?;
        // The wait on the old node has ended, so the client has to ask the new one.
        waits.acquired(ms(10_000)).await.under("B7 B8")?.release().await?;
    }
    are_clean(&nodes).await
}

/// One node stops. The client reports the loss of its locks in time, and renews those of other nodes without delay.
async fn node_stopped(w: &World) -> Result<(), Broken> {
    const LEASE_MS: i64 = 3000;
    let nodes = cluster(&w.programs, 0, &[]).await?;
    let c = client_of(w, &nodes).await?;
    let (mut gone, mut well) = (Vec::new(), Vec::new());
    for key in ["a", "b", "c", "d", "e", "f"] {
        let hold = c.acquire("mutex", key, json!({"wait_ms": 5000, "lease_ms": LEASE_MS})).await?;
        match node_of(&nodes, key).await? {
            0 => gone.push(hold),
            node => well.push((hold, node)),
        }
    }
    ensure!(!gone.is_empty(), "driver", "the first node serves none of the keys");
    pause(1500).await;
    nodes[0].stop();
    let stopped = now_us();
    let judged = async {
        // A hold that is renewed at a third of its lease always has about two thirds left.
        while now_us() < stopped + us(5000) {
            for (hold, node) in &well {
                let asked = now_us();
                let left = nodes[*node].lease_left(&hold.keys[0], hold.token()).await?;
                let late = us(LEASE_MS / 2 - left) - slack_us(asked - us(2000));
                ensure!(late <= 0, "B16", "another node was stopped, and {left} ms of a lease of {LEASE_MS} are left");
            }
            pause(30).await;
        }
        for (hold, _) in &well {
            hold.is_held("B16", "another node was stopped").await?;
            hold.release().await?;
        }
        for hold in &gone {
            hold.lost_before(stopped + us(LEASE_MS)).await?;
        }
        Ok(())
    };
    let judged: Result<(), Broken> = judged.await;
    nodes[0].go_on();
    judged?;
    are_clean(&nodes).await
}

/// The node that serves a key.
async fn node_of(nodes: &[Server], key: &str) -> Result<usize, Broken> {
    for (number, node) in nodes.iter().enumerate() {
        if node.try_ask(&["EXISTS", key]).await.is_ok() {
            return Ok(number);
        }
    }
    Err(Broken::new("driver", format!("no node serves {key}")))
}

async fn move_slot(nodes: &[Server], key: &str) -> Result<(), Broken> {
    let slot = nodes[0].number(&format!("CLUSTER KEYSLOT {key}")).await?;
    let from = &nodes[node_of(nodes, key).await?];
    let to = nodes.iter().find(|node| node.port != from.port).expect("three nodes");
    let (from_id, to_id) = (from.text("CLUSTER MYID").await?, to.text("CLUSTER MYID").await?);
    to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await?;
    from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await?;
    from.ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port)).await?;
    for node in [to, from].into_iter().chain(nodes.iter().filter(|node| node.port != from.port && node.port != to.port))
    {
        node.ask(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await?;
    }
    Ok(())
}

/// A master dies, and comes back as a replica. Waits continue on the new master, and hear its grants.
async fn cluster_failover(w: &World) -> Result<(), Broken> {
    let nodes = cluster(&w.programs, 1, &[]).await?;
    let c = client_of(w, &nodes).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 15_000, "lease_ms": 20_000})).await?;
    let waits = c.work("mutex", "k", json!({"tasks": 3, "times": 1, "hold_ms": 10, "lease_ms": 20_000}));
    waiting(&nodes, 3).await?;
    let master = &nodes[node_of(&nodes, "k").await?];
    hold.is_claimed(master).await?;
    master.ask("WAIT 1 5000").await?;
    master.kill().await;
    let deadline = now_us() + us(20_000);
    while node_of(&nodes, "k").await.is_err() {
        ensure!(now_us() < deadline, "driver", "no failover");
        pause(50).await;
    }
    master.start_again().await?;
    waiting(&nodes, 3).await?;
    hold.release().await?;
    // A client that asks again after 30 s is too late: it must notice that another node serves the slot.
    waits.answer_or("B7 B8", ms(20_000)).await?;
    are_clean(&nodes).await
}

/// The primary dies. The client keeps a replicated hold, and its wait continues on the new primary.
async fn failover(w: &World) -> Result<(), Broken> {
    let primary = w.another_server(&[]).await?;
    let upstream = format!("replicaof 127.0.0.1 {}", primary.port);
    let replica = w.another_server(&[&upstream]).await?;
    let deadline = now_us() + us(20_000);
    while !replica.text("INFO replication").await?.contains("master_link_status:up") {
        ensure!(now_us() < deadline, "driver", "the replica does not come up");
        pause(20).await;
    }
    let sentinel = Sentinel::of(&w.programs, &primary).await?;
    let nodes = json!({"master": "fleet", "nodes": [format!("127.0.0.1:{}", sentinel.port)]});
    let c = w.client_with(&w.program, json!({"sentinel": nodes})).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 15_000})).await?;
    hold.is_claimed(&primary).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 40_000}));
    primary.until_waiting(1).await?;
    primary.ask("WAIT 1 1000").await?;
    primary.kill().await;
    let deadline = now_us() + us(20_000);
    while !replica.text("INFO replication").await?.contains("role:master") {
        ensure!(now_us() < deadline, "driver", "no failover");
        pause(50).await;
    }
    pause(6000).await;
    hold.is_held("B16 B17", "the new primary has it").await?;
    let left = replica.lease_left("k", hold.token()).await?;
    ensure!(left > 8000, "B16", "it is not renewed at the new primary: {left} ms are left");
    hold.release().await?;
    waits.acquired(PATIENCE).await.under("B8 B12")?.release().await?;
    replica.is_clean(ms(3000)).await
}
