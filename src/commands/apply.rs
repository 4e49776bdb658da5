//! `RLOCK.APPLY key facts [owner] [note]`: an effect from a master or from the append-only file.

use rlock_core::parse_effect;

use super::{Failure, reply_failure};
use crate::arguments;
use crate::clock;
use crate::exclusion;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments, log_warning};
use crate::reply;

pub(super) struct Apply;

impl Command for Apply {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.APPLY",
        flags: c"write fast",
        arity: -3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Internal: applies a decision of the master. Refused from clients.",
        complexity: c"O(1)",
        arguments: Vec::new,
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, apply(ctx, args));
    }
}

fn apply(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let flags = ctx.flags();
    if !flags.is_loading() && !flags.is_replicated() {
        return Err(Failure::Text(reply::EFFECT_FROM_CLIENT));
    }
    if !flags.is_loading() {
        // A replica forwards its master's stream to its own replicas by itself, but writes a
        // module's command to its append-only file only because of this call. Call it before
        // anything can fail: the file must have every decision of the master.
        ctx.replicate_verbatim();
    }
    let key = arguments::key(args)?;
    let facts = args.get(2).map_or(&[][..], |facts| facts.bytes());
    let arguments = [args.get(3), args.get(4)].map(|argument| Some(argument?.bytes()));
    let now = clock::now();
    let mut event = match parse_effect(facts, arguments, now) {
        Ok(event) => event,
        Err(error) => {
            // A master ignores the reply, so log the error: the master may run a newer version of
            // the module.
            log_warning(&format!(
                "an effect could not be read ({}), so this server may differ from its master",
                error.0
            ));
            return Err(Failure::Text(reply::EFFECT_UNREADABLE));
        }
    };
    event.shorten_lease(now, exclusion::longest_lease_ms());
    if execute::apply(ctx, key, &event).is_err() {
        return Err(Failure::Text(reply::EFFECT_MISFIT));
    }
    if !flags.is_loading() {
        execute::announce(ctx, key, &event);
    }
    ctx.reply_status(c"OK");
    Ok(())
}
