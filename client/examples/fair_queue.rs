//! Customers are served in order of arrival, each over a separate connection. The server stores the
//! queue as data, so the order survives a restart or a failover.
//!
//! `cargo run --example fair_queue [URL]`

use std::env;
use std::time::Duration;

use rlock_client::{Client, Error};

const KEY: &str = "example:desk";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let mut observer = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;

    // No customer is served before the desk opens.
    let closed = Client::connect(&url).await?.fair_lock(KEY).acquire().await?;
    let mut customers = Vec::new();
    for customer in 1..=5 {
        customers.push(tokio::spawn(be_served(url.clone(), customer)));
        // The customers arrive one after the other.
        while waiting(&mut observer).await? < customer {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("customer {customer} has come");
    }
    closed.release().await?;
    for customer in customers {
        customer.await??;
    }
    Ok(())
}

async fn be_served(url: String, customer: usize) -> Result<(), Error> {
    let guard = Client::connect(&url).await?.fair_lock(KEY).acquire().await?;
    println!("customer {customer} is served");
    guard.release().await
}

/// The number of waiters that the server reports.
async fn waiting(observer: &mut redis::aio::MultiplexedConnection) -> redis::RedisResult<usize> {
    let waiters: Vec<redis::Value> = redis::cmd("RFAIRLOCK.WAITERS").arg(KEY).query_async(observer).await?;
    Ok(waiters.len())
}
