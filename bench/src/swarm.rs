//! Many connections on one thread, each driven by what arrives on it.
//!
//! One thread and one `epoll` serve all connections, so that a thousand clients cost neither a
//! thousand threads nor their wake-ups, and so that two scripts that are compared run over exactly the
//! same client. A [`Script`] sees every reply with the index of its connection and answers by queueing
//! commands on any connection; they leave before the next connection is looked at.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::clock;
use crate::resp::{Frame, Inbox};

/// How long all connections may be silent while a script waits. Nothing here takes that long but a
/// lost hand-over.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);
const EVENTS_PER_POLL: usize = 1024;
/// Little, because there are many connections and their replies are short.
const READ_BYTES: usize = 2048;

/// What the connections of a swarm say.
pub trait Script {
    /// Sends what begins the conversation.
    fn begin(&mut self, outbox: &mut Outbox);

    /// Takes one whole reply that has arrived on `connection`.
    ///
    /// # Errors
    ///
    /// If the reply is not the expected one; that ends the run.
    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()>;

    /// Whether the run may end. Replies that are still under way are seen by the next run.
    fn finished(&self) -> bool;
}

/// What the thread does while nothing has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Idling {
    /// It sleeps, as clients do: what it measures has the time in it that the machine takes to wake it.
    Sleep,
    /// It looks again and again, and so answers as soon as can be. It needs a CPU that nobody else wants.
    Spin,
}

/// The commands that wait to be sent, per connection.
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
    /// If the server or the limit of open files does not allow as many.
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

    /// How many connections there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.streams.len()
    }

    /// Chooses what the thread does in its next runs while nothing has arrived. At first it sleeps.
    pub fn set_idling(&mut self, idling: Idling) {
        self.idling = idling;
    }

    /// Runs `script` until it is finished.
    ///
    /// # Errors
    ///
    /// Those of the script, the end of a connection, and silence on all of them for 20 seconds.
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
                bail!("silence on all connections for {SILENCE_TIMEOUT:?}: someone was not served");
            }
            // Readiness is told once, so every event is served even if the script finishes early.
            for event in &events {
                let Token(index) = event.token();
                self.outbox.touched.push(index);
                self.receive(index, script).with_context(|| format!("on connection {index}"))?;
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Reads all that has arrived on one connection and shows the script each whole reply.
    fn receive(&mut self, index: usize, script: &mut impl Script) -> Result<()> {
        let inbox = &mut self.inboxes[index];
        loop {
            match inbox.fill_from(&mut self.streams[index]) {
                Ok(0) => bail!("the server has closed the connection"),
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

    /// Sends what is queued, as far as the sockets take it; the rest follows when they are writable.
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
