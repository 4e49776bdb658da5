//! A cluster. `CLUSTER SLOTS` and redirections tell which node serves a slot.
//!
//! The cluster connection of redis-rs 1.8 does not fit: a moving slot makes the server send an
//! unsolicited `sunsubscribe`, which redis-rs takes for the answer to another request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::seq::SliceRandom;
use redis::{ConnectionAddr, ConnectionInfo};

use crate::Error;
use crate::client::{Builder, Client, at_address};
use crate::clock::Moment;
use crate::node::{Node, Servers};
use crate::slots::{Address, SlotMap, slot_of};
use crate::sync::lock;
use crate::transport::{Common, Direct, Hear, Link, Opens, Slot, Transport};

impl Builder {
    /// Connects to a cluster. `nodes` has the URLs of some nodes; the first URL also has the user
    /// and password for all.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an address is malformed, [`Error::Unavailable`] if no node answers.
    pub async fn connect_cluster(self, nodes: &[&str]) -> Result<Client, Error> {
        let seeds: Vec<_> = nodes.iter().map(|url| self.parse("nodes", url)).collect::<Result<_, _>>()?;
        let Some(settings) = seeds.first().cloned() else {
            return Err(Error::Argument("nodes is empty; expected at least one address".to_owned()));
        };
        let client = self.build(|common| Box::new(Cluster(Known::new(common, settings, seeds))));
        client.core.node(None).await?;
        // This node may be down while others serve.
        match client.core.check_module().await {
            Err(error @ Error::ModuleMissing(_)) => Err(error),
            _ => Ok(client),
        }
    }
}

struct Cluster(Arc<Known>);

/// The nodes of a cluster and their slots.
struct Known {
    common: Arc<Common>,
    settings: ConnectionInfo,
    seeds: Vec<ConnectionInfo>,
    state: Mutex<State>,
    refreshing: Slot<Refreshed>,
    me: Weak<Self>,
}

#[derive(Default)]
struct State {
    slots: SlotMap,
    nodes: HashMap<Address, Arc<Node>>,
    /// When a node last refused or could not be reached. Such a node may be cut off from the
    /// others, so the client asks it last.
    doubted: HashMap<Address, Moment>,
}

/// A completed refresh. The next one starts anew.
struct Refreshed;

impl Opens for Refreshed {
    fn is_open(&self) -> bool {
        false
    }
}

fn host_of(info: &ConnectionInfo) -> &str {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    }
}

fn address_of(info: &ConnectionInfo) -> Option<Address> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address { host: host.clone(), port: *port })
        }
        _ => None,
    }
}

impl Known {
    fn new(common: &Arc<Common>, settings: ConnectionInfo, seeds: Vec<ConnectionInfo>) -> Arc<Self> {
        let (common, state, refreshing) = (common.clone(), Mutex::default(), Slot::default());
        Arc::new_cyclic(|me| Self { common, settings, seeds, state, refreshing, me: me.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn known(&self, slot: u16) -> Option<Arc<Node>> {
        let state = self.state();
        state.nodes.get(state.slots.master_of(slot)?).cloned()
    }

    fn node_at(&self, address: &Address) -> Arc<Node> {
        let open = || {
            let info = at_address(&self.settings, &address.host, address.port);
            Node::new(Member { info: info.clone(), direct: Direct(info), cluster: self.me.clone() }, &self.common)
        };
        self.state().nodes.entry(address.clone()).or_insert_with(open).clone()
    }

    /// The node that serves a slot. Without a slot, any node: part of the cluster may be missing.
    async fn find(&self, slot: Option<u16>) -> Result<Arc<Node>, Error> {
        let known = || {
            let state = self.state();
            slot.map_or_else(|| state.slots.masters().next(), |slot| state.slots.master_of(slot)).cloned()
        };
        let address = match known() {
            Some(address) => address,
            None => {
                self.refresh().await?;
                known().ok_or_else(|| Error::unavailable(format!("no node serves slot {slot:?}")))?
            }
        };
        Ok(self.node_at(&address))
    }

    /// Asks a node for the slots. Concurrent callers share one request.
    async fn refresh(&self) -> Result<(), Error> {
        let Some(me) = self.me.upgrade() else { return Err(Error::Closed) };
        self.refreshing
            .get(&self.common.home, || async move { me.ask_for_slots().await.map(|()| Arc::new(Refreshed)) })
            .await?;
        Ok(())
    }

    async fn ask_for_slots(&self) -> Result<(), Error> {
        let mut last = Error::unavailable("no node of the cluster is known");
        for info in self.candidates() {
            let asking = async {
                let address =
                    address_of(&info).ok_or_else(|| Error::Argument("nodes need a host and port".to_owned()))?;
                let link = self.node_at(&address).link().await?;
                let answer = link.ask(redis::cmd("CLUSTER").arg("SLOTS"), self.common.command_timeout).await?;
                let map = SlotMap::parse(&answer, host_of(&info)).filter(|map| map.masters().next().is_some());
                map.ok_or_else(|| Error::unavailable("CLUSTER SLOTS names no primary"))
            };
            match asking.await {
                Ok(map) => {
                    self.keep_only(map);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The nodes to ask, each once: nodes in use, then configured nodes, then nodes in doubt, the
    /// latest last.
    fn candidates(&self) -> Vec<ConnectionInfo> {
        let state = self.state();
        let mut addresses: Vec<_> = state.nodes.keys().cloned().collect();
        // Several nodes may be cut off, so do not always ask the same one first.
        addresses.shuffle(&mut rand::rng());
        let mut seen: Vec<ConnectionInfo> =
            addresses.iter().map(|address| at_address(&self.settings, &address.host, address.port)).collect();
        for seed in &self.seeds {
            if seen.iter().all(|known| known.addr() != seed.addr()) {
                seen.push(seed.clone());
            }
        }
        seen.sort_by_key(|info| address_of(info).and_then(|address| state.doubted.get(&address).copied()));
        seen
    }

    /// Replaces the slot map. Closes nodes that serve no slot now; their waiting requests are sent
    /// again to the new nodes.
    fn keep_only(&self, map: SlotMap) {
        let left: Vec<_> = {
            let mut state = self.state();
            let masters: Vec<_> = map.masters().cloned().collect();
            let left = state.nodes.extract_if(|address, _| !masters.contains(address)).map(|(_, node)| node).collect();
            // Forget the addresses of former nodes.
            let is_seed = |address: &Address| self.seeds.iter().any(|seed| address_of(seed).as_ref() == Some(address));
            state.doubted.retain(|address, _| masters.contains(address) || is_seed(address));
            state.slots = map;
            left
        };
        for node in left {
            node.close();
        }
    }

    /// Forgets which slots a node serves, so that the next request for them asks other nodes before
    /// this one. Meanwhile requests to other nodes do not wait.
    fn doubt(&self, info: &ConnectionInfo) {
        let Some(address) = address_of(info) else { return };
        let mut state = self.state();
        state.slots.forget(&address);
        state.doubted.insert(address, self.common.clock.now());
    }
}

/// A node. A refusal makes the cluster ask for the slot map.
struct Member {
    info: ConnectionInfo,
    direct: Direct,
    cluster: Weak<Known>,
}

impl Transport for Member {
    fn open(&self, common: &Arc<Common>) -> BoxFuture<'static, Result<Link, Error>> {
        self.direct.open(common)
    }

    fn listen(&self, common: &Arc<Common>, commands: &Link, hear: Hear) -> BoxFuture<'static, Result<Link, Error>> {
        self.direct.listen(common, commands, hear)
    }

    fn doubt(&self, error: &Error) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        if matches!(error.code(), "" | "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING") {
            cluster.doubt(&self.info);
            // A waiting request sends nothing by itself, so the refresh must tell it that another
            // node serves its slot.
            let refreshing = cluster.clone();
            drop(cluster.common.home.spawn(async move { refreshing.refresh().await }));
        }
    }
}

impl Servers for Cluster {
    fn name(&self) -> String {
        let mut addresses: Vec<_> = self.0.seeds.iter().map(|info| info.addr().to_string()).collect();
        addresses.sort();
        format!("cluster {}", addresses.join(","))
    }

    fn slot_of(&self, key: &[u8]) -> Option<u16> {
        Some(slot_of(key))
    }

    fn known(&self, slot: Option<u16>) -> Option<Arc<Node>> {
        self.0.known(slot?)
    }

    fn find(&self, slot: Option<u16>) -> BoxFuture<'_, Result<Arc<Node>, Error>> {
        async move { self.0.find(slot).await }.boxed()
    }

    fn redirected(&self, error: &Error, from: &Link) -> Option<(Arc<Node>, bool)> {
        let Error::Unavailable { code, message, .. } = error else { return None };
        let (slot, address) = message.split_once(' ')?;
        let address = Address::parse(address, from.info().map_or("", host_of))?;
        match code.as_str() {
            "MOVED" => {
                self.0.state().slots.moved(slot.parse().ok()?, address.clone());
                Some((self.0.node_at(&address), false))
            }
            "ASK" => Some((self.0.node_at(&address), true)),
            _ => None,
        }
    }

    fn close(&self) {
        let nodes: Vec<_> = self.0.state().nodes.values().cloned().collect();
        nodes.iter().for_each(|node| node.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster in containers gives each new node another address.
    #[tokio::test]
    async fn addresses_of_former_nodes_are_forgotten() {
        use redis::IntoConnectionInfo;
        let seed = "redis://127.0.0.1:1/".into_connection_info().expect("an address");
        let mut known = None;
        let _client = Client::builder().build(|common| {
            Box::new(Cluster(known.insert(Known::new(common, seed.clone(), vec![seed.clone()])).clone()))
        });
        let known = known.expect("the client is built");
        let address = |port| Address { host: "127.0.0.1".to_owned(), port };
        known.doubt(&seed);
        for port in 2..9 {
            known.node_at(&address(port));
            known.doubt(&at_address(&seed, "127.0.0.1", port));
            let mut map = SlotMap::default();
            map.moved(0, address(port));
            known.keep_only(map);
        }
        let state = known.state();
        assert_eq!(state.nodes.keys().collect::<Vec<_>>(), [&address(8)]);
        let mut doubted: Vec<_> = state.doubted.keys().collect();
        doubted.sort();
        assert_eq!(doubted, [&address(1), &address(8)], "the configured node and the present one");
    }

    #[test]
    fn other_nodes_get_the_connection_settings_of_the_first() {
        use redis::IntoConnectionInfo;
        let info = "redis://me:secret@a:1/0".into_connection_info().expect("an address");
        let other = at_address(&info, "b", 2);
        assert_eq!(other.addr(), &ConnectionAddr::Tcp("b".to_owned(), 2));
        assert_eq!(other.redis_settings().username(), Some("me"));
        let tls = |host: &str, port| ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: false,
            tls_params: None,
        };
        assert_eq!(at_address(&info.set_addr(tls("a", 1)), "b", 2).addr(), &tls("b", 2));
    }
}
