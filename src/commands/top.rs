//! `RLOCK.TOP [COUNT n]`: the locks with the most waiters.

use rlock_core::{Contended, Key, Keyspace, Value};

use super::{ENGINE_IN_USE, Failure, reply_failure, with_options};
use crate::clock;
use crate::execute::KEY;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments, Keys};
use crate::options::{Opt, options};
use crate::state;

/// The number of locks in a reply without COUNT, and the largest number.
const DEFAULT_COUNT: usize = 10;
const MAX_COUNT: usize = 1000;

const OPTIONS: &[Opt] = &[Opt::Count];

pub(super) struct Top;

impl Command for Top {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.TOP",
        flags: c"readonly",
        arity: -1,
        access: Access::Read,
        keys: KeyArguments::None,
        summary: c"Lists the locks with the most waiting clients, in all databases, and their holders.",
        complexity: c"O(N log N) with N locks that have waiters, about 5000 at most",
        arguments: || with_options(Vec::new(), OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, top(ctx, args));
    }
}

fn top(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let count = options(args, 1, OPTIONS)?.integer(Opt::Count);
    let limit = count.map_or(DEFAULT_COUNT, |count| usize::try_from(count).unwrap_or(MAX_COUNT).min(MAX_COUNT));
    let now = clock::now();
    let mut locks = state::with_engine(|engine| engine.most_contended(MAX_COUNT, now)).ok_or(ENGINE_IN_USE)?;
    // Show only keys that the user may read.
    let user = ctx.user();
    let may_read = |key: &Key| user.as_ref().is_some_and(|user| user.may_read(ctx.string(key.name.as_slice()).arg()));
    locks.retain(|lock| may_read(&lock.key));
    locks.truncate(limit);
    let note_of = |key: &Key, token| {
        if !ctx.select_db(key.db) {
            return None;
        }
        let name = ctx.string(key.name.as_slice());
        match Keys::open_to_peek(ctx, name.arg()).value(KEY) {
            Value::Lock(lock) => lock.hold_with_token(token)?.note().map(<[u8]>::to_vec),
            _ => None,
        }
    };
    // Restore the client's database at the end.
    let selected_db = Keys::selected_db(ctx);
    let note_of_holder = |lock: &Contended| selected_db.and_then(|_| note_of(&lock.key, lock.holder.as_ref()?.1));
    let notes: Vec<_> = locks.iter().map(note_of_holder).collect();
    selected_db.map(|db| ctx.select_db(db));
    ctx.reply_array(locks.len());
    for (lock, note) in locks.into_iter().zip(notes) {
        ctx.reply_map(if lock.holder.is_some() { 8 } else { 5 } + usize::from(note.is_some()));
        ctx.reply_bytes(b"key");
        ctx.reply_bytes(lock.key.name.as_slice());
        ctx.reply_bytes(b"db");
        ctx.reply_integer(lock.key.db.into());
        ctx.reply_bytes(b"kind");
        ctx.reply_bytes(lock.kind.name().as_bytes());
        ctx.reply_bytes(b"waiters");
        ctx.reply_integer(lock.waiters as u64);
        ctx.reply_bytes(b"oldest-wait-ms");
        ctx.reply_integer(lock.oldest_wait_ms);
        if let Some((owner, token, held_ms)) = lock.holder {
            ctx.reply_bytes(b"owner");
            ctx.reply_bytes(owner.as_slice());
            ctx.reply_bytes(b"token");
            ctx.reply_integer(token);
            ctx.reply_bytes(b"held-ms");
            ctx.reply_integer(held_ms);
        }
        if let Some(note) = note {
            ctx.reply_bytes(b"note");
            ctx.reply_bytes(&note);
        }
    }
    Ok(())
}
