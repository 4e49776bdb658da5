//! Fake servers break the rules that a run checks on its servers. The other rules check what its
//! clients record.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use rlock_check::drive::afterwards::{check_leftovers, check_life};
use rlock_check::drive::parade;
use rlock_check::drive::wire::Connection;
use rlock_check::history::{Key, Kind, Rule, Violation};

/// The answer to each command. The argument is the command's words, joined by spaces.
type Answers = fn(&str) -> String;

/// A server that gives these answers.
fn server(answers: Answers) -> Connection {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    // The thread ends with the connection.
    thread::spawn(move || serve(&listener.accept().expect("a connection").0, answers));
    Connection::open(address).expect("a connection")
}

fn serve(stream: &TcpStream, answers: Answers) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(head) = lines.next() {
        let count: usize = head.trim_start_matches('*').parse().expect("a number of words");
        // The length of each word precedes it.
        let words: Vec<String> = lines.by_ref().take(2 * count).skip(1).step_by(2).collect();
        let is_ours = words.first().is_some_and(|word| word.starts_with('R'));
        let answer = if is_ours { answers(&words.join(" ")) } else { "+OK\r\n".to_owned() };
        let mut stream = stream;
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn broken(violations: &[Violation]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

const NOTHING: &str = "*-1\r\n";
const READONLY: &str = "-READONLY a replica decides nothing\r\n";

/// An answer of INFO, with the fields that the checks read.
fn held_by(owner: &str, lease_ms: u32) -> String {
    let holder = format!("*4\r\n+owner\r\n+{owner}\r\n+lease-ms\r\n:{lease_ms}\r\n");
    format!("*4\r\n+kind\r\n+mutex\r\n+holders\r\n*1\r\n{holder}")
}

fn compared(replica: Answers) -> Vec<Rule> {
    let mut violations = Vec::new();
    let mut master = server(|_| held_by("a", 9000));
    parade::compare(&mut master, &mut server(replica), &mut violations).expect("both answer");
    broken(&violations)
}

#[test]
fn replica_with_another_holder_or_none_is_reported() {
    assert_eq!(compared(|_| held_by("a", 8900)), []);
    // Both take as long as a replica may lag behind.
    let (another, none) =
        (thread::spawn(|| compared(|_| held_by("b", 9000))), thread::spawn(|| compared(|_| NOTHING.to_owned())));
    assert_eq!(another.join().expect("no panic"), [Rule::ReplicaAgrees]);
    assert_eq!(none.join().expect("no panic"), [Rule::ReplicaAgrees]);
}

#[test]
fn replica_that_grants_a_lock_is_reported() {
    let asked = |replica: Answers| {
        let mut violations = Vec::new();
        parade::intrude(&mut server(replica), &mut violations).expect("it answers");
        broken(&violations)
    };
    assert_eq!(asked(|_| READONLY.to_owned()), []);
    assert_eq!(asked(|_| ":5\r\n".to_owned()), [Rule::ReplicaDecidesNothing]);
    assert_eq!(asked(|_| "$-1\r\n".to_owned()), [Rule::ReplicaDecidesNothing], "nil is a decision too");
    let free_only = |words: &str| if words.contains("free") { ":5\r\n" } else { READONLY }.to_owned();
    assert_eq!(asked(free_only), [Rule::ReplicaDecidesNothing]);
}

#[test]
fn lock_held_after_all_clients_left_is_reported() {
    let left = |kind, answers: Answers| {
        let mut violations = Vec::new();
        let key = Key { name: "k".into(), kind, permits: 1 };
        check_leftovers(&mut server(answers), &[key], &mut violations).expect("it answers");
        broken(&violations)
    };
    assert_eq!(left(Kind::Mutex, |_| NOTHING.to_owned()), []);
    assert_eq!(left(Kind::Semaphore, |_| "*4\r\n+kind\r\n+semaphore\r\n+holders\r\n*0\r\n".to_owned()), []);
    assert_eq!(left(Kind::Mutex, |_| held_by("a", 9000)), [Rule::NothingIsLeftOver]);
    assert_eq!(left(Kind::Semaphore, |_| held_by("a", 9000)), [Rule::NothingIsLeftOver]);
}

#[test]
fn server_that_ended_or_logged_a_fault_is_reported() {
    let seen = |is_alive, log| {
        let mut violations = Vec::new();
        check_life("master", is_alive, log, &mut violations);
        broken(&violations)
    };
    assert_eq!(seen(true, "Ready to accept connections\n"), []);
    assert_eq!(seen(false, ""), [Rule::ServerLives]);
    assert_eq!(seen(true, "Ready\nan effect could not be applied\n"), [Rule::ReplicaAgrees]);
    assert_eq!(seen(true, "Ready\nrlock: internal error\n"), [Rule::ServerLives]);
    // The server may have been restarted.
    let crash = "=== REDIS BUG REPORT START: Cut & paste starting from here ===\nRedis 7.0.15 crashed by signal: 11\n";
    assert_eq!(seen(true, crash), [Rule::ServerLives]);
    assert_eq!(seen(true, "=== ASSERTION FAILED ===\n"), [Rule::ServerLives]);
}
