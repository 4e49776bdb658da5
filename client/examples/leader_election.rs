//! Several candidates, of which one leads at a time. If the leader's process dies, the next
//! candidate takes over a moment later.
//!
//! `cargo run --example leader_election [URL] [NAME] [TERM_MS] [GRACE_MS]`. Start several at once,
//! and kill the leader.

use std::env;
use std::time::Duration;

use rlock_client::{Client, Error};

/// The default session grace: a leader is replaced this long after its connection closes. It must
/// be longer than a reconnect takes, and longer than the process may be kept from running: a leader
/// that gets no answer from the server for this long resigns.
const GRACE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let given = arguments.next().or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let name = arguments.next().unwrap_or_else(|| std::process::id().to_string());
    let term = Duration::from_millis(arguments.next().map_or(Ok(500), |ms| ms.parse())?);
    let grace = arguments.next().map_or(Ok(GRACE), |ms| ms.parse().map(Duration::from_millis))?;

    let client = Client::connect(&url).await?;
    println!("{name} is a candidate");
    let guard = client.lock("example:leader").session_grace(grace).acquire().await?;
    // The token numbers the terms. Recipients ignore messages from a leader of an earlier term.
    println!("{name} leads, term {}", guard.token());
    tokio::select! {
        biased;
        () = guard.lost() => {
            println!("{name} leads no more");
            return Err(Error::Lost.into());
        }
        () = lead(term) => {}
    }
    println!("{name} resigns");
    guard.release().await?;
    Ok(())
}

/// The work that only the leader may do.
async fn lead(term: Duration) {
    tokio::time::sleep(term).await;
}
