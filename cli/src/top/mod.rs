//! `top`: the most contended locks.
//!
//! [`survey`] requests them, [`screen`] draws them, and this file connects the two with the
//! keyboard.

pub mod screen;
pub mod survey;

use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::time::Instant;

use crate::arguments::Top;
use crate::exit::{DONE, FAILED, Failure, without_password};
use crate::observer::{Lock, Observer};
use crate::span;
use crate::text::{Align, print, table, with_notes};
use screen::View;
use survey::Survey;

/// The pause between two checks of the keyboard.
const KEYBOARD_PAUSE: Duration = Duration::from_millis(50);

/// The columns of a table of locks.
pub(crate) const COLUMNS: &[(&str, Align)] = &[
    ("KEY", Align::Left),
    ("KIND", Align::Left),
    ("WAITERS", Align::Right),
    ("LONGEST", Align::Right),
    ("HOLDERS", Align::Right),
    ("LEASE", Align::Right),
    ("OWNER", Align::Left),
];

/// The cells of a lock in these columns, and its note.
pub(crate) fn row(lock: &Lock, brief: fn(u64) -> String) -> Vec<String> {
    let first = lock.holders.first();
    let holders = match (lock.many_holders, lock.permits) {
        _ if lock.kept.is_some() => "kept".to_owned(),
        (true, _) => "many".to_owned(),
        (false, Some(permits)) => format!("{}/{permits}", permits - lock.available.unwrap_or(0)),
        (false, None) => lock.holders_count.map_or_else(|| lock.holders.len().to_string(), |count| count.to_string()),
    };
    let left_ms = first.map(|holder| holder.lease_ms).or(lock.kept.as_ref().map(|kept| kept.keep_ms));
    vec![
        lock.key.clone(),
        lock.kind.clone(),
        lock.waiters.to_string(),
        lock.longest_wait_ms.map(|ms| brief(ms.unsigned_abs())).unwrap_or_default(),
        holders,
        left_ms.map(|ms| brief(ms.unsigned_abs())).unwrap_or_default(),
        first.map(|holder| holder.owner.clone()).unwrap_or_default(),
        first.and_then(|holder| holder.note.clone()).unwrap_or_default(),
    ]
}

pub(crate) async fn top(url: &str, options: Top) -> Result<u8, Failure> {
    let mut observer = Observer::connect(url).await?;
    if options.once || options.json {
        let survey = Survey::take(&mut observer, options.count).await?;
        match options.json {
            true => print(&(serde_json::to_string(&survey).unwrap_or_default() + "\n"))?,
            false => {
                let rows: Vec<_> = survey.locks.iter().map(|lock| row(lock, span::brief)).collect();
                print(&table(&with_notes(COLUMNS, &rows), &rows))?;
            }
        }
        observer.check_complete()?;
        return Ok(DONE);
    }
    // ratatui restores the terminal on a panic too.
    let mut terminal = ratatui::try_init().map_err(|error| Failure::new(FAILED, format!("no terminal: {error}")))?;
    let outcome = watch(&mut terminal, observer, url, &options).await;
    ratatui::restore();
    outcome
}

/// The next step after the pressed keys.
enum Next {
    Quit,
    Continue,
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    mut observer: Observer,
    url: &str,
    options: &Top,
) -> Result<u8, Failure> {
    let mut view = View::new(&without_password(url));
    loop {
        // Handle keys while the requests run.
        let taken = {
            let survey = Survey::take(&mut observer, options.count);
            let mut survey = std::pin::pin!(survey);
            loop {
                tokio::select! {
                    biased;
                    taken = &mut survey => break Some(taken),
                    () = tokio::time::sleep(KEYBOARD_PAUSE) => {}
                }
                if let Next::Quit = handle_keys(terminal, &mut view)? {
                    break None;
                }
            }
        };
        match taken {
            None => return Ok(DONE),
            Some(Ok(survey)) => {
                view.show(survey);
                view.trouble = observer.check_complete().err().map(|failure| failure.message);
            }
            // The server may be restarting, or a replica is being promoted.
            Some(Err(failure)) if view.has_content() => {
                view.trouble = Some(failure.message);
                if let Ok(again) = Observer::connect(url).await {
                    observer = again;
                }
            }
            Some(Err(failure)) => return Err(failure),
        }
        let next = Instant::now() + options.every;
        loop {
            if let Next::Quit = handle_keys(terminal, &mut view)? {
                return Ok(DONE);
            }
            if Instant::now() >= next && !view.is_paused {
                break;
            }
            tokio::time::sleep(KEYBOARD_PAUSE).await;
        }
    }
}

/// Handles the pressed keys, and draws the screen.
fn handle_keys(terminal: &mut ratatui::DefaultTerminal, view: &mut View) -> Result<Next, Failure> {
    let failed = |error: std::io::Error| Failure::new(FAILED, format!("terminal: {error}"));
    while event::poll(Duration::ZERO).map_err(failed)? {
        let Event::Key(key) = event::read().map_err(failed)? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(Next::Quit),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(Next::Quit),
            KeyCode::Char('s') => view.sort_by_next(),
            KeyCode::Char(' ') => view.is_paused = !view.is_paused,
            KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
            KeyCode::PageDown => view.scroll(20),
            KeyCode::PageUp => view.scroll(-20),
            KeyCode::Home => view.scroll(isize::MIN),
            _ => {}
        }
    }
    terminal.draw(|frame| screen::draw(frame, view)).map_err(failed)?;
    Ok(Next::Continue)
}
