//! Every example runs, ends by itself, and prints what it should.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::child::{Child, examples};
use crate::support::Server;
use crate::{PATIENCE, support, url};

/// The output of an example that runs alone.
#[track_caller]
fn lines_of(example: &str, arguments: &[&str]) -> Vec<String> {
    Child::run(example, arguments).wait_for_end()
}

/// Removes the last word of a line, which must be a token.
fn without_token(line: &str) -> &str {
    let (rest, token) = line.rsplit_once(' ').expect("a line of several words");
    assert!(token.parse::<u64>().is_ok(), "{line}");
    rest
}

#[test]
fn each_example_is_run_by_a_test() {
    let here = include_str!("examples.rs");
    let run: BTreeSet<_> = here.split('"').map(str::to_owned).collect();
    let forgotten: Vec<_> = examples().into_iter().filter(|example| !run.contains(example)).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
    let readme = include_str!("../README.md");
    let unlisted: Vec<_> =
        examples().into_iter().filter(|example| !readme.contains(&format!("| `{example}` |"))).collect();
    assert!(unlisted.is_empty(), "the README does not list {unlisted:?}");
}

#[test]
fn processes_count_without_losing_a_step() {
    let server = Server::start();
    let mut children: Vec<_> = (0..3).map(|_| Child::run("counter", &[&url(&server)])).collect();
    let mut highest: Vec<u32> = children
        .iter_mut()
        .map(|child| {
            let lines = child.wait_for_end();
            let count = lines[0].strip_prefix("counted 100 times, up to ").unwrap_or_else(|| panic!("{lines:?}"));
            count.parse().expect("a number")
        })
        .collect();
    highest.sort_unstable();
    assert_eq!(highest[2], 300);
    assert_eq!(server.client().call("GET example:counter"), "300");
}

#[test]
fn worker_with_fencing_writes_its_steps() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a name");
    for run in 1..=2 {
        let lines = lines_of("fencing", &[&url(&server), folder, "5"]);
        assert_eq!(lines.iter().filter(|line| line.ends_with(": written")).count(), 3, "{lines:?}");
        assert_eq!(lines.last().map(String::as_str), Some("released"));
        let results = std::fs::read_to_string(format!("{folder}/results")).expect("results");
        assert_eq!(results.lines().count(), 3 * run, "{results}");
    }
}

#[test]
fn candidates_lead_one_after_the_other() {
    let server = Server::start();
    let url = url(&server);
    // The grace is longer than a busy machine delays a process.
    let mut candidates: Vec<_> =
        ["one", "two", "three"].map(|name| Child::run("leader_election", &[&url, name, "50", "10000"])).into();
    let mut terms: Vec<u64> = candidates
        .iter_mut()
        .map(|candidate| {
            let lines = candidate.wait_for_end();
            let said: Vec<_> = lines.iter().map(|line| line.split_once(' ').expect("a name").1).collect();
            assert_eq!(said.len(), 3, "{lines:?}");
            assert_eq!((said[0], without_token(said[1]), said[2]), ("is a candidate", "leads, term", "resigns"));
            said[1].rsplit(' ').next().expect("a word").parse().expect("a token")
        })
        .collect();
    terms.sort_unstable();
    terms.dedup();
    assert_eq!(terms.len(), 3, "each has a term of its own");
    assert_eq!(server.client().call("DBSIZE"), 0);
}

#[test]
fn customers_are_served_in_order_of_arrival() {
    let server = Server::start();
    let lines = lines_of("fair_queue", &[&url(&server)]);
    let come = (1..=5).map(|customer| format!("customer {customer} has come"));
    let served = (1..=5).map(|customer| format!("customer {customer} is served"));
    assert_eq!(lines, come.chain(served).collect::<Vec<_>>());
}

#[test]
fn quorum_is_held_while_a_minority_is_down() {
    let mut servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    servers[2].kill();
    let urls: Vec<_> = servers.iter().map(url).collect();
    let lines = lines_of("quorum", &[&urls[0], &urls[1], &urls[2]]);
    assert_eq!(without_token(&lines[0]), "held on a majority of 3 servers, token");
    assert_eq!(lines[1..], ["worked", "released"]);
    servers[2].restart();
}

#[test]
fn threads_count_without_losing_a_step() {
    let server = Server::start();
    assert_eq!(lines_of("blocking_threads", &[&url(&server)]), ["8 threads counted to 80"]);
}

#[test]
fn readers_share_and_writers_do_not() {
    let server = Server::start();
    let lines = lines_of("read_write", &[&url(&server)]);
    assert_eq!(lines, ["one writes; may another read? false", "two read; may another write? false"]);
    assert_eq!(server.client().call("DBSIZE"), 0);
}

#[test]
fn workers_never_exceed_the_permits() {
    let server = Server::start();
    assert_eq!(lines_of("semaphore", &[&url(&server)]), ["10 workers, at most 3 at a time"]);
}

#[test]
fn nightly_job_is_done_once() {
    let server = Server::start();
    assert_eq!(lines_of("nightly_job", &[&url(&server)]), ["done"]);
    assert_eq!(lines_of("nightly_job", &[&url(&server)]), ["another machine runs it, or has run it"]);
}

#[test]
fn handler_of_a_web_service_locks_its_order() {
    let server = Server::start();
    let mut service = Child::run("web_service", &[&url(&server), "127.0.0.1:0"]);
    let listening = service.wait_for("listening on ");
    let address = listening.rsplit(' ').next().expect("an address");
    let post = |order: u32| {
        let mut connection = TcpStream::connect(address).expect("it listens");
        write!(connection, "POST /orders/{order} HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        answer.split(' ').nth(1).map(str::to_owned).expect("a status")
    };
    server.client().call("RLOCK.ACQUIRE orders:7 stranger PX 600000");
    assert_eq!([post(42), post(7)], ["200", "409"]);
    assert_eq!(without_token(&service.wait_for("shipped")), "shipped 42, token");
    support::eventually(PATIENCE, || server.client().call("EXISTS orders:42") == 0);
}
