//! The request of one acquisition, and how it is sent.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::Error;
use crate::core::{Core, Reply};
use crate::options::Options;
use crate::transport::Link;
use crate::wire::{Acquire, Ask, Subject};

pub(crate) struct Request {
    pub(crate) core: Arc<Core>,
    pub(crate) subject: Subject,
    pub(crate) options: Options,
    pub(crate) lease: Duration,
    pub(crate) slot: Option<u16>,
}

impl Request {
    pub(crate) fn new(core: &Arc<Core>, subject: Subject, options: &Options) -> Self {
        let slot = core.slot_of(&subject.keys);
        Self { core: core.clone(), subject, options: options.clone(), lease: options.lease(), slot }
    }

    /// The first key as text, for logs.
    pub(crate) fn key(&self) -> String {
        String::from_utf8_lossy(self.subject.first_key()).into_owned()
    }

    pub(crate) fn acquire(&self, request_id: u64, claim: Duration, ask: Ask<'_>) -> Cmd {
        let Options { session_grace, place_grace, is_owner_shared: counts, note, .. } = &self.options;
        let (session_grace, place_grace, counts, note) = (*session_grace, *place_grace, *counts, note.as_deref());
        let lease = self.lease;
        self.subject.acquire(Acquire { lease, claim, session_grace, place_grace, ask, counts, request_id, note })
    }

    /// Sends a command once, and waits for at most `command_timeout` or `within`.
    pub(crate) async fn ask(&self, command: &Cmd, within: Duration) -> Reply {
        self.core.ask(self.slot, command, within.min(self.core.common.command_timeout)).await
    }

    /// Sends a command over the given connection if that is open, and follows redirections.
    pub(crate) async fn ask_over(&self, link: Option<&Arc<Link>>, command: &Cmd) -> Result<Value, Error> {
        let within = self.core.common.command_timeout;
        let Some(link) = link.filter(|link| !link.is_closed()) else { return self.ask(command, within).await.said };
        let node = self.core.node(self.slot).await?;
        let reply = self.core.ask_over(&node, link, command, false, within).await;
        match &reply.said {
            Err(error) if error.is_lost_reply() && link.is_silent_since(reply.sent) => {
                // The next copy goes over another connection. Commands that were sent over this
                // one may still arrive: the server may grant an ACQUIRE after its CANCEL. The claim then ends that
                // hold.
                link.close();
                reply.said
            }
            Err(error) if self.core.servers.redirected(error, link).is_some() => self.ask(command, within).await.said,
            _ => reply.said,
        }
    }
}
