//! `wait`: until a lock is free.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use tokio::time::Instant;

use crate::arguments::Wait;
use crate::exit::{DONE, Failure, TIMED_OUT};
use crate::observer::{Lock, Observer};
use crate::text::printable;

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) async fn wait(url: &str, options: Wait) -> Result<u8, Failure> {
    let deadline = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut observer = Observer::connect(url).await?;
    let key = options.key.as_bytes();
    loop {
        if observer.lock(key).await?.as_ref().is_none_or(Lock::is_free) {
            return Ok(DONE);
        }
        let next = Instant::now() + PAUSE;
        match deadline {
            Some(deadline) if Instant::now() >= deadline => {
                return Err(Failure::new(TIMED_OUT, format!("{} was not free in time", printable(key))));
            }
            Some(deadline) => tokio::time::sleep_until(next.min(deadline)).await,
            None => tokio::time::sleep_until(next).await,
        }
    }
}
