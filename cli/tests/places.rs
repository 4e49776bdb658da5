//! All subcommands with Sentinel and with a cluster.

use std::process::{Command, Stdio};

use crate::commands::{Running, text};
use crate::support::{Cluster, Sentinels, Server};

/// The exit status and the output of a command.
#[track_caller]
pub fn at(url: &str, line: &str) -> (Option<i32>, String) {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
    let output = tool.args(["--url", url]).args(line.split(' ')).output().expect("the tool runs");
    eprintln!("rlock --url {url} {line}\n{}{}", text(&output.stdout), text(&output.stderr));
    (output.status.code(), text(&output.stdout))
}

/// Runs all subcommands with a few locks.
fn run_all_subcommands(url: &str, keys: &[&str], waiter: &str) {
    for key in keys {
        assert_eq!(at(url, &format!("run {key} -- true")).0, Some(0));
        assert_eq!(at(url, &format!("wait {key} --wait 1s")).0, Some(0));
        // The command that shows the lock runs under it.
        let script = format!("--owner me -- {} --url {url} show {key}", env!("CARGO_BIN_EXE_rlock"));
        let (status, shown) = at(url, &format!("run {key} {script}"));
        assert!(status == Some(0) && shown.contains("me"), "{shown}");
        assert_eq!(at(url, &format!("release --force {key}")).0, Some(1), "it was released");
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
fn every_subcommand_finds_the_masters_of_a_cluster() {
    let cluster = Cluster::start();
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    // Each key is on another master.
    let keys = ["a", "b", "c"];
    let ports: std::collections::BTreeSet<_> = keys.iter().map(|key| cluster.primary_of(key).port()).collect();
    assert_eq!(ports.len(), 3);
    let home = cluster.primary_of("wanted");
    home.client().acquire("wanted alice PX 600000");
    let _waiter = home.waiter("RLOCK.ACQUIRE wanted bob PX 600000 BLOCK 0");
    run_all_subcommands(&url, &keys, "wanted");
}

/// Without the address of the cluster the tool follows no redirection.
#[test]
fn node_of_a_cluster_refuses_keys_of_other_nodes_and_names_theirs() {
    let cluster = Cluster::start();
    let (other, own) = (cluster.other_primary("a"), cluster.primary_of("a"));
    let url = format!("redis://127.0.0.1:{}", other.port());
    let expected =
        format!("the key is on the node 127.0.0.1:{}; expected --url redis+cluster://host[:port]", own.port());
    for line in [
        "run a -- true",
        "run a --wait 0 -- true",
        "run a --wait 3s -- true",
        "run a --fair -- true",
        "run a --semaphore 2 -- true",
        "show a",
        "wait a",
        "release --force a",
    ] {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
        tool.args(["--url", &url]).args(line.split(' ')).stderr(Stdio::piped());
        let mut running = Running::of(tool);
        assert_eq!(running.status(), 122, "{line}");
        let complaint = text(&running.output().stderr);
        assert!(complaint.contains(&expected), "{line}: {complaint}");
    }
    // A waiter at its own node has no channel in the slot of its key.
    let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
    let output = tool.args(["--url", &format!("redis://127.0.0.1:{}", own.port()), "run", "a", "--", "true"]).output();
    let output = output.expect("the tool runs");
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    let complaint = "rlock: the server is a node of a cluster; expected --url redis+cluster://host[:port]\n";
    assert_eq!(text(&output.stderr), complaint);
}

/// Only `ls` and `top` need all masters.
#[test]
fn dead_master_of_a_cluster_affects_only_its_own_keys() {
    let mut cluster = Cluster::start();
    let (alive, seed) = (cluster.primary_of("a").port(), cluster.replica_of("a").port());
    let url = format!("redis+cluster://127.0.0.1:{seed}");
    // CLUSTER SLOTS lists this master first.
    let dead = cluster.primary_of("b").port();
    // No replica replaces the dead master, and the other masters keep serving.
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
fn every_subcommand_finds_the_master_that_sentinel_names() {
    let primary = Server::with(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let sentinels = Sentinels::of(primary.port(), 1);
    let hosts: Vec<_> = sentinels.ports().map(|port| format!("127.0.0.1:{port}")).collect();
    // The tool skips a sentinel that does not answer.
    let url = format!("redis+sentinel://127.0.0.1:1,{}/fleet", hosts.join(","));
    primary.client().acquire("wanted alice PX 600000");
    let _waiter = primary.waiter("RLOCK.ACQUIRE wanted bob PX 600000 BLOCK 0");
    run_all_subcommands(&url, &["a", "b"], "wanted");
    let unknown = format!("redis+sentinel://{}/unknown", hosts[0]);
    assert_eq!(at(&unknown, "ls").0, Some(121));
    drop(replica);
}

/// For about two seconds the sentinels name a master that is dead.
#[test]
fn run_and_wait_retry_during_a_failover() {
    let mut primary = Server::with(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let sentinels = Sentinels::of(primary.port(), 1);
    let hosts: Vec<_> = sentinels.ports().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redis+sentinel://{}/fleet", hosts.join(","));
    primary.kill();
    let start = |line: &str| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
        tool.args(["--url", &url]).args(line.split(' '));
        Running::of(tool)
    };
    let lines =
        ["run a --wait 60s -- true", "run b -- true", "run c --semaphore 2 --wait 60s -- true", "wait d --wait 60s"];
    for (line, mut running) in lines.map(|line| (line, start(line))) {
        assert_eq!(running.status(), 0, "{line}");
    }
    assert_eq!(sentinels.primary(), Some(replica.port()));
    primary.restart_in_place(&[]);
}
