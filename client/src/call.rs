//! One command, sent until it has an answer: over lost connections, redirections and servers that are not ready.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rand::Rng;
use redis::{Cmd, ErrorKind, RedisError, Value};

use crate::Error;
use crate::clock::Moment;
use crate::link::Link;
use crate::servers::{Line, Servers};
use crate::slots::Address;
use crate::timer::sleep_until;
use crate::verdict::{Verdict, judge, may_be_executed};

/// The pauses between tries grow from the first to the last of these, each shortened by up to half at random.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The same for a server that answers, but does not do it for now. What it is asked it has to refuse: of thousands of guards that is a load.
const FIRST_PAUSE_IF_REFUSED: Duration = Duration::from_millis(50);
const LONGEST_PAUSE_IF_REFUSED: Duration = Duration::from_secs(1);

/// The first try waits for a connection for so long at least, also if the request is given up before: then there is one try, and no other.
const SHORTEST_WAIT_FOR_A_LINK: Duration = Duration::from_millis(500);

/// Redirections that are followed without a pause, one after the other.
const IMMEDIATE_REDIRECTIONS: u32 = 5;

/// What came of a command in the end.
pub(crate) struct Answered {
    /// What the server said: a value, or an error that no retry will change.
    pub(crate) said: Result<Value, RedisError>,
    /// When the first copy was sent that may have been executed.
    pub(crate) first_sent: Moment,
    /// When the copy was sent that was answered.
    pub(crate) sent: Moment,
    /// Whether an earlier copy than that may have been executed. One that a server has refused was not.
    pub(crate) is_resent: bool,
    /// What it was answered over.
    pub(crate) link: Arc<Link>,
    /// Whether who answered is a node that is only taking the slot over: the one that serves it has not executed the command.
    pub(crate) is_asking: bool,
}

/// What is sent: always the same, or made for the connection that it goes over. `is_asking` says that the node is only taking the slot over.
pub(crate) trait Prepare: Sync {
    /// Whether it does no harm to send it again when it may have been executed.
    const CAN_BE_REPEATED: bool = true;

    fn prepare(
        &self,
        link: &Arc<Link>,
        is_asking: bool,
    ) -> impl Future<Output = Result<Cow<'_, Cmd>, RedisError>> + Send;
}

impl Prepare for Cmd {
    async fn prepare(&self, _: &Arc<Link>, _: bool) -> Result<Cow<'_, Cmd>, RedisError> {
        Ok(Cow::Borrowed(self))
    }
}

/// A command that would do something else if it were executed twice. It is sent again only where a server has refused it.
pub(crate) struct Once(pub(crate) Cmd);

impl Prepare for Once {
    const CAN_BE_REPEATED: bool = false;

    async fn prepare(&self, _: &Arc<Link>, _: bool) -> Result<Cow<'_, Cmd>, RedisError> {
        Ok(Cow::Borrowed(&self.0))
    }
}

/// Pauses between tries.
pub(crate) struct Pauses {
    next: Duration,
    is_refused: bool,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        Self { next: FIRST_PAUSE, is_refused: false }
    }

    /// The server answers, but does not do it for now.
    pub(crate) fn refused(&mut self) {
        self.is_refused = true;
        self.next = self.next.max(FIRST_PAUSE_IF_REFUSED);
    }

    /// The next pause. They differ between clients, so that those which lost the same server do not come back in step.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        let longest = if self.is_refused { LONGEST_PAUSE_IF_REFUSED } else { LONGEST_PAUSE };
        self.next = (self.next * 2).min(longest);
        pause
    }
}

impl Servers {
    /// Sends a command to the node of a slot until it is answered, or gives up at `give_up`. `patience` is how long one answer may take.
    ///
    /// Cancel safety: when dropped, the command may have been executed or may be executed any time.
    pub(crate) async fn call(
        &self,
        slot: Option<u16>,
        command: &impl Prepare,
        patience: Duration,
        give_up: Moment,
    ) -> Result<Answered, Error> {
        self.call_noting(slot, command, patience, give_up, &AtomicU32::new(0)).await
    }

    /// The same, and counts in `copies` how often a server may have got it.
    pub(crate) async fn call_noting<P: Prepare>(
        &self,
        slot: Option<u16>,
        command: &P,
        patience: Duration,
        give_up: Moment,
        copies: &AtomicU32,
    ) -> Result<Answered, Error> {
        let started = Moment::now();
        let links_until = give_up.max(started.after(SHORTEST_WAIT_FOR_A_LINK));
        let (first_sent, redirections, pauses, ask) = (None, 0, Pauses::new(), None);
        let mut tries = Tries { now: started, links_until, first_sent, redirections, pauses, ask, copies };
        loop {
            let cause = match self.try_once(slot, command, patience, &mut tries).await {
                Ok(answered) => return Ok(answered),
                Err(cause) => cause,
            };
            if self.home().has_ended() {
                return Err(Error::RuntimeEnded);
            }
            tries.now = Moment::now();
            if tries.redirections > 0 && tries.redirections <= IMMEDIATE_REDIRECTIONS {
                continue;
            }
            let next = tries.now.after(tries.pauses.next());
            let is_done_with = !P::CAN_BE_REPEATED && tries.first_sent.is_some();
            if next >= give_up || is_done_with {
                return Err(Error::Connection { tried_for: started.until(tries.now), cause });
            }
            tracing::debug!(%cause, "trying again");
            sleep_until(next).await;
            tries.now = Moment::now();
        }
    }

    /// One try. An error is one that a further try may mend.
    async fn try_once(
        &self,
        slot: Option<u16>,
        command: &impl Prepare,
        patience: Duration,
        tries: &mut Tries<'_>,
    ) -> Result<Answered, RedisError> {
        let ask = tries.ask.take();
        let present = if ask.is_none() { self.present(slot, Line::Shared) } else { None };
        let (link, sent) = match present {
            Some(link) => (link, tries.now),
            None => {
                let link = self.link_until(slot, ask.as_ref(), tries.links_until).await.inspect_err(|_| {
                    tries.redirections = 0;
                })?;
                (link, Moment::now())
            }
        };
        let is_asking = ask.is_some();
        let (copies, earlier) = (tries.copies.fetch_add(1, Ordering::Relaxed), tries.first_sent);
        let is_resent = earlier.is_some();
        let first_sent = *tries.first_sent.get_or_insert(sent);
        let said = match (command.prepare(&link, is_asking).await, is_asking) {
            (Err(error), _) => Err(error),
            (Ok(command), false) => link.ask_together(command, sent, patience).await,
            (Ok(command), true) => Box::pin(ask_elsewhere(&link, &command, patience)).await,
        };
        let error = match said {
            Ok(value) => return Ok(Answered { said: Ok(value), first_sent, sent, is_resent, link, is_asking }),
            Err(error) => error,
        };
        let verdict = judge(&error, &link);
        if verdict == Verdict::Final {
            return Ok(Answered { said: Err(error), first_sent, sent, is_resent, link, is_asking });
        }
        if !may_be_executed(&error) {
            tries.copies.store(copies, Ordering::Relaxed);
            tries.first_sent = earlier;
        }
        tries.redirections = match verdict {
            Verdict::Moved(..) | Verdict::Ask(_) => tries.redirections + 1,
            _ => 0,
        };
        if matches!(verdict, Verdict::Later | Verdict::Elsewhere) {
            tries.pauses.refused();
        }
        match verdict {
            Verdict::Ask(address) => tries.ask = Some(address),
            verdict => self.heed(verdict, &link),
        }
        Err(error)
    }

    /// Whether a further try, or another node, may mend an error. What it says of the nodes is heeded.
    pub(crate) fn may_mend(&self, error: &RedisError, link: &Link) -> bool {
        let verdict = judge(error, link);
        let is_final = verdict == Verdict::Final;
        self.heed(verdict, link);
        !is_final
    }
}

/// What the tries of one command have come to.
struct Tries<'a> {
    /// When the present one began.
    now: Moment,
    /// How long a connection is waited for.
    links_until: Moment,
    /// When the first copy was sent that may have been executed.
    first_sent: Option<Moment>,
    redirections: u32,
    pauses: Pauses,
    /// Where to send the next try, if only that.
    ask: Option<Address>,
    copies: &'a AtomicU32,
}

/// A command to a node that is only taking the slot over.
async fn ask_elsewhere(link: &Link, command: &Cmd, patience: Duration) -> Result<Value, RedisError> {
    let mut commands = redis::pipe();
    commands.cmd("ASKING").add_command(command.clone());
    let answers = link.ask_all(&commands, 2, patience).await?;
    let Some(answer) = answers.into_iter().nth(1) else {
        return Err(RedisError::from((ErrorKind::Parse, "an answer is missing")));
    };
    answer.extract_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_longest_one_and_are_longer_where_a_server_refuses() {
        for (is_refused, first, longest) in
            [(false, FIRST_PAUSE, LONGEST_PAUSE), (true, FIRST_PAUSE_IF_REFUSED, LONGEST_PAUSE_IF_REFUSED)]
        {
            let mut pauses = Pauses::new();
            if is_refused {
                pauses.refused();
            }
            let mut full = first;
            for _ in 0..20 {
                let pause = pauses.next();
                assert!((full / 2..=full).contains(&pause), "{pause:?} of {full:?}");
                full = (full * 2).min(longest);
            }
        }
    }
}
