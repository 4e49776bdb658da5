//! The steps of servers, owners and time.

use std::fmt;

use crate::kind::Mode;

/// A request of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// ACQUIRE without BLOCK.
    Try(Mode, u32),
    /// ACQUIRE with ONCE, without BLOCK.
    Once(Mode, u32),
    /// ACQUIRE with BLOCK 0 and REQ 1: sent again it is a retry.
    Wait(Mode, u32),
    /// MACQUIRE of both keys, without BLOCK.
    TryBoth,
    /// DRAIN.
    Drain,
    /// RENEW with the token that the owner knows.
    Renew(Mode),
    /// RELEASE.
    Release(Mode),
    /// Closes the connection on which a request waits, or was granted in the last turn.
    Leave,
    /// Closes the connection that the owner's holds are bound to.
    Close,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Time passes, and no server does anything.
    Pass(u64),
    /// A master reads the acknowledgements in its sockets, makes its regular tick, writes a ping
    /// and runs its timer.
    Tick(usize),
    /// Like `Tick`, but before a reading, the second or the third, the master writes a ping, its
    /// replicas receive all of the stream, the second server is promoted and followed, and one tick
    /// of time passes.
    SlowTick(usize, usize),
    /// A replica receives all of its master's stream, and acknowledges it. The master reads the
    /// acknowledgement at its next tick.
    Receive(usize),
    /// A master ticks, its replicas receive all of the stream, and it ticks again: now they follow
    /// it.
    Follow(usize),
    /// Replicas follow a master until their votes count.
    Gain(usize),
    /// A replica becomes a master. It lacks the effects that it has not received.
    Promote(usize),
    /// A server becomes a replica of a master that was promoted later than any that it knows.
    Attach(usize, usize),
    /// A server becomes a replica of a master, whichever it knows: an operator points it there, or it
    /// restarts with an old configuration.
    Return(usize, usize),
    /// A master notices that replicas have left.
    Notice(usize),
    /// Each replica of a master opens a second connection.
    Twin(usize),
    /// A connection that sends a forged acknowledgement.
    Forge(usize),
    /// The settings of a server change.
    Change(usize),
    /// Promotes a replica, attaches the other replicas of its master to it, and lets them follow.
    FailOver(usize),
    /// A server restarts with its data.
    Restart(usize),
    /// A server restarts without its data.
    Lose(usize),
    /// An owner sends a request for a key to a server, which answers it.
    Ask(u8, usize, usize, Ask),
}

/// The first master, its first successor, and the others.
const SERVERS: [&str; 4] = ["A", "P", "C", "D"];

const OWNERS: [&str; 2] = ["X", "Y"];

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, mode, count, option) = match *self {
            Self::Try(mode, count) => ("ACQUIRE", mode, count, ""),
            Self::Once(mode, count) => ("ACQUIRE", mode, count, " ONCE"),
            Self::Wait(mode, count) => ("ACQUIRE", mode, count, " BLOCK REQ 1"),
            Self::TryBoth => ("MACQUIRE", Mode::Exclusive, 1, ""),
            Self::Drain => ("DRAIN", Mode::Exclusive, 1, ""),
            Self::Renew(mode) => ("RENEW", mode, 1, ""),
            Self::Release(mode) => ("RELEASE", mode, 1, ""),
            Self::Leave => return f.write_str("the connection of the wait closes"),
            Self::Close => return f.write_str("the connection of the session closes"),
        };
        f.write_str(word)?;
        match mode {
            Mode::Read => f.write_str(" READ")?,
            Mode::Write => f.write_str(" WRITE")?,
            Mode::Permits if count > 1 => write!(f, " {count} permits")?,
            Mode::Exclusive | Mode::Permits => {}
        }
        f.write_str(option)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Pass(1) => f.write_str("1 tick passes"),
            Self::Pass(ticks) => write!(f, "{ticks} ticks pass"),
            Self::Tick(server) => write!(f, "{} runs", SERVERS[server]),
            Self::SlowTick(server, reading) => {
                let reading = if reading == 2 { "between its readings" } else { "after its first two readings" };
                write!(f, "{} runs slowly: failover to P {reading}", SERVERS[server])
            }
            Self::Receive(server) => write!(f, "{} receives all", SERVERS[server]),
            Self::Follow(server) => write!(f, "{} is followed", SERVERS[server]),
            Self::Gain(server) => write!(f, "{} is followed for the lag", SERVERS[server]),
            Self::Promote(server) => write!(f, "{} is promoted", SERVERS[server]),
            Self::Attach(server, master) => write!(f, "{} moves to {}", SERVERS[server], SERVERS[master]),
            Self::Return(server, master) => write!(f, "{} returns to {}", SERVERS[server], SERVERS[master]),
            Self::Notice(server) => write!(f, "{} notices that replicas have left", SERVERS[server]),
            Self::Twin(server) => write!(f, "each replica of {} opens a second connection", SERVERS[server]),
            Self::Forge(server) => write!(f, "{} gets a forged acknowledgement", SERVERS[server]),
            Self::Change(server) => write!(f, "the settings of {} change", SERVERS[server]),
            Self::FailOver(server) => write!(f, "failover to {}", SERVERS[server]),
            Self::Restart(server) => write!(f, "{} restarts", SERVERS[server]),
            Self::Lose(server) => write!(f, "{} restarts without data", SERVERS[server]),
            Self::Ask(owner, server, key, ask) => {
                write!(f, "{} at {}: {ask}", OWNERS[usize::from(owner)], SERVERS[server])?;
                if key > 0 { f.write_str(" of the second key") } else { Ok(()) }
            }
        }
    }
}
