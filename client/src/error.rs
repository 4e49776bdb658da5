//! What can go wrong, in one enum.

use std::time::Duration;

/// Why a request was not done. Nothing is held on behalf of a request that failed, and what it may have left on the server is taken back in
/// the background.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not granted in the time that was given.
    #[error("the lock was not granted in time")]
    Timeout,
    /// The hold is gone: its lease or session ended, or somebody took it away. Its holder must not act on it any more.
    #[error("the lock is not held any more: its lease or session has ended, or it was taken away")]
    NotHeld,
    /// Waiting would close a circle of owners that wait for each other. The text names the circle.
    #[error("waiting would be a deadlock: {0}")]
    Deadlock(String),
    /// Fewer replicas than asked for acknowledged the grant, so it was given back.
    #[error("{acknowledged} of {wanted} replicas acknowledged the grant, which was given back")]
    Replicas {
        /// How many were asked for.
        wanted: u32,
        /// How many acknowledged.
        acknowledged: u32,
    },
    /// There is no semaphore under this key: [`Semaphore::init`](crate::Semaphore::init) makes one.
    #[error("there is no semaphore under this key; Semaphore::init makes one")]
    NoSemaphore,
    /// The server has as many waiters as it may have; its text names the setting.
    #[error("too many waiters: {0}")]
    TooManyWaiters(String),
    /// An argument cannot be sent: which one, and what it may be.
    #[error("invalid argument: {0}")]
    Argument(String),
    /// Fewer than a majority of the servers granted; what was granted was given back.
    #[error("{granted} of {servers} servers granted, which is no majority; it was given back")]
    NoQuorum {
        /// How many granted in time.
        granted: usize,
        /// How many there are.
        servers: usize,
    },
    /// The server does not know the commands of the module: it has not loaded it, or a version that is too old. The text says which.
    #[error("the server has not loaded the module rlock that this client needs: {0}")]
    NoModule(String),
    /// The user may not use this command or key; the text says which.
    #[error("the user has no permission: {0}")]
    Permission(String),
    /// The server does not tell what happens to locks: `notify-keyspace-events` needs `K` and `d`, and the user the permission for `CONFIG GET` and
    /// for channels `__keyspace@*`.
    #[error(
        "the server does not tell what happens to locks: notify-keyspace-events needs K and d, and the user CONFIG GET and channels __keyspace@*"
    )]
    NoEvents,
    /// A wait of a thread was [interrupted](crate::blocking::Interrupt).
    #[error("the wait was interrupted")]
    Interrupted,
    /// The server refused for another reason.
    #[error("the server refused: {code} {message}")]
    Server {
        /// The first word of the server's error, such as `WRONGTYPE`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The server could not be reached, or gave no usable answer, for as long as requests are retried.
    #[error("no usable connection for {tried_for:?}: {cause}")]
    Connection {
        /// How long it was tried.
        tried_for: Duration,
        /// The last failure; its type is that of [`crate::redis`].
        #[source]
        cause: redis::RedisError,
    },
    /// Another request in the name of the same owner, from another client or for another set of keys, has come in between. An owner stands for one
    /// thread of control: use [`Lock::owner`](crate::Lock::owner) with different names for different ones.
    #[error("another request of the same owner has taken the place of this one")]
    Superseded,
    /// The runtime on which the client was made has ended, and with it what renews locks. Make clients on a runtime that lives as long
    /// as they do.
    #[error(
        "the runtime on which this client was made has ended; a client has to be made on one that lives as long as it does"
    )]
    RuntimeEnded,
    /// The client was [closed](crate::Client::close).
    #[error("the client is closed")]
    Closed,
    /// The client was closed, and not everything that was left behind could be released in time. It lives until its lease ends at most.
    #[error("{requests} requests were not tidied up in time; what they hold lives until its lease ends")]
    LeftBehind {
        /// How many requests are still being taken back or released.
        requests: usize,
    },
}

impl Error {
    /// The error for an answer of the server's that no retry will change.
    pub(crate) fn from_answer(error: &redis::RedisError) -> Self {
        let code = error.code().unwrap_or("ERR").to_owned();
        Self::from_code(code, error.detail().unwrap_or_default().to_owned())
    }

    /// The same for what is asked of a hold: where there is something else now, or no semaphore, it is gone as well.
    pub(crate) fn of_hold(error: &redis::RedisError) -> Self {
        match Self::from_answer(error) {
            Self::Server { code, .. } if code == "WRONGTYPE" => Self::NotHeld,
            Self::NoSemaphore => Self::NotHeld,
            error => error,
        }
    }

    /// The same for a code and its text.
    pub(crate) fn from_code(code: String, message: String) -> Self {
        match code.as_str() {
            "NOTOWNER" => Self::NotHeld,
            "SUPERSEDED" => Self::Superseded,
            "DEADLOCK" => Self::Deadlock(message),
            "NOSEMAPHORE" => Self::NoSemaphore,
            "MAXWAITERS" => Self::TooManyWaiters(message),
            "NOPERM" => Self::Permission(message),
            "ERR" if message.starts_with("unknown command") => Self::NoModule(message),
            _ => Self::Server { code, message },
        }
    }

    /// The error for an answer that is not of the form that the command has.
    pub(crate) fn unexpected(value: &redis::Value) -> Self {
        Self::Server { code: "UNEXPECTED".to_owned(), message: format!("{value:?}") }
    }
}
