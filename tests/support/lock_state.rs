//! Compares the locks of two servers.

use super::client::Client;
use super::reply::Reply;
use super::server::Server;

/// Describes the parts of a lock that are equal on every copy. Remaining leases and waits count
/// down, and a connection is only known to its own server.
#[track_caller]
pub fn describe_lock(client: &mut Client, key: &str) -> String {
    let info = client.call(format!("RLOCK.INFO {key}"));
    let (Reply::Array(_) | Reply::Map(_)) = info else {
        return format!("{info:?}");
    };
    let kind = info.field("kind").text();
    let holders = info.field("holders");
    let mut all: Vec<_> = holders
        .array()
        .iter()
        .map(|holder| ["owner", "mode", "holds", "token"].map(|name| format!("{:?}", holder.field(name))).join(" "))
        .collect();
    // The other kinds show their connected waiters here, which only the primary has.
    if kind == "fair" {
        let waiters = client.call(format!("RLOCK.WAITERS {key}"));
        all.extend(waiters.array().iter().map(|waiter| format!("{:?}", waiter.field("owner"))));
    }
    format!("{kind} {all:?}")
}

/// Describes the keys `lock-0` to `lock-{keys - 1}` in the first `databases` databases, one line
/// each.
#[track_caller]
pub fn describe_locks(server: &Server, databases: usize, keys: usize) -> Vec<String> {
    let mut client = server.client();
    let mut lines = Vec::new();
    for db in 0..databases {
        client.call(format!("SELECT {db}"));
        for number in 0..keys {
            let key = format!("lock-{number}");
            let digest = client.call(format!("DEBUG DIGEST-VALUE {key}"));
            lines.push(format!("{db} {key} {digest:?} {}", describe_lock(&mut client, &key)));
        }
    }
    lines
}
