//! Workers share a fixed number of permits, which limits how many of them work at once.
//!
//! `cargo run --example semaphore [URL]`

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rlock_client::Client;

const PERMITS: u32 = 3;
const WORKERS: u32 = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let semaphore = Client::connect(&url).await?.semaphore("example:downloads");
    // The first process to get here creates the semaphore.
    semaphore.init(PERMITS).await?;

    let (working, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let (permit, working, most) = (semaphore.permits(1), working.clone(), most.clone());
        workers.spawn(async move {
            let guard = permit.acquire().await?;
            most.fetch_max(working.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
            working.fetch_sub(1, Ordering::Relaxed);
            guard.release().await
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    println!("{WORKERS} workers, at most {} at a time", most.load(Ordering::Relaxed));
    Ok(())
}
