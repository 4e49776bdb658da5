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
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;
    let lock = client.lock("example:nightly").note(format!("process {}", std::process::id()));
    let Some(guard) = lock.try_acquire().await? else {
        println!("another machine does it, or has done it");
        return client.close().await;
    };
    tokio::select! {
        biased;
        () = guard.lost() => return Err(Error::Lost),
        () = clean_up() => println!("done"),
    }
    guard.release_and_keep(PERIOD).await?;
    client.close().await
}

async fn clean_up() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
