//! `MODULE LOAD`: registers the module, and gives `ffi` the functions that the server's callbacks
//! call.

use crate::commands;
use crate::configuration;
use crate::events;
use crate::eviction;
use crate::exclusion;
use crate::ffi::{self, Args, BlockedCallbacks, Listeners, LoadError, Methods, Registrar, Type};
use crate::info;
use crate::jobs;
use crate::server;
use crate::state;
use crate::value;
use crate::waiting;

ffi::entry_point!(version: MODULE_VERSION, load: load);

/// The version that MODULE LIST shows: major * 10000 + minor * 100 + patch.
const MODULE_VERSION: i32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// The name of the data type, as in TYPE and SCAN … TYPE.
const TYPE_NAME: &std::ffi::CStr = c"RedisLock";

/// The functions that the server's callbacks on values call.
static METHODS: Methods = Methods {
    load: value::load,
    save: value::save,
    rewrite: value::rewrite,
    memory_usage: value::memory_usage,
    free_effort: value::free_effort,
    digest: value::digest,
    begin_file: value::begin_file,
    end_file: value::end_file,
    load_aux: value::load_aux,
    on_unlink: events::on_unlink,
};

const LISTENERS: Listeners =
    Listeners { on_server_event: events::on_server_event, on_keyspace_event: events::on_keyspace_event };

const BLOCKED: BlockedCallbacks = BlockedCallbacks {
    on_answer: waiting::on_answer,
    on_disconnected: waiting::on_disconnected,
    on_freed: waiting::on_freed,
};

fn load(registrar: &Registrar<'_>, args: Args<'_>) -> Result<(), LoadError> {
    ffi::set_settings_check(configuration::check);
    ffi::set_on_timer(jobs::on_timer);
    ffi::set_blocked_callbacks(BLOCKED);
    ffi::set_permission_check(commands::is_permitted);
    registrar.set_options();
    configuration::register(registrar, args)?;
    Type::register(registrar.ctx(), TYPE_NAME, value::PAYLOAD_VERSION, &METHODS).map_err(|_| {
        LoadError("the server refuses the data type RedisLock; does another module use this name?".into())
    })?;
    registrar.category();
    commands::register(registrar)?;
    if !ffi::subscribe(registrar.ctx(), LISTENERS) {
        return Err(LoadError("the server refuses to send its events".into()));
    }
    registrar.info(info::write);
    exclusion::on_load();
    server::warn_of_slow_replication(registrar.ctx());
    eviction::refresh(registrar.ctx());
    server::refresh(registrar.ctx());
    server::refresh_settings(registrar.ctx());
    server::check_commands(registrar.ctx());
    server::check_version();
    state::init(registrar.random());
    rlock_core::seed_hashing(registrar.random());
    ffi::log_notice(concat!("version ", env!("CARGO_PKG_VERSION"), ", commit ", env!("RLOCK_COMMIT")));
    Ok(())
}

/// Parses a decimal number at compile time.
const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}
