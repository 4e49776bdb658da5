//! One blocking connection: commands out, replies in, nothing in between.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::resp::{self, Frame, Inbox};

/// Longer than any reply may take in a measurement.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Enough for the replies to a whole batch of commands.
const READ_BYTES: usize = 64 * 1024;

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
    /// If nobody listens there.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream, inbox: Inbox::new(READ_BYTES) })
    }

    /// Sends encoded commands. The caller reads as many replies.
    ///
    /// # Errors
    ///
    /// If the connection is gone.
    pub fn send(&mut self, commands: &[u8]) -> Result<()> {
        self.stream.write_all(commands).context("cannot send to the server")
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    ///
    /// If the connection ends or the server is silent for a minute.
    pub fn reply(&mut self) -> Result<Frame<'_>> {
        loop {
            if let Some(len) = self.inbox.next_len()? {
                return Ok(self.inbox.take(len));
            }
            let count = self.inbox.fill_from(&mut self.stream).context("no reply from the server")?;
            if count == 0 {
                bail!("the server has closed the connection");
            }
        }
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
