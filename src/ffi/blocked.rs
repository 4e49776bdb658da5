//! Blocks a client and answers it later.
//!
//! The module blocks each client on a name (`blocking_key`), without a server-side timeout, and
//! unblocks it by its handle. So the engine alone decides the order and the deadlines of the
//! waiters. The server calls the reply callback if a key with that name is created; the callback
//! always returns "not ready". The timeout callback writes the answer; the server calls it after
//! `unblock` and after CLIENT UNBLOCK … TIMEOUT.

use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::at_load::AtLoad;
use super::call_reply::text_of;
use super::{Arg, Ctx, api, blocking_key, guard};

/// The server's handle of a blocked client. It is valid until the client is unblocked or the server
/// has called [`BlockedCallbacks::on_disconnected`]. The module drops its copy then.
#[derive(Clone, Copy)]
pub(crate) struct Blocked(*mut raw::RedisModuleBlockedClient);

/// The functions that the callbacks of a blocked client call, with the ticket given to [`block`].
#[derive(Clone, Copy)]
pub(crate) struct BlockedCallbacks {
    /// The server asks for the answer.
    pub(crate) on_answer: fn(Ctx<'_>, u64),
    /// The connection has closed.
    pub(crate) on_disconnected: fn(u64),
    /// The server has freed the handle; the flag says whether the client is connected.
    pub(crate) on_freed: fn(u64, bool),
}

static CALLBACKS: AtLoad<BlockedCallbacks> = AtLoad::new();

/// Sets the functions that the callbacks of blocked clients call.
pub(crate) fn set_blocked_callbacks(callbacks: BlockedCallbacks) {
    CALLBACKS.set(callbacks);
}

static IS_VALKEY: AtomicBool = AtomicBool::new(false);

/// See [`holds_answers_back`].
static HOLDS_ANSWERS_BACK: AtomicBool = AtomicBool::new(false);

/// See [`answers_at_once`].
static ANSWERS_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// The first version of Redis that asks for the answers of unblocked clients at the end of a turn,
/// in the format of `RedisModule_GetServerVersion`.
const ANSWERS_LATER: c_int = 0x0007_0400;

/// The first version of Valkey that holds answers back.
const HOLDS_BACK_FROM: c_int = 0x0008_0000;

/// Detects the server and its version. Called once, from `OnLoad`.
pub(super) fn init(ctx: Ctx<'_>) {
    // SAFETY: the context is alive; the information is freed once, after its field was read.
    let is_valkey = unsafe {
        let info = api!(RedisModule_GetServerInfo, ctx.raw(), c"server".as_ptr());
        // Redis has no such field; in Valkey it is "valkey".
        let name = api!(RedisModule_ServerInfoGetFieldC, info, c"server_name".as_ptr());
        api!(RedisModule_FreeServerInfo, ctx.raw(), info);
        !name.is_null()
    };
    // SAFETY: the call has no conditions.
    let version = unsafe { api!(RedisModule_GetServerVersion,) };
    IS_VALKEY.store(is_valkey, Ordering::Relaxed);
    HOLDS_ANSWERS_BACK.store(is_valkey && version >= HOLDS_BACK_FROM, Ordering::Relaxed);
    ANSWERS_AT_ONCE
        .store(if is_valkey { version < HOLDS_BACK_FROM } else { version < ANSWERS_LATER }, Ordering::Relaxed);
}

/// Whether this server is Valkey. Known after `init`.
pub(super) fn is_valkey() -> bool {
    IS_VALKEY.load(Ordering::Relaxed)
}

/// The version of this server if it is Valkey: 0x080101 is 8.1.1. Known after `init`.
pub(crate) fn valkey_version() -> Option<c_int> {
    // SAFETY: the call has no conditions.
    is_valkey().then(|| unsafe { api!(RedisModule_GetServerVersion,) })
}

/// Whether this server, like Valkey 8.0 and newer, asks for the answer of a client when the client
/// is unblocked, and holds it back until the turn ends.
pub(crate) fn holds_answers_back() -> bool {
    HOLDS_ANSWERS_BACK.load(Ordering::Relaxed)
}

/// Whether this server, like Redis before 7.4 and Valkey 7.2, asks for the answer of a client when
/// the client is unblocked, and may send it at once.
pub(crate) fn answers_at_once() -> bool {
    ANSWERS_AT_ONCE.load(Ordering::Relaxed)
}

/// Blocks the client of this command, which waits for `key`. `None` if the server refuses.
pub(crate) fn block(ctx: Ctx<'_>, key: Arg<'_>, ticket: u64) -> Option<Blocked> {
    let name = blocking_key::for_waiters_of(ctx, key);
    let mut keys = [name.arg().raw()];
    // SAFETY: the context and the name are alive, and the server keeps its own reference to the
    // name. The private data is a number, not a pointer.
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
    unsafe { api!(RedisModule_SetDisconnectCallback, handle, Some(on_disconnected)) };
    Some(Blocked(handle))
}

/// Unblocks the client: the server asks for its answer, now or at the end of the turn.
pub(crate) fn unblock(blocked: Blocked) {
    // SAFETY: the handle is valid, see `Blocked`.
    unsafe { api!(RedisModule_UnblockClient, blocked.0, std::ptr::null_mut()) };
}

impl Ctx<'_> {
    /// Whether the closing connection has sent QUIT, and the server has written all its replies.
    ///
    /// Only QUIT counts: if a connection closes for another reason, its output buffers may be empty
    /// although the server did not write the last replies. Also `false` if the command CLIENT is
    /// renamed, so that the module cannot find out.
    pub(crate) fn quit_with_all_replies(self, client: u64) -> bool {
        let Ok(id) = CString::new(client.to_string()) else {
            return false;
        };
        // SAFETY: the format has three C strings, and so have the arguments. The reply is freed
        // once, after its text was copied.
        let text = unsafe {
            let (command, list, by_id) = (c"CLIENT".as_ptr(), c"LIST".as_ptr(), c"ID".as_ptr());
            let reply = api!(RedisModule_Call, self.raw(), command, c"ccc".as_ptr(), list, by_id, id.as_ptr());
            if reply.is_null() {
                return false;
            }
            let text = text_of(reply);
            api!(RedisModule_FreeCallReply, reply);
            text
        };
        text.is_some_and(|text| {
            let field = |name: &str| text.split_ascii_whitespace().find_map(|field| field.strip_prefix(name));
            // The flag `c`: the server closes the connection after the reply. `obl` is the length
            // of the output buffer, `oll` that of the list of further output.
            let quits = field("flags=").is_some_and(|flags| flags.contains('c'));
            quits && [field("obl="), field("oll=")] == [Some("0"), Some("0")]
        })
    }
}

/// No ticket is 0, so none becomes a null pointer, which the server would not pass to the
/// callbacks.
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

unsafe extern "C" fn on_disconnected(ctx: *mut raw::RedisModuleCtx, _handle: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server passes the context of the blocked client.
    guard((), || (CALLBACKS.get().on_disconnected)(unsafe { ticket_of(ctx) }));
}

/// The last callback of a blocked client.
///
/// Valkey 8.0 and newer hold the answer back until now, and drop it if another cause, such as
/// CLIENT UNBLOCK, has unblocked the client meanwhile. Other servers have written the answer by
/// now, or have called `on_disconnected`.
unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guard((), || {
        // SAFETY: the server passes a context that lives as long as the callback.
        let is_gone = unsafe { api!(RedisModule_BlockedClientDisconnected, ctx) } != 0;
        (CALLBACKS.get().on_freed)(data.addr() as u64, !is_gone);
    });
}
