//! A lock on several independent servers. It is held as long as a majority of them holds it.
//!
//! `cargo run --example quorum URL URL URL`, or set `REDIS_URL` to the addresses, separated by
//! spaces.

use std::env;
use std::time::Duration;

use rlock_client::{Client, Quorum};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = env::args().skip(1).collect();
    let by_environment = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let mut urls: Vec<&str> = given.iter().map(String::as_str).collect();
    if urls.is_empty() {
        urls = by_environment.split_whitespace().collect();
    }

    // A server that is down is skipped for now, and tried again at the next acquisition.
    let options = Client::builder().command_timeout(Duration::from_secs(1));
    let quorum = Quorum::connect(&options, &urls)?;
    let guard = quorum.lock("example:quorum").acquire_timeout(Duration::from_secs(10)).await?;
    println!("held on a majority of {} servers, token {}", urls.len(), guard.token());
    tokio::select! {
        biased;
        () = guard.lost() => println!("lost on a majority"),
        () = tokio::time::sleep(Duration::from_millis(100)) => println!("worked"),
    }
    guard.release().await?;
    // A majority has released. `close` waits for the other servers before the runtime ends.
    quorum.close().await?;
    println!("released");
    Ok(())
}
