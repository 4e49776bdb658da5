//! Many connections on one thread, driven by the replies that arrive.
//!
//! One thread and one `epoll` serve all connections, so a thousand clients cost neither a thousand
//! threads nor their wake-ups, and compared scripts run over exactly the same client. A [`Script`]
//! sees every reply with the index of its connection, and queues commands on any connection. They
//! are sent before the next connection is served.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::clock;
use crate::resp::{Frame, Inbox};

/// How long all connections may be silent while a script waits. Only a lost hand-over takes that
/// long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);
const EVENTS_PER_POLL: usize = 1024;
/// Small, because there are many connections with short replies.
const READ_BYTES: usize = 2048;

/// The exchange on the connections of a swarm.
pub trait Script {
    /// Sends the first commands.
    fn begin(&mut self, outbox: &mut Outbox);

    /// Handles one complete reply that arrived on `connection`.
    ///
    /// # Errors
    ///
    /// If the reply is not the expected one. This ends the run.
    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()>;

    /// Whether the run may end. The next run receives replies that are still under way.
    fn finished(&self) -> bool;
}

/// How the thread waits while nothing has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Idling {
    /// It sleeps, as most clients do. Latencies then include the time that the machine takes to
    /// wake it.
    Sleep,
    /// It polls all the time, so it answers as soon as possible. It needs a CPU of its own.
    Spin,
}

/// The commands to be sent, per connection.
pub struct Outbox {
    unsent: Vec<Vec<u8>>,
    touched: Vec<usize>,
}

impl Outbox {
    /// Queues an encoded command.
    pub fn push(&mut self, connection: usize, command: &[u8]) {
        self.unsent[connection].extend_from_slice(command);
        self.touched.push(connection);
    }
}

/// The connections.
pub struct Swarm {
    poll: Poll,
    streams: Vec<TcpStream>,
    inboxes: Vec<Inbox>,
    outbox: Outbox,
    idling: Idling,
}

impl Swarm {
    /// Opens `size` connections.
    ///
    /// # Errors
    ///
    /// If the server or the limit of open files does not allow this many connections.
    pub fn connect(address: SocketAddr, size: usize) -> Result<Self> {
        let poll = Poll::new().context("cannot make a poll")?;
        let mut streams = Vec::with_capacity(size);
        for index in 0..size {
            let stream = std::net::TcpStream::connect(address)
                .with_context(|| format!("cannot open connection {index} to {address}"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(index), interest)?;
            streams.push(stream);
        }
        Ok(Self {
            poll,
            streams,
            inboxes: (0..size).map(|_| Inbox::new(READ_BYTES)).collect(),
            outbox: Outbox { unsent: vec![Vec::new(); size], touched: Vec::new() },
            idling: Idling::Sleep,
        })
    }

    /// The number of connections.
    #[must_use]
    pub fn size(&self) -> usize {
        self.streams.len()
    }

    /// Sets what the thread does in the next runs while nothing has arrived. The default is to
    /// sleep.
    pub fn set_idling(&mut self, idling: Idling) {
        self.idling = idling;
    }

    /// Runs `script` until it is finished.
    ///
    /// # Errors
    ///
    /// Those of the script, the end of a connection, and silence on all connections for 20 seconds.
    pub fn run(&mut self, script: &mut impl Script) -> Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        script.begin(&mut self.outbox);
        self.flush()?;
        let poll_timeout = match self.idling {
            Idling::Sleep => SILENCE_TIMEOUT,
            Idling::Spin => Duration::ZERO,
        };
        let mut last_heard = clock::now();
        while !script.finished() {
            match self.poll.poll(&mut events, Some(poll_timeout)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.context("poll failed")?,
            }
            if !events.is_empty() {
                last_heard = clock::now();
            } else if last_heard.elapsed() >= SILENCE_TIMEOUT {
                bail!("silence on all connections for {SILENCE_TIMEOUT:?}: a client was not served");
            }
            // Readiness is reported once, so every event is served even if the script finishes
            // early.
            for event in &events {
                let Token(index) = event.token();
                self.outbox.touched.push(index);
                self.receive(index, script).with_context(|| format!("on connection {index}"))?;
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Reads everything that has arrived on one connection, and passes each complete reply to the
    /// script.
    fn receive(&mut self, index: usize, script: &mut impl Script) -> Result<()> {
        let inbox = &mut self.inboxes[index];
        loop {
            match inbox.fill_from(&mut self.streams[index]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read"),
            }
            while let Some(len) = inbox.next_len()? {
                script.on_reply(index, inbox.take(len), &mut self.outbox)?;
            }
        }
    }

    /// Sends the queued commands as far as the sockets accept them. The rest follows when they are
    /// writable.
    fn flush(&mut self) -> Result<()> {
        while let Some(index) = self.outbox.touched.pop() {
            let unsent = &mut self.outbox.unsent[index];
            while !unsent.is_empty() {
                match self.streams[index].write(unsent) {
                    Ok(count) => drop(unsent.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(error).with_context(|| format!("cannot write on connection {index}"));
                    }
                }
            }
        }
        Ok(())
    }
}
