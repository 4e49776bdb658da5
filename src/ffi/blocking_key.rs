//! The name that clients are blocked on: a key that never exists, in the slot of the key that they
//! wait for.
//!
//! A waiting client is blocked on a name, so that the server sends it MOVED when the slot moves to
//! another node. If the name were the lock's own key, the server would also check every waiter each
//! time the key is created. Redis 7.0 leaves a dangling pointer behind when it does that
//! (`serveClientsBlockedOnKeyByModule` does not restore `server.current_client`; fixed in 7.2), and
//! crashes if such a waiter is killed later. So no key with this name may ever exist. The name is
//! random in each process, and cannot be guessed.
//!
//! All waiters of a slot, or of a server outside a cluster, share one name, whatever they wait for.
//! That costs nothing: the server has them in a list, each waiter stores its node of the list, and
//! the server walks the list only when a client creates or signals the key.

use std::sync::OnceLock;

use rlock_core::SlotTags;

use super::context::OwnedString;
use super::{Arg, Ctx, api};

/// Long enough that the name cannot be guessed.
const SECRET_BYTES: usize = 16;

struct Names {
    secret: [u8; SECRET_BYTES],
    /// `None` outside a cluster.
    tags: Option<SlotTags>,
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// The name on which to block a client that waits for `key`.
pub(super) fn for_waiters_of<'c>(ctx: Ctx<'c>, key: Arg<'_>) -> OwnedString<'c> {
    let Names { secret, tags } = NAMES.get_or_init(|| draw(ctx));
    match tags {
        Some(tags) => ctx.string(&[b"{", &tags.of(key.bytes())[..], b"}", secret].concat()),
        None => ctx.string(secret),
    }
}

fn draw(ctx: Ctx<'_>) -> Names {
    let mut secret = [0; SECRET_BYTES];
    // SAFETY: the buffer has the length that is passed.
    unsafe { api!(RedisModule_GetRandomBytes, secret.as_mut_ptr(), secret.len()) };
    Names { secret, tags: ctx.flags().is_cluster().then(SlotTags::find) }
}
