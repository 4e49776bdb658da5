//! Names to block on: keys that nobody makes, in the same cluster slot as the key that is waited for.
//!
//! A client that waits is blocked on a name, so that the server sends it MOVED when the slot goes elsewhere. If that name
//! is the lock's own, the server also looks at every waiter whenever the key is made anew; and Redis 7.0 does so in a way
//! that leaves a dangling pointer behind (fixed in 7.2: `serveClientsBlockedOnKeyByModule` did not restore
//! `server.current_client`), which crashes it if such a waiter is killed later. So nothing may ever lie under the name that
//! clients are blocked on: a twin has a part that is random in each process, and nobody can guess it.

use alloc::format;
use alloc::vec::Vec;

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// Makes twins.
#[derive(Clone, Copy, Debug)]
pub struct Twins {
    secret: [u8; 16],
}

impl Twins {
    /// Twins of this process. The secret is random.
    #[must_use]
    pub fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// A name for the waiters of `name`, where there are no slots.
    #[must_use]
    pub fn anywhere(&self, name: &[u8]) -> Vec<u8> {
        [name, &self.secret].concat()
    }

    /// A name for the waiters of `name`, in its slot.
    #[must_use]
    pub fn in_slot(&self, name: &[u8]) -> Vec<u8> {
        let hashed = hashed_part(name);
        let braced = [b"{", hashed, b"}", name, &self.secret].concat();
        if hashed_part(&braced) == hashed {
            return braced;
        }
        // What is hashed has a brace of its own, or is empty: another tag of the same slot does as well. There are as many
        // slots as numbers tried in a row on average, and every slot has a number far below the end of the range.
        let slot = slot_of(hashed);
        let tag = (0..u32::MAX).map(|number| format!("{number}")).find(|tag| slot_of(tag.as_bytes()) == slot);
        [b"{", tag.unwrap_or_default().as_bytes(), b"}", name, &self.secret].concat()
    }
}

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

/// The slot of what is hashed: CRC16 (XMODEM), as the cluster specification has it.
fn slot_of(hashed: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for byte in hashed {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWINS: Twins = Twins { secret: *b"0123456789abcdef" };

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
        // The example of the specification, and what CLUSTER KEYSLOT says.
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS);
        assert_eq!(slot_of(b"foo"), 12182);
    }

    proptest! {
        #[test]
        fn a_twin_is_in_the_slot_of_its_key_and_not_the_key(name in "[ab{}]{0,8}") {
            let name = name.as_bytes();
            let twin = TWINS.in_slot(name);
            prop_assert_eq!(slot_of(hashed_part(&twin)), slot_of(hashed_part(name)));
            prop_assert!(twin.ends_with(&TWINS.secret) && TWINS.anywhere(name).ends_with(&TWINS.secret));
        }
    }
}
