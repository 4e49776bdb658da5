//! Tasks in several processes increment one value: they read it, and write it back a moment later.
//! Without the lock, increments would be lost.
//!
//! `cargo run --example counter [URL]`. Start it as many times at once as you like: each run adds
//! 100.

use std::env;

use redis::AsyncCommands;
use rlock_client::Client;

const KEY: &str = "example:counter";
const TASKS: u32 = 100;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;
    let values = redis::Client::open(url)?.get_multiplexed_async_connection().await?;

    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let lock = client.lock("example:counter:lock");
        let mut values = values.clone();
        tasks.spawn(async move {
            let guard = lock.acquire().await?;
            let value: Option<u32> = values.get(KEY).await?;
            let value = value.unwrap_or(0) + 1;
            let () = values.set(KEY, value).await?;
            guard.release().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(value)
        });
    }
    let mut highest = 0;
    while let Some(value) = tasks.join_next().await {
        highest = highest.max(value?.map_err(|error| error.to_string())?);
    }
    println!("counted {TASKS} times, up to {highest}");
    Ok(())
}
