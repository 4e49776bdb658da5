//! Whether two servers have the same locks.

use super::client::Client;
use super::reply::Reply;
use super::server::Server;

/// What each copy must show of a key. Leases run, waits run, and a connection is known only where it is.
#[track_caller]
pub fn shown(client: &mut Client, key: &str) -> String {
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
    // Waiters of other kinds are connections, which only the primary has.
    if kind == "fair" {
        let waiters = client.call(format!("RLOCK.WAITERS {key}"));
        all.extend(waiters.array().iter().map(|waiter| format!("{:?}", waiter.field("owner"))));
    }
    format!("{kind} {all:?}")
}

/// All that a server has of so many keys in so many databases, a line for each.
#[track_caller]
pub fn picture(server: &Server, databases: usize, keys: usize) -> Vec<String> {
    let mut client = server.client();
    let mut lines = Vec::new();
    for db in 0..databases {
        client.call(format!("SELECT {db}"));
        for number in 0..keys {
            let key = format!("lock-{number}");
            let digest = client.call(format!("DEBUG DIGEST-VALUE {key}"));
            lines.push(format!("{db} {key} {digest:?} {}", shown(&mut client, &key)));
        }
    }
    lines
}
