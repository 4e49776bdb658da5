//! Blocking a client and answering it later.
//!
//! The client is blocked on a name (`blocking_key`) with no timeout of the server's, and unblocked one at a time: waiters keep
//! their own order and their own deadlines. The reply callback, which the server would call if somebody made a key of that
//! name, always says "not yet"; the answer is written by the timeout callback, whoever causes it to run.

use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::at_load::AtLoad;
use super::call_reply::text_of;
use super::{Arg, Ctx, api, blocking_key, guard};

/// The server's handle of a blocked client. Valid until [`BlockedCallbacks::on_gone`] was called or the client was unblocked;
/// nothing keeps it longer.
#[derive(Clone, Copy)]
pub(crate) struct Blocked(*mut raw::RedisModuleBlockedClient);

/// The functions that hear of blocked clients, by the tickets that [`block`] was given.
#[derive(Clone, Copy)]
pub(crate) struct BlockedCallbacks {
    /// The server asks for the answer.
    pub(crate) on_answer: fn(Ctx<'_>, u64),
    /// The connection has closed.
    pub(crate) on_gone: fn(u64),
    /// The server has forgotten the client; whether its connection is still there.
    pub(crate) on_freed: fn(u64, bool),
}

static CALLBACKS: AtLoad<BlockedCallbacks> = AtLoad::new();

/// Gives the functions that hear of blocked clients.
pub(crate) fn set_blocked_callbacks(callbacks: BlockedCallbacks) {
    CALLBACKS.set(callbacks);
}

static IS_VALKEY: AtomicBool = AtomicBool::new(false);

/// See [`keeps_answers_back`].
static KEEPS_ANSWERS_BACK: AtomicBool = AtomicBool::new(false);

/// See [`answers_at_once`].
static ANSWERS_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// The first version of Redis that answers unblocked clients only at the end of a turn, as `RedisModule_GetServerVersion` says it.
const ANSWERS_LATER: c_int = 0x0007_0400;

/// The first version of Valkey that keeps answers back.
const KEEPS_BACK_FROM: c_int = 0x0008_0000;

/// Finds out what server this is. Called once, from `OnLoad`.
pub(super) fn init(ctx: Ctx<'_>) {
    // SAFETY: the context is alive; the information is freed once, after its field was looked for.
    let is_valkey = unsafe {
        let info = api!(RedisModule_GetServerInfo, ctx.raw(), c"server".as_ptr());
        // Redis has no such field; Valkey says "valkey".
        let name = api!(RedisModule_ServerInfoGetFieldC, info, c"server_name".as_ptr());
        api!(RedisModule_FreeServerInfo, ctx.raw(), info);
        !name.is_null()
    };
    // SAFETY: the call has no conditions.
    let version = unsafe { api!(RedisModule_GetServerVersion,) };
    IS_VALKEY.store(is_valkey, Ordering::Relaxed);
    KEEPS_ANSWERS_BACK.store(is_valkey && version >= KEEPS_BACK_FROM, Ordering::Relaxed);
    ANSWERS_AT_ONCE
        .store(if is_valkey { version < KEEPS_BACK_FROM } else { version < ANSWERS_LATER }, Ordering::Relaxed);
}

/// Whether this server is a Valkey. Known after `init`.
pub(super) fn is_valkey() -> bool {
    IS_VALKEY.load(Ordering::Relaxed)
}

/// The version of this server if it is a Valkey: 0x080101 is 8.1.1. Known after `init`.
pub(crate) fn valkey_version() -> Option<c_int> {
    // SAFETY: the call has no conditions.
    is_valkey().then(|| unsafe { api!(RedisModule_GetServerVersion,) })
}

/// Whether this server asks for the answer of a client as soon as it is unblocked, and keeps it back until the turn ends, as Valkey does.
pub(crate) fn keeps_answers_back() -> bool {
    KEEPS_ANSWERS_BACK.load(Ordering::Relaxed)
}

/// Whether this server asks for the answer of a client as soon as it is unblocked, and may send it at once.
pub(crate) fn answers_at_once() -> bool {
    ANSWERS_AT_ONCE.load(Ordering::Relaxed)
}

/// Blocks the client of this command, which waits for `key`. `None` if the server does not want to.
pub(crate) fn block(ctx: Ctx<'_>, key: Arg<'_>, ticket: u64) -> Option<Blocked> {
    let name = blocking_key::for_waiters_of(ctx, key);
    let mut keys = [name.arg().raw()];
    // SAFETY: the context and the name are alive, the server keeps its own reference; the private data is a number, not a pointer.
    let handle = unsafe {
        api!(
            RedisModule_BlockClientOnKeys,
            ctx.raw(),
            Some(on_ready),
            Some(on_answer),
            Some(on_free),
            0,
            keys.as_mut_ptr(),
            1,
            ticket_to_pointer(ticket)
        )
    };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle was just made.
    unsafe { api!(RedisModule_SetDisconnectCallback, handle, Some(on_gone)) };
    Some(Blocked(handle))
}

/// Lets the client go: the server calls for its answer, at once or soon.
pub(crate) fn unblock(blocked: Blocked) {
    // SAFETY: the handle is valid, see `Blocked`.
    unsafe { api!(RedisModule_UnblockClient, blocked.0, std::ptr::null_mut()) };
}

impl Ctx<'_> {
    /// Whether a client whose connection closes had asked for that (QUIT), and everything that there was to be sent to it before has been sent. `false`
    /// also if the server does not say: its command CLIENT may be renamed. To one that is closed for another reason the server may have written nothing
    /// any more, and nothing is left to be sent all the same.
    pub(crate) fn was_told_and_quit(self, client: u64) -> bool {
        let Ok(id) = CString::new(client.to_string()) else {
            return false;
        };
        // SAFETY: the format says three C strings, and the arguments are exactly those; the reply is freed once, after what it says was copied.
        let said = unsafe {
            let (command, list, by_id) = (c"CLIENT".as_ptr(), c"LIST".as_ptr(), c"ID".as_ptr());
            let reply = api!(RedisModule_Call, self.raw(), command, c"ccc".as_ptr(), list, by_id, id.as_ptr());
            if reply.is_null() {
                return false;
            }
            let said = text_of(reply);
            api!(RedisModule_FreeCallReply, reply);
            said
        };
        said.is_some_and(|said| {
            let field = |name: &str| said.split_ascii_whitespace().find_map(|field| field.strip_prefix(name));
            // `c`: it is closed after the reply. And the length of its buffer, and of the list of those that came after it.
            let quits = field("flags=").is_some_and(|flags| flags.contains('c'));
            quits && [field("obl="), field("oll=")] == [Some("0"), Some("0")]
        })
    }
}

/// Tickets count from 1, so none becomes a null pointer, which the server would not hand back.
fn ticket_to_pointer(ticket: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(ticket).unwrap_or(usize::MAX))
}

unsafe fn ticket_of(ctx: *mut raw::RedisModuleCtx) -> u64 {
    // SAFETY: the context is that of a blocked client's callback.
    let data = unsafe { api!(RedisModule_GetBlockedClientPrivateData, ctx) };
    data.addr() as u64
}

unsafe extern "C" fn on_ready(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

unsafe extern "C" fn on_answer(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guard((), || {
        // SAFETY: the server passes the context of the blocked client.
        let (ctx, ticket) = unsafe { (Ctx::new(ctx), ticket_of(ctx)) };
        (CALLBACKS.get().on_answer)(ctx, ticket);
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_gone(ctx: *mut raw::RedisModuleCtx, _handle: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server passes the context of the blocked client.
    guard((), || (CALLBACKS.get().on_gone)(unsafe { ticket_of(ctx) }));
}

/// The last that is heard of a blocked client.
///
/// Valkey keeps the answer of a client back until now, and throws it away if the client was unblocked by somebody else in
/// the meantime; Redis has written it by then, or tells by `on_gone` that it will not.
unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guard((), || {
        // SAFETY: the server passes a context that lives as long as the callback.
        let is_gone = unsafe { api!(RedisModule_BlockedClientDisconnected, ctx) } != 0;
        (CALLBACKS.get().on_freed)(data.addr() as u64, !is_gone);
    });
}
