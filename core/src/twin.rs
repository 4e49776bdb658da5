//! Names to block on: keys that nobody makes, in the same cluster slot as the key that is waited for.
//!
//! A client that waits is blocked on a name, so that the server sends it MOVED when the slot goes elsewhere. If that name
//! is the lock's own, the server also looks at every waiter whenever the key is made anew; and Redis 7.0 does so in a way
//! that leaves a dangling pointer behind (fixed in 7.2: `serveClientsBlockedOnKeyByModule` did not restore
//! `server.current_client`), which crashes it if such a waiter is killed later. A twin is never made, so nothing is ever
//! looked at.

use alloc::vec::Vec;

/// What makes a twin different from its key.
const SUFFIX: &[u8] = b"\0rlock";

/// The part of a name that decides its slot: what stands between the first `{` and the next `}`, if that is anything, or
/// else the whole name.
fn hashed_part(name: &[u8]) -> &[u8] {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = name.get(open.saturating_add(1)..)?;
        let len = after.iter().position(|byte| *byte == b'}').filter(|len| *len > 0)?;
        after.get(..len)
    });
    tag.unwrap_or(name)
}

/// A name next to `name` that is in the same slot. `None` if there is no such one: a name without a hash tag that has a
/// `}` cannot be put between braces.
#[must_use]
pub fn twin_in_slot(name: &[u8]) -> Option<Vec<u8>> {
    let appended = twin(name);
    if hashed_part(&appended).len() < appended.len() {
        return Some(appended);
    }
    let braced = [b"{", name, b"}", SUFFIX].concat();
    (hashed_part(&braced) == name).then_some(braced)
}

/// A name next to `name`, where there are no slots.
#[must_use]
pub fn twin(name: &[u8]) -> Vec<u8> {
    [name, SUFFIX].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_slot_of_a_name_as_the_cluster_specification_has_it() {
        for (name, part) in [
            ("plain", "plain"),
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("a}b", "a}b"),
            ("a{b", "a{b"),
        ] {
            assert_eq!(hashed_part(name.as_bytes()), part.as_bytes(), "{name}");
        }
    }

    #[test]
    fn names_without_a_twin_in_their_slot() {
        for name in ["", "a}b", "{}x"] {
            assert_eq!(twin_in_slot(name.as_bytes()), None, "{name}");
        }
        assert_eq!(twin_in_slot(b"job").as_deref(), Some(&b"{job}\0rlock"[..]));
        assert_eq!(twin_in_slot(b"{a}b").as_deref(), Some(&b"{a}b\0rlock"[..]));
    }

    proptest! {
        #[test]
        fn a_twin_is_in_the_slot_of_its_key(name in "[ab{}]{0,8}") {
            if let Some(twin) = twin_in_slot(name.as_bytes()) {
                prop_assert_eq!(hashed_part(&twin), hashed_part(name.as_bytes()));
                prop_assert_ne!(&twin[..], name.as_bytes());
            }
        }
    }
}
