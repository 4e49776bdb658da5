//! One blocking connection that sends commands and reads replies.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::resp::{self, Frame, Inbox};

/// Longer than any reply takes in most measurements.
const PATIENCE: Duration = Duration::from_secs(60);
/// Enough for the replies to a whole batch of commands.
const READ_BYTES: usize = 64 * 1024;
/// How many bytes of skipped replies are read at once.
const SKIP_BYTES: usize = 1024 * 1024;

/// A connection on which the caller waits for its replies.
pub struct Connection {
    stream: TcpStream,
    inbox: Inbox,
}

impl Connection {
    /// Connects without Nagle's delay.
    ///
    /// # Errors
    ///
    /// If no server listens there.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, inbox: Inbox::new(READ_BYTES) })
    }

    /// Sends encoded commands. The caller has to read one reply for each.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send(&mut self, commands: &[u8]) -> Result<()> {
        self.stream.write_all(commands).context("cannot send to the server")
    }

    /// Sets the time to wait for a reply or for room to send. The defaults are a minute for replies
    /// and no limit for sending.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        self.stream.set_read_timeout(Some(patience)).context("cannot set a timeout")?;
        self.stream.set_write_timeout(Some(patience)).context("cannot set a timeout")
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    ///
    /// If the connection ends, or the server does not reply in time.
    pub fn reply(&mut self) -> Result<Frame<'_>> {
        self.try_reply()?.context("the server did not reply in time")
    }

    /// Waits for the next reply; `None` if the server does not reply in time. The reply may still
    /// arrive later.
    ///
    /// # Errors
    ///
    /// If the connection ends.
    pub fn try_reply(&mut self) -> Result<Option<Frame<'_>>> {
        loop {
            if let Some(len) = self.inbox.next_len()? {
                return Ok(Some(self.inbox.take(len)));
            }
            match self.inbox.fill_from(&mut self.stream) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) => return Err(error).context("no reply from the server"),
            }
        }
    }

    /// Reads and discards replies, until the data ends with `end`. For replies that are too long to
    /// be parsed.
    ///
    /// # Errors
    ///
    /// Those of [`Connection::reply`].
    pub fn skip_to(&mut self, end: &[u8]) -> Result<()> {
        let mut chunk = vec![0; SKIP_BYTES];
        let mut tail = Vec::new();
        while !tail.ends_with(end) {
            let count = self.stream.read(&mut chunk).context("no reply from the server")?;
            if count == 0 {
                bail!("the server closed the connection");
            }
            tail.extend_from_slice(&chunk[..count]);
            tail.drain(..tail.len().saturating_sub(end.len()));
        }
        Ok(())
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Errors
    ///
    /// Those of [`Connection::send`] and [`Connection::reply`].
    pub fn call(&mut self, arguments: &[&[u8]]) -> Result<Frame<'_>> {
        self.send(&resp::command(arguments))?;
        self.reply()
    }
}
