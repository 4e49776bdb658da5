//! `wait`: until a lock is free.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::arguments::Wait;
use crate::exit::{DONE, Failure};
use crate::observer::{Lock, Observer};
use crate::retry::until_reached;
use crate::text::printable;

/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) async fn wait(url: &str, options: Wait) -> Result<u8, Failure> {
    let deadline = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    until_reached(deadline, async || wait_until_free(url, &options, deadline).await).await
}

async fn wait_until_free(url: &str, options: &Wait, deadline: Option<Instant>) -> Result<u8, Failure> {
    let mut observer = Observer::connect(url).await?;
    let key = options.key.as_bytes();
    loop {
        if observer.lock(key).await?.as_ref().is_none_or(Lock::is_free) {
            return Ok(DONE);
        }
        let next = Instant::now() + PAUSE;
        match deadline {
            Some(deadline) if Instant::now() >= deadline => {
                return Err(Failure::timed_out(&printable(key), options.wait));
            }
            Some(deadline) => sleep_until(next.min(deadline)).await,
            None => sleep_until(next).await,
        }
    }
}
