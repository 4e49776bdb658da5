//! Many requests that wait over few connections with BLOCK … NOTIFY: each gets one message, in
//! queue order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::support::{Client, Command, Server, assert_silent, at_length, message, subscriber};

const NAMES: usize = 100;
const CONNECTIONS: usize = 20;
/// How many requests one connection sends before the next connection's turn.
const BATCH: usize = 100;

/// Waiting requests. Request `index` is for the key `index % NAMES`, and has its own owner and the
/// id `index + 1`.
struct Crowd {
    server: Server,
    control: Client,
    /// Each connection gets its messages on its own channel.
    askers: Vec<Client>,
    subscribers: Vec<Client>,
    /// The waiting requests of each key, in order.
    queues: Vec<Vec<usize>>,
}

fn asker(index: usize) -> usize {
    index / BATCH % CONNECTIONS
}

fn owner(index: usize) -> String {
    format!("owner-{index:034}")
}

fn release(name: usize, owner: &str) -> Command {
    format!("RLOCK.RELEASE lock:orders:{name:08} {owner}").into()
}

impl Crowd {
    /// Sends all requests, and checks that they wait.
    fn new() -> Self {
        let requests = at_length(20_000, 1_000_000);
        let server = Server::start();
        let mut control = server.client();
        assert_eq!(control.call(format!("CONFIG SET rlock.max-waiters {requests}")), "OK");
        for name in 0..NAMES {
            control.acquire(&format!("lock:orders:{name:08} first PX 86400000"));
        }
        let mut askers: Vec<Client> = (0..CONNECTIONS).map(|_| server.client()).collect();
        let mut subscribers: Vec<Client> = (0..CONNECTIONS).map(|_| server.client()).collect();
        for (number, subscriber) in subscribers.iter_mut().enumerate() {
            subscriber.call(format!("SUBSCRIBE answers:{number}"));
        }
        for first in (0..requests).step_by(BATCH) {
            let asker = asker(first);
            let ask = |index: usize| {
                let (name, owner, id) = (index % NAMES, owner(index), index + 1);
                let options = format!("PX 86400000 BLOCK 0 NOTIFY answers:{asker} REQ {id}");
                format!("RLOCK.ACQUIRE lock:orders:{name:08} {owner} {options}").into()
            };
            let batch: Vec<Command> = (first..first + BATCH).map(ask).collect();
            assert!(
                askers[asker].call_in_one_step(&batch).iter().all(|reply| *reply == "WAITING"),
                "all requests wait"
            );
        }
        assert_eq!(control.info_number("rlock_waiting"), i64::try_from(requests).unwrap());
        let queues = (0..NAMES).map(|name| (name..requests).step_by(NAMES).collect()).collect();
        Self { server, control, askers, subscribers, queues }
    }

    /// Reads one message for each of these requests, in any order. Returns the first word of each
    /// message.
    fn receive(&mut self, requests: &[usize]) -> BTreeMap<usize, String> {
        let mut received = BTreeMap::new();
        for index in requests {
            let message = self.subscribers[asker(*index)].reply().array()[2].text();
            let mut words = message.split(' ');
            let (what, id) = (words.next().unwrap(), words.next().unwrap());
            let ended = id.parse::<usize>().unwrap() - 1;
            assert_eq!(received.insert(ended, what.to_owned()), None, "{ended} got two messages");
        }
        let expected: BTreeSet<usize> = requests.iter().copied().collect();
        assert_eq!(
            received.keys().copied().collect::<BTreeSet<_>>(),
            expected,
            "only requests whose turn it is get messages"
        );
        received
    }

    /// Releases every lock again and again, until no request waits.
    fn grant_all(&mut self) {
        let mut holders = vec!["first".to_owned(); NAMES];
        for round in 0.. {
            let releases: Vec<Command> = holders
                .iter()
                .enumerate()
                .filter(|(_, holder)| !holder.is_empty())
                .map(|(name, holder)| release(name, holder))
                .collect();
            assert!(self.control.call_in_one_step(&releases).iter().all(|reply| *reply == 0), "every holder releases");
            let next: Vec<usize> = self.queues.iter().filter_map(|queue| queue.get(round).copied()).collect();
            if next.is_empty() {
                break;
            }
            assert!(self.receive(&next).values().all(|what| what == "granted"));
            holders = (0..NAMES)
                .map(|name| self.queues[name].get(round).map_or(String::new(), |index| owner(*index)))
                .collect();
        }
        assert_eq!(self.control.info_number("rlock_waiting"), 0);
        assert_eq!(self.control.call("DBSIZE"), 0);
    }
}

#[test]
fn crowd_is_granted_in_order_once_each() {
    Crowd::new().grant_all();
}

#[test]
fn closed_connections_end_their_waits_and_the_others_are_granted_in_order() {
    let mut crowd = Crowd::new();
    crowd.askers.truncate(CONNECTIONS / 2);
    let all: Vec<usize> = crowd.queues.concat();
    let (cut, left): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|index| asker(*index) >= CONNECTIONS / 2);
    assert!(crowd.receive(&cut).values().all(|what| what == "error"));
    assert_eq!(crowd.server.client().info_number("rlock_waiting"), i64::try_from(left.len()).unwrap());
    for queue in &mut crowd.queues {
        queue.retain(|index| asker(*index) < CONNECTIONS / 2);
    }
    crowd.grant_all();
}

/// One connection sends so many requests that ending them takes many turns of the server.
#[test]
fn crowd_that_times_out_together_gets_one_message_each() {
    let requests = at_length(20_000, 200_000);
    let server = Server::start();
    let (mut client, mut messages) = (server.client(), subscriber(&server, "answers"));
    client.acquire("job first PX 86400000");
    assert_eq!(client.call(format!("CONFIG SET rlock.max-waiters {requests}")), "OK");
    let end = Instant::now() + at_length(Duration::from_secs(3), Duration::from_secs(60));
    for first in (0..requests).step_by(BATCH) {
        let left_ms = end.saturating_duration_since(Instant::now()).as_millis();
        let ask = |index: usize| {
            let (owner, id) = (owner(index), index + 1);
            format!("RLOCK.ACQUIRE job {owner} BLOCK {} NOTIFY answers REQ {id}", left_ms.max(1)).into()
        };
        let batch: Vec<Command> = (first..first + BATCH).map(ask).collect();
        assert!(client.call_in_one_step(&batch).iter().all(|reply| *reply == "WAITING"), "all requests wait");
    }
    // No wait ends before this moment.
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    let mut ended = vec![false; requests];
    for _ in 0..requests {
        let message = message(&mut messages);
        let id: usize = message.strip_prefix("nil ").and_then(|id| id.parse().ok()).expect("nil, and an id");
        assert!(!std::mem::replace(&mut ended[id - 1], true), "{id} got two messages");
    }
    assert_eq!(client.info_number("rlock_waiting"), 0);
    assert_silent(&mut messages);
}

#[test]
fn info_reports_the_memory_of_waiters() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job first PX 86400000");
    let before = client.info_number("used_memory");
    let requests = 40_000;
    assert_eq!(client.call(format!("CONFIG SET rlock.max-waiters {requests}")), "OK");
    for first in (0..requests).step_by(BATCH) {
        let ask = |index: usize| {
            format!("RLOCK.ACQUIRE job {} BLOCK 0 NOTIFY answers REQ {}", owner(index), index + 1).into()
        };
        client.call_in_one_step(&(first..first + BATCH).map(ask).collect::<Vec<Command>>());
    }
    let used = client.info_number("used_memory") - before;
    let reported = client.info_number("rlock_waiters_bytes");
    assert!((reported - used).abs() * 4 < used, "INFO reports {reported} bytes, the server uses {used}");
}
