//! The module's state: the engine, and the notes that wait for it.
//!
//! Callbacks of the server may not decide anything. They leave notes, and the engine hears them at the start of the
//! next request or of the timer, in the order in which they were made and before anything else: so no lock is handed to
//! a client that is known to be gone.

use rlock_core::{Alarm, Engine, Key};

use crate::ffi::MainThread;

/// The engine; `None` before the module was loaded.
static ENGINE: MainThread<Option<Engine>> = MainThread::new(None);

static NOTES: MainThread<Notes> = MainThread::new(Notes { list: Vec::new(), seen_token: 0, loaded: Vec::new() });

/// Something that the server told.
pub(crate) enum Note {
    /// The client of a ticket closed, or was unblocked by somebody else with an error.
    WaiterGone(u64),
    /// The client of a ticket was unblocked by somebody else, and got nil.
    WaiterGaveUp(u64),
    /// A connection closed.
    ClientClosed(u64),
    /// A value came by other means than our commands.
    Arrived(Key),
    /// Something else came under a name that is waited for.
    Changed(Key),
    /// A value went away, with the alarm and the session-bound tokens that it had.
    Unlinked(Key, Alarm, Vec<u64>),
    /// The keys of a database were deleted, or of all.
    Flushed(Option<u32>),
    /// Two databases changed places.
    Swapped(u32, u32),
    /// This server became a master, or is one and has loaded its data.
    Promoted,
}

struct Notes {
    list: Vec<Note>,
    /// The highest token seen in a load.
    seen_token: u64,
    /// Keys that were loaded and have no alarm yet. There may be as many as there are locks, so they are taken one by one.
    loaded: Vec<Key>,
}

/// Starts the engine.
pub(crate) fn init(seeds: [u64; 4]) {
    ENGINE.with(|engine| *engine = Some(Engine::new(seeds)));
}

/// Gives the engine to `body`, after it has heard the notes. `None` if it is in use, which would be a bug.
pub(crate) fn with_engine<R>(body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    ENGINE
        .with(|engine| {
            let engine = engine.as_mut()?;
            hear_notes(engine);
            Some(body(engine))
        })
        .flatten()
}

/// Gives the engine to `body` to look at it; notes wait.
pub(crate) fn peek_engine<R>(body: impl FnOnce(&Engine) -> R) -> Option<R> {
    ENGINE.with(|engine| engine.as_ref().map(body)).flatten()
}

/// Leaves a note. Whoever leaves one that is to be acted on arms the timer.
pub(crate) fn note(note: Note) {
    NOTES.with(|notes| notes.list.push(note));
}

/// Leaves the note that a lock was loaded under a key. Until it is looked at it is behind its generation, and settled by
/// the first command that meets it.
pub(crate) fn note_loaded(key: Key) {
    NOTES.with(|notes| notes.loaded.push(key));
}

/// A key that was loaded and not looked at yet.
pub(crate) fn next_loaded() -> Option<Key> {
    NOTES
        .with(|notes| {
            let key = notes.loaded.pop();
            if key.is_none() {
                notes.loaded = Vec::new();
            }
            key
        })
        .flatten()
}

/// Leaves the note that a payload had this token.
pub(crate) fn note_token(token: u64) {
    NOTES.with(|notes| notes.seen_token = notes.seen_token.max(token));
}

fn hear_notes(engine: &mut Engine) {
    let Some((list, seen_token)) =
        NOTES.with(|notes| (std::mem::take(&mut notes.list), std::mem::take(&mut notes.seen_token)))
    else {
        return;
    };
    if seen_token != 0 {
        engine.raise_token(seen_token);
    }
    for note in list {
        match note {
            Note::WaiterGone(ticket) => engine.waiter_left(ticket, false),
            Note::WaiterGaveUp(ticket) => engine.waiter_left(ticket, true),
            Note::ClientClosed(client) => engine.client_closed(client),
            Note::Arrived(key) => engine.note_arrival(key),
            Note::Changed(key) => engine.note(key),
            Note::Unlinked(key, alarm, bound) => engine.note_unlink(key, alarm, &bound),
            Note::Flushed(db) => engine.note_flush(db),
            Note::Swapped(first, second) => engine.note_swap(first, second),
            Note::Promoted => engine.note_promotion(),
        }
    }
}
