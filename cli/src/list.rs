//! `ls`: all locks, in the order in which SCAN finds them.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

use crate::arguments::Ls;
use crate::exit::{DONE, Failure};
use crate::observer::{Observer, Place};
use crate::text::print;
use crate::top::{COLUMNS, row};
use crate::{span, text};

pub(crate) async fn list(url: &str, options: Ls) -> Result<u8, Failure> {
    let mut observer = Observer::connect(url).await?;
    let pattern = options.pattern.as_ref().map(|pattern| pattern.as_bytes());
    // SCAN returns some keys twice while the server's table of keys grows.
    let mut seen = HashSet::new();
    let mut rows = Vec::new();
    let mut next = Some(Place::default());
    while let Some(place) = next {
        let (further, mut keys) = observer.step(place, pattern).await?;
        keys.retain(|key| seen.insert(key.clone()));
        let mut locks = observer.locks(place, &keys).await?;
        observer.add_longest_waits(place, &mut locks).await?;
        if options.json {
            let lines = locks.iter().filter_map(|lock| serde_json::to_string(lock).ok());
            print(&lines.map(|line| line + "\n").collect::<String>())?;
        } else {
            rows.extend(locks.iter().map(|lock| row(lock, span::brief)));
        }
        next = further;
    }
    if seen.is_empty() {
        observer.expect_module().await?;
    }
    if !options.json {
        rows.sort();
        print(&text::table(&text::with_notes(COLUMNS, &rows), &rows))?;
    }
    observer.check_complete()?;
    Ok(DONE)
}
