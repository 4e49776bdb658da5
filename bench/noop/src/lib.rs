//! A Redis module with one command that does nothing.
//!
//! `NOOP.NOOP key owner` answers `:0` through the raw module API: no arguments are decoded, no key
//! is opened, nothing is allocated. What it costs is what Redis charges for *any* module command,
//! so the benchmark can tell the price of a lock from the price of being a module.

use std::ffi::{CStr, c_int};

use redis_module::raw;

const MODULE_NAME: &CStr = c"noop";
const MODULE_VERSION: c_int = 1;
const COMMAND_NAME: &CStr = c"noop.noop";
const COMMAND_FLAGS: &CStr = c"readonly fast";

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Answers `:0`.
unsafe extern "C" fn noop(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: `RedisModule_OnLoad` has filled the function pointer before this command existed, and
    // nothing writes it afterwards; `ctx` is the one that Redis passes for this call.
    unsafe {
        match raw::RedisModule_ReplyWithLongLong {
            Some(reply_with_integer) => reply_with_integer(ctx, 0),
            None => ERR,
        }
    }
}

/// The entry point that Redis calls once, when it loads the module.
///
/// # Safety
///
/// Redis alone may call this, with the context of the load.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "Redis looks the symbol up by this name")]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: `ctx` comes from Redis, the names are NUL-terminated and live for ever, and the
    // function pointers are read after `Export_RedisModule_Init` has filled them.
    unsafe {
        let api_version = raw::REDISMODULE_APIVER_1 as c_int;
        if raw::Export_RedisModule_Init(ctx, MODULE_NAME.as_ptr(), MODULE_VERSION, api_version) != OK {
            return ERR;
        }
        let Some(create_command) = raw::RedisModule_CreateCommand else {
            return ERR;
        };
        create_command(ctx, COMMAND_NAME.as_ptr(), Some(noop), COMMAND_FLAGS.as_ptr(), 1, 1, 1)
    }
}
