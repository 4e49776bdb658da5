//! A job that several machines start at the same time. One of them runs it, at most once per
//! period.
//!
//! `cargo run --example nightly_job [URL]`. Start several at once, as cron does.

use std::env;
use std::time::Duration;

use rlock_client::{Client, Error};

/// After the job ends, no machine starts it again for this long.
const PERIOD: Duration = Duration::from_secs(3600);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let client = Client::connect(&given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned())).await?;
    match client.lock("example:nightly").try_acquire().await? {
        None => println!("another machine runs it, or has run it"),
        Some(guard) => {
            tokio::select! {
                biased;
                () = guard.lost() => return Err(Error::Lost),
                () = clean_up() => println!("done"),
            }
            guard.release_and_keep(PERIOD).await?;
        }
    }
    client.close().await
}

async fn clean_up() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
