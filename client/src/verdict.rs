//! What an error that a server or a connection has answered means for whoever asked.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::link::Link;
use crate::slots::Address;

/// What to do about an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the answer.
    Final,
    /// The connection is of no more use.
    Reconnect,
    /// Another node serves the slot.
    Moved(u16, Address),
    /// Another node serves this one command.
    Ask(Address),
    /// Not now.
    Later,
    /// The node answers nobody for now. Of a cluster, another one may have taken its slots over.
    Elsewhere,
}

/// What an error of the server's or of the connection means for a command that can be repeated.
pub(crate) fn judge(error: &RedisError, link: &Link) -> Verdict {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => {
            let host = match link.info().addr() {
                redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => host.as_str(),
                _ => "",
            };
            let redirection =
                error.redirect_node().and_then(|(address, slot)| Some((Address::parse(address, host)?, slot)));
            match (redirection, error.kind()) {
                (Some((address, slot)), ErrorKind::Server(ServerErrorKind::Moved)) => Verdict::Moved(slot, address),
                (Some((address, _)), _) => Verdict::Ask(address),
                (None, _) => Verdict::Final,
            }
        }
        ErrorKind::Server(ServerErrorKind::TryAgain) => Verdict::Later,
        // So says also a master that is cut off from the others, while they have put another one in its place.
        ErrorKind::Server(
            ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading,
        ) => Verdict::Elsewhere,
        // A master that was demoted. Sentinel and the cluster know the new one.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => Verdict::Reconnect,
        ErrorKind::Server(_) => Verdict::Final,
        ErrorKind::Extension => match error.code() {
            // A failover ended a wait.
            Some("UNBLOCKED" | "QUARANTINE") => Verdict::Later,
            // The server runs a long script, cannot save its data, or misses its replicas.
            Some("BUSY" | "MISCONF" | "NOREPLICAS") => Verdict::Later,
            _ => Verdict::Final,
        },
        // It was refused here, and not sent. Others use the connection.
        ErrorKind::Client => Verdict::Final,
        _ => Verdict::Reconnect,
    }
}

/// Whether the server answers, but does not do it for now.
pub(crate) fn is_refusal(error: &RedisError, link: &Link) -> bool {
    matches!(judge(error, link), Verdict::Later | Verdict::Elsewhere)
}

/// Whether a command may have been executed though this was the answer. What a server refuses it has not begun, but for a wait that a failover ends:
/// that may have been granted in the very turn.
pub(crate) fn may_be_executed(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Client => false,
        ErrorKind::Extension => error.code() == Some("UNBLOCKED"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an answer");
        value.extract_error().expect_err("an error")
    }

    /// A release that was only refused, and then finds nothing, has not been done.
    #[test]
    fn what_a_server_refuses_it_has_not_begun() {
        let refusals = [
            "MOVED 1 a:1",
            "ASK 1 a:1",
            "TRYAGAIN",
            "CLUSTERDOWN",
            "LOADING",
            "READONLY",
            "NOREPLICAS",
            "MISCONF",
            "BUSY",
            "QUARANTINE",
        ];
        for line in refusals {
            assert!(!may_be_executed(&answer(line)), "{line}");
        }
        assert!(may_be_executed(&answer("UNBLOCKED a failover")), "it may have been granted in that very turn");
        assert!(may_be_executed(&RedisError::from((ErrorKind::Io, "the connection was closed"))));
    }
}
