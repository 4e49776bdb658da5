//! The effects that one server propagates, read step by step and compared word by word.

use std::time::{Duration, SystemTime};

use super::eventually;
use super::propagation::propagated;
use super::server::Server;

const SOON: Duration = Duration::from_secs(5);

/// Deadlines are written in whole milliseconds of the wall clock.
const ROUNDING_MS: u64 = 2;

/// Reads what a server propagates, step by step.
pub struct Journal {
    pub server: Server,
    seen: usize,
    /// Start of the current step, in unix milliseconds.
    since_ms: u64,
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    now.as_millis() as u64
}

impl Journal {
    #[track_caller]
    pub fn new() -> Journal {
        let server = Server::with_aof(&["rlock.fair-grace-ms 60000", "lazyfree-lazy-expire no"]);
        Journal { server, seen: 0, since_ms: unix_ms() }
    }

    /// Asserts that exactly these commands were propagated since the last call, in this order. It
    /// ignores MULTI, EXEC and the name of the effect command. `@5000` matches a deadline 5000 ms
    /// in the future, and `#` any number.
    #[track_caller]
    pub fn expect(&mut self, what: &str, expected: &[&str]) {
        let mut lines = Vec::new();
        eventually(SOON, || {
            lines = propagated(&self.server)[self.seen..].to_vec();
            let actual = lines.iter().filter(|words| !is_multi_or_exec(words)).count();
            // An unexpected extra command is there too by now: the same command or timer call
            // writes it.
            actual >= expected.len()
        });
        self.seen += lines.len();
        let actual: Vec<_> = lines.iter().filter(|words| !is_multi_or_exec(words)).map(|words| show(words)).collect();
        let fits = actual.len() == expected.len()
            && actual.iter().zip(expected).all(|(actual, expected)| self.is_line(actual, expected));
        assert!(fits, "{what}:\n actual     {actual:#?}\n expected {expected:#?}");
        self.since_ms = unix_ms();
    }

    /// Ignores everything propagated so far.
    pub fn skip(&mut self) {
        self.seen = propagated(&self.server).len();
        self.since_ms = unix_ms();
    }

    fn is_line(&self, actual: &str, expected: &str) -> bool {
        let (actual, expected): (Vec<_>, Vec<_>) = (actual.split(' ').collect(), expected.split(' ').collect());
        actual.len() == expected.len()
            && actual.iter().zip(expected).all(|(actual, expected)| match expected.split_once('@') {
                Some((before, ahead_ms)) => {
                    let ahead_ms: u64 = ahead_ms.parse().expect("a number");
                    let range = self.since_ms + ahead_ms..=unix_ms() + ahead_ms + ROUNDING_MS;
                    let at_ms = actual.strip_prefix(before).and_then(|actual| actual.parse().ok());
                    at_ms.is_some_and(|at_ms| range.contains(&at_ms))
                }
                None if expected == "#" => actual.bytes().all(|byte| byte.is_ascii_digit()),
                None => *actual == expected,
            })
    }
}

/// Whether this is MULTI or EXEC.
pub fn is_multi_or_exec(words: &[Vec<u8>]) -> bool {
    words == [b"MULTI"] || words == [b"EXEC"]
}

/// Formats a command as one line, without the name of the effect command.
pub fn show(words: &[Vec<u8>]) -> String {
    let words = words.strip_prefix(&[b"RLOCK.APPLY".to_vec()]).unwrap_or(words);
    words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
}
