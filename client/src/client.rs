//! The client: how to connect, and what all its handles share. The handles add what makes them, each in its own file.

use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use redis::ConnectionAddr;
use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, RedisError, Value};

use crate::Error;
use crate::clock::Moment;
use crate::home::Home;
use crate::metrics::{Meter, Metrics};
use crate::servers::{Servers, Topology};
use crate::shared::{Settings, Shared};
use crate::wire;

/// How soon a silent connection may be asked whether it lives: what is set looks after every connection once in that time.
const SHORTEST_PING_AFTER: Duration = Duration::from_millis(10);

/// A connection to the place where the locks are: one server, a master under Sentinel, or a cluster. Cloning it is cheap and shares
/// everything.
///
/// All commands share one connection (per node of a cluster), made anew when it was lost. Waiting needs no further one.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("name", &self.shared.place().0).finish_non_exhaustive()
    }
}

impl Client {
    /// A server without the module, or with one that is too old, is an error here, and not at the first lock. Whoever may not ask is not told.
    async fn check_module(&self) -> Result<(), Error> {
        // The first is as old as the module, the last came with what this crate needs.
        const COMMANDS: [&str; 2] = ["RLOCK.ACQUIRE", "RLOCK.CANCEL"];
        let known = self.ask_once(redis::cmd("COMMAND").arg("INFO").arg(&COMMANDS)).await;
        let Some(Value::Array(known)) = known else { return Ok(()) };
        match known.iter().zip(COMMANDS).find(|(info, _)| matches!(info, Value::Nil)) {
            None => Ok(()),
            Some((_, missing)) if missing == COMMANDS[0] => Err(Error::NoModule(format!("it knows no {missing}"))),
            Some((_, missing)) => {
                let listed = self.ask_once(redis::cmd("MODULE").arg("LIST")).await;
                let version =
                    listed.as_ref().and_then(wire::module_version).unwrap_or_else(|| "an older one".to_owned());
                Err(Error::NoModule(format!("it has {version}, which knows no {missing}")))
            }
        }
    }

    /// What a server answers. `None` if it does not, or refuses.
    async fn ask_once(&self, question: &Cmd) -> Option<Value> {
        let shared = &self.shared;
        let slot = shared.servers.is_cluster().then_some(0);
        let give_up = Moment::now().after(shared.settings.response_timeout);
        let answered = shared.servers.call(slot, question, shared.settings.response_timeout, give_up).await;
        answered.ok()?.said.ok()
    }

    /// Connects to one server, `redis://[user:password@]host[:port][/db]`, with the default options.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address cannot be read, [`Error::Connection`] if nobody answers there, [`Error::NoModule`] if the server has
    /// not loaded the module.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Options for how to connect.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Ends what waits, and waits until everything is released that guards and futures have left behind when they were dropped: for at
    /// most [`Builder::response_timeout`]. The last thing to do before the runtime ends, which ends all that is still under way.
    ///
    /// From then on nothing is acquired, and those who wait get [`Error::Closed`]. Guards that live go on renewing and can be released.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the client is closed, and the rest is left to the background.
    ///
    /// # Errors
    ///
    /// [`Error::LeftBehind`] if not everything was released in that time; the rest is tried further.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.home.close(self.shared.settings.response_timeout).await
    }
}

/// Options of a [`Client`].
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Settings,
    connect_timeout: Duration,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    certificates: Option<redis::TlsCertificates>,
}

impl Default for Builder {
    fn default() -> Self {
        let settings = Settings {
            response_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(30),
            ping_after: Duration::from_secs(5),
            name: None,
            meter: Meter::default(),
        };
        Self {
            settings,
            connect_timeout: Duration::from_secs(5),
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            certificates: None,
        }
    }
}

impl Builder {
    /// How long a connection may owe an answer, other than to a request that waits, without any answer over it, before it counts as
    /// dead. Default: 5 s.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        self
    }

    /// How long connecting may take: two ways there and back. Default: 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a request is sent again while no server answers it: through a restart or a failover. For so long, and for half a second at
    /// least, it waits for a connection. Default: 30 s.
    #[must_use]
    pub fn retry_for(mut self, span: Duration) -> Self {
        self.settings.retry_for = span;
        self
    }

    /// A connection on which somebody waits, or follows what happens, is silent, and may have died silently, or its server may serve nobody any more.
    /// After so long it is asked whether it lives; then it counts as dead if no answer at all comes over it for
    /// [`connect_timeout`](Self::connect_timeout). Default: 5 s; less than 10 ms is 10 ms.
    #[must_use]
    pub fn ping_after(mut self, span: Duration) -> Self {
        self.settings.ping_after = span.max(SHORTEST_PING_AFTER);
        self
    }

    /// A name for the place where the locks are. [`MultiLock`](crate::MultiLock) goes through several places in the order of their names, so all processes must
    /// use the same ones. Default: made from the addresses.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Who hears of what happens to the locks of this client. Default: nobody.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.settings.meter = Meter(metrics);
        self
    }

    /// The certificates for all addresses that begin with `rediss://`: whom to trust, if not those whom the system trusts, and what to show to
    /// servers that ask who connects.
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
    /// [`Error::Argument`] if the address cannot be read, [`Error::Connection`] if nobody answers there, [`Error::NoModule`] if the server has
    /// not loaded the module.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let info = self.parse("url", url)?;
        self.with(Topology::Standalone(info)).await
    }

    /// Connects to one server by all that redis-rs can say about one, such as certificates of both sides. See [`crate::redis`].
    ///
    /// # Errors
    ///
    /// [`Error::Connection`] if nobody answers there, [`Error::NoModule`] if the server has not loaded the module, or one that is too old.
    pub async fn connect_to(self, server: ConnectionInfo) -> Result<Client, Error> {
        self.with(Topology::Standalone(server)).await
    }

    /// A client of one server that connects when it is first used, so the server may be down now. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address cannot be read.
    pub fn connect_later(self, url: &str) -> Result<Client, Error> {
        let info = self.parse("url", url)?;
        Ok(self.over(Topology::Standalone(info)))
    }

    /// Connects to the master that Sentinel knows under a name, and follows it after a failover. Each URL is that of a sentinel. `settings`
    /// is a URL with the user, password and database of the *master*; its address is not used.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an address cannot be read, [`Error::Connection`] if no sentinel names a master that answers.
    pub async fn connect_sentinel(self, sentinels: &[&str], master: &str, settings: &str) -> Result<Client, Error> {
        let sentinels = sentinels.iter().map(|url| self.parse("sentinels", url)).collect::<Result<_, _>>()?;
        let settings = self.parse("settings", settings)?;
        self.with(Topology::Sentinel { sentinels, master: master.to_owned(), settings }).await
    }

    /// Connects to a cluster, some of whose nodes are named. The first URL also has the user and password for all.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an address cannot be read, [`Error::Connection`] if no node answers.
    pub async fn connect_cluster(self, nodes: &[&str]) -> Result<Client, Error> {
        let nodes = nodes.iter().map(|url| self.parse("nodes", url)).collect::<Result<_, _>>()?;
        self.with(Topology::Cluster(nodes)).await
    }

    async fn with(self, topology: Topology) -> Result<Client, Error> {
        let client = self.over(topology);
        // So that a wrong address is an error here, and not later somewhere else.
        let started = Moment::now();
        let failed = |cause| Error::Connection { tried_for: started.until(Moment::now()), cause };
        client.shared.servers.reach().await.map_err(failed)?;
        client.check_module().await?;
        Ok(client)
    }

    fn over(self, topology: Topology) -> Client {
        #[cfg(feature = "tls-rustls")]
        choose_cryptography();
        let home = Arc::new(Home::here());
        let servers = Servers::new(topology, self.connect_timeout, self.settings.ping_after, home.clone());
        Client { shared: Shared::new(servers, self.settings, home) }
    }

    /// Reads an address. An error does not repeat it: it may have a password in it.
    fn parse(&self, argument: &str, url: &str) -> Result<ConnectionInfo, Error> {
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

/// Without a choice rustls panics when more than one cryptography is linked to the program.
#[cfg(feature = "tls-rustls")]
fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may have been faster, who is right as well.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever looks after a connection without any pause does nothing else.
    #[test]
    fn a_connection_is_never_looked_after_without_a_pause() {
        let ping_after = |span| Client::builder().ping_after(span).settings.ping_after;
        assert_eq!(ping_after(Duration::ZERO), Duration::from_millis(10));
        assert_eq!(ping_after(Duration::from_secs(7)), Duration::from_secs(7));
    }

    #[test]
    fn each_option_is_kept_beside_the_others() {
        let [response, retry, ping, connect] = [1, 2, 3, 4].map(Duration::from_secs);
        let one = Client::builder().retry_for(retry).ping_after(ping);
        let builder = one.response_timeout(response).connect_timeout(connect).name("here");
        let settings = &builder.settings;
        assert_eq!((settings.response_timeout, settings.retry_for, settings.ping_after), (response, retry, ping));
        assert_eq!((builder.connect_timeout, settings.name.as_deref()), (connect, Some("here")));
    }
}
