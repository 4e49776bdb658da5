//! What `MODULE LOAD` does.

use crate::clock;
use crate::commands;
use crate::configuration;
use crate::ffi::{self, Args, LoadError, Registrar, Type};
use crate::state;
use crate::value;

/// The version that MODULE LIST shows: major * 10000 + minor * 100 + patch.
pub(crate) const MODULE_VERSION: i32 = 100;

/// The name of the data type, as TYPE and SCAN … TYPE show it.
const TYPE_NAME: &std::ffi::CStr = c"RedisLock";

pub(crate) fn load(registrar: &Registrar<'_>, args: Args<'_>) -> Result<(), LoadError> {
    clock::sync();
    registrar.set_options();
    configuration::register(registrar, args)?;
    Type::register(registrar.ctx(), TYPE_NAME, value::PAYLOAD_VERSION)
        .map_err(|_| LoadError("the server refuses the data type RedisLock; is another module using the name?".into()))?;
    commands::register(registrar)?;
    if !ffi::subscribe(registrar.ctx()) {
        return Err(LoadError("the server refuses a subscription to its events".into()));
    }
    registrar.info();
    state::init(registrar.random());
    Ok(())
}
