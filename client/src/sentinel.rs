//! A primary that Sentinel names.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{ConnectionInfo, Value};

use crate::Error;
use crate::client::{Builder, Client, at_address, reached};
use crate::clock::Moment;
use crate::node::{Node, Single};
use crate::sync::lock;
use crate::transport::{Common, Hear, Link, Transport, connect_to};
use crate::wire;

/// The pause between two inquiries about a primary that refuses. It doubles each time in a row, up
/// to the maximum.
const BETWEEN_DOUBTS: Duration = Duration::from_secs(1);
const BETWEEN_DOUBTS_AT_MOST: Duration = Duration::from_secs(4);

impl Builder {
    /// Connects to the primary that Sentinel knows by the name `master`, and follows it after a
    /// failover. `sentinels` has the URLs of sentinels. `settings` is a URL with the user, password
    /// and database of the *primary*; its address is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an address is malformed, [`Error::Unavailable`] if no sentinel names
    /// a primary that answers.
    pub async fn connect_sentinel(self, sentinels: &[&str], master: &str, settings: &str) -> Result<Client, Error> {
        let sentinels: Vec<_> = sentinels.iter().map(|url| self.parse("sentinels", url)).collect::<Result<_, _>>()?;
        let settings = self.parse("settings", settings)?;
        let client = self.build(|common| {
            let watched = Watched {
                sentinels,
                master: master.to_owned(),
                settings,
                doubts: Mutex::new(Doubts::none()),
                node: OnceLock::new(),
            };
            let (name, watched) = (watched.name(), Arc::new(watched));
            let node = Node::new(Primary(watched.clone()), common);
            let _ = watched.node.set(Arc::downgrade(&node));
            Box::new(Single { name, node })
        });
        reached(client).await
    }
}

/// A primary that sentinels watch.
struct Watched {
    sentinels: Vec<ConnectionInfo>,
    master: String,
    /// The connection settings of the primary. Sentinel supplies the address.
    settings: ConnectionInfo,
    doubts: Mutex<Doubts>,
    node: OnceLock<Weak<Node>>,
}

struct Primary(Arc<Watched>);

/// When to ask the sentinels about a primary that refuses.
struct Doubts {
    /// Not before this moment; [`Moment::NEVER`] while the client is asking.
    next: Moment,
    pause: Duration,
}

impl Doubts {
    fn none() -> Self {
        Self { next: Moment::from_us(0), pause: BETWEEN_DOUBTS }
    }

    /// Whether to ask now. If so, the caller reports the [end](Self::end).
    fn begin(&mut self, now: Moment) -> bool {
        if now < self.next {
            return false;
        }
        // If the primary has refused nothing for a whole pause since, begin with the shortest pause
        // again.
        if self.next.after(self.pause) < now {
            self.pause = BETWEEN_DOUBTS;
        }
        self.next = Moment::NEVER;
        true
    }

    fn end(&mut self, now: Moment) {
        self.next = now.after(self.pause);
        self.pause = (self.pause * 2).min(BETWEEN_DOUBTS_AT_MOST);
    }
}

impl Watched {
    fn name(&self) -> String {
        let mut addresses: Vec<_> = self.sentinels.iter().map(|info| info.addr().to_string()).collect();
        addresses.sort();
        format!("sentinel {}/{} {}", self.master, self.settings.redis_settings().db(), addresses.join(","))
    }

    fn doubts(&self) -> MutexGuard<'_, Doubts> {
        lock(&self.doubts)
    }

    /// The server that a sentinel names.
    async fn named_by(&self, sentinel: &ConnectionInfo, common: &Common) -> Result<ConnectionInfo, Error> {
        let asking = async {
            let link = Link::connect(sentinel.clone(), common, Arc::new(|_| {})).await?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
            let answer = link.ask(&question, common.command_timeout).await?;
            let Value::Array(address) = &answer else {
                return Err(Error::unavailable(format!("sentinel knows no primary {:?}", self.master)));
            };
            let [host, port] = address.as_slice() else { return Err(Error::unexpected(&answer)) };
            let port = u16::try_from(wire::number(port)?).map_err(|_| Error::unexpected(&answer))?;
            Ok(at_address(&self.settings, &String::from_utf8_lossy(wire::bytes(host)?), port))
        };
        // A sentinel that hangs must not keep the client from asking the others.
        let late = || Err(Error::unavailable("a sentinel does not answer"));
        // Even if only the last one answers, this leaves time for the primary.
        let shares = u32::try_from(self.sentinels.len()).unwrap_or(u32::MAX).saturating_add(1);
        tokio::time::timeout(common.connect_timeout / shares, asking).await.unwrap_or_else(|_| late())
    }

    /// Connects to a server, and checks with ROLE that it is a primary.
    async fn connect_to(&self, server: ConnectionInfo, common: &Common) -> Result<Link, Error> {
        let link = Link::connect(server, common, Arc::new(|_| {})).await?;
        let role = link.ask(&redis::cmd("ROLE"), common.command_timeout).await?;
        match &role {
            Value::Array(fields)
                if fields.first().is_some_and(|word| wire::bytes(word).is_ok_and(|w| w == b"master")) =>
            {
                Ok(link)
            }
            _ => Err(Error::unavailable("sentinel names a server that is not a primary yet")),
        }
    }

    /// Asks one sentinel after the other.
    async fn connect(&self, common: &Common) -> Result<Link, Error> {
        let mut last = Error::unavailable("there are no sentinels");
        for sentinel in &self.sentinels {
            let connecting = async { self.connect_to(self.named_by(sentinel, common).await?, common).await };
            match connecting.await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Switches to another server if most of the sentinels name it, and its ROLE is primary. A
    /// single sentinel may be cut off together with the old primary.
    async fn leave_replaced_primary(&self) {
        let Some(node) = self.node.get().and_then(Weak::upgrade) else { return };
        let Some(present) = node.present() else { return };
        let mut named: Vec<(ConnectionInfo, usize)> = Vec::new();
        for sentinel in &self.sentinels {
            let Ok(other) = self.named_by(sentinel, &node.common).await else { continue };
            match named.iter_mut().find(|(known, _)| known.addr() == other.addr()) {
                Some((_, count)) => *count += 1,
                None => named.push((other, 1)),
            }
        }
        let by_most = named.into_iter().find(|(_, count)| count * 2 > self.sentinels.len()).map(|(other, _)| other);
        let Some(other) = by_most else { return };
        if present.info().is_some_and(|info| info.addr() == other.addr()) {
            return;
        }
        if self.connect_to(other, &node.common).await.is_ok() {
            tracing::info!("the primary refuses, and the sentinels name another one");
            node.close();
        }
    }
}

impl Transport for Primary {
    fn open(&self, common: &Arc<Common>) -> BoxFuture<'static, Result<Link, Error>> {
        let (watched, common) = (self.0.clone(), common.clone());
        async move { watched.connect(&common).await }.boxed()
    }

    fn listen(&self, common: &Arc<Common>, commands: &Link, hear: Hear) -> BoxFuture<'static, Result<Link, Error>> {
        connect_to(commands.info().unwrap_or(&self.0.settings).clone(), common, hear)
    }

    fn doubt(&self, _: &Error) {
        let Some(common) = self.0.node.get().and_then(Weak::upgrade).map(|node| node.common.clone()) else { return };
        if !self.0.doubts().begin(common.clock.now()) {
            return;
        }
        let watched = self.0.clone();
        drop(common.home.clone().spawn(async move {
            watched.leave_replaced_primary().await;
            watched.doubts().end(common.clock.now());
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_are_asked_less_often_while_the_primary_keeps_refusing() {
        let at = |seconds: u64| Moment::from_us(1_000_000_000).after(Duration::from_secs(seconds));
        let mut doubts = Doubts::none();
        let mut asked = Vec::new();
        for second in 0..20 {
            if doubts.begin(at(second)) {
                assert!(!doubts.begin(at(second)), "they are already being asked");
                doubts.end(at(second));
                asked.push(second);
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 11, 15, 19]);
        // The primary refused nothing for longer than the pause.
        for second in [28, 29] {
            assert!(doubts.begin(at(second)));
            doubts.end(at(second));
        }
        assert!(!doubts.begin(at(30)));
    }
}
