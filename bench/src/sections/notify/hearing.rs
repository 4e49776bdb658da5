//! The messages to the subscribers of a crowd, each of which is checked.

use anyhow::{Context, Result, ensure};
use rlock_bench::notice::{Notice, Outcome};
use rlock_bench::resp::{self, Frame};
use rlock_bench::swarm::{Outbox, Script};

use super::crowd::{RELEASERS, Shape, channel, first_holder, key, owner};

/// The number of locks that are handed over at the same time.
const AT_ONCE: usize = 1000;

/// Subscribes each connection to its channel.
pub struct Subscribing {
    connections: usize,
    subscribed: usize,
}

impl Subscribing {
    pub fn new(connections: usize) -> Self {
        Self { connections, subscribed: 0 }
    }
}

impl Script for Subscribing {
    fn begin(&mut self, outbox: &mut Outbox) {
        for connection in 0..self.connections {
            outbox.push(connection, &resp::command(&[b"SUBSCRIBE", channel(connection).as_bytes()]));
        }
    }

    fn on_reply(&mut self, _connection: usize, reply: Frame<'_>, _outbox: &mut Outbox) -> Result<()> {
        reply.expect_array(3)?;
        self.subscribed += 1;
        Ok(())
    }

    fn finished(&self) -> bool {
        self.subscribed == self.connections
    }
}

/// The requests that have ended. Each must end once, on the channel that it named.
pub struct Ended {
    shape: Shape,
    has_ended: Vec<bool>,
    count: usize,
}

impl Ended {
    pub fn new(shape: Shape) -> Self {
        Self { shape, has_ended: vec![false; shape.requests], count: 0 }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    fn hear(&mut self, connection: usize, frame: Frame<'_>) -> Result<(usize, Outcome)> {
        let notice = Notice::from_frame(frame)?;
        let index = notice.index(self.shape.requests)?;
        ensure!(self.shape.asker(index) == connection, "the answer to request {index} came on another channel");
        ensure!(!self.has_ended[index], "request {index} got two answers");
        self.has_ended[index] = true;
        self.count += 1;
        Ok((index, notice.outcome))
    }
}

/// The same number of messages without locks: the clients publish them, as many at a time as locks
/// are handed over. The pauses of other clients meanwhile are the server's own part of the pauses
/// during hand-overs.
pub struct Telling {
    shape: Shape,
    told: usize,
    heard: usize,
    answered: usize,
}

impl Telling {
    pub fn new(shape: Shape) -> Self {
        Self { shape, told: 0, heard: 0, answered: 0 }
    }

    fn tell_next(&mut self, outbox: &mut Outbox) {
        if self.told < self.shape.requests {
            let (teller, asker) = (self.shape.connections + self.told % RELEASERS, self.shape.asker(self.told));
            self.told += 1;
            let message = format!("granted {} {} for 30000", self.told, self.told);
            outbox.push(teller, &resp::command(&[b"PUBLISH", channel(asker).as_bytes(), message.as_bytes()]));
        }
    }
}

impl Script for Telling {
    fn begin(&mut self, outbox: &mut Outbox) {
        for _ in 0..AT_ONCE {
            self.tell_next(outbox);
        }
    }

    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        if connection >= self.shape.connections {
            self.answered += 1;
            return reply.expect(b":1\r\n");
        }
        Notice::from_frame(reply)?;
        self.heard += 1;
        self.tell_next(outbox);
        Ok(())
    }

    fn finished(&self) -> bool {
        self.heard == self.shape.requests && self.answered == self.shape.requests
    }
}

/// Requests that the server ends on its own, all with one outcome.
pub struct Ending<'e> {
    ended: &'e mut Ended,
    outcome: Outcome,
    until: usize,
}

impl<'e> Ending<'e> {
    /// Listens until `until` requests have ended in total.
    pub fn new(ended: &'e mut Ended, outcome: Outcome, until: usize) -> Self {
        Self { ended, outcome, until }
    }
}

impl Script for Ending<'_> {
    fn begin(&mut self, _outbox: &mut Outbox) {}

    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, _outbox: &mut Outbox) -> Result<()> {
        let (index, outcome) = self.ended.hear(connection, reply)?;
        ensure!(outcome == self.outcome, "request {index} ended with {outcome:?}, expected {:?}", self.outcome);
        Ok(())
    }

    fn finished(&self) -> bool {
        self.ended.count == self.until
    }
}

/// Releases every lock, first for its first holder and then for each waiter that is granted it.
pub struct Draining<'e> {
    ended: &'e mut Ended,
    /// The next request of each name, if any is left.
    next: Vec<usize>,
    /// The number of locks that their first holders have released.
    begun: usize,
    /// The number of locks without remaining waiters.
    served: usize,
    last_token: Vec<u64>,
    releases: usize,
    released: usize,
}

impl<'e> Draining<'e> {
    /// Requests that have already ended are not in the queues.
    pub fn new(ended: &'e mut Ended) -> Self {
        let names = ended.shape.names;
        let mut draining = Self {
            ended,
            next: (0..names).collect(),
            begun: 0,
            served: 0,
            last_token: vec![0; names],
            releases: 0,
            released: 0,
        };
        for name in 0..names {
            draining.skip_ended(name);
        }
        draining
    }

    fn skip_ended(&mut self, name: usize) {
        while self.ended.has_ended.get(self.next[name]) == Some(&true) {
            self.next[name] += self.ended.shape.names;
        }
    }

    fn release(&mut self, name: usize, holder: &str, outbox: &mut Outbox) {
        let releaser = self.ended.shape.connections + self.releases % RELEASERS;
        outbox.push(releaser, &resp::command(&[b"RLOCK.RELEASE", key(name).as_bytes(), holder.as_bytes()]));
        self.releases += 1;
        if self.next[name] >= self.ended.shape.requests {
            self.served += 1;
        }
    }

    /// Begins to hand over more locks while fewer than [`AT_ONCE`] are under way.
    fn begin_some(&mut self, outbox: &mut Outbox) {
        while self.begun < self.ended.shape.names && self.begun - self.served + self.releases - self.released < AT_ONCE
        {
            let name = self.begun;
            self.begun += 1;
            self.release(name, &first_holder(name), outbox);
        }
    }

    fn on_grant(&mut self, index: usize, outcome: Outcome, outbox: &mut Outbox) -> Result<()> {
        let name = index % self.ended.shape.names;
        let Outcome::Granted(token) = outcome else {
            anyhow::bail!("request {index} ended with {outcome:?} instead of a grant");
        };
        ensure!(self.next[name] == index, "request {index} was granted before {}", self.next[name]);
        let last_token = self.last_token.get_mut(name).context("no such name")?;
        ensure!(token > *last_token, "token {token} after {last_token}");
        *last_token = token;
        self.skip_ended(name);
        self.release(name, &owner(index), outbox);
        Ok(())
    }
}

impl Script for Draining<'_> {
    fn begin(&mut self, outbox: &mut Outbox) {
        self.begin_some(outbox);
    }

    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        if connection >= self.ended.shape.connections {
            self.released += 1;
            self.begin_some(outbox);
            return reply.expect(b":0\r\n");
        }
        let (index, outcome) = self.ended.hear(connection, reply)?;
        self.on_grant(index, outcome, outbox)
    }

    fn finished(&self) -> bool {
        let shape = self.ended.shape;
        self.ended.count == shape.requests && self.begun == shape.names && self.released == self.releases
    }
}
