//! Who listens for the answers to requests that wait without a blocked connection (`NOTIFY`).

use std::borrow::Cow;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::wire::unblocked;
use crate::history::Outcome;

/// How long one look at the channel takes.
const LOOK: Duration = Duration::from_millis(200);

/// What a channel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscribes {
    /// A server by itself (`SUBSCRIBE`).
    ToServer,
    /// The node of a cluster that has the slot of the channel (`SSUBSCRIBE`).
    ToShard,
}

/// A subscription to one channel.
pub struct Subscriber {
    stream: TcpStream,
    address: SocketAddr,
    heard: Vec<u8>,
}

impl Subscriber {
    /// Subscribes, and waits until the server has said so.
    ///
    /// # Errors
    ///
    /// If the server does not want to be listened to.
    pub fn open(address: SocketAddr, how: Subscribes, channel: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LOOK))?;
        let verb = if how == Subscribes::ToShard { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        stream.write_all(format!("{verb} {channel}\r\n").as_bytes())?;
        let mut subscriber = Self { stream, address, heard: Vec::new() };
        for _ in 0..25 {
            subscriber.listen()?;
            if let Some(at) = subscriber.position(":1\r\n") {
                // The channel may have left again by now, and that is said behind it.
                subscriber.heard.drain(..at);
                return Ok(subscriber);
            }
        }
        bail!("SUBSCRIBE is not answered");
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was said to the request with an id. `None` if that is nothing yet.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn answer(&mut self, id: u64) -> Result<Option<Outcome>> {
        self.listen()?;
        ensure!(self.position("sunsubscribe").is_none(), "the channel has left with its slot");
        let outcome = if let Some(at) = self.position(&format!("\r\ngranted {id} ")) {
            let token = self.line(at).rsplit(' ').next().and_then(|word| word.parse().ok());
            token.map(Outcome::Granted)
        } else if self.position(&format!("\r\nnil {id}\r\n")).is_some() {
            Some(Outcome::Nil)
        } else {
            let refused = || self.position(&format!("\r\nerror {id} ")).map(|_| Outcome::Refused);
            self.position(&format!("\r\nerror {id} UNBLOCKED ")).map(|at| unblocked(&self.line(at))).or_else(refused)
        };
        // A message is in one packet, but for the end of a line.
        let is_whole = self.heard.ends_with(b"\r\n");
        Ok(outcome.filter(|_| is_whole).inspect(|_| self.heard.clear()))
    }

    /// The line behind an end of a line.
    fn line(&self, end: usize) -> Cow<'_, str> {
        let words = self.heard.get(end..).unwrap_or_default();
        String::from_utf8_lossy(words.split(|byte| *byte == b'\r').nth(1).unwrap_or_default())
    }

    fn position(&self, text: &str) -> Option<usize> {
        self.heard.windows(text.len()).position(|window| window == text.as_bytes())
    }

    fn listen(&mut self) -> Result<()> {
        let mut part = [0; 4096];
        match self.stream.read(&mut part) {
            Ok(0) => bail!("the subscriber's connection has closed"),
            Ok(read) => self.heard.extend(part.get(..read).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
