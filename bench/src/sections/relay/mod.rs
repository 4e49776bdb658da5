//! Things that many connections want and pass on: a lock, or a token in a list.
//!
//! Each thing goes round a *chain* of members. At any time one of them holds it and a fixed number of others wait for it. Who has
//! given it back goes to the end of the idle members, and the first of the idle asks; so the members take part
//! equally often however many wait at once, and the length of the queue is the only difference between
//! a long and a short one.
//!
//! Each member has a connection of its own, but for those who are told by a push: any number of them share a few.
//!
//! A run ends with the holders *parked*: each has its thing, and gives it back when the next run begins.
//! Between two runs the server therefore has nothing to do, which is when its CPU time can be read.

mod listening;
mod prize;

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rlock_bench::clock::{self, ThreadTimes};
use rlock_bench::notice::{Notice, Outcome};
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::Server;
use rlock_bench::swarm::{Outbox, Script, Swarm};

use self::listening::channel;
pub use self::listening::listen;
pub use self::prize::Prize;
use self::prize::TOKEN;
use crate::names;

const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Idle,
    Asking,
    Holding,
    GivingBack,
}

struct Member {
    state: State,
    owner: String,
    /// How often it has asked.
    asked: u64,
    give_back: Vec<u8>,
}

/// The members that pass one thing on, and who has it.
struct Chain {
    key: Vec<u8>,
    /// How many they are.
    size: usize,
    idle: VecDeque<usize>,
    holder: Option<usize>,
    /// How many have given the thing back and do not know yet that it was taken from them.
    giving_back: usize,
    last_token: i64,
    /// Who waits for a message, in order: no server keeps this queue.
    queue: VecDeque<usize>,
    /// Nobody has been told yet that it is its turn to tell: the first who asks begins.
    is_free: bool,
}

/// The conversation of all members; member `i` speaks on connection `i`, modulo how many there are.
struct Relay {
    prize: Prize,
    lease_ms: u64,
    members: Vec<Member>,
    chains: Vec<Chain>,
    /// Whose replies are under way on each connection, in order.
    unanswered: Vec<VecDeque<usize>>,
    channels: Vec<String>,
    /// How many members of a chain shall not be idle: the holder and those who wait. 0 lets all run out.
    busy_wanted: usize,
    grants: u64,
    grants_wanted: u64,
}

impl Relay {
    fn new(Round { prize, chains, size, lease_ms, .. }: &Round, connections: usize) -> Self {
        let chain = |index: usize| Chain {
            key: prize.key(index),
            size: *size,
            idle: (index * size..(index + 1) * size).collect(),
            holder: None,
            giving_back: 0,
            last_token: 0,
            queue: VecDeque::new(),
            is_free: true,
        };
        let chains: Vec<Chain> = (0..*chains).map(chain).collect();
        let member = |index: usize| {
            let owner = names::owner_id(index);
            let give_back = prize.give_back(&chains[index / size].key, &owner);
            Member { state: State::Idle, owner, asked: 0, give_back }
        };
        Self {
            prize: *prize,
            lease_ms: *lease_ms,
            members: (0..chains.len() * size).map(member).collect(),
            chains,
            unanswered: vec![VecDeque::new(); connections],
            channels: (0..connections).map(channel).collect(),
            busy_wanted: 0,
            grants: 0,
            grants_wanted: 0,
        }
    }

    fn chain_of(&self, member: usize) -> usize {
        member / self.chains[0].size
    }

    /// Lets idle members of a chain ask until as many as wanted are busy.
    fn top_up(&mut self, chain: usize, outbox: &mut Outbox) {
        while self.chains[chain].size - self.chains[chain].idle.len() < self.busy_wanted {
            let Some(next) = self.chains[chain].idle.pop_front() else {
                return;
            };
            let all = self.members.len() as u64;
            let member = &mut self.members[next];
            member.state = State::Asking;
            // Ids rise for each member, and tell members apart.
            let id = member.asked * all + next as u64 + 1;
            member.asked += 1;
            let channel = &self.channels[next % self.channels.len()];
            let ask = self.prize.ask(&self.chains[chain].key, &member.owner, self.lease_ms, id, channel);
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
        let all = self.members.len() as u64;
        let member = usize::try_from((notice.id - 1) % all)?;
        ensure!(self.members[member].state == State::Asking, "{member} is told of a grant and does not wait");
        Ok((member, i64::try_from(token)?))
    }

    fn on_answer(&mut self, member: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        let chain = self.chain_of(member);
        match self.prize {
            Prize::NotifiedLock if reply.is_waiting() => return Ok(()),
            Prize::Lock | Prize::NotifiedLock => self.on_token(chain, reply.integer()?)?,
            // BLPOP answers the list and the element, which is encoded as a command is.
            Prize::ListToken => reply.expect(&resp::command(&[&self.chains[chain].key, TOKEN]))?,
            Prize::Message => {
                reply.expect(b"+PONG\r\n")?;
                if !self.chains[chain].is_free {
                    self.chains[chain].queue.push_back(member);
                    if self.passes_on() {
                        // Whoever had nobody to tell tells this one.
                        self.give_back(chain, outbox);
                    }
                    return Ok(());
                }
                self.chains[chain].is_free = false;
            }
        }
        self.on_grant(member, outbox)
    }

    fn on_token(&mut self, chain: usize, token: i64) -> Result<()> {
        let last_token = &mut self.chains[chain].last_token;
        ensure!(token > *last_token, "token {token} after {last_token}");
        *last_token = token;
        Ok(())
    }

    fn on_grant(&mut self, member: usize, outbox: &mut Outbox) -> Result<()> {
        let chain = self.chain_of(member);
        if let Some(holder) = self.chains[chain].holder {
            bail!("granted to {member} while {holder} holds it");
        }
        self.members[member].state = State::Holding;
        self.chains[chain].holder = Some(member);
        self.grants += 1;
        if self.passes_on() {
            self.give_back(chain, outbox);
        }
        Ok(())
    }

    /// Whether a holder gives its thing back at once, instead of being parked.
    fn passes_on(&self) -> bool {
        self.busy_wanted == 0 || self.grants < self.grants_wanted
    }

    /// Has the holder of a chain, if there is one, give the thing back. A message waits for somebody whom it can be sent to, unless all
    /// are to run out.
    fn give_back(&mut self, chain: usize, outbox: &mut Outbox) {
        if self.prize == Prize::Message && self.busy_wanted > 0 && self.chains[chain].queue.is_empty() {
            return;
        }
        let Some(holder) = self.chains[chain].holder.take() else {
            return;
        };
        let command = match self.prize {
            Prize::Message => match self.tell_next(chain) {
                Some(command) => command,
                None => return self.given_back(holder, outbox),
            },
            _ => core::mem::take(&mut self.members[holder].give_back),
        };
        self.members[holder].state = State::GivingBack;
        self.chains[chain].giving_back += 1;
        self.send(holder, &command, outbox);
        self.members[holder].give_back = command;
    }

    /// The PUBLISH that tells the next one, in the words of the module. `None` if nobody waits.
    fn tell_next(&mut self, chain: usize) -> Option<Vec<u8>> {
        let all = self.members.len() as u64;
        let chain = &mut self.chains[chain];
        let Some(next) = chain.queue.pop_front() else {
            chain.is_free = true;
            return None;
        };
        let (id, token) = ((self.members[next].asked - 1) * all + next as u64 + 1, chain.last_token + 1);
        let channel = &self.channels[next % self.channels.len()];
        Some(resp::command(&[b"PUBLISH", channel.as_bytes(), format!("granted {id} {token}").as_bytes()]))
    }

    fn given_back(&mut self, member: usize, outbox: &mut Outbox) {
        let chain = self.chain_of(member);
        self.members[member].state = State::Idle;
        self.chains[chain].idle.push_back(member);
        self.top_up(chain, outbox);
    }
}

impl Script for Relay {
    fn begin(&mut self, outbox: &mut Outbox) {
        for chain in 0..self.chains.len() {
            self.give_back(chain, outbox);
            self.top_up(chain, outbox);
        }
    }

    fn on_reply(&mut self, connection: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        if reply.is_push() {
            let (member, token) = self.told(reply)?;
            self.on_token(self.chain_of(member), token)?;
            return self.on_grant(member, outbox);
        }
        let member = self.unanswered[connection].pop_front().context("a reply that nobody has asked for")?;
        match self.members[member].state {
            State::Asking => self.on_answer(member, reply, outbox),
            State::GivingBack => {
                reply.expect(self.prize.given_back_reply())?;
                let chain = self.chain_of(member);
                self.chains[chain].giving_back -= 1;
                self.given_back(member, outbox);
                Ok(())
            }
            state @ (State::Idle | State::Holding) => {
                bail!("a reply for a member that is {state:?}: {reply}")
            }
        }
    }

    fn finished(&self) -> bool {
        if self.busy_wanted == 0 {
            self.chains.iter().all(|chain| chain.idle.len() == chain.size)
        } else {
            let is_parked = |chain: &Chain| chain.holder.is_some() && chain.giving_back == 0;
            self.grants >= self.grants_wanted && self.chains.iter().all(is_parked)
        }
    }
}

/// One round: who takes part, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// What is passed on.
    pub prize: Prize,
    /// How many things go round, each in a chain of its own.
    pub chains: usize,
    /// How many take part in a chain. Each has a connection of its own, but for those who are told by a push.
    pub size: usize,
    /// How many wait behind each holder.
    pub waiting: usize,
    /// How long a lock is leased.
    pub lease_ms: u64,
    /// Hand-overs before the measured ones.
    pub warm_up_handovers: u64,
    /// Hand-overs that are measured, about: each chain ends with a holder.
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
        ensure!(
            self.prize.is_pushed() || swarm.size() >= self.chains * self.size,
            "each member that is answered on its connection needs one of its own"
        );
        server.ensure_no_keys()?;
        let mut relay = Relay::new(&self, swarm.size());
        if self.prize == Prize::ListToken {
            for chain in &relay.chains {
                server.control().call(&[b"RPUSH", &chain.key, TOKEN])?.expect(b":1\r\n")?;
            }
        }
        relay.busy_wanted = self.waiting + 1;
        relay.grants_wanted = self.warm_up_handovers;
        swarm.run(&mut relay).context("during the warm-up")?;
        self.wait_for_queues(server)?;

        let grants_before = relay.grants;
        relay.grants_wanted = grants_before + self.handovers;
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
        let handovers = relay.grants - grants_before;
        self.wait_for_queues(server)?;

        relay.busy_wanted = 0;
        swarm.run(&mut relay).context("while running out")?;
        if self.prize == Prize::ListToken {
            for chain in &relay.chains {
                server.control().call(&[b"DEL", &chain.key])?.expect(b":1\r\n")?;
            }
        }
        server.ensure_no_keys()?;
        let per_handover = |ns: f64| ns / 1e3 / handovers as f64;
        Ok(Cost {
            wall_us: per_handover(wall.as_nanos() as f64),
            server_cpu_us: per_handover(server_ns as f64),
            client_cpu_us: per_handover(client_ns),
        })
    }

    /// Waits until all wait who are to wait.
    fn wait_for_queues(&self, server: &mut Server) -> Result<()> {
        let waiting = (self.chains * self.waiting) as u64;
        match self.prize.waiting_field() {
            Some(field) => server.wait_for_info(field, waiting, QUEUE_TIMEOUT),
            None => Ok(()),
        }
    }
}
