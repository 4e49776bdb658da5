//! `show`: the holders and the queue of one lock.

use std::os::unix::ffi::OsStrExt;

use serde::Serialize;

use crate::arguments::Show;
use crate::exit::{DONE, Failure, NOTHING};
use crate::observer::{Holder, Lock, Observer, Waiter};
use crate::span;
use crate::text::{Align, print, printable, table, with_notes};

/// The JSON of `--json`.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    lock: &'a Lock,
    queue: &'a [Waiter],
}

pub(crate) async fn show(url: &str, options: Show) -> Result<u8, Failure> {
    let mut observer = Observer::connect(url).await?;
    let key = options.key.as_bytes();
    let Some(lock) = observer.lock(key).await? else {
        return Err(Failure::new(NOTHING, format!("{} is not held and has no waiters", printable(key))));
    };
    let queue = observer.waiters(key, options.count).await?;
    if options.json {
        let shown = serde_json::to_string(&Shown { lock: &lock, queue: &queue });
        print(&(shown.unwrap_or_default() + "\n"))?;
    } else {
        print(&page(&lock, &queue))?;
    }
    Ok(DONE)
}

fn page(lock: &Lock, queue: &[Waiter]) -> String {
    let mut page = format!("{}: {}", lock.key, lock.kind);
    if let (Some(permits), Some(available)) = (lock.permits, lock.available) {
        page += &format!(", {available} of {permits} permits available");
    }
    page += "\n";
    if let Some(kept) = &lock.kept {
        let left = span::brief(kept.keep_ms.unsigned_abs());
        page += &format!("\nnot held; {} has released it and keeps it closed for {left}\n", kept.owner);
    } else if lock.holders.is_empty() {
        page += "\nnot held\n";
    } else {
        let holder = |holder: &Holder| {
            vec![
                holder.owner.clone(),
                holder.mode.clone(),
                holder.holds.to_string(),
                holder.token.to_string(),
                span::brief(holder.held_ms.unsigned_abs()),
                span::brief(holder.lease_ms.unsigned_abs()),
                session(&holder.clients),
                holder.note.clone().unwrap_or_default(),
            ]
        };
        let (left, right) = (Align::Left, Align::Right);
        let columns = [
            ("HOLDER", left),
            ("MODE", left),
            ("HOLDS", right),
            ("TOKEN", right),
            ("HELD", right),
            ("LEASE", right),
            ("SESSION", left),
        ];
        let rows: Vec<_> = lock.holders.iter().map(holder).collect();
        page = page + "\n" + &table(&with_notes(&columns, &rows), &rows);
        page += &and_more(lock.holders_count.unwrap_or(0), lock.holders.len());
    }
    if !queue.is_empty() {
        let waiter = |waiter: &Waiter| {
            let stay = if waiter.connected { "connected" } else { "has a place" };
            let waited = span::brief(waiter.waited_ms.unsigned_abs());
            let note = waiter.note.clone().unwrap_or_default();
            vec![waiter.owner.clone(), waiter.mode.clone(), waited, stay.to_owned(), note]
        };
        let columns = [("WAITER", Align::Left), ("MODE", Align::Left), ("WAITED", Align::Right), ("", Align::Left)];
        let rows: Vec<_> = queue.iter().map(waiter).collect();
        page = page + "\n" + &table(&with_notes(&columns, &rows), &rows);
        page += &and_more(lock.waiters, queue.len());
    }
    page
}

/// The connections of a hold's session, in the form of `CLIENT LIST`.
fn session(clients: &[i64]) -> String {
    match clients {
        [] => "no".to_owned(),
        ids => format!("id={}", ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
    }
}

/// A line about the rows that the table leaves out, if there are any.
fn and_more(all: i64, shown: usize) -> String {
    let more = all.saturating_sub(i64::try_from(shown).unwrap_or(i64::MAX));
    if more > 0 { format!("and {more} more\n") } else { String::new() }
}
