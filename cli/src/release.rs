//! `release --force`: ends the hold of another owner, on a lock of any kind.

use std::os::unix::ffi::OsStrExt;

use redis::Value;

use crate::arguments::Release;
use crate::exit::{DONE, Failure, NOTHING};
use crate::observer::Observer;
use crate::text::printable;

pub(crate) async fn release(url: &str, options: Release) -> Result<u8, Failure> {
    let mut observer = Observer::connect(url).await?;
    let key = options.key.as_bytes();
    let not_held = || {
        let with_token = options.token.map(|token| format!(" with token {token}")).unwrap_or_default();
        Failure::new(NOTHING, format!("{} is not held{with_token}", printable(key)))
    };
    let mut command = redis::cmd("RLOCK.FORCERELEASE");
    command.arg(key);
    if let Some(token) = options.token {
        command.arg("TOKEN").arg(token);
    }
    match observer.ask_about(key, &command).await? {
        Value::Int(0) => Err(not_held()),
        _ => Ok(DONE),
    }
}
