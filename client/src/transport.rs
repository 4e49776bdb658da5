//! Connections. Each server has one shared by commands, and one that delivers messages. They are
//! opened on first use, and again after a loss.
//!
//! This module hides redis-rs from the rest of the crate. The `ConnectionManager` of redis-rs 1.8
//! is not the default, because it does not reconnect after a late reply, and does not tell which
//! connection a session is bound to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::clock::{Clock, Moment};
use crate::identity::ClientId;
use crate::sync::lock;

/// How to connect to one server.
pub(crate) trait Transport: Send + Sync + 'static {
    /// Opens a connection for commands.
    fn open(&self, common: &Arc<Common>) -> BoxFuture<'static, Result<Link, Error>>;

    /// Opens a connection for messages, to the server that commands go to.
    fn listen(&self, common: &Arc<Common>, commands: &Link, hear: Hear) -> BoxFuture<'static, Result<Link, Error>>;

    /// The server could not be reached, or refused a request: another one may have replaced it.
    fn doubt(&self, _error: &Error) {}
}

/// Receives the messages of a connection.
pub(crate) type Hear = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// The settings that a client's connections share.
pub(crate) struct Common {
    pub(crate) id: ClientId,
    /// The runtime that the client was created on. It drives the connections.
    pub(crate) home: Handle,
    pub(crate) config: AsyncConnectionConfig,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) ping_after: Duration,
    pub(crate) clock: Clock,
    /// Called when a connection has closed.
    pub(crate) on_close: Box<dyn Fn() + Send + Sync>,
    /// Ends the tasks of the client.
    pub(crate) ended: CancellationToken,
}

/// The connection of redis-rs underneath.
enum Wire {
    Own(MultiplexedConnection),
    /// Managed by the application. It reconnects by itself.
    #[cfg(feature = "connection-manager")]
    Managed(redis::aio::ConnectionManager),
}

/// One connection.
pub(crate) struct Link {
    wire: Wire,
    info: Option<ConnectionInfo>,
    closed: CancellationToken,
    clock: Clock,
    /// When the last answer came.
    heard_us: AtomicU64,
}

impl Link {
    /// Connects with RESP3: it reports a connection closed by the server at once, even without a
    /// request in progress.
    pub(crate) async fn connect(info: ConnectionInfo, common: &Common, hear: Hear) -> Result<Self, Error> {
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // Otherwise a request waits while the server has not confirmed the one before.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = redis::Client::open(info.clone().set_redis_settings(settings).set_tcp_settings(tcp))?;
        let closed = CancellationToken::new();
        let closes = closed.clone();
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => closes.cancel(),
                _ => hear(push),
            }
            Ok::<(), ()>(())
        };
        // Each request has its own time limit.
        let config = common.config.clone().set_push_sender(push);
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self::over(Wire::Own(connection), Some(info), common, closed))
    }

    /// Uses a connection of the application.
    #[cfg(feature = "connection-manager")]
    pub(crate) fn managed(manager: redis::aio::ConnectionManager, common: &Common) -> Self {
        Self::over(Wire::Managed(manager), None, common, CancellationToken::new())
    }

    fn over(wire: Wire, info: Option<ConnectionInfo>, common: &Common, closed: CancellationToken) -> Self {
        Self { wire, info, closed, clock: common.clock.clone(), heard_us: AtomicU64::new(common.clock.now().as_us()) }
    }

    /// Sends a command and waits for the answer.
    pub(crate) async fn ask(&self, command: &Cmd, within: Duration) -> Result<Value, Error> {
        let answer = match &self.wire {
            Wire::Own(connection) => timeout(within, connection.clone().send_packed_command(command)).await,
            #[cfg(feature = "connection-manager")]
            Wire::Managed(manager) => timeout(within, manager.clone().send_packed_command(command)).await,
        };
        self.conclude(answer.ok(), within)?.extract_error().map_err(Error::from)
    }

    /// Sends several commands in one write, and returns their answers in order.
    pub(crate) async fn ask_all(
        &self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        let count = commands.len();
        let answers = match &self.wire {
            Wire::Own(connection) => timeout(within, connection.clone().send_packed_commands(commands, 0, count)).await,
            #[cfg(feature = "connection-manager")]
            Wire::Managed(manager) => timeout(within, manager.clone().send_packed_commands(commands, 0, count)).await,
        };
        let answers = self.conclude(answers.ok(), within)?;
        Ok(answers.into_iter().map(|answer| answer.extract_error().map_err(Error::from)).collect())
    }

    /// Updates the connection's state after an answer or a missing answer.
    fn conclude<T>(&self, answer: Option<Result<T, RedisError>>, within: Duration) -> Result<T, Error> {
        let answer = answer.ok_or_else(|| Error::unavailable(format!("no answer within {within:?}")))?;
        match answer {
            Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                if matches!(self.wire, Wire::Own(_)) {
                    self.close();
                }
                Err(error.into())
            }
            answer => {
                self.heard_us.fetch_max(self.clock.now().as_us(), Ordering::Relaxed);
                answer.map_err(Error::from)
            }
        }
    }

    /// Whether no answer has come since a moment.
    pub(crate) fn is_silent_since(&self, moment: Moment) -> bool {
        Moment::from_us(self.heard_us.load(Ordering::Relaxed)) <= moment
    }

    /// Whether the client notices when this connection closes.
    pub(crate) fn tells_its_end(&self) -> bool {
        matches!(self.wire, Wire::Own(_))
    }

    /// The address and settings it was opened with.
    pub(crate) fn info(&self) -> Option<&ConnectionInfo> {
        self.info.as_ref()
    }

    /// Cancelled when either side has closed the connection.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Stops using the connection. The socket closes after the last request in progress.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// A resource that is opened, and may close.
pub(crate) trait Opens {
    fn is_open(&self) -> bool;
}

impl Opens for Link {
    fn is_open(&self) -> bool {
        !self.is_closed()
    }
}

type Opening<T> = Shared<BoxFuture<'static, Result<Arc<T>, Error>>>;

/// A resource that is opened on first use, once for all callers, and again after it has closed.
pub(crate) struct Slot<T>(Mutex<Option<Opening<T>>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Opens + Send + Sync + 'static> Slot<T> {
    /// The resource, if it is open.
    pub(crate) fn present(&self) -> Option<Arc<T>> {
        lock(&self.0).as_ref()?.peek()?.as_ref().ok().filter(|open| open.is_open()).cloned()
    }

    /// The open resource, or the outcome of the attempt to open it. Starts an attempt in a task on
    /// `home` if there is none. The task goes on even if all callers are dropped.
    pub(crate) async fn get<F>(&self, home: &Handle, open: impl FnOnce() -> F) -> Result<Arc<T>, Error>
    where
        F: Future<Output = Result<Arc<T>, Error>> + Send + 'static,
    {
        let opening = {
            let mut slot = lock(&self.0);
            let usable =
                |opening: &&Opening<T>| opening.peek().is_none_or(|open| open.as_ref().is_ok_and(|o| o.is_open()));
            match slot.as_ref().filter(usable) {
                Some(opening) => opening.clone(),
                None => {
                    let task = home.spawn(open());
                    let opening = async move { task.await.unwrap_or_else(|error| Err(why_not(error))) };
                    slot.insert(opening.boxed().shared()).clone()
                }
            }
        };
        opening.await
    }

    /// Lets the next caller open another resource, if `left` is the current one. The old one lives
    /// while it is in use.
    pub(crate) fn abandon(&self, left: &T) {
        let mut slot = lock(&self.0);
        let is_left = |opening: &Opening<T>| {
            opening.peek().is_some_and(|open| open.as_ref().is_ok_and(|open| std::ptr::eq(&**open, left)))
        };
        if slot.as_ref().is_some_and(is_left) {
            *slot = None;
        }
    }

    /// Forgets the resource.
    pub(crate) fn clear(&self) {
        drop(lock(&self.0).take());
    }
}

/// Why a task has no outcome: it panicked, or its runtime has stopped.
fn why_not(error: tokio::task::JoinError) -> Error {
    let Ok(panic) = error.try_into_panic() else { return Error::Closed };
    // rustls panics if several crypto providers are linked and the application has chosen none.
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Error::Argument(format!("connecting panicked: {}", text.unwrap_or("no message")))
}

/// Connects to an address.
pub(crate) fn connect_to(
    info: ConnectionInfo,
    common: &Arc<Common>,
    hear: Hear,
) -> BoxFuture<'static, Result<Link, Error>> {
    let common = common.clone();
    async move { Link::connect(info, &common, hear).await }.boxed()
}

/// One server at a known address.
pub(crate) struct Direct(pub(crate) ConnectionInfo);

impl Transport for Direct {
    fn open(&self, common: &Arc<Common>) -> BoxFuture<'static, Result<Link, Error>> {
        connect_to(self.0.clone(), common, Arc::new(|_| {}))
    }

    fn listen(&self, common: &Arc<Common>, _: &Link, hear: Hear) -> BoxFuture<'static, Result<Link, Error>> {
        connect_to(self.0.clone(), common, hear)
    }
}

#[cfg(test)]
mod tests {
    /// Several crypto providers are linked, and this program has chosen none. Choosing one for the
    /// whole process is up to the application.
    #[cfg(feature = "tls-rustls")]
    #[tokio::test]
    async fn client_installs_no_crypto_provider() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("rediss://{}/", server.local_addr().expect("an address"));
        let refused = crate::Client::connect(&url).await.expect_err("rustls chooses no provider");
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
        assert!(refused.to_string().contains("CryptoProvider"), "{refused}");
    }
}
