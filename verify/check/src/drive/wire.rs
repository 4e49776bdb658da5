//! One connection, and what its answers mean.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use redis::{Cmd, ConnectionLike, ErrorKind, RedisError, Value};

use crate::history::Outcome;

/// Longer than any wait: a server that is silent for so long hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(40);

/// How often a request is sent on before its last redirection is taken for the answer.
const MOST_REDIRECTIONS: u32 = 5;

/// Microseconds of the steady clock of this machine: the same in all processes.
#[must_use]
pub fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let us = Duration::try_from(now).unwrap_or_default().as_micros();
    // 0 is before everything.
    u64::try_from(us).unwrap_or(u64::MAX).saturating_add(1)
}

/// One connection. In a cluster, what is asked about a lock goes to another node if that is the answer; the connection that was left is
/// kept, since a session may be bound to it.
pub struct Connection {
    inner: redis::Connection,
    address: SocketAddr,
    /// See [`Connection::sent_us`].
    sent_us: u64,
    left: Vec<(SocketAddr, redis::Connection)>,
}

/// How often it is tried to connect where that has to succeed, and how long the pause is in between.
const MOST_TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

impl Connection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If nobody answers there.
    pub fn open(address: SocketAddr) -> Result<Self> {
        Ok(Self { inner: connect(address)?, address, sent_us: 0, left: Vec::new() })
    }

    /// Connects, if need be at a later try: a fault may cut a connection as it is made, and a busy machine may take long.
    ///
    /// # Errors
    ///
    /// If nobody answers there for seconds.
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

    /// Asks something in words, and waits for the answer.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
    pub fn ask(&mut self, words: &str) -> Result<Value> {
        let answer = command(words).query::<Value>(&mut self.inner);
        answer.with_context(|| format!("the answer to {words}"))
    }

    /// Asks something whose words have spaces.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
    pub fn ask_words(&mut self, words: &[&str]) -> Result<Value> {
        let mut command = Cmd::new();
        command.arg(words);
        command.query::<Value>(&mut self.inner).with_context(|| format!("the answer to {}", words.join(" ")))
    }

    /// Sends something, and does not wait for the answer.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send(&mut self, words: &str) -> Result<()> {
        Ok(self.inner.send_packed_command(&command(words).get_packed_command())?)
    }

    /// Sends two things in one packet: the second has come when the first is answered.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send_both(&mut self, first: &str, second: &str) -> Result<()> {
        let packed = [first, second].map(|words| command(words).get_packed_command()).concat();
        Ok(self.inner.send_packed_command(&packed)?)
    }

    /// The next answer to what was sent.
    pub fn receive(&mut self) -> Outcome {
        outcome(self.receive_value())
    }

    /// The same, as it came.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
    pub fn receive_value(&mut self) -> Result<Value, RedisError> {
        self.inner.recv_response().and_then(Value::extract_error)
    }

    /// Asks for something about a lock.
    pub fn call(&mut self, words: &str) -> Outcome {
        outcome(self.call_value(words))
    }

    /// The same, and the answer as it came.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
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

    /// When the last call was sent. What was sent on to another node did nothing before, and waits there anew.
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

    /// Asks the node of a cluster where it is. The address that was connected to may be that of a network, which leads elsewhere by now.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn ask_where_it_leads(&mut self) -> Result<SocketAddr> {
        let Value::Array(mut words) = self.ask("CONFIG GET port")? else { bail!("CONFIG GET is an array") };
        self.address.set_port(text(words.pop().context("a node has a port")?)?.parse()?);
        Ok(self.address)
    }

    /// Where it leads.
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

/// Where an error sends the client, and whether for this request only.
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

/// What an answer means. Which number is a token the caller knows.
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

/// What UNBLOCKED means. From a server that has become a replica it says nothing: the lock may have been granted in that very turn, and a
/// replica takes nothing back.
pub(super) fn unblocked(why: &str) -> Outcome {
    if why.contains("replica") { Outcome::Unknown } else { Outcome::Unblocked }
}

/// The number that an answer is a token.
#[must_use]
pub fn as_grant(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Number(token) => Outcome::Granted(token),
        other => other,
    }
}

/// What INFO says of roles.
pub(super) fn info(connection: &mut Connection) -> Result<String> {
    text(connection.ask("INFO replication")?)
}

/// A text that was answered.
pub(super) fn text(value: Value) -> Result<String> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::VerbatimString { text, .. } => Ok(text),
        other => Err(anyhow!("{other:?} is no text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demotion_leaves_open_what_was_granted() {
        assert_eq!(unblocked("this server is a replica now"), Outcome::Unknown);
        let by_the_server = "force unblock from blocking operation, instance state changed (master -> replica?)";
        assert_eq!(unblocked(by_the_server), Outcome::Unknown);
        assert_eq!(unblocked("the request was cancelled"), Outcome::Unblocked);
    }
}
