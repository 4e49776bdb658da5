//! The entry point of the module, and the functions of the API that the server must have.

use std::ffi::c_int;

use redis_module::raw;

use super::registration::{LoadError, Registrar};
use super::{Args, Ctx, blocked, guard, log_warning, timers};

/// Defines the entry point. `version` is the version that MODULE LIST shows, `load` the function
/// that registers the module.
macro_rules! entry_point {
    (version: $version:expr, load: $load:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name that the server looks for")]
        unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut redis_module::raw::RedisModuleCtx,
            argv: *mut *mut redis_module::raw::RedisModuleString,
            argc: std::ffi::c_int,
        ) -> std::ffi::c_int {
            // SAFETY: the server passes the context and the arguments of the load.
            unsafe { $crate::ffi::on_load(ctx, argv, argc, $version, $load) }
        }
    };
}
pub(crate) use entry_point;

/// The body of the entry point.
///
/// # Safety
///
/// `ctx` and the `argc` strings of `argv` are those that the server passes to `RedisModule_OnLoad`.
pub(crate) unsafe fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    version: c_int,
    load: fn(&Registrar<'_>, Args<'_>) -> Result<(), LoadError>,
) -> c_int {
    // SAFETY: the context is that of the load, and the name ends with a zero.
    let status =
        unsafe { raw::Export_RedisModule_Init(ctx, c"rlock".as_ptr(), version, raw::REDISMODULE_APIVER_1 as c_int) };
    if status != raw::REDISMODULE_OK as c_int {
        return status;
    }
    guard(raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: the context and arguments live as long as the load.
        let (ctx, args) = unsafe { (Ctx::new(ctx), Args::new(argv, argc)) };
        let loaded = match missing_function() {
            Some(name) => Err(LoadError(format!("this server has no {name}; Redis 7.0 or Valkey 7.2 is required"))),
            None => {
                timers::init(ctx);
                blocked::init(ctx);
                load(&Registrar::new(ctx), args)
            }
        };
        match loaded {
            Ok(()) => raw::REDISMODULE_OK as c_int,
            Err(LoadError(message)) => {
                timers::free_context();
                log_warning(&format!("not loaded: {message}"));
                raw::REDISMODULE_ERR as c_int
            }
        }
    })
}

/// The first function that the module needs and this server lacks.
fn missing_function() -> Option<&'static str> {
    macro_rules! first_missing {
        ($($name:ident),* $(,)?) => {
            $(
                // SAFETY: the pointer is only read here; it was set once, before this call.
                let function = unsafe { raw::$name };
                if function.is_none() {
                    return Some(stringify!($name));
                }
            )*
        };
    }
    first_missing!(
        RedisModule_ACLAddLogEntry,
        RedisModule_ACLCheckChannelPermissions,
        RedisModule_ACLCheckCommandPermissions,
        RedisModule_ACLCheckKeyPermissions,
        RedisModule_AvoidReplicaTraffic,
        RedisModule_BlockClientOnKeys,
        RedisModule_BlockedClientDisconnected,
        RedisModule_Call,
        RedisModule_CallReplyArrayElement,
        RedisModule_CallReplyInteger,
        RedisModule_CallReplyStringPtr,
        RedisModule_CallReplyType,
        RedisModule_CloseKey,
        RedisModule_CreateCommand,
        RedisModule_CreateDataType,
        RedisModule_CreateString,
        RedisModule_CreateTimer,
        RedisModule_DbSize,
        RedisModule_DeleteKey,
        RedisModule_DigestAddStringBuffer,
        RedisModule_DigestEndSequence,
        RedisModule_EmitAOF,
        RedisModule_EventLoopAddOneShot,
        RedisModule_Free,
        RedisModule_FreeCallReply,
        RedisModule_FreeModuleUser,
        RedisModule_FreeServerInfo,
        RedisModule_FreeString,
        RedisModule_FreeThreadSafeContext,
        RedisModule_GetBlockedClientPrivateData,
        RedisModule_GetClientId,
        RedisModule_GetClientUserNameById,
        RedisModule_GetCommand,
        RedisModule_GetContextFlags,
        RedisModule_GetContextFromIO,
        RedisModule_GetDbIdFromIO,
        RedisModule_GetDbIdFromModuleKey,
        RedisModule_GetDbIdFromOptCtx,
        RedisModule_GetDetachedThreadSafeContext,
        RedisModule_GetExpire,
        RedisModule_GetKeyNameFromIO,
        RedisModule_GetKeyNameFromOptCtx,
        RedisModule_GetModuleUserFromUserName,
        RedisModule_GetRandomBytes,
        RedisModule_GetServerInfo,
        RedisModule_InfoAddFieldULongLong,
        RedisModule_InfoAddSection,
        RedisModule_IsIOError,
        RedisModule_IsKeysPositionRequest,
        RedisModule_KeyAtPos,
        RedisModule_KeyType,
        RedisModule_LoadConfigs,
        RedisModule_LoadStringBuffer,
        RedisModule_LoadUnsigned,
        RedisModule_Log,
        RedisModule_ModuleTypeGetType,
        RedisModule_ModuleTypeGetValue,
        RedisModule_ModuleTypeSetValue,
        RedisModule_NotifyKeyspaceEvent,
        RedisModule_OpenKey,
        RedisModule_PublishMessage,
        RedisModule_PublishMessageShard,
        RedisModule_RegisterInfoFunc,
        RedisModule_RegisterEnumConfig,
        RedisModule_RegisterNumericConfig,
        RedisModule_Replicate,
        RedisModule_ReplicateVerbatim,
        RedisModule_ReplyWithArray,
        RedisModule_ReplyWithError,
        RedisModule_ReplyWithLongLong,
        RedisModule_ReplyWithMap,
        RedisModule_ReplyWithNull,
        RedisModule_ReplyWithSimpleString,
        RedisModule_ReplyWithStringBuffer,
        RedisModule_SaveStringBuffer,
        RedisModule_SaveUnsigned,
        RedisModule_SelectDb,
        RedisModule_ServerInfoGetFieldC,
        RedisModule_ServerInfoGetFieldUnsigned,
        RedisModule_SetCommandInfo,
        RedisModule_SetDisconnectCallback,
        RedisModule_SetExpire,
        RedisModule_SetModuleOptions,
        RedisModule_SignalModifiedKey,
        RedisModule_StopTimer,
        RedisModule_StringPtrLen,
        RedisModule_SubscribeToKeyspaceEvents,
        RedisModule_SubscribeToServerEvent,
        RedisModule_UnblockClient,
        RedisModule_WrongArity,
    );
    None
}
