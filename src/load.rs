//! What `MODULE LOAD` does.

use crate::commands;
use crate::configuration;
use crate::eviction;
use crate::ffi::{self, Args, LoadError, Registrar, Type};
use crate::server;
use crate::state;
use crate::value;

/// The version that MODULE LIST shows: major * 10000 + minor * 100 + patch.
pub(crate) const MODULE_VERSION: i32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// The name of the data type, as TYPE and SCAN … TYPE show it.
const TYPE_NAME: &std::ffi::CStr = c"RedisLock";

pub(crate) fn load(registrar: &Registrar<'_>, args: Args<'_>) -> Result<(), LoadError> {
    registrar.set_options();
    configuration::register(registrar, args)?;
    Type::register(registrar.ctx(), TYPE_NAME, value::PAYLOAD_VERSION).map_err(|_| {
        LoadError("the server refuses the data type RedisLock; is another module using the name?".into())
    })?;
    registrar.category();
    commands::register(registrar)?;
    if !ffi::subscribe(registrar.ctx()) {
        return Err(LoadError("the server refuses a subscription to its events".into()));
    }
    registrar.info();
    eviction::look(registrar.ctx());
    server::look(registrar.ctx());
    server::look_at_settings(registrar.ctx());
    server::look_for_commands(registrar.ctx());
    server::look_for_faults();
    state::init(registrar.random());
    rlock_core::seed_hashing(registrar.random());
    ffi::log_notice(concat!("version ", env!("CARGO_PKG_VERSION"), ", commit ", env!("RLOCK_COMMIT")));
    Ok(())
}

/// A decimal number, while compiling.
const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}
