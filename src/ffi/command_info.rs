//! What the server is told of a command: for COMMAND DOCS, for ACL rules on keys, for cluster clients.

use std::ffi::{CStr, c_int};
use std::ptr;

use redis_module::raw;

use super::api;

/// What the server knows of a command.
pub(crate) struct CommandSpec {
    pub(crate) name: &'static CStr,
    /// As in `RM_CreateCommand`.
    pub(crate) flags: &'static CStr,
    /// Number of arguments, the name included; negative: at least so many.
    pub(crate) arity: c_int,
    pub(crate) access: Access,
    /// Where its keys are.
    pub(crate) keys: KeyArguments,
    pub(crate) summary: &'static CStr,
    pub(crate) complexity: &'static CStr,
    /// The arguments that follow the key or keys.
    pub(crate) arguments: fn() -> Vec<ArgumentSpec>,
}

/// Where a command has its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyArguments {
    /// One, right behind the name.
    First,
    /// A number, and as many keys.
    Counted,
    /// It has none.
    None,
}

/// What a command does with its key.
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

/// What an argument takes.
#[derive(Clone)]
pub(crate) enum ValueSpec {
    Bytes,
    Integer,
    /// One or more.
    Integers,
    /// Its token alone.
    Token,
    OneOf(Vec<ArgumentSpec>),
}

/// What the server knows of key specs and arguments is a chain of zero-terminated C arrays. They are built here, and
/// copied by the server before this returns.
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
        KeyArguments::Counted => vec![way_to_first_key(spec.access), key_spec(spec.access, spec.keys)],
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
    // SAFETY: every pointer in `info` is to something that lives until the end of this function, and the arrays end
    // with a zeroed element.
    let status = unsafe { api!(RedisModule_SetCommandInfo, command, &raw const info) };
    status == raw::REDISMODULE_OK as c_int
}

fn zeroed_key_spec() -> raw::RedisModuleCommandKeySpec {
    // SAFETY: pointers, numbers and enums for which zero is a value: the API's own end mark.
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

/// By this a cluster finds the node for a command with a number of keys: it looks at ranges only. It is no key for anything else.
fn way_to_first_key(access: Access) -> raw::RedisModuleCommandKeySpec {
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
