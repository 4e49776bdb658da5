//! One thing that many connections want and pass on: a lock, or a token in a list.
//!
//! At any time one member holds the thing and a fixed number of others wait for it. Who has given it
//! back goes to the end of the idle members, and the first of the idle asks; so the members take part
//! equally often however many wait at once, and the length of the queue is the only difference between
//! a long and a short one.
//!
//! Each member has a connection of its own, but for those who wait with NOTIFY: any number of them share a few.
//!
//! A run ends with the holder *parked*: it has the thing, and gives it back when the next run begins.
//! Between two runs the server therefore has nothing to do, which is when its CPU time can be read.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rlock_bench::clock::{self, ThreadTimes};
use rlock_bench::notice::{Notice, Outcome};
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
    /// The same with BLOCK 0 NOTIFY: members share connections that have [`listen`]ed.
    NotifiedLock,
    /// The only element of a list, by BLPOP and RPUSH.
    ListToken,
}

impl Prize {
    fn key(self) -> &'static [u8] {
        match self {
            Self::Lock | Self::NotifiedLock => b"relay:lock",
            Self::ListToken => b"relay:list",
        }
    }

    /// What a member asks for the first time, or after so many times.
    fn ask(self, member: usize, lease_ms: u64, id: u64, connection: usize) -> Vec<u8> {
        let owner = names::owner_id(member);
        let lease_ms = lease_ms.to_string();
        let (key, owner, lease_ms) = (self.key(), owner.as_bytes(), lease_ms.as_bytes());
        match self {
            Self::Lock => resp::command(&[b"RLOCK.ACQUIRE", key, owner, b"PX", lease_ms, b"BLOCK", b"0"]),
            Self::NotifiedLock => {
                let (channel, id) = (channel(connection), id.to_string());
                let (channel, id) = (channel.as_bytes(), id.as_bytes());
                resp::command(&[
                    b"RLOCK.ACQUIRE",
                    key,
                    owner,
                    b"PX",
                    lease_ms,
                    b"BLOCK",
                    b"0",
                    b"NOTIFY",
                    channel,
                    b"REQ",
                    id,
                ])
            }
            Self::ListToken => resp::command(&[b"BLPOP", key, b"0"]),
        }
    }

    fn give_back(self, member: usize) -> Vec<u8> {
        match self {
            Self::Lock | Self::NotifiedLock => {
                let owner = names::owner_id(member);
                resp::command(&[b"RLOCK.RELEASE", self.key(), owner.as_bytes()])
            }
            Self::ListToken => resp::command(&[b"RPUSH", self.key(), TOKEN]),
        }
    }

    /// The field of INFO that counts those who wait.
    fn waiting_field(self) -> &'static str {
        match self {
            Self::Lock | Self::ListToken => "blocked_clients",
            Self::NotifiedLock => "rlock_waiting",
        }
    }

    /// What RPUSH or RLOCK.RELEASE answers: one element in the list, no holds left.
    fn given_back_reply(self) -> &'static [u8] {
        match self {
            Self::Lock | Self::NotifiedLock => b":0\r\n",
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
    /// How often it has asked.
    asked: u64,
    give_back: Vec<u8>,
}

/// The conversation of all members; member `i` speaks on connection `i`, modulo how many there are.
struct Relay {
    prize: Prize,
    lease_ms: u64,
    members: Vec<Member>,
    /// Whose replies are under way on each connection, in order.
    unanswered: Vec<VecDeque<usize>>,
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
    fn new(prize: Prize, size: usize, connections: usize, lease_ms: u64) -> Self {
        let members =
            (0..size).map(|member| Member { state: State::Idle, asked: 0, give_back: prize.give_back(member) });
        Self {
            prize,
            lease_ms,
            members: members.collect(),
            unanswered: vec![VecDeque::new(); connections],
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
            let size = self.members.len() as u64;
            let member = &mut self.members[next];
            member.state = State::Asking;
            // Ids rise for each member, and tell members apart.
            let id = member.asked * size + next as u64 + 1;
            member.asked += 1;
            let connection = next % self.unanswered.len();
            let ask = self.prize.ask(next, self.lease_ms, id, connection);
            self.send(next, &ask, outbox);
        }
    }

    fn send(&mut self, member: usize, command: &[u8], outbox: &mut Outbox) {
        let connection = member % self.unanswered.len();
        self.unanswered[connection].push_back(member);
        outbox.push(connection, command);
    }

    /// A message has come. Returns whom it tells of a grant, and the token.
    fn told(&self, message: Frame<'_>) -> Result<(usize, i64)> {
        let notice = Notice::from_frame(message)?;
        let Outcome::Granted(token) = notice.outcome else { bail!("not granted: {message}") };
        let size = self.members.len() as u64;
        let member = usize::try_from((notice.id - 1) % size)?;
        ensure!(self.members[member].state == State::Asking, "{member} is told of a grant and does not wait");
        Ok((member, i64::try_from(token)?))
    }

    fn on_answer(&mut self, member: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        match self.prize {
            Prize::Lock => self.on_token(reply.integer()?)?,
            Prize::NotifiedLock => match reply.integer()? {
                // It waits, and is told.
                0 => return Ok(()),
                token => self.on_token(token)?,
            },
            Prize::ListToken => reply.expect(&self.list_grant)?,
        }
        self.on_grant(member, outbox)
    }

    fn on_token(&mut self, token: i64) -> Result<()> {
        ensure!(token > self.last_token, "token {token} after {}", self.last_token);
        self.last_token = token;
        Ok(())
    }

    fn on_grant(&mut self, member: usize, outbox: &mut Outbox) -> Result<()> {
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
            let give_back = core::mem::take(&mut self.members[holder].give_back);
            self.send(holder, &give_back, outbox);
            self.members[holder].give_back = give_back;
        }
    }
}

impl Script for Relay {
    fn begin(&mut self, outbox: &mut Outbox) {
        self.give_back(outbox);
        self.top_up(outbox);
    }

    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        if reply.is_push() {
            let (member, token) = self.told(reply)?;
            self.on_token(token)?;
            return self.on_grant(member, outbox);
        }
        let member = self.unanswered[connection].pop_front().context("a reply that nobody has asked for")?;
        match self.members[member].state {
            State::Asking => self.on_answer(member, reply, outbox),
            State::GivingBack => {
                reply.expect(self.prize.given_back_reply())?;
                self.members[member].state = State::Idle;
                self.giving_back -= 1;
                self.idle.push_back(member);
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

/// The channel on which those are told who speak on a connection.
fn channel(connection: usize) -> String {
    format!("relay:{connection}")
}

/// Lets the connections of a swarm hear pushes, each on a channel of its own.
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
        // HELLO and SUBSCRIBE each have one answer.
        self.heard == 2 * self.connections
    }
}

/// One round: who takes part, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// What is passed on.
    pub prize: Prize,
    /// How many take part. Each has a connection of its own, but for those who wait with NOTIFY.
    pub size: usize,
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
        let mut relay = Relay::new(self.prize, self.size, swarm.size(), self.lease_ms);
        relay.busy_wanted = self.waiting + 1;
        relay.grants_wanted = self.warm_up_handovers;
        swarm.run(&mut relay).context("during the warm-up")?;
        server.wait_for_info(self.prize.waiting_field(), self.waiting as u64, QUEUE_TIMEOUT)?;

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
        server.wait_for_info(self.prize.waiting_field(), self.waiting as u64, QUEUE_TIMEOUT)?;

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
