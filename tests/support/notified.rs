//! Waiting with NOTIFY: the reply comes on a channel, but the request looks to a test like one that
//! blocks.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::client::{Client, Command};
use super::reply::Reply;

/// Whether waiters use NOTIFY instead of blocking. The whole suite runs in both modes.
pub fn is_asked_for() -> bool {
    std::env::var_os("RLOCK_WAIT_BY_NOTIFY").is_some()
}

const LONGEST_CHANNEL: usize = 512;

/// Request ids rise across all tests, and start above the ids that tests choose.
static LAST_ID: AtomicU64 = AtomicU64::new(1_000_000);

/// A subscriber that waits for the message of one request.
pub struct Awaited {
    subscriber: Client,
    id: String,
}

impl Awaited {
    /// Waits for the message, and returns it as the reply that a blocked connection would get.
    pub fn reply_within(&mut self, patience: Duration) -> io::Result<Reply> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let push = self.subscriber.reply_within(left)?;
            let [kind, _, message] = push.array() else { panic!("not a message: {push:?}") };
            if kind.text() == "sunsubscribe" {
                return Ok(Reply::Error("UNBLOCKED the slot of the channel has gone".to_owned()));
            }
            if let Some(reply) = translated(&message.text(), &self.id) {
                return Ok(reply);
            }
        }
    }
}

fn translated(message: &str, id: &str) -> Option<Reply> {
    let (what, rest) = message.split_once(' ')?;
    let (of, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    if of != id {
        return None;
    }
    // `<tokens> for <ms>`: a blocked connection gets the milliseconds only with TIMED.
    let granted = rest.split_once(" for ").map_or(rest, |(tokens, _)| tokens);
    let mut tokens: Vec<Reply> = granted.split(' ').filter_map(|token| token.parse().ok()).map(Reply::Int).collect();
    Some(match what {
        "granted" if tokens.len() == 1 => tokens.remove(0),
        "granted" => Reply::Array(tokens),
        "nil" => Reply::Nil,
        "error" => Reply::Error(rest.to_owned()),
        _ => panic!("unknown message: {message}"),
    })
}

/// Sends the request with NOTIFY. Returns the reply if it came at once, and otherwise the pending
/// message.
pub fn ask(client: &mut Client, mut subscriber: Client, mut command: Command) -> Result<Reply, Box<Awaited>> {
    let words: Vec<String> = command.0.iter().map(|word| String::from_utf8_lossy(word).to_uppercase()).collect();
    let is_cluster = subscriber.info("cluster_enabled") == "1";
    // The channel has the same name as the key and is therefore in the same slot, which matters in
    // a cluster.
    let mut channel = command.0[if words[0].contains(".M") { 2 } else { 1 }].clone();
    channel.truncate(LONGEST_CHANNEL);
    let subscribe: &[u8] = if is_cluster { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
    subscriber.call([subscribe, &channel]);
    let given = words.iter().position(|word| word == "REQ").map(|at| words[at + 1].clone());
    let id = given.clone().unwrap_or_else(|| LAST_ID.fetch_add(1, Ordering::Relaxed).to_string());
    command.0.extend([b"NOTIFY".to_vec(), channel]);
    if given.is_none() {
        command.0.extend([b"REQ".to_vec(), id.clone().into_bytes()]);
    }
    match client.call(command) {
        Reply::Text(status) if status == b"WAITING" => Err(Box::new(Awaited { subscriber, id })),
        reply => Ok(reply),
    }
}
