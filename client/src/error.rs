//! What can go wrong, in one enum.

use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};

/// Why a request was not done. Nothing is held on behalf of a request that failed: the client takes back in the background what the
/// request may have left on the server.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not granted within the timeout.
    #[error("timed out waiting for the lock")]
    Timeout,
    /// The hold ended before its release: its lease or session expired, or an operator took it away. Its holder must not act on it any
    /// more.
    #[error("the lock was lost: its lease or session has expired, or it was taken away")]
    Lost,
    /// Waiting would close a circle of owners that wait for each other. The text names the circle.
    #[error("waiting would be a deadlock: {0}")]
    Deadlock(String),
    /// A newer request of the same owner ended this one. An owner stands for one thread of control: name different ones differently with
    /// [`Lock::owner`](crate::Lock::owner).
    #[error("superseded by a newer request of the same owner")]
    Superseded,
    /// The server does not know the commands of the module.
    #[error("the server has not loaded the module rlock: {0}")]
    ModuleMissing(String),
    /// The module of the server does not know an option that this client needs.
    #[error("the module rlock of the server is too old: {0}")]
    ModuleTooOld(String),
    /// The client was [closed](crate::Client::close), or the runtime that it was made on has ended.
    #[error("the client is closed, or its runtime has ended")]
    Closed,
    /// The server could not be reached, or does not serve at present. The same request may succeed later.
    #[error("unavailable: {code}{}{message}", if code.is_empty() { "" } else { " " })]
    Unavailable {
        /// The first word of the server's error, such as `LOADING`; empty if there was no answer.
        code: String,
        /// The rest of it, or what happened to the connection.
        message: String,
        /// The time after which the server expects to serve again, if it says so.
        retry_after: Option<Duration>,
    },
    /// The server refused, and would refuse the same request again.
    #[error("the server refused: {code} {message}")]
    Refused {
        /// The first word of the server's error, such as `WRONGTYPE`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// Fewer replicas than wanted acknowledged the grant, so the client gave it back.
    #[error("{acknowledged} of {wanted} replicas acknowledged the grant, which was given back")]
    Replicas {
        /// How many were wanted.
        wanted: u32,
        /// How many acknowledged.
        acknowledged: u32,
    },
    /// An argument, with the value received and what is accepted.
    #[error("invalid argument: {0}")]
    Argument(String),
    /// Fewer than a majority of the servers granted the lock, so the client gave it back.
    #[cfg(feature = "quorum")]
    #[error("{granted} of {servers} servers granted the lock, which is no majority; it was given back")]
    NoQuorum {
        /// How many granted in time.
        granted: usize,
        /// How many there are.
        servers: usize,
    },
    /// The server does not publish events of locks: `notify-keyspace-events` needs `K` and `d`.
    #[cfg(feature = "events")]
    #[error("the server publishes no events of locks: notify-keyspace-events needs K and d")]
    NoEvents,
    /// Another thread [interrupted](crate::blocking::Interrupt) the wait.
    #[cfg(feature = "blocking")]
    #[error("the wait was interrupted")]
    Interrupted,
    /// The client was closed, and some requests were not released or settled in time. Their leases end what is left.
    #[error("{requests} requests were not settled in time; what they hold lives until its lease ends")]
    LeftBehind {
        /// How many.
        requests: usize,
    },
}

/// The codes of errors that may pass.
const PASSING: [&str; 13] = [
    "UNBLOCKED",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "OOM",
    "BUSY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "QUARANTINE",
    "NOREPLICAS",
    "MOVED",
    "ASK",
];

impl Error {
    /// Whether the same request may succeed later: the server could not be reached, or does not serve at present.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The first word of the server's error; empty if the error is not the server's.
    pub fn code(&self) -> &str {
        match self {
            Self::Unavailable { code, .. } | Self::Refused { code, .. } => code,
            Self::Lost => "NOTOWNER",
            Self::Deadlock(_) => "DEADLOCK",
            Self::Superseded => "SUPERSEDED",
            _ => "",
        }
    }

    /// Whether the request may have been carried out although this was its outcome: there was no answer.
    pub(crate) fn is_lost_reply(&self) -> bool {
        matches!(self, Self::Unavailable { code, .. } if code.is_empty())
    }

    /// Whether the key holds something else now, so the hold has ended.
    pub(crate) fn ends_a_hold(&self) -> bool {
        matches!(self.code(), "NOTOWNER" | "WRONGTYPE" | "NOSEMAPHORE")
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { code: String::new(), message: message.into(), retry_after: None }
    }

    /// The error for an answer that is not of the form that the command has.
    pub(crate) fn unexpected(value: &Value) -> Self {
        Self::Refused { code: "UNEXPECTED".to_owned(), message: format!("{value:?}") }
    }

    /// The error for the code of a server's error, and its text.
    pub(crate) fn of_server(code: &str, message: &str) -> Self {
        let text = message.to_owned();
        match code {
            "NOTOWNER" => Self::Lost,
            "DEADLOCK" => Self::Deadlock(text),
            "SUPERSEDED" => Self::Superseded,
            "ERR" if message.starts_with("unknown command") => Self::ModuleMissing(text),
            "ERR" if message.starts_with("unknown option") => Self::ModuleTooOld(text),
            code if PASSING.contains(&code) || message.starts_with("max number of clients reached") => {
                // QUARANTINE …; N ms left
                let wait = message.split_once("; ").filter(|_| code == "QUARANTINE");
                let wait = wait.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
                let retry_after = wait.map(Duration::from_millis);
                Self::Unavailable { code: code.to_owned(), message: text, retry_after }
            }
            code => Self::Refused { code: code.to_owned(), message: text },
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some(code) => Self::of_server(code, error.detail().unwrap_or_default()),
            None => match error.kind() {
                ErrorKind::AuthenticationFailed => {
                    Self::Refused { code: "WRONGPASS".to_owned(), message: error.to_string() }
                }
                ErrorKind::InvalidClientConfig => Self::Argument(error.to_string()),
                _ => Self::unavailable(error.to_string()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> Error {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an answer");
        value.extract_error().expect_err("an error").into()
    }

    #[test]
    fn errors_of_the_second_list_are_retryable_and_others_are_not() {
        for code in PASSING {
            let error = answer(&format!("{code} 1 a:1"));
            assert!(error.is_retryable() && !error.is_lost_reply(), "{error:?}");
            assert_eq!(error.code(), code);
        }
        assert!(answer("ERR max number of clients reached").is_retryable());
        for line in ["ERR syntax", "WRONGTYPE x", "NOPERM x", "NOAUTH x", "STALE x", "CROSSSLOT x", "NOTOKENS x"] {
            assert!(matches!(answer(line), Error::Refused { .. }), "{line}");
        }
        assert_eq!(answer("NOTOWNER x"), Error::Lost);
        assert!(matches!(answer("ERR unknown command 'RLOCK.ACQUIRE'"), Error::ModuleMissing(_)));
        assert!(matches!(answer("ERR unknown option 'CLAIM'; expected PX"), Error::ModuleTooOld(_)));
        let Error::Unavailable { retry_after, .. } = answer("QUARANTINE it grants nothing; 400 ms left") else {
            panic!("it is retryable")
        };
        assert_eq!(retry_after, Some(Duration::from_millis(400)));
        let cut = Error::from(RedisError::from((ErrorKind::Io, "the connection was closed")));
        assert!(cut.is_retryable() && cut.is_lost_reply());
    }
}
