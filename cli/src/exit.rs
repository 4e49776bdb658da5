//! What the tool exits with, and errors that carry it.
//!
//! The statuses of `run` share a byte with those of the command. So they are where timeout(1) and env(1) have theirs, at 121 to 127, which few
//! commands use.

use std::io::{self, ErrorKind, Write};

use rlock_client::Error;

/// It was done.
pub const DONE: u8 = 0;
/// There is nothing to show or to release.
pub const NOTHING: u8 = 1;
/// The server could not be reached.
pub const UNREACHABLE: u8 = 121;
/// The server refused.
pub const REFUSED: u8 = 122;
/// The lock was lost while the command ran.
pub const LOST: u8 = 123;
/// The lock was not had in time.
pub const TIMED_OUT: u8 = 124;
/// Wrong usage, or another failure of the tool itself.
pub const FAILED: u8 = 125;
/// The command was found, and could not be run.
pub const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of a signal.
pub const SIGNALLED: u8 = 128;

/// The table above, for the manual and `--help`.
pub const TABLE: &str = "\
Exit status:
  0    done; of run: the command ended with 0
  1    show, release: nobody holds the lock
  121  the server could not be reached
  122  the server refused: no rights, a key of another type, a deadlock, no module;
       of ls and top also if it refused to tell of some locks
  123  run: the lock was lost while the command ran
  124  run, wait: the lock was not had, or not free, within --wait
  125  wrong usage, or rlock itself failed, or could not write what it prints
  126  run: the command was found and could not be run
  127  run: the command was not found
  128+n  a signal n ended the command, or rlock while it waited
Any other status of run is that of the command.";

/// What is said of a server that does not know the commands.
const NO_MODULE: &str = "the server has not loaded the module rlock";

/// Why something was not done, and what to exit with.
#[derive(Debug)]
pub struct Failure {
    /// What to exit with.
    pub status: u8,
    /// What to say on the standard error; nothing if empty.
    pub message: String,
}

impl Failure {
    /// A failure with a status and what to say.
    pub fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// Of the server: which part of the error says whether it was reached.
    pub(crate) fn of_server(url: &str, error: &redis::RedisError) -> Self {
        match error.code() {
            Some(_) if !error.is_io_error() => {
                let text = format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
                Self::refused(text.trim())
            }
            _ if error.kind() == redis::ErrorKind::AuthenticationFailed => Self::refused(&error.to_string()),
            _ if error.kind() == redis::ErrorKind::InvalidClientConfig => Self::new(FAILED, error.to_string()),
            _ => Self::new(UNREACHABLE, format!("{}: {error}", without_password(url))),
        }
    }

    pub(crate) fn refused(text: &str) -> Self {
        // What a server without the module says to its commands, before it repeats all arguments, and Valkey 9 to the name of its type.
        if text.contains("unknown command") || text.contains("unknown type name") {
            return Self::new(REFUSED, NO_MODULE);
        }
        Self::new(REFUSED, format!("the server refused: {text}"))
    }

    pub(crate) fn is_about_missing_module(&self) -> bool {
        self.message == NO_MODULE
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::ModuleMissing(_) => Self::new(REFUSED, NO_MODULE),
            Error::Refused { code, message } => Self::refused(&format!("{code} {message}")),
            // A server that answers was reached.
            Error::Unavailable { code, message, .. } if !code.is_empty() => Self::refused(&format!("{code} {message}")),
            Error::Unavailable { .. } => Self::new(UNREACHABLE, error.to_string()),
            Error::Deadlock(_) | Error::ModuleTooOld(_) => Self::new(REFUSED, error.to_string()),
            Error::Timeout => Self::new(TIMED_OUT, error.to_string()),
            Error::Lost => Self::new(LOST, error.to_string()),
            _ => Self::new(FAILED, error.to_string()),
        }
    }
}

/// Says on the standard error what went wrong. It may be full, or nobody may read it, and what has to be done is done nevertheless:
/// `eprintln!` would panic.
pub fn complain(message: &str) {
    let _ = io::stderr().write_all(format!("rlock: {message}\n").as_bytes());
}

/// What came of writing to the standard output. A reader who has gone has seen enough: `rlock ls | head` closes the pipe.
///
/// # Errors
///
/// A failure to write for any other reason, such as a full disk.
pub fn unless_nobody_reads(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(FAILED, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// An address as it may be shown to others: without user, password and query. It may be one that cannot be used, such as one whose scheme was
/// forgotten.
pub(crate) fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |end| end + 3));
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') {
        // A password with a question mark, or a query with an @.
        return format!("{scheme}…");
    }
    format!("{scheme}{}", place.rsplit_once('@').map_or(place, |(_, place)| place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        assert_eq!(without_password("redis://user:pass@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://user:p@ss@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("user:pass@host:1"), "host:1", "the scheme was forgotten");
        assert_eq!(without_password("host:1"), "host:1");
        assert_eq!(without_password("redis+unix:///s.sock?user=me&pass=secret"), "redis+unix:///s.sock");
        assert_eq!(without_password("redis+unix:///s.sock?pass=se@cret"), "redis+unix://…");
        assert_eq!(without_password("redis://user:pa?ss@host:1"), "redis://…");
    }

    #[test]
    fn the_table_has_every_status() {
        for status in [UNREACHABLE, REFUSED, LOST, TIMED_OUT, FAILED, CANNOT_RUN, NOT_FOUND] {
            assert!(TABLE.contains(&format!("\n  {status}  ")), "{status}");
        }
    }
}
