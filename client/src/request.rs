//! The request of one acquisition, and how it is sent.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use crate::Error;
use crate::core::{Core, Reply};
use crate::options::Options;
use crate::transport::Link;
use crate::wire::{Acquire, Ask, Family, Subject};

pub(crate) struct Request {
    pub(crate) core: Arc<Core>,
    pub(crate) subject: Subject,
    pub(crate) options: Options,
    /// At most the longest lease that the server grants.
    pub(crate) lease: Duration,
    pub(crate) slot: Option<u16>,
}

impl Request {
    pub(crate) async fn new(core: &Arc<Core>, subject: Subject, options: &Options) -> Self {
        let slot = core.slot_of(&subject.keys);
        let lease = options.lease(core.longest_lease(slot).await);
        Self { core: core.clone(), subject, options: options.clone(), lease, slot }
    }

    /// The first key as text, for logs.
    pub(crate) fn key(&self) -> String {
        String::from_utf8_lossy(self.subject.first_key()).into_owned()
    }

    pub(crate) fn acquire(&self, request_id: u64, ask: Ask<'_>) -> Cmd {
        let Options { session_grace, place_grace, is_owner_shared: counts, note, .. } = &self.options;
        let (session_grace, place_grace, counts, note) = (*session_grace, *place_grace, *counts, note.as_deref());
        self.subject.acquire(Acquire { lease: self.lease, session_grace, place_grace, ask, counts, request_id, note })
    }

    /// Sends a command once, and waits for at most `command_timeout` or `within`.
    pub(crate) async fn ask(&self, command: &Cmd, within: Duration) -> Reply {
        self.core.ask(self.slot, command, within.min(self.core.common.command_timeout)).await
    }

    /// Releases several keys one by one, because MRELEASE changes nothing if the owner lacks one of
    /// them. Returns how many keys were released.
    pub(crate) async fn release_each(&self, tokens: &[u64], id: u64) -> usize {
        let mut held = 0;
        for (at, key) in self.subject.keys.iter().enumerate() {
            let subject = Subject { family: Family::Mutex, keys: Arc::from([key.clone()]), ..self.subject.clone() };
            let release = subject.release(tokens.get(at..=at).unwrap_or_default(), 1, 0, id);
            let within = self.core.common.command_timeout;
            held += usize::from(self.core.insist(self.slot, &release, within, within).await.said.is_ok());
        }
        held
    }

    /// Sends commands in one write, over the given connection if that is open, and follows
    /// redirections.
    pub(crate) async fn ask_all(
        &self,
        link: Option<&Arc<Link>>,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        let within = self.core.common.command_timeout;
        let node = self.core.node(self.slot).await?;
        let link = match link.filter(|link| !link.is_closed()) {
            Some(link) => link.clone(),
            None => node.link().await?,
        };
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let sent = self.core.now();
        let answers = link.ask_all(&pipeline, within).await.inspect_err(|_| {
            if link.is_silent_since(sent) {
                // Later commands go over another connection. What was sent over this one may still
                // arrive: the server may grant an ACQUIRE after its settlement. The claim or the
                // lease then ends that hold.
                node.abandon(&link);
                link.close();
            }
        })?;
        let mut all = Vec::with_capacity(answers.len());
        for (answer, command) in answers.into_iter().zip(commands) {
            let redirection = answer.as_ref().err().and_then(|error| self.core.servers.redirected(error, &link));
            all.push(match redirection {
                Some(_) => self.ask(command, within).await.said,
                None => answer,
            });
        }
        Ok(all)
    }
}
