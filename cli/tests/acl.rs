//! The ACL rules in docs/cli.md: each subcommand works for a user with these rules, and not without
//! one of them. Those in docs/operations/acl.md for the users of replicas and of Sentinel.

use std::process::Stdio;

use crate::commands::{Running, rlock, text};
use crate::eventually;
use crate::support::{Client, Cluster, Reply, Sentinels, Server};

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
    rows_of("../docs/cli.md", "ACL rules")
}

/// The rows of the table under a heading whose first cell begins with code.
fn rows_of(page: &str, heading: &str) -> Vec<Row> {
    let page = std::fs::read_to_string(page).expect("a page");
    let section = page.split(&format!("## {heading}\n")).nth(1).expect("a section");
    let section = section.split("\n## ").next().expect("its text");
    let codes = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")).map(|line| {
        let line = format!("`{}", line.replace("\\|", "¦"));
        let (subcommands, rules) = line.split_once(" | ").expect("two cells");
        let rules = rules.rsplit(" | ").next().expect("the last cell");
        let rules = codes(rules).join(" ").replace('¦', "|");
        Row { subcommands: codes(subcommands), rules: rules.split(' ').map(str::to_owned).collect() }
    });
    rows.collect()
}

/// Where a subcommand runs: the server of `lock:c`, and all servers with users.
struct Place<'a> {
    /// The address, with the user `tool` and the password `pw`.
    url: String,
    database: &'a str,
    server: &'a Server,
    all: Vec<&'a Server>,
}

/// The account of the user.
const ACCOUNT: &str = "tool:pw@127.0.0.1";

impl Place<'_> {
    fn client(&self) -> Client {
        let mut client = self.server.client();
        if !self.database.is_empty() {
            client.call(format!("SELECT {}", self.database));
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
        let mut tool = rlock(self.server, line);
        tool.env("RLOCK_URL", &self.url).stdout(Stdio::piped()).stderr(Stdio::piped());
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

    /// Checks that each of `needed` is necessary for some subcommand.
    fn check_necessary_for_some(&self, needed: &[String], subcommands: &[&str]) {
        for missing in needed {
            let lacks = |subcommand: &str| {
                let rules = [rules_of(subcommand), needed.to_vec()].concat();
                let rest: Vec<_> = rules.into_iter().filter(|rule| rule != missing).collect();
                self.set_rules(&rest);
                !self.allows(subcommand)
            };
            assert!(subcommands.iter().any(|subcommand| lacks(subcommand)), "{missing} is not needed");
        }
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
    let url = format!("redis://{ACCOUNT}:{}", server.port());
    let place = Place { url, database: "", server: &server, all: vec![&server] };
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
    let url = format!("redis://{ACCOUNT}:{}/3", server.port());
    let place = Place { url, database: "3", server: &server, all: vec![&server] };
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
    let server = cluster.primary_of("lock:c");
    let url = format!("redis+cluster://{ACCOUNT}:{}", server.port());
    let place = Place { url, database: "", server, all };
    let more = rules_of("redis+cluster://host");
    for row in rows() {
        let rules = [row.rules, more.clone()].concat();
        for subcommand in row.subcommands {
            place.check(&subcommand, &rules);
        }
    }
    place.check_necessary_for_some(&more, &["run", "show"]);
}

#[test]
fn each_subcommand_works_over_a_unix_socket_with_its_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let server = Server::with(&[&format!("unixsocket {}", socket.display())]);
    let url = format!("redis+unix://{}?user=tool&pass=pw", socket.display());
    let place = Place { url, database: "", server: &server, all: vec![&server] };
    for row in rows() {
        for subcommand in row.subcommands {
            place.check(&subcommand, &row.rules);
        }
    }
}

/// The rules of a user of the servers themselves.
fn rules_of_server(user: &str) -> String {
    let mut rows = rows_of("../docs/operations/acl.md", "Users of the servers themselves").into_iter();
    let row = rows.find(|row| row.subcommands[0] == user);
    row.unwrap_or_else(|| panic!("no row for {user}")).rules.join(" ")
}

/// The sentinels allow only what the tool needs of them.
#[test]
fn each_subcommand_works_with_sentinel_with_its_rules_and_one_more() {
    let primary = Server::start();
    let sentinels = Sentinels::of(primary.port(), 0);
    let allowed = rules_of_server("default");
    for port in sentinels.ports() {
        let mut sentinel = Client::connect(port).expect("a connection");
        sentinel.call(format!("ACL SETUSER default resetkeys resetchannels -@all {allowed}"));
        assert!(matches!(sentinel.call("SENTINEL MASTERS"), Reply::Error(_)), "the rules count");
    }
    let hosts: Vec<_> = sentinels.ports().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redis+sentinel://tool:pw@{}/fleet", hosts.join(","));
    let place = Place { url, database: "", server: &primary, all: vec![&primary] };
    let more = rules_of("redis+sentinel://host/NAME");
    for row in rows() {
        let rules = [row.rules, more.clone()].concat();
        for subcommand in row.subcommands {
            place.check(&subcommand, &rules);
        }
    }
    place.check_necessary_for_some(&more, &["run"]);
}

/// The replica copies the lock, and Sentinel promotes it.
#[test]
fn replicas_and_sentinel_work_with_their_rules() {
    let users = ["masteruser", "auth-user"].map(|user| {
        let rules = rules_of_server(user);
        format!("user {user} on >pw resetchannels -@all {rules}")
    });
    let lines = [users[0].as_str(), &users[1], "masteruser masteruser", "masterauth pw"];
    let mut primary = Server::with(&lines);
    let replica = Server::replica_of(&primary, &lines);
    let token = primary.client().acquire("k me PX 600000");
    replica.catch_up_with(&primary);
    let login = "sentinel auth-user fleet auth-user\nsentinel auth-pass fleet pw\n";
    let sentinels = Sentinels::with(primary.port(), 1, login);
    let clients = primary.client().call("CLIENT LIST").text();
    assert!(clients.contains(" user=masteruser ") && clients.contains(" user=auth-user "), "{clients}");
    primary.kill();
    eventually(|| sentinels.primary() == Some(replica.port()) && replica.has_role("master"));
    assert_eq!(replica.client().holder("k").map(|holder| holder.token), Some(token));
    primary.restart_in_place(&[]);
    eventually(|| primary.has_role("slave") && primary.client().info("master_link_status") == "up");
}
