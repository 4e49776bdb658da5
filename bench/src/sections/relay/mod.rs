//! A prize that many connections wait for and hand over: a lock, or a token in a list.
//!
//! Each prize goes round a *chain* of members. At any time one member holds it, and a fixed number
//! of others wait for it. After its release a member joins the end of the idle members, and the
//! first idle member sends a request. So all members take part equally often, however many wait at
//! once, and a long and a short queue differ only in their length.
//!
//! Each member has its own connection, except for members that learn of a grant by a push: any
//! number of these share a few connections.
//!
//! A run ends with the holders *parked*: each holds its prize, and releases it when the next run
//! begins. So between two runs the server is idle, and its CPU time can be read.

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
    /// The number of its requests so far.
    asked: u64,
    give_back: Vec<u8>,
}

/// The members that hand over one prize, and its holder.
struct Chain {
    key: Vec<u8>,
    /// The number of members.
    size: usize,
    idle: VecDeque<usize>,
    holder: Option<usize>,
    /// The number of members whose release has no reply yet.
    giving_back: usize,
    last_token: i64,
    /// The members that wait for a message, in order: the server has no queue of them.
    queue: VecDeque<usize>,
    /// No member has the turn to publish: the first one that sends a request gets it.
    is_free: bool,
}

/// The exchange of all members with the server. Member `i` uses connection `i` modulo their number.
struct Relay {
    prize: Prize,
    lease_ms: u64,
    members: Vec<Member>,
    chains: Vec<Chain>,
    /// The members that wait for a reply on each connection, in order.
    unanswered: Vec<VecDeque<usize>>,
    channels: Vec<String>,
    /// How many members of a chain are to be busy: the holder and the waiters. With 0 all become
    /// idle.
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

    /// Lets idle members of a chain send requests until enough are busy.
    fn top_up(&mut self, chain: usize, outbox: &mut Outbox) {
        while self.chains[chain].size - self.chains[chain].idle.len() < self.busy_wanted {
            let Some(next) = self.chains[chain].idle.pop_front() else {
                return;
            };
            let all = self.members.len() as u64;
            let member = &mut self.members[next];
            member.state = State::Asking;
            // Ids rise for each member, and identify the member.
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

    /// Reads a message. Returns the member that it grants the prize to, and the token.
    fn told(&self, message: Frame<'_>) -> Result<(usize, i64)> {
        let notice = Notice::from_frame(message)?;
        let Outcome::Granted(token) = notice.outcome else { bail!("not granted: {message}") };
        let all = self.members.len() as u64;
        let member = usize::try_from((notice.id - 1) % all)?;
        ensure!(
            self.members[member].state == State::Asking,
            "member {member} was granted the prize, but does not wait"
        );
        Ok((member, i64::try_from(token)?))
    }

    fn on_answer(&mut self, member: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        let chain = self.chain_of(member);
        match self.prize {
            Prize::NotifiedLock if reply.is_waiting() => return Ok(()),
            Prize::Lock | Prize::NotifiedLock => self.on_token(chain, reply.integer()?)?,
            // BLPOP replies with the list and the element, which are encoded like a command.
            Prize::ListToken => reply.expect(&resp::command(&[&self.chains[chain].key, TOKEN]))?,
            Prize::Message => {
                reply.expect(b"+PONG\r\n")?;
                if !self.chains[chain].is_free {
                    self.chains[chain].queue.push_back(member);
                    if self.passes_on() {
                        // The holder has waited for a member that it can publish to.
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
            bail!("granted to member {member} while member {holder} holds it");
        }
        self.members[member].state = State::Holding;
        self.chains[chain].holder = Some(member);
        self.grants += 1;
        if self.passes_on() {
            self.give_back(chain, outbox);
        }
        Ok(())
    }

    /// Whether a holder releases its prize at once, instead of being parked.
    fn passes_on(&self) -> bool {
        self.busy_wanted == 0 || self.grants < self.grants_wanted
    }

    /// Lets the holder of a chain, if any, release the prize. The holder of a message keeps it
    /// until another member waits, unless all are to become idle.
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

    /// The PUBLISH for the next waiter, with the text of the module. `None` if no member waits.
    fn tell_next(&mut self, chain: usize) -> Option<Vec<u8>> {
        let all = self.members.len() as u64;
        let chain = &mut self.chains[chain];
        let Some(next) = chain.queue.pop_front() else {
            chain.is_free = true;
            return None;
        };
        let (id, token) = ((self.members[next].asked - 1) * all + next as u64 + 1, chain.last_token + 1);
        let channel = &self.channels[next % self.channels.len()];
        Some(resp::command(&[b"PUBLISH", channel.as_bytes(), format!("granted {id} {token} for 30000").as_bytes()]))
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
        let member = self.unanswered[connection].pop_front().context("a reply without a request")?;
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

/// The members and the length of one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// The prize.
    pub prize: Prize,
    /// The number of prizes, each with its own chain.
    pub chains: usize,
    /// The number of members of a chain.
    pub size: usize,
    /// The number of waiters behind each holder.
    pub waiting: usize,
    /// The lease of a lock, in milliseconds.
    pub lease_ms: u64,
    /// The number of hand-overs before the measured ones.
    pub warm_up_handovers: u64,
    /// The approximate number of measured hand-overs: each chain ends with a holder.
    pub handovers: u64,
}

/// The costs of one hand-over.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Time from one hand-over to the next.
    pub wall_us: f64,
    /// CPU time of the server's main thread.
    pub server_cpu_us: f64,
    /// CPU time of this client's thread; NaN if the kernel does not report it.
    pub client_cpu_us: f64,
}

impl Round {
    /// Runs the round on a server without keys and leaves it without keys.
    pub fn run(self, server: &mut Server, swarm: &mut Swarm) -> Result<Cost> {
        ensure!(
            self.prize.is_pushed() || swarm.size() >= self.chains * self.size,
            "each member without pushes needs its own connection"
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
        swarm.run(&mut relay).context("while the members become idle")?;
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

    /// Waits until all waiters are in their queues.
    fn wait_for_queues(&self, server: &mut Server) -> Result<()> {
        let waiting = (self.chains * self.waiting) as u64;
        match self.prize.waiting_field() {
            Some(field) => server.wait_for_info(field, waiting, QUEUE_TIMEOUT),
            None => Ok(()),
        }
    }
}
