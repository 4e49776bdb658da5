//! Candidates of which one leads at a time. If its process dies, the next one leads a moment later.
//!
//! `cargo run --example leader_election [URL] [NAME] [TERM_MS] [GRACE_MS]`, several at a time. Kill the one that leads.

use std::env;
use std::time::Duration;

use rlock_client::{Client, Error};

/// A leader is replaced this long after its connection has closed, unless another span is given. It must be longer than a connection takes
/// to be made anew, and than a process may be kept from running: a leader that has not heard of its server for so long resigns.
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
    // The token numbers the terms: who is told something by a leader of an earlier term does not heed it.
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

/// What only one may do.
async fn lead(term: Duration) {
    tokio::time::sleep(term).await;
}
