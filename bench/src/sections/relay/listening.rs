//! Connections that receive pushes.

use anyhow::Result;
use rlock_bench::resp::{self, Frame};
use rlock_bench::swarm::{Outbox, Script, Swarm};

/// The channel of the members that share a connection.
pub(super) fn channel(connection: usize) -> String {
    format!("relay:{connection}")
}

/// Subscribes each connection of a swarm to its own channel, so that it receives pushes.
pub fn listen(swarm: &mut Swarm) -> Result<()> {
    swarm.run(&mut Listening { connections: swarm.size(), heard: 0 })
}

struct Listening {
    connections: usize,
    heard: usize,
}

impl Script for Listening {
    fn begin(&mut self, outbox: &mut Outbox) {
        for connection in 0..self.connections {
            outbox.push(connection, &resp::command(&[b"HELLO", b"3"]));
            outbox.push(connection, &resp::command(&[b"SUBSCRIBE", channel(connection).as_bytes()]));
        }
    }

    fn on_reply(&mut self, _connection: usize, _reply: Frame<'_>, _outbox: &mut Outbox) -> Result<()> {
        self.heard += 1;
        Ok(())
    }

    fn finished(&self) -> bool {
        // HELLO and SUBSCRIBE each have one reply.
        self.heard == 2 * self.connections
    }
}
