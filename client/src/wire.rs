//! The module's commands: how to write them, and how to read the answers.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::Error;

/// The family of commands of a hold, with the mode if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    Mutex,
    Fair,
    Read,
    Write,
    Semaphore,
}

impl Family {
    fn prefix(self) -> &'static str {
        match self {
            Self::Mutex => "RLOCK.",
            Self::Fair => "RFAIRLOCK.",
            Self::Read | Self::Write => "RRWLOCK.",
            Self::Semaphore => "RSEMAPHORE.",
        }
    }

    /// Whether one owner may hold a key both in this mode and in another one.
    pub(crate) fn is_shared_lock(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    fn mode(self) -> Option<&'static str> {
        match self {
            Self::Read => Some("READ"),
            Self::Write => Some("WRITE"),
            Self::Mutex | Self::Fair | Self::Semaphore => None,
        }
    }
}

/// The keys, owner and permits of a request.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) family: Family,
    /// One key, or several mutexes that are acquired in one step.
    pub(crate) keys: Arc<[Vec<u8>]>,
    pub(crate) owner: Arc<[u8]>,
    /// 1, except for [`Family::Semaphore`].
    pub(crate) permits: u32,
}

/// What ACQUIRE does if the lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask<'a> {
    /// Return at once.
    Once,
    /// Wait up to this time, or without a limit, and publish the answer on a channel.
    Wait(Option<Duration>, &'a str),
}

/// The options of an ACQUIRE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire<'a> {
    pub(crate) lease: Duration,
    pub(crate) session_grace: Option<Duration>,
    pub(crate) place_grace: Option<Duration>,
    pub(crate) ask: Ask<'a>,
    /// Whether each request of the owner counts as a hold of its own (otherwise `ONCE`).
    pub(crate) counts: bool,
    pub(crate) request_id: u64,
    pub(crate) note: Option<&'a [u8]>,
}

/// Whole milliseconds, as the commands need them. Rounds up, so that a nonzero time does not become
/// 0.
pub(crate) fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// How long the server keeps a pending grant that the waiter has not confirmed. A crashed waiter
/// delays the waiters behind it by no more than this.
pub(crate) const CLAIM: Duration = Duration::from_secs(2);

/// An estimate of the words of a command besides its keys and owner, and of their bytes.
const OTHER_WORDS: usize = 14;
const OTHER_BYTES: usize = 160;

impl Subject {
    /// The first key, which logs and metrics use.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.keys.first().map_or(b"", Vec::as_slice)
    }

    pub(crate) fn is_many(&self) -> bool {
        self.keys.len() > 1
    }

    /// Starts a command of the family, with the arguments that all of them share.
    fn command(&self, verb: &str) -> Cmd {
        let many = if self.is_many() { "M" } else { "" };
        // Reserve enough space for the whole command, so that it is not reallocated.
        let names: usize = self.keys.iter().map(Vec::len).sum();
        let mut command = Cmd::with_capacity(self.keys.len() + OTHER_WORDS, names + self.owner.len() + OTHER_BYTES);
        command.arg([self.family.prefix(), many, verb].concat());
        if self.is_many() {
            command.arg(self.keys.len());
        }
        for key in self.keys.iter() {
            command.arg(key.as_slice());
        }
        command.arg(&*self.owner);
        if let Some(mode) = self.family.mode() {
            command.arg(mode);
        }
        command
    }

    fn add_permits(&self, command: &mut Cmd, permits: u32) {
        if self.family == Family::Semaphore && permits != 1 {
            command.arg("PERMITS").arg(permits);
        }
    }

    pub(crate) fn acquire(&self, options: Acquire<'_>) -> Cmd {
        let mut command = self.command("ACQUIRE");
        self.add_permits(&mut command, self.permits);
        command.arg("PX").arg(ms(options.lease));
        match options.ask {
            Ask::Once => {}
            // `BLOCK 0` waits without a limit, so a bounded wait sends at least 1.
            Ask::Wait(wait, channel) => {
                command.arg("BLOCK").arg(wait.map_or(0, |wait| ms(wait).max(1))).arg("NOTIFY").arg(channel);
                command.arg("CLAIM").arg(ms(options.lease.min(CLAIM)));
                if let Some(grace) = options.place_grace {
                    command.arg("GRACE").arg(ms(grace));
                }
            }
        }
        if let Some(grace) = options.session_grace {
            command.arg("SESSION").arg(ms(grace));
        }
        if !options.counts {
            command.arg("ONCE");
        }
        command.arg("REQ").arg(options.request_id);
        if let Some(note) = options.note {
            command.arg("NOTE").arg(note);
        }
        command
    }

    /// Restricts the command to the hold with these tokens: the owner may have lost that hold and
    /// have another one by now. Without tokens, any hold of the owner is meant.
    fn add_tokens(&self, command: &mut Cmd, tokens: &[u64]) {
        if tokens.is_empty() {
            return;
        }
        command.arg(if self.is_many() { "TOKENS" } else { "TOKEN" });
        for token in tokens {
            command.arg(*token);
        }
    }

    /// Releases `permits` of a semaphore, or one count of any other lock. If `keep_ms` is not 0,
    /// the lock stays closed for that long.
    pub(crate) fn release(&self, tokens: &[u64], permits: u32, keep_ms: u64, request_id: u64) -> Cmd {
        let mut command = self.command("RELEASE");
        self.add_permits(&mut command, permits);
        command.arg("REQ").arg(request_id);
        if keep_ms > 0 {
            command.arg("KEEP").arg(keep_ms);
        }
        self.add_tokens(&mut command, tokens);
        command
    }

    pub(crate) fn renew(&self, tokens: &[u64], lease: Duration) -> Cmd {
        let mut command = self.command("RENEW");
        command.arg("PX").arg(ms(lease));
        self.add_tokens(&mut command, tokens);
        command
    }

    /// Cancels a waiting request.
    pub(crate) fn cancel(&self, request_id: u64) -> Cmd {
        let mut command = redis::cmd(&[self.family.prefix(), "CANCEL"].concat());
        command.arg(self.first_key()).arg(&*self.owner).arg("REQ").arg(request_id);
        command
    }
}

/// A command about the semaphore itself: INIT or RESIZE.
pub(crate) fn configure_semaphore(verb: &str, key: &[u8], permits: u32, idle: Option<Duration>) -> Cmd {
    let mut command = redis::cmd(&["RSEMAPHORE.", verb].concat());
    command.arg(key).arg(permits);
    if let Some(idle) = idle {
        command.arg("IDLE").arg(ms(idle));
    }
    command
}

/// The answer to an ACQUIRE.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// The tokens, one per key.
    Granted(Vec<u64>),
    NotGranted,
    /// The answer will come as a message.
    Waits,
}

/// Parses the answer to an ACQUIRE of `keys` keys. An old module that does not know `NOTIFY`
/// answers a wait with 0.
pub(crate) fn answer(value: &Value, keys: usize) -> Result<Answer, Error> {
    let tokens: Option<Vec<u64>> = match value {
        Value::Nil => return Ok(Answer::NotGranted),
        Value::Array(values) => values.iter().map(token).collect(),
        value => match token(value) {
            None if bytes(value).is_ok_and(|word| word == b"WAITING") => return Ok(Answer::Waits),
            token => token.map(|token| vec![token]),
        },
    };
    match tokens.filter(|tokens| tokens.len() == keys) {
        Some(tokens) => Ok(Answer::Granted(tokens)),
        None => Err(Error::ModuleTooOld(format!("it answered ACQUIRE with {value:?}"))),
    }
}

/// A token is an integer above 0.
fn token(value: &Value) -> Option<u64> {
    number(value).ok().and_then(|number| u64::try_from(number).ok()).filter(|token| *token > 0)
}

/// Parses a number, which may come as text.
pub(crate) fn number(value: &Value) -> Result<i64, Error> {
    let text = || std::str::from_utf8(bytes(value).ok()?).ok()?.parse().ok();
    match value {
        Value::Int(number) => Ok(*number),
        other => text().ok_or_else(|| Error::unexpected(other)),
    }
}

/// Parses a number of milliseconds.
pub(crate) fn milliseconds(value: &Value) -> Result<Duration, Error> {
    let number = number(value)?;
    u64::try_from(number).map(Duration::from_millis).map_err(|_| Error::unexpected(value))
}

/// Parses a text, or the bytes of a name.
pub(crate) fn bytes(value: &Value) -> Result<&[u8], Error> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text.as_bytes()),
        other => Err(Error::unexpected(other)),
    }
}

/// The outcome of a waiting request, as its message tells it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Granted(Vec<u64>),
    NotGranted,
    Failed(Error),
}

/// Parses `granted ID TOKEN…`, `nil ID` or `error ID CODE TEXT`. `None` for anything else.
pub(crate) fn message(payload: &[u8]) -> Option<(u64, Message)> {
    let text = std::str::from_utf8(payload).ok()?;
    let mut words = text.splitn(3, ' ');
    let (word, id) = (words.next()?, words.next()?.parse().ok()?);
    let rest = words.next().unwrap_or_default();
    let message = match word {
        "granted" => Message::Granted(rest.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?),
        "nil" => Message::NotGranted,
        "error" => {
            let (code, text) = rest.split_once(' ').unwrap_or((rest, ""));
            Message::Failed(Error::of_server(code, text))
        }
        _ => return None,
    };
    Some((id, message))
}

/// The longest lease that the server grants, from the text of INFO.
pub(crate) fn longest_lease(info: &str) -> Option<Duration> {
    let ms = info.lines().find_map(|line| line.strip_prefix("rlock_max_lease_ms:"))?.trim().parse().ok()?;
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// The longest lease that the server grants, from its refusal of a longer one.
pub(crate) fn longest_lease_of_refusal(message: &str) -> Option<Duration> {
    let (_, longest) = message.split_once("is longer than rlock.max-lease-ms, which is ")?;
    longest.split(' ').next()?.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Cmd) -> String {
        let word = |argument: redis::Arg<&[u8]>| match argument {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "?".to_owned(),
        };
        command.args_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn subject(family: Family, keys: &[&str], permits: u32) -> Subject {
        let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        Subject { family, keys, owner: Arc::from(b"me".as_slice()), permits }
    }

    fn options(ask: Ask<'_>) -> Acquire<'_> {
        Acquire {
            lease: Duration::from_secs(3),
            session_grace: None,
            place_grace: None,
            ask,
            counts: false,
            request_id: 7,
            note: None,
        }
    }

    #[test]
    fn commands_match_the_module() {
        let mutex = subject(Family::Mutex, &["k"], 1);
        assert_eq!(words(&mutex.acquire(options(Ask::Once))), "RLOCK.ACQUIRE k me PX 3000 ONCE REQ 7");
        assert_eq!(words(&mutex.release(&[9], 1, 0, 8)), "RLOCK.RELEASE k me REQ 8 TOKEN 9");
        assert_eq!(words(&mutex.release(&[9], 1, 50, 8)), "RLOCK.RELEASE k me REQ 8 KEEP 50 TOKEN 9");
        assert_eq!(ms(Duration::from_nanos(1)), 1, "it rounds up");
        let bound = Acquire { session_grace: Some(Duration::ZERO), ..options(Ask::Wait(None, "c")) };
        assert_eq!(
            words(&mutex.acquire(bound)),
            "RLOCK.ACQUIRE k me PX 3000 BLOCK 0 NOTIFY c CLAIM 2000 SESSION 0 ONCE REQ 7"
        );

        let noted = Acquire { note: Some(b"host-1"), ..options(Ask::Once) };
        assert_eq!(words(&mutex.acquire(noted)), "RLOCK.ACQUIRE k me PX 3000 ONCE REQ 7 NOTE host-1");

        let fair = subject(Family::Fair, &["k"], 1);
        assert_eq!(words(&fair.cancel(7)), "RFAIRLOCK.CANCEL k me REQ 7");

        let write = subject(Family::Write, &["k"], 1);
        assert_eq!(words(&write.acquire(options(Ask::Once))), "RRWLOCK.ACQUIRE k me WRITE PX 3000 ONCE REQ 7");
        assert_eq!(words(&write.renew(&[9], Duration::from_secs(1))), "RRWLOCK.RENEW k me WRITE PX 1000 TOKEN 9");

        let semaphore = subject(Family::Semaphore, &["k"], 3);
        assert_eq!(
            words(&semaphore.acquire(options(Ask::Once))),
            "RSEMAPHORE.ACQUIRE k me PERMITS 3 PX 3000 ONCE REQ 7"
        );
        assert_eq!(words(&semaphore.release(&[9], 3, 0, 8)), "RSEMAPHORE.RELEASE k me PERMITS 3 REQ 8 TOKEN 9");

        let many = subject(Family::Mutex, &["a", "b"], 1);
        assert_eq!(words(&many.acquire(options(Ask::Once))), "RLOCK.MACQUIRE 2 a b me PX 3000 ONCE REQ 7");
        assert_eq!(words(&many.cancel(7)), "RLOCK.CANCEL a me REQ 7");
        assert_eq!(words(&many.renew(&[8, 9], Duration::from_secs(1))), "RLOCK.MRENEW 2 a b me PX 1000 TOKENS 8 9");
    }

    /// `BLOCK 0` waits without a limit. A bounded wait that is almost over must not become one.
    #[test]
    fn bounded_wait_never_sends_block_0() {
        let mutex = subject(Family::Mutex, &["k"], 1);
        let last = mutex.acquire(options(Ask::Wait(Some(Duration::ZERO), "c")));
        assert_eq!(words(&last), "RLOCK.ACQUIRE k me PX 3000 BLOCK 1 NOTIFY c CLAIM 2000 ONCE REQ 7");
    }

    #[test]
    fn answer_is_tokens_above_0_or_nil_or_waiting() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(answer(&Value::Int(7), 1), Ok(Answer::Granted(vec![7])));
        assert_eq!(answer(&text("7"), 1), Ok(Answer::Granted(vec![7])), "a number as text");
        assert_eq!(answer(&Value::Array(vec![Value::Int(7), text("8")]), 2), Ok(Answer::Granted(vec![7, 8])));
        assert_eq!(answer(&Value::Nil, 1), Ok(Answer::NotGranted));
        assert_eq!(answer(&Value::SimpleString("WAITING".to_owned()), 1), Ok(Answer::Waits));
        for value in [Value::Int(0), text("x"), Value::Array(vec![Value::Int(7)]), Value::Okay] {
            assert!(matches!(answer(&value, 2), Err(Error::ModuleTooOld(_))), "{value:?}");
        }
    }

    #[test]
    fn message_names_its_request() {
        assert_eq!(message(b"granted 7 8 9"), Some((7, Message::Granted(vec![8, 9]))));
        assert_eq!(message(b"nil 7"), Some((7, Message::NotGranted)));
        assert_eq!(message(b"error 7 SUPERSEDED by a newer one"), Some((7, Message::Failed(Error::Superseded))));
        for garbled in [b"granted 7 x".as_slice(), b"granted 7", b"nil", b"other 7", b"\xff"] {
            assert_eq!(message(garbled), None);
        }
    }

    #[test]
    fn longest_lease_is_read_from_info_and_from_a_refusal() {
        let refusal = "the lease of 6000 ms is longer than rlock.max-lease-ms, which is 5000 ms";
        assert_eq!(longest_lease_of_refusal(refusal), Some(Duration::from_secs(5)));
        assert_eq!(longest_lease_of_refusal("the claim of 6000 ms is longer than the lease, which is 5000 ms"), None);
        assert_eq!(longest_lease("# rlock\r\nrlock_max_lease_ms:5000\r\n"), Some(Duration::from_secs(5)));
        assert_eq!(longest_lease("# rlock\r\nrlock_max_lease_ms:0\r\n"), None);
    }
}
