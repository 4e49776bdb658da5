//! The error type of this crate.

use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};

/// Why a request failed. A failed request holds nothing: the client cleans up in the background
/// what the request may have left on the server.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another owner held the lock for the whole timeout. If the server could not be asked, the
    /// error is [`Unavailable`](Self::Unavailable).
    #[error("timed out waiting for the lock")]
    Timeout,
    /// The hold ended before its release: its lease or session expired, or an operator took the
    /// lock away. Stop working under this lock.
    #[error("the lock was lost: its lease or session has expired, or it was taken away")]
    Lost,
    /// Waiting would close a cycle of owners that wait for each other. The text names the cycle.
    #[error("waiting would be a deadlock: {0}")]
    Deadlock(String),
    /// A newer request of the same owner ended this one. An owner stands for one thread of control:
    /// give each its own name with [`Lock::owner`](crate::Lock::owner).
    #[error("superseded by a newer request of the same owner")]
    Superseded,
    /// The server does not know the commands of the module.
    #[error("the server has not loaded the module rlock: {0}")]
    ModuleMissing(String),
    /// The server's module does not know an option that this client needs.
    #[error("the module rlock of the server is too old: {0}")]
    ModuleTooOld(String),
    /// The client is [closed](crate::Client::close), or the runtime it was created on has stopped.
    #[error("the client is closed, or its runtime has ended")]
    Closed,
    /// The server could not be reached, or cannot serve at present. The same request may succeed
    /// later.
    #[error("unavailable: {code}{}{message}", if code.is_empty() { "" } else { " " })]
    Unavailable {
        /// The first word of the server's error, such as `LOADING`; empty if there was no answer.
        code: String,
        /// The rest of the server's error, or what happened to the connection.
        message: String,
        /// After this time the server expects to serve again, if it says so.
        retry_after: Option<Duration>,
    },
    /// The server refused the request, and would refuse it again.
    #[error("the server refused: {code} {message}")]
    Refused {
        /// The first word of the server's error, such as `WRONGTYPE`.
        code: String,
        /// The rest of the server's error.
        message: String,
    },
    /// Fewer replicas than requested acknowledged the grant, so the client released the lock.
    #[error("{acknowledged} of {wanted} replicas acknowledged the grant; the lock was released")]
    Replicas {
        /// How many replicas were requested.
        wanted: u32,
        /// How many replicas acknowledged.
        acknowledged: u32,
    },
    /// An invalid argument. The text names the received value and the accepted ones.
    #[error("invalid argument: {0}")]
    Argument(String),
    /// Fewer than a majority of the servers granted the lock, so the client released it.
    #[cfg(feature = "quorum")]
    #[error("{granted} of {servers} servers granted the lock, not a majority; it was released")]
    NoQuorum {
        /// How many servers granted the lock in time.
        granted: usize,
        /// How many servers there are.
        servers: usize,
    },
    /// The server does not publish lock events, which needs `K` and `d` in
    /// `notify-keyspace-events`; or ACL rules forbid `CONFIG GET` or `SUBSCRIBE`.
    #[cfg(feature = "events")]
    #[error("the server does not publish lock events: notify-keyspace-events needs K and d")]
    NoEvents,
    /// Another thread [interrupted](crate::blocking::Interrupt) the wait.
    #[cfg(feature = "blocking")]
    #[error("the wait was interrupted")]
    Interrupted,
    /// The client is closed, but the server did not answer some releases and cleanups in time. The
    /// leases end what is left.
    #[error("{requests} requests had no answer in time; their holds live until their leases expire")]
    LeftBehind {
        /// How many requests had no answer.
        requests: usize,
    },
}

/// Codes of retryable errors.
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
    /// Whether the same request may succeed later: the server could not be reached, or cannot serve
    /// at present.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The first word of the server's error; empty if the error did not come from the server.
    pub fn code(&self) -> &str {
        match self {
            Self::Unavailable { code, .. } | Self::Refused { code, .. } => code,
            Self::Lost => "NOTOWNER",
            Self::Deadlock(_) => "DEADLOCK",
            Self::Superseded => "SUPERSEDED",
            _ => "",
        }
    }

    /// The error for a client that does not connect to a cluster and follows no redirections: the
    /// server is a node of a cluster, and would redirect the request again.
    pub(crate) fn without_cluster(self) -> Self {
        match self {
            Self::Unavailable { code, message, .. } if matches!(code.as_str(), "MOVED" | "ASK") => {
                let message = format!("{message}; the server is a node of a cluster, so connect to the cluster");
                Self::Refused { code, message }
            }
            error => error,
        }
    }

    /// Whether the answer is missing, so that the server may have executed the request.
    pub(crate) fn is_lost_reply(&self) -> bool {
        matches!(self, Self::Unavailable { code, .. } if code.is_empty())
    }

    /// Whether this error means that the hold has ended.
    pub(crate) fn ends_a_hold(&self) -> bool {
        matches!(self.code(), "NOTOWNER" | "WRONGTYPE" | "NOSEMAPHORE")
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { code: String::new(), message: message.into(), retry_after: None }
    }

    /// The error for an answer of an unexpected form.
    pub(crate) fn unexpected(value: &Value) -> Self {
        Self::Refused { code: "UNEXPECTED".to_owned(), message: format!("{value:?}") }
    }

    /// Converts an error of the server: its code and its text.
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
    fn only_passing_errors_are_retryable() {
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
