//! A subscriber for the answers to requests that wait without a blocked connection (`NOTIFY`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::wire::unblocked;
use crate::history::Outcome;

/// How long one read of the channel waits.
const LOOK: Duration = Duration::from_millis(200);

/// The kind of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscribes {
    /// On a server outside a cluster (`SUBSCRIBE`).
    ToServer,
    /// On the node of a cluster that has the slot of the channel (`SSUBSCRIBE`).
    ToShard,
}

/// A subscription to one channel.
pub struct Subscriber {
    stream: TcpStream,
    address: SocketAddr,
    /// Received bytes that are no whole line yet.
    heard: Vec<u8>,
    /// The first answer to each request.
    answers: HashMap<u64, Outcome>,
    answered_twice: Vec<u64>,
}

impl Subscriber {
    /// Subscribes, and waits until the server has confirmed it.
    ///
    /// # Errors
    ///
    /// If the server refuses the subscription.
    pub fn open(address: SocketAddr, how: Subscribes, channel: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LOOK))?;
        let verb = if how == Subscribes::ToShard { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        stream.write_all(format!("{verb} {channel}\r\n").as_bytes())?;
        let (heard, answers, answered_twice) = (Vec::new(), HashMap::new(), Vec::new());
        let mut subscriber = Self { stream, address, heard, answers, answered_twice };
        for _ in 0..25 {
            subscriber.listen()?;
            if let Some(at) = subscriber.position(":1\r\n") {
                // The slot of the channel may have moved away by now. The message about that
                // follows, and is kept.
                subscriber.heard.drain(..at);
                return Ok(subscriber);
            }
        }
        bail!("SUBSCRIBE was not answered");
    }

    /// The server that it listens to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The answer to the request with an id; `None` if it has not arrived yet.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn answer(&mut self, id: u64) -> Result<Option<Outcome>> {
        self.listen()?;
        while let Some(end) = self.position("\r\n") {
            let line = String::from_utf8_lossy(self.heard.get(..end).unwrap_or_default()).into_owned();
            self.heard.drain(..end + 2);
            ensure!(line != "sunsubscribe", "the channel left with its slot");
            if let Some((id, outcome)) = said(&line) {
                match self.answers.entry(id) {
                    Entry::Vacant(first) => drop(first.insert(outcome)),
                    Entry::Occupied(_) => self.answered_twice.push(id),
                }
            }
        }
        Ok(self.answers.get(&id).copied())
    }

    /// The requests that got more than one answer, since the last call.
    pub fn take_answered_twice(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.answered_twice)
    }

    fn position(&self, text: &str) -> Option<usize> {
        self.heard.windows(text.len()).position(|window| window == text.as_bytes())
    }

    fn listen(&mut self) -> Result<()> {
        let mut part = [0; 4096];
        match self.stream.read(&mut part) {
            Ok(0) => bail!("the subscriber's connection closed"),
            Ok(read) => self.heard.extend(part.get(..read).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Parses a message: the request, and its answer. `None` if the line is no message.
fn said(line: &str) -> Option<(u64, Outcome)> {
    let (verb, rest) = line.split_once(' ')?;
    let (id, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let outcome = match verb {
        "granted" => {
            let (tokens, _) = rest.split_once(" for ")?;
            Outcome::Granted(tokens.rsplit(' ').next()?.parse().ok()?)
        }
        "nil" => Outcome::Nil,
        "error" if rest.starts_with("SUPERSEDED ") => Outcome::Unblocked,
        "error" if rest.starts_with("UNBLOCKED ") => unblocked(line),
        "error" => Outcome::Refused,
        _ => return None,
    };
    Some((id.parse().ok()?, outcome))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_message_is_read_and_a_second_one_is_reported() -> Result<()> {
        let server = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(server.local_addr()?)?;
        stream.set_read_timeout(Some(LOOK))?;
        let (mut there, address) = server.accept()?;
        let (heard, answers, answered_twice) = (Vec::new(), HashMap::new(), Vec::new());
        let mut subscriber = Subscriber { stream, address, heard, answers, answered_twice };
        let mut say = |text: &str| {
            let message = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n{text}\r\n", text.len());
            there.write_all(message.as_bytes())
        };
        say("granted 7 k 42 for 900")?;
        say("nil 8")?;
        assert_eq!(subscriber.answer(7)?, Some(Outcome::Granted(42)));
        assert_eq!(subscriber.answer(8)?, Some(Outcome::Nil));
        assert_eq!(subscriber.answer(9)?, None);
        assert_eq!(subscriber.take_answered_twice(), []);
        say("granted 7 k 42 for 900")?;
        say("error 9 OOM the memory is full")?;
        assert_eq!(subscriber.answer(9)?, Some(Outcome::Refused));
        assert_eq!(subscriber.take_answered_twice(), [7]);
        assert_eq!(subscriber.take_answered_twice(), []);
        Ok(())
    }
}
