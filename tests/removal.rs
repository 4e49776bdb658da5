//! Removing the module: without locks the server starts without the module and keeps all other
//! data.

use std::fs;
use std::time::Duration;

use crate::support::{Client, Server, WallClock, eventually, snapshots_may_have_the_last_token};

const SOON: Duration = Duration::from_secs(20);

/// Writes data that is not a lock, and creates and deletes locks of all kinds.
#[track_caller]
fn use_and_leave(client: &mut Client) {
    client.call("SET text here");
    client.call("RPUSH list a b c");
    client.acquire("mutex a");
    client.acquire_fair("fair a");
    client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 60000");
    client.call("RRWLOCK.ACQUIRE rwlock a READ");
    client.call("RSEMAPHORE.INIT semaphore 3");
    client.call("RSEMAPHORE.ACQUIRE semaphore a");
    for key in ["mutex", "fair", "rwlock", "semaphore"] {
        assert_eq!(client.call(format!("DEL {key}")), 1);
    }
}

#[track_caller]
fn assert_data_is_intact(client: &mut Client) {
    assert_eq!(client.call("GET text"), "here");
    assert_eq!(client.call("LLEN list"), 3);
    assert_eq!(client.call("DBSIZE"), 2);
    client.call("RLOCK.ACQUIRE job a").expect_error("ERR");
}

#[track_caller]
fn assert_starts_without_the_module(mut server: Server, leave: impl FnOnce(&mut Client)) {
    let mut client = server.client();
    use_and_leave(&mut client);
    leave(&mut client);
    server.kill();
    server.try_restart_without_module().unwrap_or_else(|log| panic!("the server did not restart:\n{log}"));
    assert_data_is_intact(&mut server.client());
}

#[test]
fn snapshot_without_locks_loads_without_the_module() {
    assert_starts_without_the_module(Server::start(), |client| assert_eq!(client.call("SAVE"), "OK"));
    assert_starts_without_the_module(Server::start(), |client| {
        client.call("BGSAVE");
        eventually(SOON, || client.info("rdb_bgsave_in_progress") == "0" && client.info("rdb_saves") == "1");
    });
    // A lock in an earlier file or payload must not affect the next file.
    assert_starts_without_the_module(Server::start(), |client| {
        client.acquire("job a");
        client.call("DUMP job").bytes();
        assert_eq!(client.call("SAVE"), "OK");
        assert_eq!(client.call("DEL job"), 1);
        assert_eq!(client.call("SAVE"), "OK");
    });
}

#[test]
fn append_only_file_rewritten_without_locks_loads_without_the_module() {
    for preamble in ["yes", "no"] {
        let server = Server::with_aof(&[&format!("aof-use-rdb-preamble {preamble}")]);
        assert_starts_without_the_module(server, Client::rewrite_append_only_file);
    }
}

#[test]
fn snapshot_with_a_lock_does_not_load_without_the_module() {
    for make in ["RLOCK.ACQUIRE job a PX 600000", "RSEMAPHORE.INIT job 3"] {
        let mut server = Server::start();
        let mut client = server.client();
        client.call(make);
        assert_eq!(client.call("SAVE"), "OK");
        server.kill();
        let log = server.try_restart_without_module().expect_err("the snapshot has a lock");
        assert!(log.contains("RedisLock"), "{log}");
        fs::remove_file(server.folder().join("dump.rdb")).expect("a snapshot");
        server.restart();
    }
}

#[test]
fn replica_without_the_module_copies_a_server_without_locks() {
    let primary = Server::start();
    use_and_leave(&mut primary.client());
    let upstream = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = Server::without_module(&[upstream.as_str()]);
    replica.catch_up_with(&primary);
    assert_data_is_intact(&mut replica.client());
}

#[test]
fn token_ahead_of_the_clock_stays_in_snapshots_but_not_in_plain_append_only_files() {
    let clock = WallClock::new();
    let mut server = Server::with_wall_clock(&clock, &["appendonly yes", "appendfsync always"]);
    let mut client = server.client();
    use_and_leave(&mut client);
    clock.step_forward(Duration::from_secs(3600));
    client.acquire("job a");
    client.call("RLOCK.RELEASE job a");
    clock.step_forward(Duration::ZERO);
    for (preamble, loads) in [("yes", !snapshots_may_have_the_last_token(&mut client)), ("no", true)] {
        client.call(format!("CONFIG SET aof-use-rdb-preamble {preamble}"));
        client.rewrite_append_only_file();
        let copy = copy_without_module(&server);
        assert_eq!(copy.is_ok(), loads, "{preamble}: {:?}", copy.err());
        if let Ok(copy) = copy {
            assert_data_is_intact(&mut copy.client());
        }
    }
    server.assert_alive();
}

/// A server without the module on a copy of another server's append-only file.
fn copy_without_module(server: &Server) -> Result<Server, String> {
    let mut copy = Server::without_module(&["appendonly yes"]);
    copy.kill();
    let [from, to] = [server, &copy].map(|server| server.folder().join("appendonlydir"));
    fs::remove_dir_all(&to).expect("a folder of the server's");
    fs::create_dir(&to).expect("a folder in a temporary folder");
    for file in fs::read_dir(from).expect("an append-only file") {
        let file = file.expect("a readable folder");
        fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
    match copy.try_restart() {
        Ok(()) => Ok(copy),
        Err(log) => {
            fs::remove_dir_all(&to).expect("a folder of the server's");
            copy.restart();
            Err(log)
        }
    }
}

#[test]
fn settings_and_acl_rules_of_the_module_prevent_a_start_without_it() {
    for line in ["rlock.max-waiters 10", "user worker on nopass ~* +rlock.acquire"] {
        let mut server = Server::with(&[line]);
        server.kill();
        server.try_restart_without_module().expect_err(line);
        server.remove_line(line);
        server.restart();
    }
}

#[test]
fn module_cannot_be_unloaded_with_or_without_locks() {
    let server = Server::with(&["enable-module-command local"]);
    let mut client = server.client();
    use_and_leave(&mut client);
    for is_held in [false, true] {
        if is_held {
            client.acquire("job a");
        }
        let refusal = client.call("MODULE UNLOAD rlock");
        assert!(refusal.expect_error("ERR").contains("data types"), "{refusal:?}");
        assert_eq!(client.call("RLOCK.HOLDS job a"), i64::from(is_held));
    }
}

#[test]
fn module_commands_need_enable_module_command() {
    let server = Server::start();
    for command in ["MODULE LOAD /nowhere.so", "MODULE UNLOAD rlock"] {
        let refusal = server.client().call(command);
        assert!(refusal.expect_error("ERR").contains("enable-module-command"), "{refusal:?}");
    }
}
