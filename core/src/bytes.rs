//! Short byte strings stored inline: owners and key names.
//!
//! A lock server keeps one owner and one key name per held lock, most of them a UUID or a short
//! path. Inline storage saves an allocation and its rounding per lock; longer strings go to the
//! heap.

use alloc::boxed::Box;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};

/// An immutable byte string, stored inline up to `N` bytes.
#[derive(Clone)]
pub struct Bytes<const N: usize>(Repr<N>);

#[derive(Clone)]
enum Repr<const N: usize> {
    Inline { len: u8, bytes: [u8; N] },
    Heap(Box<[u8]>),
}

/// An owner: 1 to 512 arbitrary bytes. 38 bytes inline hold a UUID with two to spare, in 40 bytes
/// of memory.
pub type Owner = Bytes<38>;

/// The name of a Redis key, 30 bytes inline in 32 bytes of memory.
pub type KeyName = Bytes<30>;

impl<const N: usize> Bytes<N> {
    /// The empty string.
    pub const EMPTY: Self = Self(Repr::Inline { len: 0, bytes: [0; N] });

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Repr::Heap(bytes) => bytes,
        }
    }

    /// Bytes on the heap, for memory accounting.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Heap(bytes) => bytes.len(),
        }
    }
}

impl<const N: usize> From<&[u8]> for Bytes<N> {
    fn from(slice: &[u8]) -> Self {
        let mut bytes = [0; N];
        match (bytes.get_mut(..slice.len()), u8::try_from(slice.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(slice);
                Self(Repr::Inline { len, bytes })
            }
            _ => Self(Repr::Heap(slice.into())),
        }
    }
}

impl<const N: usize> PartialEq for Bytes<N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<const N: usize> Eq for Bytes<N> {}

impl<const N: usize> PartialOrd for Bytes<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for Bytes<N> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_slice().escape_ascii())
    }
}

/// A key of the keyspace, owned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The key's name.
    pub name: KeyName,
    /// The number of its database.
    pub db: u32,
}

/// A key of the keyspace, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRef<'a> {
    /// The key's name.
    pub name: &'a [u8],
    /// The number of its database.
    pub db: u32,
}

impl Key {
    /// The smallest key.
    pub(crate) const FIRST: Self = Self { name: KeyName::EMPTY, db: 0 };

    /// This key, borrowed.
    #[must_use]
    pub fn borrow(&self) -> KeyRef<'_> {
        KeyRef { name: self.name.as_slice(), db: self.db }
    }
}

impl KeyRef<'_> {
    /// This key, owned.
    #[must_use]
    pub fn to_key(self) -> Key {
        Key { name: self.name.into(), db: self.db }
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.name);
        state.write_u32(self.db);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn bytes_of_any_length_round_trip() {
        for len in [0, 1, 37, 38, 39, 512] {
            let slice = vec![7; len];
            let owner = Owner::from(slice.as_slice());
            assert_eq!(owner.as_slice(), slice);
            assert_eq!(owner.heap_bytes(), if len > 38 { len } else { 0 });
        }
    }

    #[test]
    fn owner_and_key_name_have_the_documented_size() {
        assert_eq!(size_of::<Owner>(), 40);
        assert_eq!(size_of::<KeyName>(), 32);
    }

    #[test]
    fn different_names_and_databases_have_different_hashes() {
        let hash = |name: &[u8], db| ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(KeyRef { name, db });
        assert_eq!(hash(b"a", 0), hash(b"a", 0));
        assert_ne!(hash(b"a", 0), hash(b"b", 0));
        assert_ne!(hash(b"a", 0), hash(b"a", 1));
    }

    #[test]
    fn debug_shows_unprintable_bytes_escaped() {
        assert_eq!(alloc::format!("{:?}", Owner::from(&b"a\"\x00"[..])), r#""a\"\x00""#);
    }
}
