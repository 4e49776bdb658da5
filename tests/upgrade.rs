//! The upgrade procedure of docs/operations/upgrade.md, from start to end.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{Client, Reply, Server, eventually, module_path};

const SOON: Duration = Duration::from_secs(30);

/// Runs `make install` into a folder. Returns the path of the module.
#[track_caller]
fn install(root: &Path) -> String {
    let module = module_path().display();
    let output = Command::new("make")
        .env_remove("MAKEFLAGS")
        .env_remove("MAKEOVERRIDES")
        .args(["install", &format!("DESTDIR={}", root.display()), &format!("MODULE={module}")])
        .output()
        .expect("make runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    root.join("usr/lib/redis/modules/librlock.so").display().to_string()
}

/// The inode of a file.
fn inode(path: &str) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("a file"))
}

#[track_caller]
fn assert_locks_are_held(client: &mut Client, tokens: [i64; 2]) {
    assert_eq!(client.holder("job").expect("a holder").token, tokens[0]);
    assert_eq!(client.holder("fair").expect("a holder").token, tokens[1]);
    assert_eq!(client.places("fair"), ["b detached"]);
}

#[test]
fn upgrade_loses_no_lock_and_waiters_get_unblocked() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let path = install(root.path());
    let load = format!("loadmodule {path}");
    let aof = ["appendonly yes", "appendfsync always", "rlock.fair-grace-ms 600000"];
    let mut master = Server::without_module(&[&[load.as_str()], &aof[..]].concat());
    let upstream = format!("replicaof 127.0.0.1 {}", master.port());
    let mut replica = Server::without_module(&[&[load.as_str(), upstream.as_str()], &aof[..]].concat());
    replica.catch_up_with(&master);
    let mut client = master.client();
    let tokens = [client.acquire("job a PX 6000000"), client.acquire_fair("fair a PX 6000000")];
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 6000000"), Reply::Nil);

    // 1. The new file replaces the old one, which the running servers keep using.
    let old = inode(&path);
    install(root.path());
    assert_ne!(inode(&path), old, "a mapped file must not be written to");
    let mut waiter = master.waiter("RLOCK.ACQUIRE job w BLOCK 0");

    // 2. Upgrade the replica.
    replica.kill();
    replica.restart_in_place(&[]);
    replica.catch_up_with(&master);

    // 3. Swap the roles, and save them in the configuration files.
    assert_eq!(client.call("FAILOVER"), "OK");
    waiter.reply().expect_error("UNBLOCKED");
    let mut promoted = replica.client();
    eventually(SOON, || promoted.info("role") == "master");
    eventually(SOON, || client.info("role") == "slave" && client.info("master_link_status") == "up");
    for client in [&mut client, &mut promoted] {
        assert_eq!(client.call("CONFIG REWRITE"), "OK");
    }
    assert_locks_are_held(&mut promoted, tokens);

    // 4. Upgrade the old master.
    master.kill();
    master.restart_in_place(&[]);
    master.catch_up_with(&replica);
    let mut client = master.client();
    assert_eq!(client.info("role"), "slave");
    assert_locks_are_held(&mut client, tokens);
    let mut waiter = replica.waiter("RLOCK.ACQUIRE job w BLOCK 0");
    assert_eq!(promoted.call("RLOCK.RELEASE job a"), 0);
    assert!(waiter.reply().int() > tokens[1]);
}
