//! The receivers of propagated commands: append-only file, child, replicas, backlog.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::context::Flags;
use super::{Ctx, api};

impl Flags {
    /// The append-only file is on, or is being switched on.
    pub(crate) fn has_append_only_file(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_AOF)
    }

    /// The server has a child: it writes a snapshot, or belongs to a module.
    pub(crate) fn has_child(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD)
    }
}

impl Ctx<'_> {
    /// Whether a replica is attached, in any state, or could catch up from a backlog. `true` if the
    /// server's INFO lacks the fields.
    pub(crate) fn has_replica_or_backlog(self) -> bool {
        // SAFETY: the context is alive; the information is freed once, after its fields were read.
        unsafe {
            let info = api!(RedisModule_GetServerInfo, self.raw(), c"replication".as_ptr());
            let is_zero = |field: &CStr| {
                let mut status = raw::REDISMODULE_ERR as c_int;
                let number = api!(RedisModule_ServerInfoGetFieldUnsigned, info, field.as_ptr(), &raw mut status);
                status == raw::REDISMODULE_OK as c_int && number == 0
            };
            let has_none = is_zero(c"connected_slaves") && is_zero(c"repl_backlog_active");
            api!(RedisModule_FreeServerInfo, self.raw(), info);
            !has_none
        }
    }
}
