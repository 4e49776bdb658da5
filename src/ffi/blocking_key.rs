//! The name that clients are blocked on: a key that nobody makes, in the slot of the key that they wait for.
//!
//! A client that waits is blocked on a name, so that the server sends it MOVED when the slot goes elsewhere. If that name
//! is the lock's own, the server also looks at every waiter whenever the key is made anew; and Redis 7.0 does so in a way
//! that leaves a dangling pointer behind (fixed in 7.2: `serveClientsBlockedOnKeyByModule` did not restore
//! `server.current_client`), which crashes it if such a waiter is killed later. So nothing may ever lie under the name that
//! clients are blocked on: it is random in each process, and nobody can guess it.
//!
//! All waiters of a slot, or of the server outside a cluster, share one name, whatever they wait for. That costs nothing:
//! the server has them in a list, each remembers its place there, and the list is gone through only when somebody makes or
//! signals the key.

use std::sync::OnceLock;

use rlock_core::SlotTags;

use super::context::OwnedString;
use super::{Arg, Ctx, api};

/// Long enough that it is not guessed.
const SECRET_BYTES: usize = 16;

struct Names {
    secret: [u8; SECRET_BYTES],
    /// Only where there are slots.
    tags: Option<SlotTags>,
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// The name to block a client on that waits for `key`.
pub(super) fn for_waiters_of<'c>(ctx: Ctx<'c>, key: Arg<'_>) -> OwnedString<'c> {
    let Names { secret, tags } = NAMES.get_or_init(|| draw(ctx));
    match tags {
        Some(tags) => ctx.string(&[b"{", &tags.of(key.bytes())[..], b"}", secret].concat()),
        None => ctx.string(secret),
    }
}

fn draw(ctx: Ctx<'_>) -> Names {
    let mut secret = [0; SECRET_BYTES];
    // SAFETY: the place has as many bytes as the call is told.
    unsafe { api!(RedisModule_GetRandomBytes, secret.as_mut_ptr(), secret.len()) };
    Names { secret, tags: ctx.flags().is_cluster().then(SlotTags::find) }
}
