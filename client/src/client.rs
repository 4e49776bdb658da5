//! The client: connects, and makes handles to locks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};
use tokio::runtime::Handle;

use crate::Error;
use crate::clock::Moment;
use crate::lock::{Fair, Lock, Mutex as MutexKind, RwLock};
use crate::multi::MultiLock;
use crate::request::Gate;
use crate::semaphore::Semaphore;
use crate::servers::{Servers, Topology};
use crate::slots::slot_of;
use crate::waiting_room::WaitingRoom;
use crate::wire::Family;

/// What a client is told once.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) response_timeout: Duration,
    pub(crate) retry_for: Duration,
    pub(crate) refresh_waits_after: Duration,
    waiting_connections: usize,
    name: Option<String>,
}

/// What all handles and guards of a client share.
pub(crate) struct Shared {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) waiting_room: Arc<WaitingRoom>,
    /// Held while a wait moves to a fresh connection.
    pub(crate) moving: tokio::sync::Mutex<()>,
    pub(crate) runtime: Handle,
    gates: Mutex<HashMap<GateKey, Weak<tokio::sync::Mutex<()>>>>,
}

/// An owner has one numbered request at a time for each of these.
type GateKey = (Family, Arc<[Vec<u8>]>, Arc<[u8]>);

impl Shared {
    /// The slot of keys that are asked for together, in a cluster.
    pub(crate) fn slot_of(&self, keys: &[Vec<u8>]) -> Option<u16> {
        self.servers.is_cluster().then(|| slot_of(keys.first().map_or(&[], Vec::as_slice)))
    }

    /// Runs what tidies up. When the runtime is shutting down, the lease tidies up.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    /// The gate of an owner that several handles may use.
    pub(crate) fn gate_of(&self, key: GateKey) -> Gate {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        // As many as are in use at most double before those that are not are removed.
        if gates.len() == gates.capacity() {
            gates.retain(|_, gate| gate.strong_count() > 0);
        }
        let gate = Gate::default();
        gates.insert(key, Arc::downgrade(&gate));
        gate
    }

    /// A name of the place where the locks are, the same in every process.
    pub(crate) fn name(&self) -> String {
        self.settings.name.clone().unwrap_or_else(|| self.servers.name())
    }
}

/// A connection to the place where the locks are: one server, a master under Sentinel, or a cluster. Cloning it is cheap and shares
/// everything.
///
/// All commands share one connection (per node of a cluster), made anew when it was lost. Waiting uses a few more, see
/// [`Builder::waiting_connections`].
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("name", &self.shared.name()).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to one server, `redis://[user:password@]host[:port][/db]`, with the default options.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address cannot be read, [`Error::Connection`] if nobody answers there.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Options for how to connect.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A mutex: one owner at a time.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock<MutexKind> {
        Lock::new(self, key.as_ref())
    }

    /// A mutex whose queue is kept by the server as data: it survives a restart and a failover in the same order.
    pub fn fair_lock(&self, key: impl AsRef<[u8]>) -> Lock<Fair> {
        Lock::new(self, key.as_ref())
    }

    /// A lock for many readers or one writer.
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> RwLock {
        RwLock::new(self, key.as_ref())
    }

    /// A number of permits.
    pub fn semaphore(&self, key: impl AsRef<[u8]>) -> Semaphore {
        Semaphore::new(self, key.as_ref())
    }

    /// Several mutexes that are held together or not at all.
    pub fn multi_lock<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        MultiLock::new(self, keys)
    }
}

/// Options of a [`Client`].
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Settings,
    connect_timeout: Duration,
}

impl Default for Builder {
    fn default() -> Self {
        let settings = Settings {
            response_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(30),
            refresh_waits_after: Duration::from_secs(15),
            waiting_connections: 8,
            name: None,
        };
        Self { settings, connect_timeout: Duration::from_secs(2) }
    }
}

impl Builder {
    /// How long an answer may take, other than to a request that waits, before its connection counts as dead. Default: 5 s.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        self
    }

    /// How long connecting may take. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a request is sent again while no server answers it: through a restart or a failover. Default: 30 s.
    #[must_use]
    pub fn retry_for(mut self, span: Duration) -> Self {
        self.settings.retry_for = span;
        self
    }

    /// How many connections requests may wait on, at least 1. Default: 8.
    ///
    /// One is enough for any number of tasks that wait for the same lock: they stand in line here. While tasks wait for more different
    /// locks than this, the surplus ones ask ten times a second.
    #[must_use]
    pub fn waiting_connections(mut self, connections: usize) -> Self {
        self.settings.waiting_connections = connections.max(1);
        self
    }

    /// A connection on which somebody waits is silent, and may have died silently. A wait that lasts so long moves to a fresh
    /// connection; its place in the queue moves with it. Default: 15 s.
    #[must_use]
    pub fn refresh_waits_after(mut self, span: Duration) -> Self {
        self.settings.refresh_waits_after = span;
        self
    }

    /// A name for the place where the locks are. [`MultiLock`] goes through several places in the order of their names, so all processes must
    /// use the same ones. Default: made from the addresses.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Connects to one server.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address cannot be read, [`Error::Connection`] if nobody answers there.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let info = parse("url", url)?;
        self.with(Topology::Standalone(info)).await
    }

    /// A client of one server that connects when it is first used, so the server may be down now. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address cannot be read.
    pub fn connect_later(self, url: &str) -> Result<Client, Error> {
        let info = parse("url", url)?;
        let servers = Servers::new(Topology::Standalone(info), self.connect_timeout);
        Ok(self.over(servers))
    }

    /// Connects to the master that Sentinel knows under a name, and follows it after a failover. Each URL is that of a sentinel. `settings`
    /// is a URL with the user, password and database of the *master*; its address is not used.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an address cannot be read, [`Error::Connection`] if no sentinel names a master that answers.
    pub async fn connect_sentinel(self, sentinels: &[&str], master: &str, settings: &str) -> Result<Client, Error> {
        let sentinels = sentinels.iter().map(|url| parse("sentinels", url)).collect::<Result<_, _>>()?;
        let settings = parse("settings", settings)?;
        self.with(Topology::Sentinel { sentinels, master: master.to_owned(), settings }).await
    }

    /// Connects to a cluster, some of whose nodes are named. The first URL also has the user and password for all.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an address cannot be read, [`Error::Connection`] if no node answers.
    pub async fn connect_cluster(self, nodes: &[&str]) -> Result<Client, Error> {
        let nodes = nodes.iter().map(|url| parse("nodes", url)).collect::<Result<_, _>>()?;
        self.with(Topology::Cluster(nodes)).await
    }

    async fn with(self, topology: Topology) -> Result<Client, Error> {
        let servers = Servers::new(topology, self.connect_timeout);
        // So that a wrong address is an error here, and not later somewhere else.
        let started = Moment::now();
        let failed = |cause| Error::Connection { tried_for: started.until(Moment::now()), cause };
        servers.reach().await.map_err(failed)?;
        Ok(self.over(servers))
    }

    fn over(self, servers: Servers) -> Client {
        let waiting_room = WaitingRoom::new(self.settings.waiting_connections);
        let shared = Shared {
            servers,
            settings: self.settings,
            waiting_room,
            moving: tokio::sync::Mutex::default(),
            runtime: Handle::current(),
            gates: Mutex::default(),
        };
        Client { shared: Arc::new(shared) }
    }
}

fn parse(argument: &str, url: &str) -> Result<ConnectionInfo, Error> {
    url.into_connection_info()
        .map_err(|error| Error::Argument(format!("{argument}: {url:?} is not an address: {error}")))
}
