//! The client and the options for connecting.

use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "cluster", feature = "sentinel", feature = "tls-rustls", feature = "tls-native-tls"))]
use redis::ConnectionAddr;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, RedisError};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::clock::Clock;
use crate::core::Core;
use crate::identity::ClientId;
use crate::metrics::{Meter, Metrics};
use crate::node::{Node, Servers, Single};
use crate::options::{LONGEST, SHORTEST};
use crate::renewal::Renewals;
use crate::transport::{Common, Direct};

/// A connection to one server, a primary under Sentinel, or a cluster. Clones are cheap and share
/// everything.
///
/// All commands share one connection (per node of a cluster). The first wait opens a second one for
/// messages. The client reconnects both when they are lost.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("name", &self.core.place().0).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to one server, `redis://[user:password@]host[:port][/db]`, with the default
    /// options. If it is a node of a cluster, requests for keys of other nodes fail.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address is malformed, [`Error::Unavailable`] if no server answers
    /// there, [`Error::ModuleMissing`] if the server has not loaded the module.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Options for connecting.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Closes the client: ends all waits with [`Error::Closed`], and releases all holds. It waits
    /// until the server has answered these releases and the cleanup of abandoned requests, for at
    /// most 5 s, or [`Builder::command_timeout`] if that is shorter. Then it closes its
    /// connections. Call it before the runtime stops.
    ///
    /// # Cancel safety
    ///
    /// The client is closed even if the future is dropped; the releases go on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::LeftBehind`] if some requests had no answer in that time. The client does not repeat
    /// them, and the leases end what is left.
    pub async fn close(&self) -> Result<(), Error> {
        self.core.close().await
    }
}

/// Options of a [`Client`].
#[derive(Clone, Debug)]
pub struct Builder {
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    command_timeout: Duration,
    ping_after: Duration,
    name: Option<String>,
    meter: Meter,
    clock: Clock,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    certificates: Option<redis::TlsCertificates>,
}

impl Default for Builder {
    fn default() -> Self {
        let five_seconds = Duration::from_secs(5);
        Self {
            // Enough for the requests of many tasks.
            config: AsyncConnectionConfig::new().set_pipeline_buffer_size(1000),
            connect_timeout: five_seconds,
            command_timeout: five_seconds,
            ping_after: five_seconds,
            name: None,
            meter: Meter::default(),
            clock: Clock::default(),
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            certificates: None,
        }
    }
}

impl Builder {
    /// The time limit for one command. The client retries `try_acquire`, requests about a
    /// semaphore, and requests of an [`Observer`](crate::Observer) for this long. It replaces a
    /// connection that delivers nothing for this long after a command. Default: 5 s; a value outside
    /// 10 ms to 365 days is replaced by the nearer of the two.
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// The time limit for connecting, which takes two round trips. Default and range: as of
    /// [`command_timeout`](Self::command_timeout).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// How often the client checks its connections while a request waits. They are silent then, and
    /// nothing else would show that one is dead. Default and range: as of
    /// [`command_timeout`](Self::command_timeout).
    #[must_use]
    pub fn ping_after(mut self, span: Duration) -> Self {
        self.ping_after = span.clamp(SHORTEST, LONGEST);
        self
    }

    /// Connection options of redis-rs: a DNS resolver, buffer sizes, and with the feature
    /// `credentials-provider` a credentials provider. This crate overrides its timeouts and its
    /// push sender.
    #[must_use]
    pub fn connection_config(mut self, config: AsyncConnectionConfig) -> Self {
        self.config = config;
        self
    }

    /// A name for the server, primary or cluster. [`MultiLock`](crate::MultiLock) acquires from
    /// several servers in the order of their names, so all processes must use the same names.
    /// Default: made from the addresses.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Counts what happens to the locks of this client. Default: nothing is counted.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.meter = Meter(metrics);
        self
    }

    /// The clock that measures leases, as the time since any fixed moment; for tests. It must not
    /// go back. Timers read it at least once a second. Default: a clock that never steps and that
    /// runs on while the machine is suspended.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = Clock(Some(Arc::new(clock)));
        self
    }

    /// Certificates for all addresses that begin with `rediss://`: the authorities to trust instead
    /// of the system's, and the client certificate for servers that ask for one.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    #[must_use]
    pub fn certificates(mut self, certificates: redis::TlsCertificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Connects to one server.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address is malformed, [`Error::Unavailable`] if no server answers
    /// there, [`Error::ModuleMissing`] if the server has not loaded the module.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let info = self.parse("url", url)?;
        self.connect_to(info).await
    }

    /// Connects to one server with the connection info of redis-rs, such as `get_connection_info()`
    /// of a [`redis::Client`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answers there, [`Error::ModuleMissing`] if the server
    /// has not loaded the module.
    pub async fn connect_to(self, server: ConnectionInfo) -> Result<Client, Error> {
        reached(self.over(server)).await
    }

    /// A client of one server that connects on first use, so the server may be down now. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address is malformed.
    pub fn connect_later(self, url: &str) -> Result<Client, Error> {
        let info = self.parse("url", url)?;
        Ok(self.over(info))
    }

    fn over(self, info: ConnectionInfo) -> Client {
        let name = name_of(&info);
        self.build(|common| Box::new(Single { name, node: Node::new(Direct(info), common) }))
    }

    /// Builds a client. Its tasks run on the current runtime.
    pub(crate) fn build(self, servers: impl FnOnce(&Arc<Common>) -> Box<dyn Servers>) -> Client {
        let renewals = Arc::new(Renewals::default());
        let told = renewals.clone();
        let common = Arc::new(Common {
            id: ClientId::default(),
            home: Handle::current(),
            config: self.config,
            connect_timeout: self.connect_timeout,
            command_timeout: self.command_timeout,
            ping_after: self.ping_after,
            clock: self.clock,
            on_close: Box::new(move || told.connection_closed()),
            ended: CancellationToken::new(),
        });
        drop(common.home.spawn(renewals.clone().run(common.clone())));
        let servers = servers(&common);
        Client { core: Core::new(common, servers, self.name, self.meter, renewals) }
    }

    /// Parses an address. The error does not repeat the address, which may contain a password.
    pub(crate) fn parse(&self, argument: &str, url: &str) -> Result<ConnectionInfo, Error> {
        let without_tls = !cfg!(any(feature = "tls-rustls", feature = "tls-native-tls"));
        if without_tls && url.starts_with("rediss:") {
            let features = "the feature tls-rustls or tls-native-tls of rlock-client";
            return Err(Error::Argument(format!("{argument}: rediss:// needs {features}")));
        }
        let refused = |error: RedisError| Error::Argument(format!("{argument}: not an address: {error}"));
        let info = url.into_connection_info().map_err(refused)?;
        #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
        if let (Some(certificates), ConnectionAddr::TcpTls { .. }) = (&self.certificates, info.addr()) {
            let with_certificates = redis::Client::build_with_tls(info, certificates.clone());
            let refused = |error: RedisError| Error::Argument(format!("certificates: {error}"));
            return Ok(with_certificates.map_err(refused)?.get_connection_info().clone());
        }
        Ok(info)
    }
}

/// Checks that the server answers, so that a wrong address fails when the client connects.
pub(crate) async fn reached(client: Client) -> Result<Client, Error> {
    // Connecting may take longer than one command.
    client.core.node(None).await?.link().await?;
    client.core.check_module().await.map(|()| client)
}

pub(crate) fn name_of(info: &ConnectionInfo) -> String {
    format!("{}/{}", info.addr(), info.redis_settings().db())
}

/// The same connection settings with another address.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) fn at_address(settings: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let addr = match settings.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    };
    settings.clone().set_addr(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_10_ms_to_365_days() {
        let seconds = Duration::from_secs(7);
        let spans = [(Duration::ZERO, SHORTEST), (seconds, seconds), (Duration::MAX, LONGEST)];
        for (span, meant) in spans {
            let options = Client::builder().ping_after(span).command_timeout(span).connect_timeout(span);
            assert_eq!([options.ping_after, options.command_timeout, options.connect_timeout], [meant; 3]);
        }
    }
}
