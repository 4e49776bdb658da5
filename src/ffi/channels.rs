//! Channels: their listeners, and publishing.

use std::ffi::CStr;
use std::io;

use super::{Arg, Ctx, api};

impl Ctx<'_> {
    /// Whether the server has a command of this name. `rename-command` can remove it, and takes
    /// effect only at a restart.
    pub(crate) fn has_command(self, name: &CStr) -> bool {
        // SAFETY: the format has no arguments. The commands that this is called for need some, so
        // the call fails: there is no reply, and errno has the reason. A reply is freed once.
        unsafe {
            let reply = api!(RedisModule_Call, self.raw(), name.as_ptr(), c"".as_ptr());
            if reply.is_null() {
                return io::Error::last_os_error().kind() != io::ErrorKind::NotFound;
            }
            api!(RedisModule_FreeCallReply, reply);
            true
        }
    }

    /// The number of connections to this server that subscribe to this channel. Subscriptions to a
    /// pattern do not count.
    pub(crate) fn listeners(self, channel: Arg<'_>, is_cluster: bool) -> u64 {
        let what = if is_cluster { c"SHARDNUMSUB" } else { c"NUMSUB" };
        // SAFETY: the format has a C string and a string, and so have the arguments. The reply and
        // its elements are alive until the reply is freed, once.
        unsafe {
            let reply =
                api!(RedisModule_Call, self.raw(), c"PUBSUB".as_ptr(), c"cs".as_ptr(), what.as_ptr(), channel.raw());
            if reply.is_null() {
                return 0;
            }
            let number = api!(RedisModule_CallReplyArrayElement, reply, 1);
            let listeners = if number.is_null() { 0 } else { api!(RedisModule_CallReplyInteger, number) };
            api!(RedisModule_FreeCallReply, reply);
            u64::try_from(listeners).unwrap_or(0)
        }
    }

    /// Publishes a message; in a cluster to a shard channel.
    pub(crate) fn publish(self, channel: Arg<'_>, message: Arg<'_>, is_cluster: bool) {
        // SAFETY: the context and the strings are alive.
        unsafe {
            if is_cluster {
                api!(RedisModule_PublishMessageShard, self.raw(), channel.raw(), message.raw());
            } else {
                api!(RedisModule_PublishMessage, self.raw(), channel.raw(), message.raw());
            }
        }
    }
}
