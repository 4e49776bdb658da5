//! What all handles and guards of a client share.

use std::sync::Arc;
use std::time::Duration;

use crate::gate::Gates;
use crate::home::Home;
use crate::keeper::Keeper;
use crate::metrics::{Meter, Metrics};
use crate::servers::Servers;
use crate::slots::slot_of;

/// What a client is told once.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) response_timeout: Duration,
    pub(crate) retry_for: Duration,
    pub(crate) ping_after: Duration,
    pub(crate) name: Option<String>,
    pub(crate) meter: Meter,
}

pub(crate) struct Shared {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) home: Arc<Home>,
    pub(crate) keeper: Keeper,
    pub(crate) gates: Gates,
}

impl Shared {
    pub(crate) fn new(servers: Servers, settings: Settings, home: Arc<Home>) -> Arc<Self> {
        let keeper = Keeper::new(home.clone());
        Arc::new(Self { servers, settings, home, keeper, gates: Gates::default() })
    }

    /// Who counts what happens.
    pub(crate) fn metrics(&self) -> &dyn Metrics {
        &*self.settings.meter.0
    }

    /// The slot of keys that are asked for together, in a cluster.
    pub(crate) fn slot_of(&self, keys: &[Vec<u8>]) -> Option<u16> {
        self.servers.is_cluster().then(|| slot_of(keys.first().map_or(&[], Vec::as_slice)))
    }

    /// A name of the place where the locks are, the same in every process, and the place's own. Two places may have been given the same name.
    pub(crate) fn place(&self) -> (String, String) {
        let own = self.servers.name();
        (self.settings.name.clone().unwrap_or_else(|| own.clone()), own)
    }
}
