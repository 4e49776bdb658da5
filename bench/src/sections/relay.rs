//! One thing that many connections want and pass on: a lock, or a token in a list.
//!
//! At any time one member holds the thing and a fixed number of others wait for it. Who has given it
//! back goes to the end of the idle members, and the first of the idle asks; so the members take part
//! equally often however many wait at once, and the length of the queue is the only difference between
//! a long and a short one.
//!
//! A run ends with the holder *parked*: it has the thing, and gives it back when the next run begins.
//! Between two runs the server therefore has nothing to do, which is when its CPU time can be read.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rlock_bench::clock::{self, ThreadTimes};
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::Server;
use rlock_bench::swarm::{Outbox, Script, Swarm};

use crate::names;

const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
const TOKEN: &[u8] = b"token";

/// What is passed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prize {
    /// A lock, by RLOCK.ACQUIRE … BLOCK 0 and RLOCK.RELEASE.
    Lock,
    /// The only element of a list, by BLPOP and RPUSH.
    ListToken,
}

impl Prize {
    fn key(self) -> &'static [u8] {
        match self {
            Self::Lock => b"relay:lock",
            Self::ListToken => b"relay:list",
        }
    }

    fn ask(self, member: usize, lease_ms: u64) -> Vec<u8> {
        let owner = names::owner_id(member);
        let lease_ms = lease_ms.to_string();
        let (key, owner, lease_ms) = (self.key(), owner.as_bytes(), lease_ms.as_bytes());
        match self {
            Self::Lock => resp::command(&[b"RLOCK.ACQUIRE", key, owner, b"PX", lease_ms, b"BLOCK", b"0"]),
            Self::ListToken => resp::command(&[b"BLPOP", key, b"0"]),
        }
    }

    fn give_back(self, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => {
                let owner = names::owner_id(member);
                resp::command(&[b"RLOCK.RELEASE", self.key(), owner.as_bytes()])
            }
            Self::ListToken => resp::command(&[b"RPUSH", self.key(), TOKEN]),
        }
    }

    /// What RPUSH or RLOCK.RELEASE answers: one element in the list, no holds left.
    fn given_back_reply(self) -> &'static [u8] {
        match self {
            Self::Lock => b":0\r\n",
            Self::ListToken => b":1\r\n",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Idle,
    Asking,
    Holding,
    GivingBack,
}

struct Member {
    state: State,
    ask: Vec<u8>,
    give_back: Vec<u8>,
}

/// The conversation of all members; connection `i` of the swarm is member `i`.
struct Relay {
    prize: Prize,
    members: Vec<Member>,
    idle: VecDeque<usize>,
    /// How many members shall not be idle: the holder and those who wait. 0 lets all run out.
    busy_wanted: usize,
    holder: Option<usize>,
    /// How many have given the thing back and do not know yet that it was taken from them.
    giving_back: usize,
    last_token: i64,
    /// What BLPOP answers: the list and the token, which is encoded as a command is.
    list_grant: Vec<u8>,
    grants: u64,
    grants_wanted: u64,
}

impl Relay {
    fn new(prize: Prize, size: usize, lease_ms: u64) -> Self {
        let members = (0..size).map(|member| Member {
            state: State::Idle,
            ask: prize.ask(member, lease_ms),
            give_back: prize.give_back(member),
        });
        Self {
            prize,
            members: members.collect(),
            idle: (0..size).collect(),
            busy_wanted: 0,
            holder: None,
            giving_back: 0,
            last_token: 0,
            list_grant: resp::command(&[prize.key(), TOKEN]),
            grants: 0,
            grants_wanted: 0,
        }
    }

    /// Lets idle members ask until as many as wanted are busy.
    fn top_up(&mut self, outbox: &mut Outbox) {
        while self.members.len() - self.idle.len() < self.busy_wanted {
            let Some(next) = self.idle.pop_front() else {
                return;
            };
            self.members[next].state = State::Asking;
            outbox.push(next, &self.members[next].ask);
        }
    }

    fn on_grant(&mut self, member: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        match self.prize {
            Prize::Lock => {
                let token = reply.integer()?;
                ensure!(token > self.last_token, "token {token} after {}", self.last_token);
                self.last_token = token;
            }
            Prize::ListToken => reply.expect(&self.list_grant)?,
        }
        if let Some(holder) = self.holder {
            bail!("granted to {member} while {holder} holds it");
        }
        self.members[member].state = State::Holding;
        self.holder = Some(member);
        self.grants += 1;
        if self.busy_wanted == 0 || self.grants < self.grants_wanted {
            self.give_back(outbox);
        }
        Ok(())
    }

    /// Has the holder, if there is one, give the thing back.
    fn give_back(&mut self, outbox: &mut Outbox) {
        if let Some(holder) = self.holder.take() {
            self.members[holder].state = State::GivingBack;
            self.giving_back += 1;
            outbox.push(holder, &self.members[holder].give_back);
        }
    }
}

impl Script for Relay {
    fn begin(&mut self, outbox: &mut Outbox) {
        self.give_back(outbox);
        self.top_up(outbox);
    }

    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        match self.members[connection].state {
            State::Asking => self.on_grant(connection, reply, outbox),
            State::GivingBack => {
                reply.expect(self.prize.given_back_reply())?;
                self.members[connection].state = State::Idle;
                self.giving_back -= 1;
                self.idle.push_back(connection);
                self.top_up(outbox);
                Ok(())
            }
            state @ (State::Idle | State::Holding) => {
                bail!("a reply for a member that is {state:?}: {reply}")
            }
        }
    }

    fn finished(&self) -> bool {
        if self.busy_wanted == 0 {
            self.idle.len() == self.members.len()
        } else {
            self.grants >= self.grants_wanted && self.holder.is_some() && self.giving_back == 0
        }
    }
}

/// One round: who takes part, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// What is passed on.
    pub prize: Prize,
    /// How many wait behind the holder.
    pub waiting: usize,
    /// How long a lock is leased.
    pub lease_ms: u64,
    /// Hand-overs before the measured ones.
    pub warm_up_handovers: u64,
    /// Hand-overs that are measured.
    pub handovers: u64,
}

/// What one hand-over cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Time from one hand-over to the next.
    pub wall_us: f64,
    /// CPU time of the server's main thread.
    pub server_cpu_us: f64,
    /// CPU time of this client's thread, NaN where the kernel does not tell.
    pub client_cpu_us: f64,
}

impl Round {
    /// Runs the round on a server without keys and leaves it without keys.
    pub fn run(self, server: &mut Server, swarm: &mut Swarm) -> Result<Cost> {
        server.ensure_no_keys()?;
        if self.prize == Prize::ListToken {
            let token_list = server.control();
            token_list.call(&[b"RPUSH", self.prize.key(), TOKEN])?.expect(b":1\r\n")?;
        }
        let mut relay = Relay::new(self.prize, swarm.size(), self.lease_ms);
        relay.busy_wanted = self.waiting + 1;
        relay.grants_wanted = self.warm_up_handovers;
        swarm.run(&mut relay).context("during the warm-up")?;
        server.wait_for_info("blocked_clients", self.waiting as u64, QUEUE_TIMEOUT)?;

        relay.grants_wanted += self.handovers;
        let server_before_ns = server.main_thread_cpu_ns()?;
        let client_before = ThreadTimes::own();
        let start = clock::now();
        swarm.run(&mut relay)?;
        let wall = start.elapsed();
        let client_ns = match (client_before, ThreadTimes::own()) {
            (Some(before), Some(after)) => (after.cpu_ns - before.cpu_ns) as f64,
            _ => f64::NAN,
        };
        let server_ns = server.main_thread_cpu_ns()? - server_before_ns;
        server.wait_for_info("blocked_clients", self.waiting as u64, QUEUE_TIMEOUT)?;

        relay.busy_wanted = 0;
        swarm.run(&mut relay).context("while running out")?;
        if self.prize == Prize::ListToken {
            server.control().call(&[b"DEL", self.prize.key()])?.expect(b":1\r\n")?;
        }
        server.ensure_no_keys()?;
        let per_handover = |ns: f64| ns / 1e3 / self.handovers as f64;
        Ok(Cost {
            wall_us: per_handover(wall.as_nanos() as f64),
            server_cpu_us: per_handover(server_ns as f64),
            client_cpu_us: per_handover(client_ns),
        })
    }
}
