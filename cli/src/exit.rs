//! Exit statuses of the tool, and the errors that carry them.
//!
//! The status of `run` is that of its command. The tool's own statuses are therefore 121 to 127:
//! few commands use these, and timeout(1) and env(1) use 124 to 127 in the same sense.

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use rlock_client::Error;

/// Success.
pub const DONE: u8 = 0;
/// The lock is not held, so there is nothing to show or to release.
pub const NOTHING: u8 = 1;
/// No server could be reached, or it does not serve at present. The same command may succeed later.
pub const UNREACHABLE: u8 = 121;
/// The server refused.
pub const REFUSED: u8 = 122;
/// The lock was lost while the command ran.
pub const LOST: u8 = 123;
/// The wait for the lock timed out.
pub const TIMED_OUT: u8 = 124;
/// Wrong usage, or another failure of the tool itself.
pub const FAILED: u8 = 125;
/// The command exists and could not be started.
pub const CANNOT_RUN: u8 = 126;
/// The command does not exist.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of a signal.
pub const SIGNALLED: u8 = 128;

/// The statuses, for the manual and `--help`.
pub const TABLE: &str = "\
Exit status:
  0    success; run: the command exited with 0
  1    show: neither a lock nor waiters; release: neither held nor kept
  121  no server could be reached, or it does not serve at present (loading, failover,
       quarantine); the same command may succeed later
  122  the server refused: wrong password, missing permission, key of another type,
       deadlock, missing module; ls, top: also if it refused details of some locks
  123  run: the lock was lost while the command ran
  124  run, wait: timed out waiting for the lock
  125  wrong usage, or rlock failed, or could not write its output
  126  run: the command could not be started
  127  run: the command was not found
  128+n  signal n ended the command, or rlock while it waited
Any other status of run is that of the command.";

/// The message for a server that does not know the commands of the module.
const NO_MODULE: &str = "the server has not loaded the module rlock";

/// Codes of temporary errors: the server does not serve at present, and the same request may
/// succeed later.
const PASSING: [&str; 11] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "QUARANTINE",
    "READONLY",
    "TRYAGAIN",
    "UNBLOCKED",
];

/// Why the tool fails: an exit status and a message.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// The message for standard error; none if empty.
    pub message: String,
}

impl Failure {
    /// A failure with a status and a message.
    pub fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The failure for an error of a request to the server at `url`.
    pub(crate) fn of_server(url: &str, error: &redis::RedisError) -> Self {
        match refusal(error) {
            Some(text) => Self::refused(&text),
            None if error.kind() == redis::ErrorKind::InvalidClientConfig => Self::new(FAILED, error.to_string()),
            None => Self::unreachable(format!("{}: {error}", without_password(url))),
        }
    }

    /// The failure of an attempt to connect.
    fn unreachable(mut message: String) -> Self {
        if message.contains("UnknownIssuer") {
            message += "; to trust another authority, name the file of its certificate in SSL_CERT_FILE";
        }
        Self::new(UNREACHABLE, message)
    }

    /// The failure for an error reply of the server. `text` begins with the code of the error.
    pub(crate) fn refused(text: &str) -> Self {
        // A server without the module refuses its commands, in a reply that repeats all arguments.
        // From Valkey 9 on it also refuses the name of the module's type in SCAN.
        if text.contains("unknown command") || text.contains("unknown type name") {
            return Self::new(REFUSED, NO_MODULE);
        }
        let code = text.split(' ').next().unwrap_or_default();
        if ["MOVED", "ASK", "CROSSSLOT"].contains(&code) {
            // The client gets CROSSSLOT for the channel of its messages.
            let place = match text.split([' ', ';']).nth(2) {
                Some(address) if code != "CROSSSLOT" => format!(", and the key is on the node {address}"),
                _ => String::new(),
            };
            let text = format!("the server is a node of a cluster{place}; expected --url redis+cluster://host[:port]");
            return Self::new(REFUSED, text);
        }
        let status = if PASSING.contains(&code) { UNREACHABLE } else { REFUSED };
        Self::new(status, format!("the server refused: {text}"))
    }

    /// The failure of a wait that timed out.
    pub(crate) fn timed_out(name: &str, wait: Option<Duration>) -> Self {
        let message = match wait {
            Some(Duration::ZERO) => format!("the lock {name} is not free"),
            _ => format!("timed out waiting for the lock {name}"),
        };
        Self::new(TIMED_OUT, message)
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
            Error::Unavailable { .. } => Self::unreachable(error.to_string()),
            Error::Deadlock(_) | Error::ModuleTooOld(_) => Self::new(REFUSED, error.to_string()),
            Error::Timeout => Self::new(TIMED_OUT, error.to_string()),
            Error::Lost => Self::new(LOST, error.to_string()),
            _ => Self::new(FAILED, error.to_string()),
        }
    }
}

/// The error reply of the server, if the error has one. A refused login has one too.
fn refusal(error: &redis::RedisError) -> Option<String> {
    match error.code() {
        Some(code) if !error.is_io_error() => {
            Some(format!("{code} {}", error.detail().unwrap_or_default()).trim_end().to_owned())
        }
        // redis-rs replaces the reply to AUTH.
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            Some("WRONGPASS invalid user name or password".to_owned())
        }
        _ => None,
    }
}

/// Writes a message to standard error. Ignores a full disk and a closed pipe, where `eprintln!`
/// would panic: the caller still has to end the command or release the lock.
pub fn complain(message: &str) {
    let _ = io::stderr().write_all(format!("rlock: {message}\n").as_bytes());
}

/// The outcome of writing to standard output. A closed pipe is no failure: in `rlock ls | head` the
/// reader has seen enough.
///
/// # Errors
///
/// Any other failure to write, such as a full disk.
pub fn unless_pipe_is_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(FAILED, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// An address without user, password and query, for messages. Also works for text that is no valid
/// address.
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
    fn address_is_shown_without_its_password() {
        assert_eq!(without_password("redis://user:pass@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://user:p@ss@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("user:pass@host:1"), "host:1", "an address without scheme");
        assert_eq!(without_password("host:1"), "host:1");
        assert_eq!(without_password("redis+unix:///s.sock?user=me&pass=secret"), "redis+unix:///s.sock");
        assert_eq!(without_password("redis+unix:///s.sock?pass=se@cret"), "redis+unix://…");
        assert_eq!(without_password("redis://user:pa?ss@host:1"), "redis://…");
    }

    #[test]
    fn table_has_every_status() {
        for status in [UNREACHABLE, REFUSED, LOST, TIMED_OUT, FAILED, CANNOT_RUN, NOT_FOUND] {
            assert!(TABLE.contains(&format!("\n  {status}  ")), "{status}");
        }
    }

    #[test]
    fn redirection_names_the_node_of_the_key() {
        let expected = "expected --url redis+cluster://host[:port]";
        for reply in ["MOVED 12182 127.0.0.1:7001", "ASK 12182 127.0.0.1:7001; the server is a node of a cluster"] {
            let failure = Failure::refused(reply);
            assert_eq!(failure.status, REFUSED);
            let place = "the server is a node of a cluster, and the key is on the node 127.0.0.1:7001";
            assert_eq!(failure.message, format!("{place}; {expected}"));
        }
        let failure = Failure::refused("CROSSSLOT the NOTIFY channel must be in the slot of the keys");
        assert_eq!(failure.message, format!("the server is a node of a cluster; {expected}"));
    }

    #[test]
    fn server_that_does_not_serve_at_present_is_unreachable() {
        for reply in ["LOADING Redis is loading the dataset in memory", "QUARANTINE the server", "READONLY"] {
            assert_eq!(Failure::refused(reply).status, UNREACHABLE, "{reply}");
        }
        for reply in ["NOPERM this user", "WRONGTYPE", "ERR syntax error", "WRONGPASS invalid"] {
            assert_eq!(Failure::refused(reply).status, REFUSED, "{reply}");
        }
    }
}
