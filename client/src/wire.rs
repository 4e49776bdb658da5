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
    pub(crate) claim: Duration,
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

/// How long a new hold lasts, at most, until its owner claims it with its first RENEW. A crashed
/// owner, or a late copy of an ACQUIRE, delays the waiters by no more than this.
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

    /// Starts a command about a hold.
    fn command(&self, verb: &str) -> Cmd {
        let mut command = self.plain_command(verb);
        if let Some(mode) = self.family.mode() {
            command.arg(mode);
        }
        command
    }

    /// Starts a command of the family, with the arguments that all of them share.
    fn plain_command(&self, verb: &str) -> Cmd {
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
                if let Some(grace) = options.place_grace {
                    command.arg("GRACE").arg(ms(grace));
                }
            }
        }
        command.arg("CLAIM").arg(ms(options.claim));
        if let Some(grace) = options.session_grace {
            command.arg("SESSION").arg(ms(grace));
        }
        if !options.counts {
            command.arg("ONCE");
        }
        command.arg("REQ").arg(options.request_id).arg("TIMED");
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

    /// Releases the permits of a semaphore, or one count of any other lock. If `keep_ms` is not 0,
    /// the lock stays closed for that long. Without a request id a repeat would release another
    /// count, if there is one.
    pub(crate) fn release(&self, tokens: &[u64], keep_ms: u64, request_id: Option<u64>) -> Cmd {
        let mut command = self.command("RELEASE");
        self.add_permits(&mut command, self.permits);
        if let Some(id) = request_id {
            command.arg("REQ").arg(id);
        }
        if keep_ms > 0 {
            command.arg("KEEP").arg(keep_ms);
        }
        self.add_tokens(&mut command, tokens);
        if self.is_many() {
            command.arg("EACH");
        }
        command
    }

    pub(crate) fn renew(&self, tokens: &[u64], lease: Duration) -> Cmd {
        let mut command = self.command("RENEW");
        command.arg("PX").arg(ms(lease)).arg("TIMED");
        self.add_tokens(&mut command, tokens);
        command
    }

    /// Ends a request, whether it waits or was granted.
    pub(crate) fn cancel(&self, request_id: u64) -> Cmd {
        let mut command = self.plain_command("CANCEL");
        command.arg("REQ").arg(request_id);
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

/// Holds that the server has granted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grant {
    /// One per key.
    pub(crate) tokens: Vec<u64>,
    /// How long the first of the holds lasts, counted from when the server received the request.
    pub(crate) left: Duration,
}

impl Grant {
    /// From the tokens and the milliseconds left.
    fn of(mut numbers: Vec<u64>) -> Option<Self> {
        let left = Duration::from_millis(numbers.pop()?);
        (!numbers.is_empty()).then_some(Self { tokens: numbers, left })
    }
}

/// The answer to an ACQUIRE.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Granted(Grant),
    NotGranted,
    /// The answer will come as a message.
    Waits,
}

/// Parses the answer to an ACQUIRE of `keys` keys.
pub(crate) fn answer(value: &Value, keys: usize) -> Result<Answer, Error> {
    let grant = match value {
        Value::Nil => return Ok(Answer::NotGranted),
        Value::Array(values) => values.iter().map(token).collect::<Option<_>>().and_then(Grant::of),
        value if bytes(value).is_ok_and(|word| word == b"WAITING") => return Ok(Answer::Waits),
        _ => None,
    };
    match grant.filter(|grant| grant.tokens.len() == keys) {
        Some(grant) => Ok(Answer::Granted(grant)),
        None => Err(Error::ModuleTooOld(format!("it answered ACQUIRE with {value:?}"))),
    }
}

/// A token, or a number of milliseconds.
fn token(value: &Value) -> Option<u64> {
    number(value).ok().and_then(|number| u64::try_from(number).ok())
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
    Granted(Grant),
    NotGranted,
    Failed(Error),
}

/// Parses `granted ID TOKEN… for MS`, `nil ID` or `error ID CODE TEXT`. `None` for anything else.
pub(crate) fn message(payload: &[u8]) -> Option<(u64, Message)> {
    let text = std::str::from_utf8(payload).ok()?;
    let mut words = text.splitn(3, ' ');
    let (word, id) = (words.next()?, words.next()?.parse().ok()?);
    let rest = words.next().unwrap_or_default();
    let message = match word {
        "granted" => {
            let (tokens, left) = rest.split_once(" for ")?;
            let numbers = tokens.split(' ').chain([left]).map(str::parse);
            Message::Granted(Grant::of(numbers.collect::<Result<_, _>>().ok()?)?)
        }
        "nil" => Message::NotGranted,
        "error" => {
            let (code, text) = rest.split_once(' ').unwrap_or((rest, ""));
            Message::Failed(Error::of_server(code, text))
        }
        _ => return None,
    };
    Some((id, message))
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
            claim: CLAIM,
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
        assert_eq!(words(&mutex.acquire(options(Ask::Once))), "RLOCK.ACQUIRE k me PX 3000 CLAIM 2000 ONCE REQ 7 TIMED");
        assert_eq!(words(&mutex.release(&[9], 0, None)), "RLOCK.RELEASE k me TOKEN 9");
        assert_eq!(words(&mutex.release(&[9], 50, Some(8))), "RLOCK.RELEASE k me REQ 8 KEEP 50 TOKEN 9");
        assert_eq!(ms(Duration::from_nanos(1)), 1, "it rounds up");
        let bound = Acquire { session_grace: Some(Duration::ZERO), ..options(Ask::Wait(None, "c")) };
        assert_eq!(
            words(&mutex.acquire(bound)),
            "RLOCK.ACQUIRE k me PX 3000 BLOCK 0 NOTIFY c CLAIM 2000 SESSION 0 ONCE REQ 7 TIMED"
        );

        let noted = Acquire { note: Some(b"host-1"), ..options(Ask::Once) };
        assert_eq!(words(&mutex.acquire(noted)), "RLOCK.ACQUIRE k me PX 3000 CLAIM 2000 ONCE REQ 7 TIMED NOTE host-1");

        let fair = subject(Family::Fair, &["k"], 1);
        assert_eq!(words(&fair.cancel(7)), "RFAIRLOCK.CANCEL k me REQ 7");

        let write = subject(Family::Write, &["k"], 1);
        assert_eq!(
            words(&write.acquire(options(Ask::Once))),
            "RRWLOCK.ACQUIRE k me WRITE PX 3000 CLAIM 2000 ONCE REQ 7 TIMED"
        );
        assert_eq!(words(&write.renew(&[9], Duration::from_secs(1))), "RRWLOCK.RENEW k me WRITE PX 1000 TIMED TOKEN 9");
        assert_eq!(words(&write.cancel(7)), "RRWLOCK.CANCEL k me REQ 7");

        let semaphore = subject(Family::Semaphore, &["k"], 3);
        assert_eq!(
            words(&semaphore.acquire(options(Ask::Once))),
            "RSEMAPHORE.ACQUIRE k me PERMITS 3 PX 3000 CLAIM 2000 ONCE REQ 7 TIMED"
        );
        assert_eq!(words(&semaphore.release(&[9], 0, Some(8))), "RSEMAPHORE.RELEASE k me PERMITS 3 REQ 8 TOKEN 9");

        let many = subject(Family::Mutex, &["a", "b"], 1);
        assert_eq!(
            words(&many.acquire(options(Ask::Once))),
            "RLOCK.MACQUIRE 2 a b me PX 3000 CLAIM 2000 ONCE REQ 7 TIMED"
        );
        assert_eq!(words(&many.cancel(7)), "RLOCK.MCANCEL 2 a b me REQ 7");
        assert_eq!(
            words(&many.renew(&[8, 9], Duration::from_secs(1))),
            "RLOCK.MRENEW 2 a b me PX 1000 TIMED TOKENS 8 9"
        );
        assert_eq!(words(&many.release(&[8, 9], 0, None)), "RLOCK.MRELEASE 2 a b me TOKENS 8 9 EACH");
    }

    /// `BLOCK 0` waits without a limit. A bounded wait that is almost over must not become one.
    #[test]
    fn bounded_wait_never_sends_block_0() {
        let mutex = subject(Family::Mutex, &["k"], 1);
        let last = mutex.acquire(options(Ask::Wait(Some(Duration::ZERO), "c")));
        assert_eq!(words(&last), "RLOCK.ACQUIRE k me PX 3000 BLOCK 1 NOTIFY c CLAIM 2000 ONCE REQ 7 TIMED");
    }

    fn grant(tokens: &[u64], ms: u64) -> Grant {
        Grant { tokens: tokens.to_vec(), left: Duration::from_millis(ms) }
    }

    #[test]
    fn answer_is_tokens_and_time_or_nil_or_waiting() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let array = |values: &[Value]| Value::Array(values.to_vec());
        assert_eq!(answer(&array(&[Value::Int(7), Value::Int(90)]), 1), Ok(Answer::Granted(grant(&[7], 90))));
        assert_eq!(answer(&array(&[text("7"), text("0")]), 1), Ok(Answer::Granted(grant(&[7], 0))), "numbers as text");
        let many = array(&[Value::Int(7), text("8"), Value::Int(90)]);
        assert_eq!(answer(&many, 2), Ok(Answer::Granted(grant(&[7, 8], 90))));
        assert_eq!(answer(&Value::Nil, 1), Ok(Answer::NotGranted));
        assert_eq!(answer(&Value::SimpleString("WAITING".to_owned()), 1), Ok(Answer::Waits));
        let strange = [
            Value::Int(7),
            text("x"),
            array(&[]),
            array(&[Value::Int(7)]),
            array(&[text("x"), text("y")]),
            Value::Okay,
        ];
        for value in strange.iter().chain([&many]) {
            assert!(matches!(answer(value, 1), Err(Error::ModuleTooOld(_))), "{value:?}");
        }
    }

    #[test]
    fn message_names_its_request() {
        assert_eq!(message(b"granted 7 8 9 for 90"), Some((7, Message::Granted(grant(&[8, 9], 90)))));
        assert_eq!(message(b"nil 7"), Some((7, Message::NotGranted)));
        assert_eq!(message(b"error 7 SUPERSEDED by a newer one"), Some((7, Message::Failed(Error::Superseded))));
        let garbled = [
            b"granted 7 x for 9".as_slice(),
            b"granted 7",
            b"granted 7 8",
            b"granted 7 8 for",
            b"nil",
            b"other 7",
            b"\xff",
        ];
        for garbled in garbled {
            assert_eq!(message(garbled), None);
        }
    }
}
