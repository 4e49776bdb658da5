//! The master that Sentinel names.

use std::sync::Arc;

use redis::{ConnectionInfo, ErrorKind, RedisError, Value};

use super::{Servers, Topology, at_address, failure};
use crate::link::Link;
use crate::slots::Address;

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
