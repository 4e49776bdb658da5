//! Many readers or one writer. The writer becomes a reader, and no other writer gets in between.
//!
//! `cargo run --example read_write [URL]`

use std::env;

use rlock_client::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let lock = Client::connect(&url).await?.rw_lock("example:report");

    let writer = lock.write().acquire().await?;
    println!("one writes; may another read? {}", lock.read().try_acquire().await?.is_some());
    let first = writer.downgrade().await?;
    let second = lock.read().acquire().await?;
    println!("two read; may another write? {}", lock.write().try_acquire().await?.is_some());
    first.release().await?;
    second.release().await
}
