//! Threads share a lock without an async runtime of their own. Each checks that it still holds the
//! lock before every critical step.
//!
//! `cargo run --example blocking_threads [URL]`

use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, thread};

use rlock_client::Error;
use rlock_client::blocking::Client;

const THREADS: u32 = 8;
const STEPS: u32 = 10;

fn main() -> Result<(), Error> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url)?;
    let counter = AtomicU32::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| work(&client, &counter))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    println!("{THREADS} threads counted to {}", counter.into_inner());
    Ok(())
}

fn work(client: &Client, counter: &AtomicU32) -> Result<(), Error> {
    let guard = client.lock("example:threads").acquire()?;
    for _ in 0..STEPS {
        if !guard.is_held() {
            return Err(Error::Lost);
        }
        // No other thread may run between these two steps.
        let value = counter.load(Ordering::Relaxed);
        thread::yield_now();
        counter.store(value + 1, Ordering::Relaxed);
    }
    guard.release()
}
