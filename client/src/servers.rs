//! Where the locks are: one server, the master that Sentinel names, or the masters of a cluster. Each node has one connection that all
//! commands share, made when it is first needed and again when it was lost.

mod sentinel;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::seq::SliceRandom;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};

use self::sentinel::Doubts;
use crate::clock::Moment;
use crate::home::Home;
use crate::link::Link;
use crate::single_flight::SingleFlight;
use crate::slots::{Address, SlotMap};
use crate::timer::within;
use crate::verdict::{Verdict, judge};

/// How to find the servers.
pub(crate) enum Topology {
    /// One server.
    Standalone(ConnectionInfo),
    /// The master of this name.
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        master: String,
        /// How to talk to the master; only the address is Sentinel's.
        settings: ConnectionInfo,
    },
    /// A cluster, with some of its nodes. The first also says how to talk to all.
    Cluster(Vec<ConnectionInfo>),
}

/// A server that locks are on.
pub(crate) struct Node {
    /// Its address, or `None` for the one whose address has to be looked up each time: Sentinel's master.
    info: Option<ConnectionInfo>,
    shared: Place,
    /// Apart from the shared one, because `WAIT` holds up all that is sent after it.
    witness: Place,
}

/// One of a node's connections.
#[derive(Default)]
struct Place {
    link: Mutex<Option<Arc<Link>>>,
    /// Many requests that find no connection make one.
    connecting: SingleFlight,
}

/// Which of a node's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line {
    /// The one that commands share and sessions are bound to.
    Shared,
    /// The one on which replicas are waited for.
    Witness,
}

/// All servers of a client. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Servers(Arc<Deployment>);

/// Which they are, as far as is known, and what they are connected by.
pub(crate) struct Deployment {
    topology: Topology,
    patience: Duration,
    ping_after: Duration,
    home: Arc<Home>,
    /// The one server where there are no slots: a server by itself, or Sentinel's master. Each command comes by here.
    sole: Arc<Node>,
    /// The nodes of a cluster, and others to which a redirection has led.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    slots: Mutex<SlotMap>,
    /// When a node of the cluster last said that it serves nobody, or could not be reached. What it says of the slots is asked for after what others say.
    doubted: Mutex<HashMap<Address, Moment>>,
    /// Many requests that find no slot map ask for one.
    refreshing: SingleFlight,
    /// When the sentinels are asked whether another server has taken the master's place.
    doubts: Mutex<Doubts>,
}

impl Deref for Servers {
    type Target = Deployment;

    fn deref(&self) -> &Deployment {
        &self.0
    }
}

/// Nothing that is done under these locks leaves a half-made state behind a panic.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure(kind: ErrorKind, what: &'static str, detail: impl Into<String>) -> RedisError {
    RedisError::from((kind, what, detail.into()))
}

impl Node {
    fn at(info: Option<ConnectionInfo>) -> Arc<Self> {
        Arc::new(Self { info, shared: Place::default(), witness: Place::default() })
    }

    fn present(&self, line: Line) -> Option<Arc<Link>> {
        lock(&self.place(line).link).clone().filter(|link| !link.is_closed())
    }

    /// Closes a witness that leads elsewhere than the shared connection, which may have gone over to another master: it knows nothing of what that one
    /// grants.
    fn close_stray_witness(&self) {
        if let (Some(shared), Some(witness)) = (self.present(Line::Shared), self.present(Line::Witness))
            && shared.info().addr() != witness.info().addr()
        {
            witness.close();
        }
    }

    fn place(&self, line: Line) -> &Place {
        match line {
            Line::Shared => &self.shared,
            Line::Witness => &self.witness,
        }
    }
}

impl Servers {
    pub(crate) fn new(topology: Topology, patience: Duration, ping_after: Duration, home: Arc<Home>) -> Self {
        let sole = Node::at(match &topology {
            Topology::Standalone(info) => Some(info.clone()),
            _ => None,
        });
        let (nodes, slots, doubted) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (refreshing, doubts) = (SingleFlight::default(), Mutex::new(Doubts::none(Moment::now())));
        Self(Arc::new(Deployment {
            topology,
            patience,
            ping_after,
            home,
            sole,
            nodes,
            slots,
            doubted,
            refreshing,
            doubts,
        }))
    }

    /// Whether keys belong to slots, which may be on different nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// A name for this place that is the same in every process that is configured alike, and differs from that of every other place.
    pub(crate) fn name(&self) -> String {
        let all = |infos: &[ConnectionInfo]| {
            let mut addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
            addresses.sort();
            addresses.join(",")
        };
        let database = |info: &ConnectionInfo| info.redis_settings().db();
        match &self.topology {
            Topology::Standalone(info) => format!("{}/{}", info.addr(), database(info)),
            Topology::Sentinel { sentinels, master, settings } => {
                format!("sentinel {master}/{} {}", database(settings), all(sentinels))
            }
            Topology::Cluster(seeds) => format!("cluster {}", all(seeds)),
        }
    }

    /// What keeps connections alive.
    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Makes sure that somebody answers. Of a cluster that is any node that knows the masters: one of them may be down.
    pub(crate) async fn reach(&self) -> Result<(), RedisError> {
        if self.is_cluster() {
            return self.refresh_slots().await;
        }
        self.link(None, Line::Shared).await.map(drop)
    }

    /// A connection to the node that serves a slot. In a cluster the map of slots is asked for when it does not tell.
    pub(crate) async fn link(&self, slot: Option<u16>, line: Line) -> Result<Arc<Link>, RedisError> {
        if let Some(link) = self.present(slot, line) {
            return Ok(link);
        }
        // Rare, and so much that every command would have to carry it.
        Box::pin(async {
            let node = self.node_of(slot).await.inspect_err(|_| self.forget_slots())?;
            self.link_to(&node, line).await
        })
        .await
    }

    /// The shared connection to the node that a redirection named, or else to the one that serves a slot. It is waited for until a moment, and
    /// made also if that comes first, for whoever asks next.
    pub(crate) async fn link_until(
        &self,
        slot: Option<u16>,
        redirection: Option<&Address>,
        until: Moment,
    ) -> Result<Arc<Link>, RedisError> {
        let connecting = async {
            match redirection {
                Some(address) => self.link_at(address.clone()).await,
                None => self.link(slot, Line::Shared).await,
            }
        };
        let late = || Err(RedisError::from((ErrorKind::Io, "no connection in time")));
        within(Moment::now().until(until), connecting).await.unwrap_or_else(late)
    }

    /// The connection to the node that serves a slot, as far as is known, if there is one.
    pub(crate) fn present(&self, slot: Option<u16>, line: Line) -> Option<Arc<Link>> {
        match (&self.topology, slot) {
            (Topology::Cluster(_), Some(slot)) => {
                let address = lock(&self.slots).master_of(slot)?.clone();
                lock(&self.nodes).get(&address)?.present(line)
            }
            _ => self.sole.present(line),
        }
    }

    /// A connection to a node that a redirection named.
    async fn link_at(&self, address: Address) -> Result<Arc<Link>, RedisError> {
        let node = self.node_at(address);
        self.link_to(&node, Line::Shared).await
    }

    async fn link_to(&self, node: &Arc<Node>, line: Line) -> Result<Arc<Link>, RedisError> {
        if let Some(link) = node.present(line) {
            return Ok(link);
        }
        let connecting = || {
            let (servers, node) = (self.clone(), node.clone());
            async move {
                servers.connect_to(&node, line).await.inspect_err(|_| {
                    // Once for each attempt, and not by each request that could not wait for it: who serves the slots has to be asked of the others.
                    if let Some(info) = &node.info {
                        servers.doubt_slots_of(info);
                    }
                })
            }
        };
        node.place(line).connecting.join(&self.home, connecting).await?;
        node.present(line).ok_or_else(|| RedisError::from((ErrorKind::Io, "the connection was closed again")))
    }

    async fn connect_to(&self, node: &Node, line: Line) -> Result<(), RedisError> {
        // An earlier attempt may have succeeded since it was found missing.
        if node.present(line).is_some() {
            return Ok(());
        }
        let link = match (&node.info, line) {
            (Some(info), _) => self.connect(info.clone()).await?,
            // The witness proves something about what the shared connection's server did.
            (None, Line::Witness) => match node.present(Line::Shared) {
                Some(shared) => self.connect(shared.info().clone()).await?,
                None => self.connect_to_sentinels_master().await?,
            },
            (None, Line::Shared) => self.connect_to_sentinels_master().await?,
        };
        self.put(node, line, link);
        Ok(())
    }

    /// From now on this is one of a node's connections.
    fn put(&self, node: &Node, line: Line, link: Arc<Link>) {
        // The servers have the link, so whoever watches it must not have the servers.
        let servers = Arc::downgrade(&self.0);
        let answers_error = move |link: &Link, error: &RedisError| {
            if let Some(servers) = servers.upgrade() {
                Servers(servers).heed_where_somebody_waits(error, link);
            }
        };
        drop(self.home.start(Link::watch(Arc::downgrade(&link), self.ping_after, self.patience, answers_error)));
        *lock(&node.place(line).link) = Some(link);
        node.close_stray_witness();
    }

    /// Only in a task of the client's home: what keeps the connection alive runs where it was made.
    async fn connect(&self, info: ConnectionInfo) -> Result<Arc<Link>, RedisError> {
        Link::connect(info, self.patience).await
    }

    async fn node_of(&self, slot: Option<u16>) -> Result<Arc<Node>, RedisError> {
        match (&self.topology, slot) {
            (Topology::Cluster(_), Some(slot)) => {
                let known = lock(&self.slots).master_of(slot).cloned();
                let address = match known {
                    Some(address) => address,
                    None => {
                        self.refresh_slots().await?;
                        let found = lock(&self.slots).master_of(slot).cloned();
                        found.ok_or_else(|| {
                            failure(ErrorKind::ClusterConnectionNotFound, "no node serves slot", slot.to_string())
                        })?
                    }
                };
                Ok(self.node_at(address))
            }
            _ => Ok(self.sole.clone()),
        }
    }

    fn node_at(&self, address: Address) -> Arc<Node> {
        let info = self.settings().map(|settings| at_address(settings, &address));
        lock(&self.nodes).entry(address).or_insert_with(|| Node::at(info)).clone()
    }

    fn settings(&self) -> Option<&ConnectionInfo> {
        match &self.topology {
            Topology::Standalone(info) | Topology::Sentinel { settings: info, .. } => Some(info),
            Topology::Cluster(seeds) => seeds.first(),
        }
    }

    /// A redirection says who serves a slot now.
    pub(crate) fn slot_moved(&self, slot: u16, address: Address) {
        lock(&self.slots).moved(slot, address);
    }

    /// Does what a verdict asks for before the next try.
    pub(crate) fn heed(&self, verdict: Verdict, link: &Link) {
        match verdict {
            Verdict::Moved(slot, address) => self.slot_moved(slot, address),
            Verdict::Reconnect => {
                link.close();
                self.doubt_slots_of(link.info());
            }
            Verdict::Elsewhere => {
                self.doubt_slots_of(link.info());
                self.doubt_master();
            }
            Verdict::Later => self.doubt_master(),
            Verdict::Final | Verdict::Ask(_) => {}
        }
    }

    /// Does it for those who wait over a connection. No further try of theirs would ask who serves the slots, so this does.
    fn heed_where_somebody_waits(&self, error: &RedisError, link: &Link) {
        self.heed(judge(error, link), link);
        if self.is_cluster() {
            let servers = self.clone();
            drop(self.home.start(async move { servers.refresh_slots().await }));
        }
    }

    /// Forgets who serves what, so that the next request asks: a node was lost, or is no master any more.
    fn forget_slots(&self) {
        if self.is_cluster() {
            *lock(&self.slots) = SlotMap::default();
        }
    }

    /// Forgets who serves what, because a node serves nobody or cannot be reached: it may be cut off from those who know better.
    fn doubt_slots_of(&self, info: &ConnectionInfo) {
        if let Some(address) = address_of(info).filter(|_| self.is_cluster()) {
            lock(&self.doubted).insert(address, Moment::now());
        }
        self.forget_slots();
    }

    async fn refresh_slots(&self) -> Result<(), RedisError> {
        let servers = self.clone();
        self.refreshing.join(&self.home, || async move { servers.ask_all_for_slots().await }).await
    }

    async fn ask_all_for_slots(&self) -> Result<(), RedisError> {
        // An earlier attempt may have succeeded since none was found.
        if lock(&self.slots).masters().next().is_some() {
            return Ok(());
        }
        let Topology::Cluster(seeds) = &self.topology else { return Ok(()) };
        let mut last = failure(ErrorKind::ClusterConnectionNotFound, "no node of the cluster is known", "");
        for info in self.known_nodes(seeds) {
            match self.ask_for_slots(info).await {
                Ok(map) => {
                    self.keep_only(&map);
                    *lock(&self.slots) = map;
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The nodes to ask, each once: those that were in use, then those that were configured, and last those in doubt, the latest at the end. One that
    /// hangs would keep all the others waiting.
    fn known_nodes(&self, seeds: &[ConnectionInfo]) -> Vec<ConnectionInfo> {
        let mut infos: Vec<ConnectionInfo> = lock(&self.nodes).values().filter_map(|node| node.info.clone()).collect();
        // More than one may be cut off: it is not always the same that is asked.
        infos.shuffle(&mut rand::rng());
        infos.extend(seeds.iter().cloned());
        let mut seen = HashSet::new();
        infos.retain(|info| seen.insert(info.addr().to_string()));
        let doubted = lock(&self.doubted);
        infos.sort_by_key(|info| address_of(info).and_then(|address| doubted.get(&address).copied()));
        infos
    }

    async fn ask_for_slots(&self, info: ConnectionInfo) -> Result<SlotMap, RedisError> {
        let host = match info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        };
        // The connection in use serves, so that a cluster costs one connection per node and no more.
        let link = match address_of(&info) {
            Some(address) => self.link_at(address).await?,
            None => self.connect(info).await?,
        };
        let answer = link.ask(redis::cmd("CLUSTER").arg("SLOTS"), self.patience).await?;
        SlotMap::parse(&answer, &host)
            .filter(|map| map.masters().next().is_some())
            .ok_or_else(|| failure(ErrorKind::ClusterConnectionNotFound, "CLUSTER SLOTS names no master", host))
    }

    /// Nodes that are no masters any more are not kept connected. Nor is waited there: one that is cut off does not end the waits itself.
    fn keep_only(&self, map: &SlotMap) {
        let masters: Vec<_> = map.masters().collect();
        let left: Vec<_> = lock(&self.nodes).extract_if(|address, _| !masters.contains(&address)).collect();
        for link in left.iter().filter_map(|(_, node)| node.present(Line::Shared)) {
            link.close_if_waited_on();
        }
    }
}

/// The address that somebody is talked to at, if that is one of a network.
fn address_of(info: &ConnectionInfo) -> Option<Address> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address { host: host.clone(), port: *port })
        }
        _ => None,
    }
}

/// The same way to talk, to another address.
fn at_address(settings: &ConnectionInfo, address: &Address) -> ConnectionInfo {
    let addr = match settings.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: address.host.clone(),
            port: address.port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(address.host.clone(), address.port),
    };
    settings.clone().set_addr(addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::IntoConnectionInfo;

    fn info(url: &str) -> ConnectionInfo {
        url.into_connection_info().expect("an address")
    }

    #[tokio::test]
    async fn different_places_have_different_names_and_one_place_has_one() {
        let name = |topology| Servers::new(topology, Duration::ZERO, Duration::ZERO, Arc::new(Home::here())).name();
        let server = |url| name(Topology::Standalone(info(url)));
        let sentinel = |sentinels: &[&str], settings| {
            let sentinels = sentinels.iter().map(|url| info(url)).collect();
            name(Topology::Sentinel { sentinels, master: "mymaster".to_owned(), settings: info(settings) })
        };
        let (one, other) = ("redis://a:1", "redis://b:1");
        assert_ne!(server(one), server(other));
        assert_ne!(server("redis://a:1/0"), server("redis://a:1/1"));
        assert_eq!(server("redis://me:secret@a:1/0"), server(one), "whoever asks, it is the same place");
        assert_ne!(sentinel(&[one], "redis://x/0"), sentinel(&[other], "redis://x/0"), "two deployments");
        assert_ne!(sentinel(&[one], "redis://x/0"), sentinel(&[one], "redis://x/1"));
        assert_eq!(sentinel(&[one, other], "redis://x/0"), sentinel(&[other, one], "redis://y/0"));
    }

    #[test]
    fn another_node_is_talked_to_as_the_first_one() {
        let address = Address { host: "b".to_owned(), port: 2 };
        let plain = at_address(&info("redis://me:secret@a:1/0"), &address);
        assert_eq!(
            (plain.addr(), plain.redis_settings().username()),
            (&ConnectionAddr::Tcp("b".to_owned(), 2), Some("me"))
        );
        let safe = |host: &str, port| ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: false,
            tls_params: None,
        };
        assert_eq!(at_address(&info("redis://a:1").set_addr(safe("a", 1)), &address).addr(), &safe("b", 2));
    }

    /// A node that hangs would keep whoever asks for `connect_timeout`.
    #[tokio::test]
    async fn nodes_that_failed_are_asked_last_who_serves_the_slots_and_each_once() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address");
        let [gone, other, third] = [format!("redis://{free}"), "redis://b:2".to_owned(), "redis://c:3".to_owned()];
        let seeds = [&gone, &other, &third].map(|url| info(url));
        let second = Duration::from_secs(1);
        let servers = Servers::new(Topology::Cluster(seeds.to_vec()), second, second, Arc::new(Home::here()));
        let order = || servers.known_nodes(&seeds).iter().filter_map(address_of).collect::<Vec<_>>();
        let [gone, other, third] = seeds.each_ref().map(|info| address_of(info).expect("an address"));
        assert_eq!(order(), [gone.clone(), other.clone(), third.clone()]);
        assert!(servers.link_at(gone.clone()).await.is_err());
        assert_eq!(order(), [other.clone(), third.clone(), gone.clone()]);
        servers.doubt_slots_of(&seeds[1]);
        assert_eq!(order(), [third, gone, other], "the last one to fail is the last");
    }
}
