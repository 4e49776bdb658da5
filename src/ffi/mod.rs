//! The only `unsafe` code: the server's C API behind safe functions.
//!
//! This folder uses no other part of the module. `load` passes in the functions that the server's
//! callbacks call.
//!
//! Three rules make the functions safe, beside the SAFETY comments:
//!
//! 1. Callbacks run on the thread that holds the server's global lock, one at a time. The exception
//!    is the `free` of a value: it may run on another thread, and touches only that value.
//! 2. A [`Ctx`], an [`Arg`] or a [`Keys`] lives no longer than its callback.
//! 3. No panic leaves a callback ([`guard`]): it would crash the server.

mod at_load;
mod blocked;
mod blocking_key;
mod call_reply;
mod channels;
mod command_info;
mod context;
mod datatype;
mod entry;
mod keys;
mod listeners;
mod main_thread;
mod memory_policy;
mod permissions;
mod registration;
mod replication;
mod server_events;
mod timers;
mod write_policy;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use blocked::{
    Blocked, BlockedCallbacks, answers_at_once, block, holds_answers_back, set_blocked_callbacks, unblock,
    valkey_version,
};
pub(crate) use command_info::{Access, ArgumentSpec, CommandSpec, KeyArguments, ValueSpec};
pub(crate) use context::{Arg, Args, Ctx, OwnedString, log_notice, log_warning};
pub(crate) use datatype::{Digest, Load, Methods, Save, Type};
pub(crate) use entry::{entry_point, on_load};
pub(crate) use keys::{Caller, Keys, set_permission_check};
pub(crate) use main_thread::{MainThread, MainThreadNumber};
pub(crate) use registration::{Command, ConfigSpec, InfoCtx, LoadError, Registrar, set_settings_check};
pub(crate) use replication::{is_snapshot_wanted, replication};
pub(crate) use server_events::{Listeners, ServerEvent, subscribe};
pub(crate) use timers::{TimerId, has_keys, in_next_turn, set_on_timer, start_timer, stop_timer};

/// Calls a function of the server's API. Every supported server has these functions: `OnLoad` fails
/// if one is missing (see `entry::missing_function`).
macro_rules! api {
    ($name:ident $( , $arg:expr )* $(,)?) => {
        match redis_module::raw::$name {
            Some(function) => function($($arg),*),
            None => $crate::ffi::missing(stringify!($name)),
        }
    };
}
pub(crate) use api;

/// The server lacks a function that `OnLoad` should have checked. [`guard`] catches the panic.
#[cold]
#[expect(clippy::panic, reason = "caught by guard() at the edge of the callback; unreachable once OnLoad has checked")]
fn missing(name: &str) -> ! {
    panic!("this server has no {name}")
}

/// The reply to a command that panicked.
pub(crate) const INTERNAL_ERROR: &str = "ERR internal error in rlock; outcome unknown; see the server's log";

/// Runs the body of a callback. If it panics, logs the panic and returns `otherwise`.
pub(crate) fn guard<R>(otherwise: R, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            let message = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            log_warning(&format!("internal error, please report it: {message}"));
            otherwise
        }
    }
}

/// `clock_gettime`; 0 if the clock cannot be read.
pub(crate) fn clock_gettime(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}
