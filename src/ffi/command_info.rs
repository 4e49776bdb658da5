//! The description of a command for the server: for COMMAND DOCS, ACL rules on keys, and cluster
//! clients.

use std::ffi::{CStr, c_int};
use std::ptr;

use redis_module::raw;

use super::api;

/// The description of a command.
pub(crate) struct CommandSpec {
    pub(crate) name: &'static CStr,
    /// As in `RM_CreateCommand`.
    pub(crate) flags: &'static CStr,
    /// The number of arguments with the command's name; negative: the least number.
    pub(crate) arity: c_int,
    pub(crate) access: Access,
    /// The positions of its keys.
    pub(crate) keys: KeyArguments,
    pub(crate) summary: &'static CStr,
    pub(crate) complexity: &'static CStr,
    /// The arguments after the keys.
    pub(crate) arguments: fn() -> Vec<ArgumentSpec>,
}

/// The positions of a command's keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyArguments {
    /// One key, as the first argument.
    First,
    /// `numkeys`, then that number of keys.
    Counted,
    /// No keys.
    None,
}

/// Whether a command reads or writes its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// An argument, for COMMAND DOCS.
#[derive(Clone)]
pub(crate) struct ArgumentSpec {
    pub(crate) name: &'static CStr,
    pub(crate) token: Option<&'static CStr>,
    pub(crate) optional: bool,
    pub(crate) value: ValueSpec,
}

/// The value of an argument.
#[derive(Clone)]
pub(crate) enum ValueSpec {
    Bytes,
    Integer,
    /// One or more.
    Integers,
    /// No value: the token stands alone.
    Token,
    OneOf(Vec<ArgumentSpec>),
}

/// Passes the description of a command to the server. Key specs and arguments are C arrays with a
/// zeroed element at the end. The server copies them before this returns.
pub(super) fn set_command_info(command: *mut raw::RedisModuleCommand, spec: &CommandSpec) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut key_specs = match spec.keys {
        KeyArguments::None => Vec::new(),
        KeyArguments::First => vec![key_spec(spec.access, spec.keys)],
        KeyArguments::Counted => vec![route_by_first_key(spec.access), key_spec(spec.access, spec.keys)],
    };
    key_specs.push(zeroed_key_spec());
    let mut nested = Vec::new();
    let mut arguments = match spec.keys {
        KeyArguments::None => Vec::new(),
        KeyArguments::First => vec![key_argument()],
        KeyArguments::Counted => {
            let count = ArgumentSpec { name: c"numkeys", token: None, optional: false, value: ValueSpec::Integer };
            let mut keys = key_argument();
            keys.flags = raw::REDISMODULE_CMD_ARG_MULTIPLE.cast_signed();
            vec![argument(&count, &mut nested), keys]
        }
    };
    arguments.extend((spec.arguments)().iter().map(|spec| argument(spec, &mut nested)));
    arguments.push(end_of_arguments());
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arity,
        key_specs: key_specs.as_mut_ptr(),
        args: arguments.as_mut_ptr(),
    };
    // SAFETY: every pointer in `info` points to something that lives until the end of this
    // function, and the arrays end with a zeroed element.
    let status = unsafe { api!(RedisModule_SetCommandInfo, command, &raw const info) };
    status == raw::REDISMODULE_OK as c_int
}

fn zeroed_key_spec() -> raw::RedisModuleCommandKeySpec {
    // SAFETY: zero is a valid value of its pointers, numbers and enums; it is the API's end mark.
    unsafe { std::mem::zeroed() }
}

fn key_spec(access: Access, keys: KeyArguments) -> raw::RedisModuleCommandKeySpec {
    let mut spec = zeroed_key_spec();
    spec.flags = match access {
        Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Access::Write => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    }
    .into();
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    match keys {
        KeyArguments::First => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range.keystep = 1;
        }
        KeyArguments::None => {}
        KeyArguments::Counted => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum.keynumidx = 0;
            spec.fk.keynum.firstkey = 1;
            spec.fk.keynum.keystep = 1;
        }
    }
    spec
}

/// The key spec by which a cluster routes a command with `numkeys`: for routing, the server reads
/// only key specs of type range. The flag NOT_KEY limits this key spec to routing.
fn route_by_first_key(access: Access) -> raw::RedisModuleCommandKeySpec {
    let mut spec = key_spec(access, KeyArguments::First);
    spec.bs.index.pos = 2;
    spec.flags |= u64::from(raw::REDISMODULE_CMD_KEY_NOT_KEY);
    spec
}

fn end_of_arguments() -> raw::RedisModuleCommandArg {
    // SAFETY: as in `zeroed_key_spec`.
    unsafe { std::mem::zeroed() }
}

fn key_argument() -> raw::RedisModuleCommandArg {
    let mut key = end_of_arguments();
    key.name = c"key".as_ptr();
    key.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
    key
}

fn argument(spec: &ArgumentSpec, nested: &mut Vec<Vec<raw::RedisModuleCommandArg>>) -> raw::RedisModuleCommandArg {
    let mut argument = end_of_arguments();
    argument.name = spec.name.as_ptr();
    argument.key_spec_index = -1;
    argument.token = spec.token.map_or(ptr::null(), CStr::as_ptr);
    if spec.optional {
        argument.flags = raw::REDISMODULE_CMD_ARG_OPTIONAL.cast_signed();
    }
    argument.type_ = match &spec.value {
        ValueSpec::Bytes => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        ValueSpec::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        ValueSpec::Integers => {
            argument.flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE.cast_signed();
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER
        }
        ValueSpec::Token => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        ValueSpec::OneOf(choices) => {
            let mut choices: Vec<_> = choices.iter().map(|spec| self::argument(spec, nested)).collect();
            choices.push(end_of_arguments());
            argument.subargs = choices.as_mut_ptr();
            // Moving the vector does not move its elements.
            nested.push(choices);
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF
        }
    };
    argument
}
