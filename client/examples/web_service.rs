//! A web service that ships each order once at a time. One client serves all requests.
//!
//! `cargo run --example web_service [URL [ADDRESS]]`, then `curl -X POST 127.0.0.1:3000/orders/42`.

use std::env;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use rlock_client::{Client, Error};

async fn ship(State(locks): State<Client>, Path(order): Path<u64>) -> StatusCode {
    let lock = locks.lock(format!("orders:{order}"));
    match lock.acquire_timeout(Duration::from_secs(2)).await {
        Ok(guard) => {
            ship_order(order, guard.token()).await;
            StatusCode::OK // Dropping the guard releases the lock, even if the request is cancelled.
        }
        Err(Error::Timeout) => StatusCode::CONFLICT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn ship_order(order: u64, fencing_token: u64) {
    println!("shipped {order}, token {fencing_token}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let client = Client::connect(&given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned())).await?;
    let address = env::args().nth(2).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, Router::new().route("/orders/{order}", post(ship)).with_state(client)).await?;
    Ok(())
}
