//! The server's eviction policy.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::{Ctx, api};

impl Ctx<'_> {
    /// Whether the server evicts keys without an EXPIRE when it reaches `maxmemory`.
    pub(crate) fn evicts_any_key(self) -> bool {
        let mut status: c_int = 0;
        // SAFETY: the context is alive; the information is freed once, after its fields were read.
        unsafe {
            let info = api!(RedisModule_GetServerInfo, self.raw(), c"memory".as_ptr());
            let limit = api!(RedisModule_ServerInfoGetFieldUnsigned, info, c"maxmemory".as_ptr(), &raw mut status);
            let policy = api!(RedisModule_ServerInfoGetFieldC, info, c"maxmemory_policy".as_ptr());
            let takes_any = !policy.is_null() && CStr::from_ptr(policy).to_bytes().starts_with(b"allkeys-");
            api!(RedisModule_FreeServerInfo, self.raw(), info);
            status == raw::REDISMODULE_OK as c_int && limit > 0 && takes_any
        }
    }
}
