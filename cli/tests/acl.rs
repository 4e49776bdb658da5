//! The ACL rules in docs/cli.md: each subcommand works for a user with these rules, and not without
//! one of them.

use std::process::Stdio;

use crate::commands::{Running, rlock, text};
use crate::eventually;
use crate::support::{Client, Cluster, Server};

/// Rules whose absence these tests do not notice: `cancel` only ends a wait earlier, and the others
/// only spare the server the list of thousands of holders.
const UNSEEN: [&str; 3] = [".cancel", "+memory|usage", "+rfairlock.holds"];

/// A row of the table: the subcommands, and their rules.
struct Row {
    subcommands: Vec<String>,
    rules: Vec<String>,
}

/// The rows of the table under the heading "ACL rules".
fn table() -> Vec<Row> {
    let page = std::fs::read_to_string("../docs/cli.md").expect("a page");
    let section = page.split("## ACL rules\n").nth(1).expect("a section").split("\n## ").next().expect("its text");
    let codes = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")).map(|line| {
        let line = format!("`{}", line.replace("\\|", "¦"));
        let (subcommands, rules) = line.split_once(" | ").expect("two cells");
        let rules = codes(rules).join(" ").replace('¦', "|");
        Row { subcommands: codes(subcommands), rules: rules.split(' ').map(str::to_owned).collect() }
    });
    rows.collect()
}

/// Where a subcommand runs: the server of `lock:c`, and all servers with users.
struct Place<'a> {
    scheme: &'a str,
    path: &'a str,
    server: &'a Server,
    all: Vec<&'a Server>,
}

impl Place<'_> {
    fn client(&self) -> Client {
        let mut client = self.server.client();
        if !self.path.is_empty() {
            client.call(format!("SELECT {}", self.path));
        }
        client
    }

    /// Gives the user exactly these rules.
    fn set_rules(&self, rules: &[String]) {
        for server in &self.all {
            let mut client = server.client();
            client.call("ACL DELUSER tool");
            client.call(format!("ACL SETUSER tool on >pw resetchannels -@all {}", rules.join(" ")));
        }
    }

    /// Starts the tool as the user.
    fn start(&self, line: &str) -> Running {
        let url = format!("{}://tool:pw@127.0.0.1:{}/{}", self.scheme, self.server.port(), self.path);
        let mut tool = rlock(self.server, line);
        tool.env("RLOCK_URL", url.trim_end_matches('/')).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::of(tool)
    }

    /// Whether a subcommand does its work for the user.
    fn allows(&self, subcommand: &str) -> bool {
        let mut client = self.client();
        client.call("DEL lock:c");
        if subcommand.starts_with("run") {
            let succeeds = |running: Running| {
                let output = running.output();
                output.status.code() == Some(0) && output.stderr.is_empty()
            };
            let line = format!("{} lock:c --wait 60s -- true", subcommand.replace("--semaphore", "--semaphore 1"));
            if !succeeds(self.start(&line)) {
                return false;
            }
            let acquire = match subcommand {
                "run --fair" => "RFAIRLOCK.ACQUIRE lock:c other PX 600000",
                "run --read" | "run --write" => "RRWLOCK.ACQUIRE lock:c other WRITE PX 600000",
                "run --semaphore" => "RSEMAPHORE.ACQUIRE lock:c other PX 600000",
                _ => "RLOCK.ACQUIRE lock:c other PX 600000",
            };
            client.call(acquire).int();
            let mut waiting = self.start(&line);
            eventually(|| client.waiting_owners("lock:c").len() == 1 || !waiting.is_running());
            client.call("RLOCK.FORCERELEASE lock:c");
            return succeeds(waiting);
        }
        client.acquire("lock:c alice PX 600000");
        let mut waiter = self.client();
        waiter.send("RLOCK.ACQUIRE lock:c bob BLOCK 0");
        eventually(|| client.waiting_owners("lock:c").len() == 1);
        let (line, status, shown) = match subcommand {
            "show" => ("show lock:c", 0, "bob"),
            "wait" => ("wait lock:c --wait 0", 124, ""),
            "ls" => ("ls", 0, "lock:c"),
            "top" => ("top --once", 0, "lock:c"),
            "release" => ("release --force lock:c", 0, ""),
            other => panic!("unknown subcommand {other}"),
        };
        let output = self.start(line).output();
        output.status.code() == Some(status) && text(&output.stdout).contains(shown)
    }

    fn check(&self, subcommand: &str, rules: &[String]) {
        self.set_rules(rules);
        assert!(self.allows(subcommand), "{subcommand} with {rules:?}");
    }

    /// Checks that each of `needed` is necessary among the rules.
    fn check_necessary(&self, subcommand: &str, rules: &[String], needed: &[String]) {
        for missing in needed.iter().filter(|rule| !UNSEEN.iter().any(|unseen| rule.ends_with(unseen))) {
            let rest: Vec<_> = rules.iter().filter(|rule| *rule != missing).cloned().collect();
            self.set_rules(&rest);
            assert!(!self.allows(subcommand), "{subcommand} without {missing}");
        }
    }
}

/// The rules of the row for one subcommand.
pub fn rules_of(subcommand: &str) -> Vec<String> {
    let row = table().into_iter().find(|row| row.subcommands.iter().any(|name| name == subcommand));
    row.unwrap_or_else(|| panic!("no row for {subcommand}")).rules
}

/// The rows for the address of one server, without the additions for Sentinel and clusters.
fn rows() -> impl Iterator<Item = Row> {
    table().into_iter().filter(|row| !row.subcommands[0].contains("redis"))
}

#[test]
fn each_subcommand_works_with_exactly_its_rules() {
    let server = Server::start();
    let place = Place { scheme: "redis", path: "", server: &server, all: vec![&server] };
    let mut subcommands: Vec<String> = Vec::new();
    for row in rows() {
        for subcommand in row.subcommands {
            place.check(&subcommand, &row.rules);
            place.check_necessary(&subcommand, &row.rules, &row.rules);
            subcommands.push(subcommand);
        }
    }
    let all =
        ["run", "run --fair", "run --read", "run --write", "run --semaphore", "show", "wait", "ls", "top", "release"];
    assert_eq!(subcommands.len(), all.len());
    assert!(all.iter().all(|name| subcommands.iter().any(|subcommand| subcommand == name)), "{subcommands:?}");
}

#[test]
fn each_subcommand_works_in_another_database_with_its_rules_and_one_more() {
    let server = Server::start();
    let place = Place { scheme: "redis", path: "3", server: &server, all: vec![&server] };
    let more = rules_of("redis://host/db");
    for row in rows() {
        let rules = [row.rules, more.clone()].concat();
        for subcommand in row.subcommands {
            place.check(&subcommand, &rules);
            place.check_necessary(&subcommand, &rules, &more);
        }
    }
}

#[test]
fn each_subcommand_works_in_a_cluster_with_its_rules_and_a_few_more() {
    let cluster = Cluster::start();
    let all = cluster.nodes().iter().collect();
    let place = Place { scheme: "redis+cluster", path: "", server: cluster.primary_of("lock:c"), all };
    let more = rules_of("redis+cluster://host");
    for row in rows() {
        let rules = [row.rules, more.clone()].concat();
        for subcommand in row.subcommands {
            place.check(&subcommand, &rules);
        }
    }
    for missing in &more {
        let lacks = |subcommand: &str| {
            let rules = [rules_of(subcommand), more.clone()].concat();
            let rest: Vec<_> = rules.into_iter().filter(|rule| rule != missing).collect();
            place.set_rules(&rest);
            !place.allows(subcommand)
        };
        assert!(lacks("run") || lacks("show"), "{missing} is not needed");
    }
}
