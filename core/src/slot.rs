//! The slots of a cluster: the slot of a name, and a hash tag for each slot.

use alloc::boxed::Box;
use alloc::vec;

use crc16::{State, XMODEM};

/// The number of slots in a cluster.
const SLOTS: u16 = 16384;

/// The text between the braces of a name. Two bytes are enough for every slot.
pub type Tag = [u8; 2];

/// The slot of a name, according to the cluster specification. Copies nothing.
#[must_use]
pub fn slot_of(name: &[u8]) -> u16 {
    State::<XMODEM>::calculate(hashed_part(name)) % SLOTS
}

/// The part of a name that determines its slot: the text between the first `{` and the next `}`, or
/// the whole name if that text is empty or missing.
fn hashed_part(name: &[u8]) -> &[u8] {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = name.get(open.saturating_add(1)..)?;
        let len = after.iter().position(|byte| *byte == b'}').filter(|len| *len > 0)?;
        after.get(..len)
    });
    tag.unwrap_or(name)
}

/// A tag for each slot.
#[derive(Clone, Debug)]
pub struct SlotTags(Box<[Tag]>);

impl SlotTags {
    /// Finds the tags. Callers should keep them: this tries all 65,536.
    #[must_use]
    pub fn find() -> Self {
        let mut tags = vec![[0; 2]; usize::from(SLOTS)];
        for tag in (0..=u16::MAX).map(u16::to_be_bytes) {
            if !tag.contains(&b'}')
                && let Some(place) = tags.get_mut(usize::from(slot_of(&tag)))
            {
                *place = tag;
            }
        }
        Self(tags.into_boxed_slice())
    }

    /// A tag with the same slot as a name: all names that begin with `{tag}` are in that slot.
    #[must_use]
    pub fn of(&self, name: &[u8]) -> Tag {
        self.0.get(usize::from(slot_of(name))).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static TAGS: LazyLock<SlotTags> = LazyLock::new(SlotTags::find);

    /// A name that begins with the tag.
    fn tagged(tag: Tag) -> alloc::vec::Vec<u8> {
        [b"{", &tag[..], b"}}and{more"].concat()
    }

    #[test]
    fn slots_match_the_cluster_specification() {
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
        // The example of the specification, and results of CLUSTER KEYSLOT.
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"{foo}bar"), 12182);
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn each_slot_has_a_tag() {
        for (slot, tag) in TAGS.0.iter().enumerate() {
            assert_eq!(usize::from(slot_of(&tagged(*tag))), slot, "{tag:?}");
        }
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "a tag for each of thousands of slots")]
        fn the_tag_of_a_name_is_in_its_slot(name in "[ab{}]{0,8}") {
            let name = name.as_bytes();
            let tag = TAGS.of(name);
            prop_assert_eq!(slot_of(&tagged(tag)), slot_of(name));
        }
    }
}
