//! One connection, and the meaning of its answers.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use redis::{Cmd, ConnectionLike, ErrorKind, RedisError, Value};

use crate::history::Outcome;

/// Longer than any wait: a server that is silent for this long hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(40);

/// How many redirections a request follows before the next one counts as its answer.
const MOST_REDIRECTIONS: u32 = 5;

/// Microseconds of this machine's steady clock, which all processes share.
#[must_use]
pub fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let us = Duration::try_from(now).unwrap_or_default().as_micros();
    // 0 stands for a time before everything.
    u64::try_from(us).unwrap_or(u64::MAX).saturating_add(1)
}

/// One connection. In a cluster, requests about a lock follow redirections to another node. The
/// previous connection stays open, because a session may be bound to it.
pub struct Connection {
    inner: redis::Connection,
    address: SocketAddr,
    /// See [`Connection::sent_us`].
    sent_us: u64,
    left: Vec<(SocketAddr, redis::Connection)>,
}

/// How often `insist` tries to connect, and the pause between two attempts.
const MOST_TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

impl Connection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If no server answers there.
    pub fn open(address: SocketAddr) -> Result<Self> {
        Ok(Self { inner: connect(address)?, address, sent_us: 0, left: Vec::new() })
    }

    /// Connects, and retries if necessary: a fault may cut a new connection, and a busy machine may
    /// be slow.
    ///
    /// # Errors
    ///
    /// If no server answers there within several seconds.
    pub fn insist(address: SocketAddr) -> Result<Self> {
        let mut tries = 0;
        loop {
            match Self::open(address) {
                Err(_) if tries < MOST_TRIES => tries += 1,
                opened => return opened,
            }
            thread::sleep(BETWEEN_TRIES);
        }
    }

    /// Sends a command, and waits for the answer. Words are separated by spaces.
    ///
    /// # Errors
    ///
    /// The error of the server or of the connection.
    pub fn ask(&mut self, words: &str) -> Result<Value> {
        let answer = command(words).query::<Value>(&mut self.inner);
        answer.with_context(|| format!("the answer to {words}"))
    }

    /// Sends a command whose words contain spaces, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The error of the server or of the connection.
    pub fn ask_words(&mut self, words: &[&str]) -> Result<Value> {
        let mut command = Cmd::new();
        command.arg(words);
        command.query::<Value>(&mut self.inner).with_context(|| format!("the answer to {}", words.join(" ")))
    }

    /// Sends a command without waiting for the answer.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send(&mut self, words: &str) -> Result<()> {
        Ok(self.inner.send_packed_command(&command(words).get_packed_command())?)
    }

    /// Sends two commands in one packet: the second has arrived when the answer to the first is
    /// sent.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send_both(&mut self, first: &str, second: &str) -> Result<()> {
        let packed = [first, second].map(|words| command(words).get_packed_command()).concat();
        Ok(self.inner.send_packed_command(&packed)?)
    }

    /// Receives the next answer to a command that was sent.
    pub fn receive(&mut self) -> Outcome {
        outcome(self.receive_value())
    }

    /// Receives the next answer, uninterpreted.
    ///
    /// # Errors
    ///
    /// The error of the server or of the connection.
    pub fn receive_value(&mut self) -> Result<Value, RedisError> {
        self.inner.recv_response().and_then(Value::extract_error)
    }

    /// Sends a command about a lock, follows redirections, and waits for the answer.
    pub fn call(&mut self, words: &str) -> Outcome {
        outcome(self.call_value(words))
    }

    /// Like `call`, with the answer uninterpreted.
    ///
    /// # Errors
    ///
    /// The error of the server or of the connection.
    pub fn call_value(&mut self, words: &str) -> Result<Value, RedisError> {
        let command = command(words);
        self.sent_us = now_us();
        let mut answer = command.query::<Value>(&mut self.inner);
        for _ in 0..MOST_REDIRECTIONS {
            let Some((node, is_asking)) = answer.as_ref().err().and_then(redirection) else { break };
            // If the node cannot be reached, the redirection is the answer: nothing was done.
            if self.go_to(node).is_err() || (is_asking && self.ask("ASKING").is_err()) {
                break;
            }
            self.sent_us = now_us();
            answer = command.query::<Value>(&mut self.inner);
        }
        answer
    }

    /// When the last call was sent to the node that answered it. The nodes that redirected it did
    /// nothing.
    pub(super) fn sent_us(&self) -> u64 {
        self.sent_us
    }

    fn go_to(&mut self, node: SocketAddr) -> Result<()> {
        if node == self.address {
            return Ok(());
        }
        let known = self.left.iter().position(|(address, connection)| *address == node && connection.is_open());
        let next = match known {
            Some(at) => self.left.swap_remove(at).1,
            None => connect(node)?,
        };
        let before = std::mem::replace(&mut self.inner, next);
        self.left.push((std::mem::replace(&mut self.address, node), before));
        Ok(())
    }

    /// Asks a node of a cluster for its own address. The address that the connection was opened
    /// with may belong to a network that leads elsewhere by now.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn resolve_address(&mut self) -> Result<SocketAddr> {
        let Value::Array(mut words) = self.ask("CONFIG GET port")? else {
            bail!("the answer to CONFIG GET is no array")
        };
        self.address.set_port(text(words.pop().context("CONFIG GET shows no port")?)?.parse()?);
        Ok(self.address)
    }

    /// The address of the current node.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the connection was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.inner.is_open()
    }
}

fn connect(address: SocketAddr) -> Result<redis::Connection> {
    let client = redis::Client::open(format!("redis://{address}"))?;
    let connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(READ_TIMEOUT))?;
    Ok(connection)
}

/// The node that an error redirects to, and whether the redirection is for this request only
/// (`ASK`).
fn redirection(error: &RedisError) -> Option<(SocketAddr, bool)> {
    let (node, _) = error.redirect_node()?;
    Some((node.parse().ok()?, error.code() == Some("ASK")))
}

fn command(words: &str) -> Cmd {
    let mut command = Cmd::new();
    for word in words.split_ascii_whitespace() {
        command.arg(word);
    }
    command
}

/// The meaning of an answer. The caller knows which numbers are tokens.
pub fn outcome(answer: Result<Value, RedisError>) -> Outcome {
    match answer {
        Ok(Value::Int(number)) => Outcome::Number(u64::try_from(number).unwrap_or(0)),
        Ok(Value::Nil) => Outcome::Nil,
        Ok(Value::SimpleString(status)) if status == "WAITING" => Outcome::Waiting,
        Ok(_) => Outcome::Unknown,
        Err(error) if error.kind() == ErrorKind::Io || error.is_connection_dropped() || error.is_timeout() => {
            Outcome::Unknown
        }
        Err(error) => match error.code() {
            Some("NOTOWNER") => Outcome::NotOwner,
            Some("SUPERSEDED") => Outcome::Unblocked,
            Some("UNBLOCKED") => unblocked(error.detail().unwrap_or_default()),
            _ => Outcome::Refused,
        },
    }
}

/// The meaning of UNBLOCKED. From a server that became a replica it leaves the outcome open: the
/// lock may have been granted in the same turn, and a replica undoes nothing.
pub(super) fn unblocked(why: &str) -> Outcome {
    if why.contains("replica") { Outcome::Unknown } else { Outcome::Unblocked }
}

/// Reads a number as a token.
#[must_use]
pub fn as_grant(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Number(token) => Outcome::Granted(token),
        other => other,
    }
}

/// The section of INFO about roles.
pub(super) fn info(connection: &mut Connection) -> Result<String> {
    text(connection.ask("INFO replication")?)
}

/// The text of an answer.
pub(super) fn text(value: Value) -> Result<String> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::VerbatimString { text, .. } => Ok(text),
        other => Err(anyhow!("{other:?} is not a text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unblocked_by_a_demotion_leaves_the_outcome_unknown() {
        assert_eq!(unblocked("this server is a replica now"), Outcome::Unknown);
        let by_the_server = "force unblock from blocking operation, instance state changed (master -> replica?)";
        assert_eq!(unblocked(by_the_server), Outcome::Unknown);
        assert_eq!(unblocked("the request was cancelled"), Outcome::Unblocked);
    }
}
