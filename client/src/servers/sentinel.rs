//! The master that Sentinel names.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionInfo, ErrorKind, RedisError, Value};

use super::{Line, Servers, Topology, at_address, failure, lock};
use crate::clock::Moment;
use crate::link::Link;
use crate::slots::Address;

/// How long the sentinels are left in peace after they were asked about a master that refuses. Each time in a row it is twice as long, up to the
/// longest.
const BETWEEN_DOUBTS: Duration = Duration::from_secs(1);
const BETWEEN_DOUBTS_AT_MOST: Duration = Duration::from_secs(4);

/// When the sentinels are asked about a master that refuses.
pub(super) struct Doubts {
    /// Not before. [`Moment::NEVER`] while they are being asked.
    next: Moment,
    pause: Duration,
}

impl Doubts {
    pub(super) fn none(now: Moment) -> Self {
        Self { next: now, pause: BETWEEN_DOUBTS }
    }

    /// Whether they are to be asked now. Whoever asks says when it has [ended](Self::end).
    fn begin(&mut self, now: Moment) -> bool {
        if now < self.next {
            return false;
        }
        // If nobody had a doubt for so long after they could be asked again, this one is the first.
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

impl Servers {
    /// Asks the sentinels one after the other, and takes only a server that says itself that it is a master.
    pub(super) async fn connect_to_sentinels_master(&self) -> Result<Arc<Link>, RedisError> {
        let Topology::Sentinel { sentinels, master, settings } = &self.topology else {
            return Err(failure(ErrorKind::InvalidClientConfig, "there are no sentinels", ""));
        };
        let mut last = failure(ErrorKind::EmptySentinelList, "there are no sentinels", "");
        for sentinel in sentinels {
            let connecting = async {
                let server = self.address_by(sentinel, master, settings).await?;
                self.connect_to_master(server, master).await
            };
            match connecting.await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The master refuses what it is asked. Another server may have taken its place that could not tell it so, as while it runs a script without an end:
    /// then the sentinels are asked in the background, once in a while.
    pub(crate) fn doubt_master(&self) {
        if !matches!(self.topology, Topology::Sentinel { .. }) {
            return;
        }
        if !lock(&self.doubts).begin(Moment::now()) {
            return;
        }
        let servers = self.clone();
        drop(self.home.start(async move {
            servers.leave_replaced_master().await;
            lock(&servers.doubts).end(Moment::now());
        }));
    }

    /// Goes over to another server if most of the sentinels name it, and it says itself that it is a master. One sentinel may be cut off together with
    /// the old one.
    async fn leave_replaced_master(&self) {
        let Topology::Sentinel { sentinels, master, settings } = &self.topology else { return };
        let Some(present) = self.sole.present(Line::Shared) else { return };
        let mut named: Vec<(ConnectionInfo, usize)> = Vec::new();
        for sentinel in sentinels {
            let Ok(other) = self.address_by(sentinel, master, settings).await else { continue };
            match named.iter_mut().find(|(known, _)| known.addr() == other.addr()) {
                Some((_, count)) => *count += 1,
                None => named.push((other, 1)),
            }
        }
        let by_most = named.into_iter().find(|(_, count)| count * 2 > sentinels.len()).map(|(other, _)| other);
        let Some(other) = by_most.filter(|other| other.addr() != present.info().addr()) else { return };
        match self.connect_to_master(other, master).await {
            Ok(other) => {
                tracing::info!(from = %present.info().addr(), to = %other.info().addr(), "the master refuses, and sentinels name another one");
                self.put(&self.sole, Line::Shared, other);
                present.close();
            }
            Err(error) => tracing::debug!(%error, "the master refuses, and the one that sentinels name is none"),
        }
    }

    /// The server that a sentinel names.
    async fn address_by(
        &self,
        sentinel: &ConnectionInfo,
        master: &str,
        settings: &ConnectionInfo,
    ) -> Result<ConnectionInfo, RedisError> {
        let link = self.connect(sentinel.clone()).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let answer = link.ask(&question, self.patience).await?;
        let found: Option<(String, u16)> = redis::from_redis_value(answer)?;
        let (host, port) = found
            .ok_or_else(|| failure(ErrorKind::MasterNameNotFoundBySentinel, "sentinel knows no master", master))?;
        Ok(at_address(settings, &Address { host, port }))
    }

    /// A connection to a server that says itself that it is a master.
    async fn connect_to_master(&self, server: ConnectionInfo, master: &str) -> Result<Arc<Link>, RedisError> {
        let link = self.connect(server).await?;
        let role = link.ask(&redis::cmd("ROLE"), self.patience).await?;
        let is_master = match &role {
            Value::Array(fields) => {
                matches!(fields.first(), Some(Value::BulkString(word)) if word == b"master")
            }
            _ => false,
        };
        if is_master {
            Ok(link)
        } else {
            Err(failure(ErrorKind::Io, "sentinel names a server that is no master yet", master))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_are_asked_ever_more_rarely_about_a_master_that_goes_on_refusing() {
        let start = Moment::now();
        let at = |seconds: u64| start.after(Duration::from_secs(seconds));
        let mut doubts = Doubts::none(start);
        let mut asked = Vec::new();
        for second in 0..20 {
            if doubts.begin(at(second)) {
                assert!(!doubts.begin(at(second)), "they are being asked");
                doubts.end(at(second));
                asked.push(second);
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 11, 15, 19]);
        // It refused nothing for longer than the pause.
        for second in [28, 29] {
            assert!(doubts.begin(at(second)));
            doubts.end(at(second));
        }
        assert!(!doubts.begin(at(30)));
    }
}
