//! The tool under the settings of each profile of docs/operations/failover.md, "Failover without two
//! holders": their longest lease is shorter than the default lease of `run`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::acl::rules_of;
use crate::commands::{Desk, Running, hear_signals, text, wait_for_end_of, wait_for_holder, wait_for_waiters};
use crate::eventually;
use crate::places::at;
use crate::support::{Sentinels, Server, blocks};

/// The lines of the two profiles: of one server, and of a master with replicas.
fn profiles() -> [Vec<String>; 2] {
    let blocks = blocks(Path::new("../docs/operations/failover.md"));
    let profiles = blocks.into_iter().map(|block| block.text).filter(|text| text.contains("rlock.max-lease-ms"));
    let profiles = profiles.map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    profiles.collect::<Vec<_>>().try_into().expect("two profiles")
}

/// The address of the servers, for a user and password such as `tool:pw@`.
type Address<'a> = &'a dyn Fn(&str) -> String;

/// Starts the tool. The text after ` -- ` is one argument of `sh -c`.
fn start(url: &str, line: &str) -> Running {
    let (options, command) = line.split_once(" -- ").expect("a command");
    let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
    tool.env("RLOCK_URL", url).args(options.split(' ')).args(["--", "sh", "-c", command]);
    tool.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    hear_signals(&mut tool);
    Running::of(tool)
}

/// Checks the tool at servers with such settings. `more` are the ACL rules for this kind of address.
fn check(address: Address, server: &Server, more: &[String]) {
    let url = address("");
    commands_run_longer_than_the_longest_lease(address, server, more);

    let mut holder = start(&url, "run wanted --owner alice -- sleep 600");
    wait_for_holder(server, "wanted");
    let mut waiter = start(&url, "run wanted --owner bob -- true");
    wait_for_waiters(server, "wanted", 1);
    for (line, status, shown) in [
        ("show wanted", 0, "alice"),
        ("ls", 0, "wanted"),
        ("top --once", 0, "wanted"),
        ("wait wanted --wait 0", 124, ""),
        ("run wanted --wait 0 -- true", 124, ""),
        ("release --force wanted", 0, ""),
        ("run daily --at-least 1h -- true", 0, ""),
        ("wait daily --wait 0", 124, ""),
        ("release --force daily", 0, ""),
        ("wait daily", 0, ""),
    ] {
        let (ended, output) = at(&url, line);
        assert_eq!(ended, Some(status), "{line}");
        assert!(output.contains(shown), "{line}: {output}");
    }
    assert_eq!(waiter.status(), 0);
    assert_eq!(holder.status(), 123);
}

/// With INFO and without it, by which the client library learns the longest lease before it asks.
fn commands_run_longer_than_the_longest_lease(address: Address, server: &Server, more: &[String]) {
    let mut client = server.client();
    let longest_ms = client.info_number("rlock_max_lease_ms");
    let lasts_s = longest_ms / 1000 + 4;
    let kinds = ["run", "run --fair", "run --read", "run --write", "run --semaphore"];
    let mut running = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        let rules = [rules_of(kind), more.to_vec()].concat().join(" ");
        client.call(format!("ACL SETUSER tool{number} on >pw resetchannels -@all {rules}"));
        client.call(format!("ACL SETUSER informed{number} on >pw resetchannels -@all {rules} +info"));
        let kind = kind.replace("--semaphore", "--semaphore 1");
        for user in ["tool", "informed"] {
            let key = format!("lock:{user}{number}");
            let url = address(&format!("{user}{number}:pw@"));
            running
                .push((key.clone(), start(&url, &format!("{kind} {key} --wait 120s -- sleep {lasts_s}; echo done"))));
        }
    }
    for (key, running) in &mut running {
        eventually(|| client.holder(key).is_some() || !running.is_running());
    }
    // Lowered while the commands run.
    client.call("CONFIG SET rlock.max-lease-ms 3000");
    for (key, running) in running {
        let output = running.output();
        assert_eq!(output.status.code(), Some(0), "{key}: {output:?}");
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("done\n".to_owned(), String::new()), "{key}");
    }
    client.call(format!("CONFIG SET rlock.max-lease-ms {longest_ms}"));
}

/// A command under the lock `k` that records SIGTERM and ignores it.
struct Stubborn {
    desk: Desk,
    running: Running,
    command: i32,
}

impl Stubborn {
    fn start(url: &str) -> Self {
        let desk = Desk::new();
        let (asked, id) = (desk.path("asked"), desk.path("id"));
        let script = format!("trap 'echo > {asked}' TERM; echo $$ > {id}; while :; do sleep 0.02; done");
        let running = start(url, &format!("run k -- {script}"));
        let command = desk.process("id");
        Self { desk, running, command }
    }

    /// Waits until rlock has ended the command, which it does before the lease in force expires.
    fn wait_for_end(&mut self) {
        wait_for_end_of(self.command);
        assert_eq!(self.desk.read("asked"), "\n", "SIGTERM came before SIGKILL");
    }
}

#[test]
fn tool_works_under_the_settings_for_one_server() {
    let [lines, _] = profiles();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let server = Server::with(&lines);
    let address = |user: &str| format!("redis://{user}127.0.0.1:{}/", server.port());
    check(&address, &server, &[]);
    let mut stubborn = Stubborn::start(&address(""));
    server.while_stopped(|| stubborn.wait_for_end());
    assert_eq!(stubborn.running.status(), 123);
}

#[test]
fn tool_works_under_the_settings_for_a_master_with_replicas() {
    let [_, lines] = profiles();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let mut primary = Server::with(&lines);
    let replicas = [0; 2].map(|_| Server::replica_of(&primary, &lines));
    let sentinels = Sentinels::of(primary.port(), replicas.len());
    let hosts: Vec<_> = sentinels.ports().map(|port| format!("127.0.0.1:{port}")).collect();
    let address = |user: &str| format!("redis+sentinel://{user}{}/fleet", hosts.join(","));
    check(&address, &primary, &rules_of("redis+sentinel://host/NAME"));
    let mut stubborn = Stubborn::start(&address(""));
    primary.kill();
    stubborn.wait_for_end();
    assert_eq!(stubborn.running.status(), 123);
    let during_failover = start(&address(""), "run k --wait 120s -- true").output();
    assert_eq!(during_failover.status.code(), Some(0), "{during_failover:?}");
    primary.restart_in_place(&[]);
}
