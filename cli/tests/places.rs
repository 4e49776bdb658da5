//! Every command where there is more than one server: behind Sentinel, and in a cluster.

use std::process::Command;

use crate::commands::text;
use crate::support::{Cluster, Sentinels, Server};

/// What a command printed, and its status.
#[track_caller]
fn at(url: &str, line: &str) -> (Option<i32>, String) {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
    let output = tool.args(["--url", url]).args(line.split(' ')).output().expect("the tool runs");
    eprintln!("rlock --url {url} {line}\n{}{}", text(&output.stdout), text(&output.stderr));
    (output.status.code(), text(&output.stdout))
}

/// Goes through all commands with a few locks.
fn go_through(url: &str, keys: &[&str], waiter: &str) {
    for key in keys {
        assert_eq!(at(url, &format!("run {key} -- true")).0, Some(0));
        assert_eq!(at(url, &format!("wait {key} --wait 1s")).0, Some(0));
        // In a name of its own, the lock is held by the command that looks at it.
        let script = format!("--owner me -- {} --url {url} show {key}", env!("CARGO_BIN_EXE_rlock"));
        let (status, shown) = at(url, &format!("run {key} {script}"));
        assert!(status == Some(0) && shown.contains("me"), "{shown}");
        assert_eq!(at(url, &format!("release --force {key}")).0, Some(1), "nobody holds it any more");
        assert_eq!(at(url, &format!("run pool:{key} --semaphore 2 -- true")).0, Some(0));
    }
    let (_, shown) = at(url, "top --once");
    let contended: Vec<_> = shown.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(contended, [waiter], "{shown}");
    let (_, shown) = at(url, "ls");
    let found: Vec<_> = shown.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    let mut wanted: Vec<_> = keys.iter().map(|key| format!("pool:{key}")).collect();
    wanted.push(waiter.to_owned());
    wanted.sort();
    assert_eq!(found, wanted, "{shown}");
    assert_eq!(at(url, &format!("release --force {waiter}")).0, Some(0));
}

#[test]
fn every_command_finds_the_masters_of_a_cluster() {
    let cluster = Cluster::start();
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    // Each on another master.
    let keys = ["a", "b", "c"];
    let ports: std::collections::BTreeSet<_> = keys.iter().map(|key| cluster.primary_of(key).port()).collect();
    assert_eq!(ports.len(), 3);
    let home = cluster.primary_of("wanted");
    home.client().acquire("wanted alice PX 600000");
    let _waiter = home.waiter("RLOCK.ACQUIRE wanted bob PX 600000 BLOCK 0");
    go_through(&url, &keys, "wanted");
}

/// Only `ls` and `top` need all of them.
#[test]
fn a_dead_master_of_a_cluster_disturbs_no_key_of_another() {
    let mut cluster = Cluster::start();
    let (alive, seed) = (cluster.primary_of("a").port(), cluster.replica_of("a").port());
    let url = format!("redis+cluster://127.0.0.1:{seed}");
    // The first by its slots.
    let dead = cluster.primary_of("b").port();
    // Nobody takes its place, and the rest goes on without.
    for node in cluster.nodes() {
        node.client().call("CONFIG SET cluster-require-full-coverage no");
        node.client().call("CONFIG SET cluster-replica-no-failover yes");
    }
    cluster.node_mut(dead).kill();
    let token = cluster.node_mut(alive).client().acquire("a alice PX 600000");
    let (status, shown) = at(&url, "show a");
    assert!(status == Some(0) && shown.contains(&token.to_string()), "{shown}");
    assert_eq!(at(&url, "wait a --wait 100ms").0, Some(124));
    assert_eq!(at(&url, "release --force a").0, Some(0));
    assert_eq!(at(&url, "run pool:{a} --semaphore 2 -- true").0, Some(0));
    for line in ["show b", "ls", "top --once"] {
        assert_eq!(at(&url, line).0, Some(121), "{line}");
    }
    cluster.node_mut(dead).restart_in_place(&[]);
}

#[test]
fn every_command_finds_the_master_that_sentinel_names() {
    let primary = Server::with(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let sentinels = Sentinels::of(primary.port(), 1);
    let hosts: Vec<_> = sentinels.ports().map(|port| format!("127.0.0.1:{port}")).collect();
    // A sentinel that is away is passed over.
    let url = format!("redis+sentinel://127.0.0.1:1,{}/fleet", hosts.join(","));
    primary.client().acquire("wanted alice PX 600000");
    let _waiter = primary.waiter("RLOCK.ACQUIRE wanted bob PX 600000 BLOCK 0");
    go_through(&url, &["a", "b"], "wanted");
    let other = format!("redis+sentinel://{}/nobody", hosts[0]);
    assert_eq!(at(&other, "ls").0, Some(121));
    drop(replica);
}
