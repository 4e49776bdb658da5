//! Channels: who listens, and what is published.

use std::ffi::CStr;
use std::io;

use super::{Arg, Ctx, api};

impl Ctx<'_> {
    /// Whether the server has a command of that name: `rename-command` may have taken it away, which nothing but a restart changes.
    pub(crate) fn has_command(self, name: &CStr) -> bool {
        // SAFETY: the format says that there are no arguments. Both commands that this is asked of need some, so nothing is
        // done: there is no reply, and errno tells why. If there is one it is freed once.
        unsafe {
            let reply = api!(RedisModule_Call, self.raw(), name.as_ptr(), c"".as_ptr());
            if reply.is_null() {
                return io::Error::last_os_error().kind() != io::ErrorKind::NotFound;
            }
            api!(RedisModule_FreeCallReply, reply);
            true
        }
    }

    /// How many connections to this very server listen to this very channel; not counted are those that listen to a pattern.
    pub(crate) fn listeners(self, channel: Arg<'_>, is_cluster: bool) -> u64 {
        let what = if is_cluster { c"SHARDNUMSUB" } else { c"NUMSUB" };
        // SAFETY: the format says a C string and a string, and the arguments are exactly those. A reply and what it has in it
        // are alive until it is freed, once.
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

    /// Publishes a message; in a cluster to the channel of a shard.
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
