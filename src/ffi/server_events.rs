//! Server events and keyspace events: passes them to the module's [`Listeners`].

use std::ffi::{CStr, c_char, c_int, c_void};

use redis_module::raw;

use super::at_load::AtLoad;
use super::{Arg, Ctx, api, guard, keys};

/// The event of a key that is removed because its slot has moved, in Redis 8.4 and newer, which
/// migrate slots themselves. The bindings do not have it yet. If a module subscribes to this event,
/// the server removes the keys of the slot one by one. Otherwise it drops them all on another
/// thread, without notifying modules.
const NOTIFY_KEY_TRIMMED: c_int = 1 << 17;

/// A server event that affects locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEvent {
    /// A connection closed.
    ClientClosed(u64),
    /// All keys of a database were deleted; `None`: of all databases.
    Flushed(Option<u32>),
    /// Two databases were swapped.
    Swapped(u32, u32),
    /// This server became a master.
    Promoted,
    /// This server became a replica.
    Demoted,
    /// A replica of this server came online (`true`), or its connection closed.
    Replica(bool),
    /// A load of the data set begins.
    LoadBegins,
    /// A setting of the server changed.
    Configured,
    /// A load of the data set ended, successfully or not.
    LoadEnded,
    /// The server forked a child, and has run no command since.
    Forked,
    /// The server begins to save its data set in the foreground, without a child.
    SaveStarted,
    /// The server's tick (`CRON_LOOP`).
    Tick,
    /// The event loop is about to write replies and to sleep.
    BeforeSleep,
    /// The event loop has written replies and slept.
    AfterSleep,
}

/// The functions that get the events of this file.
#[derive(Clone, Copy)]
pub(crate) struct Listeners {
    pub(crate) on_server_event: fn(Ctx<'_>, ServerEvent),
    /// The name of the event, and the key that it is about.
    pub(crate) on_keyspace_event: fn(Ctx<'_>, &[u8], Arg<'_>),
}

static LISTENERS: AtLoad<Listeners> = AtLoad::new();

/// Subscribes to the events of this file. `false` if the server refuses.
pub(crate) fn subscribe(ctx: Ctx<'_>, listeners: Listeners) -> bool {
    LISTENERS.set(listeners);
    let ids = [
        raw::REDISMODULE_EVENT_CLIENT_CHANGE,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_CONFIG,
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_PERSISTENCE,
        raw::REDISMODULE_EVENT_CRON_LOOP,
        raw::REDISMODULE_EVENT_EVENTLOOP,
    ];
    let subscribed = ids.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is alive, and the callback has the required type.
        let status = unsafe { api!(RedisModule_SubscribeToServerEvent, ctx.raw(), event, Some(on_server_event)) };
        status == raw::REDISMODULE_OK as c_int
    });
    // SAFETY: as above.
    let status = unsafe {
        let classes = raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | NOTIFY_KEY_TRIMMED;
        api!(RedisModule_SubscribeToKeyspaceEvents, ctx.raw(), classes, Some(on_keyspace_event))
    };
    subscribed && status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_server_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: `data` is what the server documents for this event.
    let event = unsafe { server_event(event.id, subevent, data) };
    if let Some(event) = event {
        guard((), || {
            // SAFETY: the context lives as long as the callback.
            let ctx = unsafe { Ctx::new(ctx) };
            (LISTENERS.get().on_server_event)(ctx, event);
        });
    }
}

/// # Safety
///
/// `data` is what the server documents for the event.
unsafe fn server_event(id: u64, subevent: u64, data: *mut c_void) -> Option<ServerEvent> {
    match (id, subevent) {
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
            // SAFETY: this event comes with the client's information.
            let client = unsafe { &*data.cast::<raw::RedisModuleClientInfo>() };
            Some(ServerEvent::ClientClosed(client.id))
        }
        (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_END) => {
            // SAFETY: this event comes with the number of the database, -1 for all.
            let flush = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
            Some(ServerEvent::Flushed(u32::try_from(flush.dbnum).ok()))
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => {
            // SAFETY: this event comes with both numbers.
            let swap = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
            let first = u32::try_from(swap.dbnum_first).ok()?;
            Some(ServerEvent::Swapped(first, u32::try_from(swap.dbnum_second).ok()?))
        }
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER) => {
            Some(ServerEvent::Promoted)
        }
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, _) => Some(ServerEvent::Demoted),
        (raw::REDISMODULE_EVENT_REPLICA_CHANGE, subevent) => {
            Some(ServerEvent::Replica(subevent == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE))
        }
        (
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_SUBEVENT_LOADING_RDB_START
            | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START
            | raw::REDISMODULE_SUBEVENT_LOADING_REPL_START,
        ) => Some(ServerEvent::LoadBegins),
        (raw::REDISMODULE_EVENT_CONFIG, _) => Some(ServerEvent::Configured),
        (
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED,
        ) => Some(ServerEvent::LoadEnded),
        (raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) => Some(ServerEvent::Forked),
        (
            raw::REDISMODULE_EVENT_PERSISTENCE,
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_SYNC_RDB_START | raw::REDISMODULE_SUBEVENT_PERSISTENCE_SYNC_AOF_START,
        ) => Some(ServerEvent::SaveStarted),
        (raw::REDISMODULE_EVENT_CRON_LOOP, _) => Some(ServerEvent::Tick),
        (raw::REDISMODULE_EVENT_EVENTLOOP, raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP) => {
            Some(ServerEvent::BeforeSleep)
        }
        (raw::REDISMODULE_EVENT_EVENTLOOP, raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP) => {
            Some(ServerEvent::AfterSleep)
        }
        _ => None,
    }
}

unsafe extern "C" fn on_keyspace_event(
    ctx: *mut raw::RedisModuleCtx,
    class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    if class == raw::REDISMODULE_NOTIFY_EXPIRED {
        keys::on_expired();
        return raw::REDISMODULE_OK as c_int;
    }
    if class == NOTIFY_KEY_TRIMMED {
        // The data type's `unlink` has handled the removed value.
        return raw::REDISMODULE_OK as c_int;
    }
    guard((), || {
        // SAFETY: the context, the event's name and the key live as long as the callback.
        let (ctx, event, key) = unsafe { (Ctx::new(ctx), CStr::from_ptr(event), Arg::new(key)) };
        (LISTENERS.get().on_keyspace_event)(ctx, event.to_bytes(), key);
    });
    raw::REDISMODULE_OK as c_int
}
