//! The state that handles and guards of a client share: its servers, how to send commands to them,
//! and background tasks.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Error;
use crate::clock::Moment;
use crate::metrics::Meter;
use crate::node::{Node, Servers};
use crate::owners::Owners;
use crate::renewal::Renewals;
use crate::transport::{Common, Link};

/// How many abandoned acquisitions are cleaned up at a time. Beyond that, the expiry of pending
/// grants and leases cleans up.
const SETTLEMENTS: usize = 1000;

/// How many redirections one command may follow before it fails.
const REDIRECTIONS: usize = 4;

/// The time limit for closing.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Core {
    pub(crate) common: Arc<Common>,
    pub(crate) servers: Box<dyn Servers>,
    pub(crate) name: Option<String>,
    pub(crate) meter: Meter,
    pub(crate) owners: Owners,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) settlements: Arc<Semaphore>,
    /// Cancelled when the client is being closed.
    pub(crate) closing: CancellationToken,
    /// The tasks and requests that closing waits for.
    under_way: TaskTracker,
    /// Stops the tasks of the client when dropped.
    _end: DropGuard,
}

/// The outcome of a command.
pub(crate) struct Reply {
    /// The connection it was sent over; `None` if it was not sent.
    pub(crate) link: Option<Arc<Link>>,
    /// The moment just before it was sent.
    pub(crate) sent: Moment,
    pub(crate) said: Result<Value, Error>,
}

/// Retry pauses that grow from 50 ms to 1 s.
#[derive(Default)]
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        self.0 = (self.0 * 2).clamp(Duration::from_millis(50), Duration::from_secs(1));
        self.0
    }
}

impl Core {
    pub(crate) fn new(
        common: Arc<Common>,
        servers: Box<dyn Servers>,
        name: Option<String>,
        meter: Meter,
        renewals: Arc<Renewals>,
    ) -> Arc<Self> {
        Arc::new(Self {
            _end: common.ended.clone().drop_guard(),
            common,
            servers,
            name,
            meter,
            owners: Owners::default(),
            renewals,
            settlements: Arc::new(Semaphore::new(SETTLEMENTS)),
            closing: CancellationToken::new(),
            under_way: TaskTracker::new(),
        })
    }

    pub(crate) fn now(&self) -> Moment {
        self.common.clock.now()
    }

    /// The slot of keys that are acquired together, in a cluster.
    pub(crate) fn slot_of(&self, keys: &[Vec<u8>]) -> Option<u16> {
        self.servers.slot_of(keys.first().map_or(&[], Vec::as_slice))
    }

    /// The configured name of the server, primary or cluster, and the name made from its addresses.
    /// The second one tells apart servers with the same configured name.
    pub(crate) fn place(&self) -> (String, String) {
        let own = self.servers.name();
        (self.name.clone().unwrap_or_else(|| own.clone()), own)
    }

    /// Fails if the client is closed. Closing waits until the token is dropped.
    pub(crate) fn enter(&self) -> Result<TaskTrackerToken, Error> {
        let token = self.under_way.token();
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(token) }
    }

    /// Runs background work that closing waits for.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.under_way.spawn_on(work, &self.common.home));
    }

    /// Closing waits until the token is dropped.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.under_way.token()
    }

    pub(crate) async fn node(&self, slot: Option<u16>) -> Result<Arc<Node>, Error> {
        match self.servers.known(slot) {
            Some(node) => Ok(node),
            None => self.servers.find(slot).await,
        }
    }

    /// Sends a command to the node of a slot, follows redirections, and waits for the answer.
    pub(crate) async fn ask(&self, slot: Option<u16>, command: &Cmd, within: Duration) -> Reply {
        let deadline = Instant::now() + within;
        let mut redirected = None;
        let mut reply = Reply { link: None, sent: self.now(), said: Err(Error::unavailable("not sent")) };
        for _ in 0..REDIRECTIONS {
            let connecting = async {
                let (node, is_asking) = match redirected.take() {
                    Some(redirected) => redirected,
                    None => (self.node(slot).await?, false),
                };
                Ok((node.link().await?, node, is_asking))
            };
            let connected = tokio::time::timeout_at(deadline, connecting).await;
            let late = |_| Err(Error::unavailable(format!("no connection within {within:?}")));
            let (link, node, is_asking) = match connected.unwrap_or_else(late) {
                Ok(connected) => connected,
                Err(error) => return Reply { said: Err(error), ..reply },
            };
            reply = self.ask_over(&node, &link, command, is_asking, deadline - Instant::now()).await;
            let Err(error) = &reply.said else { break };
            redirected = self.servers.redirected(error, &link);
            if redirected.is_none() {
                break;
            }
        }
        reply
    }

    /// Sends a command over a connection, and waits for the answer.
    pub(crate) async fn ask_over(
        &self,
        node: &Node,
        link: &Arc<Link>,
        command: &Cmd,
        is_asking: bool,
        within: Duration,
    ) -> Reply {
        let sent = self.now();
        let mut said = if is_asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.clone());
            let last =
                |answers: Vec<_>| answers.into_iter().last().unwrap_or_else(|| Err(Error::unavailable("no answer")));
            link.ask_all(&both, within).await.and_then(last)
        } else {
            link.ask(command, within).await
        };
        if self.servers.slot_of(&[]).is_none() {
            said = said.map_err(Error::without_cluster);
        }
        if let Err(error) = &said {
            if error.is_lost_reply() && link.is_silent_since(sent) {
                node.abandon(link);
                node.transport.doubt(error);
            } else {
                node.heed(error, link);
            }
        }
        Reply { link: Some(link.clone()), sent, said }
    }

    /// Retries a command while it fails with a retryable error. One attempt lasts at most
    /// `attempt`, all of them `within`.
    pub(crate) async fn insist(&self, slot: Option<u16>, command: &Cmd, attempt: Duration, within: Duration) -> Reply {
        let deadline = Instant::now() + within;
        let mut pauses = Pauses::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let reply = self.ask(slot, command, left.min(attempt).min(self.common.command_timeout)).await;
            let pause = pauses.next();
            match &reply.said {
                Err(error) if error.is_retryable() && Instant::now() + pause < deadline => sleep(pause).await,
                _ => return reply,
            }
        }
    }

    /// Retries a command about keys for at most `command_timeout`.
    pub(crate) async fn request(&self, keys: &[Vec<u8>], command: &Cmd) -> Result<Value, Error> {
        drop(self.enter()?);
        let within = self.common.command_timeout;
        self.insist(self.slot_of(keys), command, within, within).await.said
    }

    /// Checks that the server answers and has loaded the module. ACL rules may forbid the question;
    /// then the first request finds out.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answers, [`Error::ModuleMissing`] if it has no module.
    pub(crate) async fn check_module(&self) -> Result<(), Error> {
        let question = redis::cmd("COMMAND").arg("INFO").arg("RLOCK.ACQUIRE").to_owned();
        match self.ask(None, &question, self.common.command_timeout).await.said {
            Err(error) if error.is_retryable() => Err(error),
            Ok(Value::Array(commands)) if matches!(commands.as_slice(), [Value::Nil]) => {
                Err(Error::ModuleMissing("COMMAND INFO does not show it".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Ends all waits and holds, and waits for the releases and cleanups.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        self.closing.cancel();
        self.renewals.end_all();
        self.under_way.close();
        let is_done = tokio::time::timeout(CLOSES_WITHIN.min(self.common.command_timeout), self.under_way.wait()).await;
        let left = self.under_way.len();
        self.common.ended.cancel();
        self.servers.close();
        if is_done.is_err() && left > 0 { Err(Error::LeftBehind { requests: left }) } else { Ok(()) }
    }
}
