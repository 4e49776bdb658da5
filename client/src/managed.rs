//! Commands over a connection that the application manages.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::ConnectionInfo;
use redis::aio::ConnectionManager;

use crate::Error;
use crate::client::{Builder, Client, name_of};
use crate::node::{Node, Single};
use crate::transport::{Common, Hear, Link, Transport, connect_to};

impl Client {
    /// A client that sends its commands over a `ConnectionManager` of the application. Messages
    /// need their own connection: the first wait opens it with `client`, which must be the one that
    /// created the manager. Must be called inside a tokio runtime.
    ///
    /// [`session_grace`](crate::Lock::session_grace) is refused: the client cannot see which
    /// connection the manager uses, and the manager of redis-rs 1.8 does not reconnect after a late
    /// reply.
    pub fn from_connection_manager(manager: ConnectionManager, client: &redis::Client) -> Self {
        Builder::default().over_connection_manager(manager, client)
    }
}

impl Builder {
    /// As [`Client::from_connection_manager`], with these options.
    pub fn over_connection_manager(self, manager: ConnectionManager, client: &redis::Client) -> Client {
        let info = client.get_connection_info().clone();
        let name = name_of(&info);
        self.build(|common| Box::new(Single { name, node: Node::new(Managed { manager, info }, common) }))
    }
}

/// Commands use the application's connection; messages use another one to the same server.
struct Managed {
    manager: ConnectionManager,
    info: ConnectionInfo,
}

impl Transport for Managed {
    fn open(&self, common: &Arc<Common>) -> BoxFuture<'static, Result<Link, Error>> {
        let link = Link::managed(self.manager.clone(), common);
        async move { Ok(link) }.boxed()
    }

    fn listen(&self, common: &Arc<Common>, _: &Link, hear: Hear) -> BoxFuture<'static, Result<Link, Error>> {
        connect_to(self.info.clone(), common, hear)
    }
}
