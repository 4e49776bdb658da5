//! Replies of server commands that the module calls.

use std::ffi::c_char;
use std::slice;

use redis_module::raw;

use super::api;

/// The text of a string reply; `None` for another reply.
///
/// # Safety
///
/// The reply is alive.
pub(super) unsafe fn text_of(reply: *mut raw::RedisModuleCallReply) -> Option<String> {
    let mut length = 0;
    // SAFETY: the reply is alive, and has `length` bytes at `start`.
    unsafe {
        let start: *const c_char = api!(RedisModule_CallReplyStringPtr, reply, &raw mut length);
        if start.is_null() {
            return None;
        }
        Some(String::from_utf8_lossy(slice::from_raw_parts(start.cast::<u8>(), length)).into_owned())
    }
}
