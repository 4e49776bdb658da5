//! What the server's own commands answer to the module.

use std::ffi::c_char;
use std::slice;

use redis_module::raw;

use super::api;

/// The text of a reply that is one.
///
/// # Safety
///
/// The reply is alive.
pub(super) unsafe fn text_of(reply: *mut raw::RedisModuleCallReply) -> Option<String> {
    let mut length = 0;
    // SAFETY: the reply is alive, and so are the bytes that it has, of which there are so many.
    unsafe {
        let start: *const c_char = api!(RedisModule_CallReplyStringPtr, reply, &raw mut length);
        if start.is_null() {
            return None;
        }
        Some(String::from_utf8_lossy(slice::from_raw_parts(start.cast::<u8>(), length)).into_owned())
    }
}
