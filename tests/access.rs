//! ACL rules: the table in docs/operations/acl.md, tested with users who try to do more than they may.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Client, Reply, Server, eventually, skipped_here, version_of};

const SOON: Duration = Duration::from_secs(30);

/// A row of the table.
struct Row {
    patterns: Vec<String>,
    only_reads: bool,
    is_keyless: bool,
    categories: BTreeSet<String>,
}

fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_lowercase)
}

fn rows() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations/acl.md");
    let text = fs::read_to_string(path).expect("the operator's page");
    let table = text.lines().skip_while(|line| *line != "| command | its keys | category |").skip(2);
    table
        .map_while(|line| line.strip_prefix("| "))
        .map(|line| {
            let cells: Vec<_> = line.split(" | ").collect();
            Row {
                patterns: quoted(cells[0]).collect(),
                only_reads: cells[1] == "read",
                is_keyless: cells[1].starts_with("none;"),
                categories: quoted(cells[2]).collect(),
            }
        })
        .collect()
}

/// Finds the row of a command. In the table `….` stands for any family.
fn row<'r>(rows: &'r [Row], command: &str) -> &'r Row {
    let (_, name) = command.split_once('.').expect("a family");
    let any = format!("….{name}");
    let mut found = rows.iter().filter(|row| row.patterns.iter().any(|pattern| pattern == command || *pattern == any));
    let first = found.next().unwrap_or_else(|| panic!("{command} is not in the table"));
    assert!(found.next().is_none(), "{command} is in the table twice");
    first
}

fn commands(client: &mut Client) -> Vec<String> {
    let reply = client.call("COMMAND LIST FILTERBY MODULE rlock");
    reply.array().iter().map(|name| name.text().to_lowercase()).collect()
}

/// A complete command on the key `lock:1`.
fn example(command: &str) -> String {
    let mode = if command.starts_with("rrwlock") { " READ" } else { "" };
    let rest = match command.split_once('.').expect("a family").1 {
        "macquire" | "mrelease" | "mrenew" | "mcancel" => return format!("{command} 2 lock:1 lock:2 a"),
        "top" => return command.to_owned(),
        "apply" => " released 1",
        "init" | "resize" => " 3",
        "acquire" | "release" | "renew" | "holds" => return format!("{command} lock:1 a{mode}"),
        "cancel" | "drain" => " a",
        _ => "",
    };
    format!("{command} lock:1{rest}")
}

/// A connection of a user with exactly these rules.
#[track_caller]
fn user(server: &Server, rules: &str) -> Client {
    let mut client = server.client();
    assert_eq!(client.call(format!("ACL SETUSER worker reset on >secret {rules}")), "OK", "{rules}");
    assert_eq!(client.call("AUTH worker secret"), "OK");
    client
}

fn is_refused(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(line) if line.starts_with("NOPERM "))
}

/// Whether modules can add ACL categories on this server: since Redis 7.4 and Valkey 8.
#[track_caller]
fn modules_have_categories(client: &mut Client) -> bool {
    let (is_valkey, version) = version_of(client);
    version >= if is_valkey { vec![8] } else { vec![7, 4] }
}

#[test]
fn commands_require_the_key_permissions_in_the_table() {
    let server = Server::start();
    let rows = rows();
    for command in commands(&mut server.client()) {
        let row = row(&rows, &command);
        let example = example(&command);
        for (keys, suffices) in [
            ("%RW~lock:*", true),
            ("%R~lock:*", row.only_reads),
            ("%W~lock:*", false),
            ("%RW~lock:2 %R~lock:1", row.only_reads),
            ("%RW~other:*", false),
        ] {
            let reply = user(&server, &format!("{keys} +{command}")).call(example.as_str());
            let suffices = suffices || row.is_keyless;
            assert_eq!(is_refused(&reply), !suffices, "{keys}: {example}: {reply:?}");
        }
        let reply = user(&server, "~* -@all +get").call(example.as_str());
        assert!(is_refused(&reply), "without the command: {example}: {reply:?}");
    }
}

#[test]
fn commands_are_in_the_acl_categories_in_the_table() {
    let server = Server::start();
    let mut client = server.client();
    if client.info("redis_version").starts_with("7.0.") {
        return skipped_here("a module's commands are in no category");
    }
    let has_own = modules_have_categories(&mut client);
    let rows = rows();
    for command in commands(&mut client) {
        let info = client.call(format!("COMMAND INFO {command}"));
        let actual: BTreeSet<_> = info.array()[0].array()[6].array().iter().map(Reply::text).collect();
        let expected = &row(&rows, &command).categories;
        assert!(expected.is_subset(&actual), "{command}: {expected:?} {actual:?}");
        for category in ["@read", "@write", "@dangerous", "@blocking"] {
            assert_eq!(actual.contains(category), expected.contains(category), "{command} {category}");
        }
        assert_eq!(actual.contains("@rlock"), has_own, "{command}");
    }
}

#[test]
fn users_without_dangerous_commands_cannot_override_an_owner() {
    let server = Server::start();
    let mut operator = server.client();
    if operator.info("redis_version").starts_with("7.0.") {
        return skipped_here("a module's commands are in no category");
    }
    let mut rules = vec!["~* +@write +@read -@dangerous", "~* +@all -@dangerous"];
    if modules_have_categories(&mut operator) {
        rules.push("~* -@all +@rlock -@dangerous");
    } else {
        skipped_here("modules have no category of their own");
    }
    operator.call("RSEMAPHORE.INIT permits 3");
    for rules in rules {
        let mut worker = user(&server, rules);
        for (key, family) in [("mutex", "RLOCK"), ("fair", "RFAIRLOCK"), ("rwlock", "RRWLOCK")] {
            let mode = if family == "RRWLOCK" { " WRITE" } else { "" };
            operator.call(format!("{family}.ACQUIRE {key} operator{mode} PX 600000")).int();
            worker.call(format!("{family}.FORCERELEASE {key}")).expect_error("NOPERM");
            assert_eq!(worker.call(format!("{family}.ACQUIRE {key} worker{mode}")), Reply::Nil);
            assert_eq!(worker.call(format!("{family}.HOLDS {key} operator{mode}")), 1);
            assert_eq!(operator.call(format!("{family}.FORCERELEASE {key}")), 1);
        }
        for attack in ["FORCERELEASE permits", "RESIZE permits 9", "DRAIN permits worker"] {
            worker.call(format!("RSEMAPHORE.{attack}")).expect_error("NOPERM");
        }
        worker.call("RSEMAPHORE.ACQUIRE permits worker").int();
        assert_eq!(worker.call("RSEMAPHORE.RELEASE permits worker"), 0);
        assert_eq!(operator.call("RSEMAPHORE.INFO permits").field("available"), 3);
    }
}

#[test]
fn clients_cannot_run_the_effect_command_even_with_all_permissions() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("job a PX 600000");
    let mut everything = user(&server, "~* +@all");
    let facts = format!("released {token}");
    everything.call([b"RLOCK.APPLY".as_slice(), b"job", facts.as_bytes()]).expect_error("ERR");
    assert_eq!(client.call("RLOCK.HOLDS job a"), 1);
}

/// For servers that can limit a user to some databases. A grant after a wait requires the same
/// permissions as an immediate one.
#[test]
fn user_limited_to_one_database_can_wait_in_it() {
    let server = Server::start();
    let rules = "~* &* +@all db=1";
    if matches!(server.client().call(format!("ACL SETUSER worker reset on >secret {rules}")), Reply::Error(_)) {
        return skipped_here("users have no databases");
    }
    let mut holder = server.client();
    assert_eq!(holder.call("SELECT 1"), "OK");
    let mut worker = user(&server, rules);
    assert_eq!(worker.call("SELECT 1"), "OK");
    for (family, key, wait) in [
        ("RLOCK", "k", "RLOCK.ACQUIRE k b"),
        ("RFAIRLOCK", "fair", "RFAIRLOCK.ACQUIRE fair b"),
        ("RLOCK", "one", "RLOCK.MACQUIRE 2 one two b"),
    ] {
        assert!(holder.call(format!("{family}.ACQUIRE {key} a")).int() > 0);
        worker.send(format!("{wait} BLOCK 0"));
        eventually(SOON, || server.client().info_number("rlock_waiting") == 1);
        assert_eq!(holder.call(format!("{family}.RELEASE {key} a")), 0);
        let answer = worker.reply();
        assert!(!matches!(answer, Reply::Error(_)), "{wait}: {answer:?}");
    }
}
