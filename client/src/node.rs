//! Servers and their connections, and which server has a key.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
#[cfg(feature = "sentinel")]
use redis::ConnectionInfo;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::identity::random_name;
use crate::subscriber::Subscriber;
use crate::transport::{Common, Link, Slot, Transport};
use crate::wire::Subject;

/// A request id that no request uses.
const NO_REQUEST: u64 = 1;

/// A server that holds locks.
pub(crate) struct Node {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) common: Arc<Common>,
    link: Slot<Link>,
    subscriber: Slot<Subscriber>,
}

impl Node {
    pub(crate) fn new(transport: impl Transport, common: &Arc<Common>) -> Arc<Self> {
        let (link, subscriber) = (Slot::default(), Slot::default());
        Arc::new(Self { transport: Box::new(transport), common: common.clone(), link, subscriber })
    }

    /// The connection shared by commands, if it is open.
    pub(crate) fn present(&self) -> Option<Arc<Link>> {
        self.link.present()
    }

    /// The connection shared by commands. Opens it if necessary.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.present() {
            return Ok(link);
        }
        let node = self.clone();
        self.link.get(&self.common.home, || async move { node.open_link().await }).await
    }

    async fn open_link(&self) -> Result<Arc<Link>, Error> {
        let link = Arc::new(self.dial().await?);
        #[cfg(feature = "sentinel")]
        if let Some(subscriber) = self.subscriber.present()
            && subscriber.link().info().map(ConnectionInfo::addr) != link.info().map(ConnectionInfo::addr)
        {
            // The new server publishes the messages from now on.
            subscriber.close();
        }
        tokio::spawn(tell_its_end(self.common.clone(), link.closed().clone()));
        Ok(link)
    }

    /// Opens a connection for the exclusive use of one caller.
    pub(crate) async fn dial(&self) -> Result<Link, Error> {
        self.in_time(self.transport.open(&self.common)).await
    }

    /// The connection that delivers messages. Opens it if necessary.
    pub(crate) async fn subscriber(self: &Arc<Self>) -> Result<Arc<Subscriber>, Error> {
        let node = self.clone();
        let open = || async move {
            let commands = node.link().await?;
            let open = |hear| node.in_time(node.transport.listen(&node.common, &commands, hear));
            let subscriber = Subscriber::open(&node.common, open).await?;
            tokio::spawn(watch(Arc::downgrade(&subscriber), Arc::downgrade(&node)));
            Ok(subscriber)
        };
        self.subscriber.get(&self.common.home, open).await
    }

    async fn in_time<T>(&self, opening: BoxFuture<'static, Result<T, Error>>) -> Result<T, Error> {
        let patience = self.common.connect_timeout;
        let opened = timeout(patience, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(Error::unavailable(format!("no connection within {patience:?}"))));
        opened.inspect_err(|error| self.transport.doubt(error))
    }

    /// Replaces a connection whose answer is late. Requests in progress and sessions bound to it
    /// keep the old one open.
    pub(crate) fn abandon(&self, link: &Link) {
        if link.tells_its_end() {
            let address = link.info().map(|info| info.addr().to_string());
            tracing::debug!(address, "replacing a silent connection");
            self.link.abandon(link);
            (self.common.on_close)();
        }
    }

    /// Reacts to an error of the server before the next attempt.
    pub(crate) fn heed(&self, error: &Error, link: &Link) {
        if !error.is_retryable() {
            return;
        }
        if error.code() == "READONLY" {
            // This primary was demoted; its address may lead to another server by now.
            self.abandon(link);
            if let Some(subscriber) = self.subscriber.present() {
                subscriber.close();
            }
        }
        self.transport.doubt(error);
    }

    /// Closes the connections. Waits and sessions move to new connections, to the server that
    /// replaces this one.
    pub(crate) fn close(&self) {
        if let Some(link) = self.link.present() {
            link.close();
        }
        if let Some(subscriber) = self.subscriber.present() {
            subscriber.close();
        }
        self.link.clear();
        self.subscriber.clear();
    }
}

/// Reports a closed connection. The runtime that drives the connection ends it, too.
async fn tell_its_end(common: Arc<Common>, closed: CancellationToken) {
    let _guard = closed.clone().drop_guard();
    tokio::select! {
        () = closed.cancelled() => (common.on_close)(),
        () = common.ended.cancelled() => {}
    }
}

/// While a request waits, checks every `ping_after` that both connections to the server are alive.
/// They are silent then, so nothing else would show that one is dead. The connection for commands
/// gets a CANCEL of an unknown request: it changes nothing, and the server refuses it whenever it
/// would refuse a grant.
async fn watch(subscriber: Weak<Subscriber>, node: Weak<Node>) {
    let Some(common) = node.upgrade().map(|node| node.common.clone()) else { return };
    let Some(closed) = subscriber.upgrade().map(|subscriber| subscriber.link().closed().clone()) else { return };
    let _guard = closed.clone().drop_guard();
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            () = common.ended.cancelled() => return,
            () = tokio::time::sleep(common.ping_after) => {}
        }
        let Some(subscriber) = subscriber.upgrade() else { return };
        #[cfg(feature = "events")]
        subscriber.leave_idle().await;
        let waiting = subscriber.any_waiting();
        #[cfg(feature = "events")]
        let is_used = waiting.is_some() || subscriber.is_followed();
        #[cfg(not(feature = "events"))]
        let is_used = waiting.is_some();
        let pinging = async {
            let ping = redis::cmd("PING");
            if is_used
                && subscriber.link().ask(&ping, common.command_timeout).await.is_err_and(|error| error.is_lost_reply())
            {
                subscriber.close();
            }
        };
        let asking = async {
            let (Some(subject), Some(node)) = (waiting, node.upgrade()) else { return };
            let Some(link) = node.present() else { return };
            let question = Subject { owner: random_name().into_bytes().into(), ..subject }.cancel(NO_REQUEST);
            match link.ask(&question, common.command_timeout).await {
                Err(error) if error.is_lost_reply() => {
                    link.close();
                    node.transport.doubt(&error);
                }
                Err(error) => node.heed(&error, &link),
                Ok(_) => {}
            }
        };
        tokio::join!(pinging, asking);
    }
}

/// Where the locks are: one server, the primary that Sentinel names, or a cluster.
pub(crate) trait Servers: Send + Sync + 'static {
    /// A name made from the configured addresses, equal in all processes with the same
    /// configuration.
    fn name(&self) -> String;

    /// The slot of a key, in a cluster.
    fn slot_of(&self, _key: &[u8]) -> Option<u16> {
        None
    }

    /// The node of a slot, if it is known without asking.
    fn known(&self, slot: Option<u16>) -> Option<Arc<Node>>;

    /// The node of a slot.
    fn find(&self, slot: Option<u16>) -> BoxFuture<'_, Result<Arc<Node>, Error>>;

    /// The node that a redirection leads to, and whether it is for this request only.
    fn redirected(&self, _error: &Error, _from: &Link) -> Option<(Arc<Node>, bool)> {
        None
    }

    /// Closes all connections.
    fn close(&self);
}

/// One server.
pub(crate) struct Single {
    pub(crate) name: String,
    pub(crate) node: Arc<Node>,
}

impl Servers for Single {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn known(&self, _: Option<u16>) -> Option<Arc<Node>> {
        Some(self.node.clone())
    }

    fn find(&self, _: Option<u16>) -> BoxFuture<'_, Result<Arc<Node>, Error>> {
        let node = self.node.clone();
        async move { Ok(node) }.boxed()
    }

    fn close(&self) {
        self.node.close();
    }
}
