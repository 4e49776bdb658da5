//! The master that Sentinel names.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionInfo, ErrorKind, RedisError, Value};

use super::{Line, Servers, Topology, at_address, failure, lock};
use crate::clock::Moment;
use crate::link::Link;
use crate::slots::Address;

/// How long the sentinels are left in peace after they were asked about a master that refuses.
const BETWEEN_DOUBTS: Duration = Duration::from_secs(1);

impl Servers {
    /// Asks the sentinels one after the other, and takes only a server that says itself that it is a master.
    pub(super) async fn connect_to_sentinels_master(&self) -> Result<Arc<Link>, RedisError> {
        let Topology::Sentinel { sentinels, master, settings } = &self.topology else {
            return Err(failure(ErrorKind::InvalidClientConfig, "there are no sentinels", ""));
        };
        let mut last = failure(ErrorKind::EmptySentinelList, "there are no sentinels", "");
        for sentinel in sentinels {
            match self.master_by(sentinel, master, settings).await {
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
        let now = Moment::now();
        {
            let mut doubts_from = lock(&self.doubts_from);
            if now < *doubts_from {
                return;
            }
            *doubts_from = now.after(BETWEEN_DOUBTS);
        }
        let servers = self.clone();
        drop(self.home.start(async move { servers.leave_replaced_master().await }));
    }

    /// Goes over to another server if most of the sentinels name it, and it says itself that it is a master. One sentinel may be cut off together with
    /// the old one.
    async fn leave_replaced_master(&self) {
        let Topology::Sentinel { sentinels, master, settings } = &self.topology else { return };
        let Some(present) = self.sole.present(Line::Shared) else { return };
        let mut others: Vec<Arc<Link>> = Vec::new();
        for sentinel in sentinels {
            if let Ok(link) = self.master_by(sentinel, master, settings).await {
                others.push(link);
            }
        }
        others.retain(|other| other.info().addr() != present.info().addr());
        let are_one = others.windows(2).all(|two| two[0].info().addr() == two[1].info().addr());
        if let Some(other) = others.pop().filter(|_| are_one && (others.len() + 1) * 2 > sentinels.len()) {
            tracing::info!(from = %present.info().addr(), to = %other.info().addr(), "the master refuses, and sentinels name another one");
            self.put(&self.sole, Line::Shared, other);
            present.close();
            if let Some(witness) = self.sole.present(Line::Witness) {
                witness.close();
            }
        }
    }

    async fn master_by(
        &self,
        sentinel: &ConnectionInfo,
        master: &str,
        settings: &ConnectionInfo,
    ) -> Result<Arc<Link>, RedisError> {
        let link = self.connect(sentinel.clone()).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let answer = link.ask(&question, self.patience).await?;
        let found: Option<(String, u16)> = redis::from_redis_value(answer)?;
        let (host, port) = found
            .ok_or_else(|| failure(ErrorKind::MasterNameNotFoundBySentinel, "sentinel knows no master", master))?;
        let link = self.connect(at_address(settings, &Address { host, port })).await?;
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
