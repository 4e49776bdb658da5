//! Which node of a cluster serves which key.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crc16::{State, XMODEM};
use redis::Value;

/// The number of slots of a cluster.
const SLOTS: u16 = 16384;

/// The slot of a key. It depends on the text between the first `{` and the next `}`, or on the
/// whole key if that is empty or missing.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let length = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..length).filter(|tag| !tag.is_empty())
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// For each slot, a number whose decimal digits hash to it.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut missing = tags.len();
    for number in 0.. {
        let tag = &mut tags[usize::from(slot_of(number.to_string().as_bytes()))];
        missing -= usize::from(tag.is_none());
        tag.get_or_insert(number);
        if missing == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
});

/// A text that hashes to a slot, for use as a hash tag.
pub(crate) fn tag_of(slot: u16) -> String {
    TAGS.get(usize::from(slot)).map(u32::to_string).unwrap_or_default()
}

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// Parses `host:port` of a redirection. An empty host means the host of the node that sent it.
    pub(crate) fn parse(text: &str, host_of_speaker: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { host_of_speaker } else { host };
        Some(Self { host: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? })
    }
}

/// The primaries by slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SlotMap {
    /// By the last slot of a range: its first slot and its node.
    ranges: BTreeMap<u16, (u16, Address)>,
    /// Slots that redirections have moved since.
    moved: BTreeMap<u16, Address>,
}

impl SlotMap {
    /// Parses the answer to `CLUSTER SLOTS`. `None` if it is malformed.
    pub(crate) fn parse(value: &Value, host_of_speaker: &str) -> Option<Self> {
        let Value::Array(rows) = value else { return None };
        let mut map = Self::default();
        for row in rows {
            let Value::Array(row) = row else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = row.as_slice() else { return None };
            let [host, Value::Int(port), ..] = master.as_slice() else { return None };
            let host = match host {
                Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Value::SimpleString(text) => text.clone(),
                _ => String::new(),
            };
            let host = if host.is_empty() || host == "?" { host_of_speaker.to_owned() } else { host };
            let address = Address { host, port: u16::try_from(*port).ok()? };
            map.ranges.insert(u16::try_from(*last).ok()?, (u16::try_from(*first).ok()?, address));
        }
        Some(map)
    }

    /// The node of a slot, as far as known.
    pub(crate) fn master_of(&self, slot: u16) -> Option<&Address> {
        self.moved.get(&slot).or_else(|| {
            let (_, (first, address)) = self.ranges.range(slot..).next()?;
            (*first <= slot).then_some(address)
        })
    }

    /// Records a redirection.
    pub(crate) fn moved(&mut self, slot: u16, address: Address) {
        self.moved.insert(slot, address);
    }

    /// Forgets which slots a node serves.
    pub(crate) fn forget(&mut self, node: &Address) {
        self.ranges.retain(|_, (_, address)| address != node);
        self.moved.retain(|_, address| address != node);
    }

    /// All known primaries.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &Address> {
        self.ranges.values().map(|(_, address)| address).chain(self.moved.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_cluster_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"), "an empty tag is ignored");
    }

    #[test]
    fn each_slot_has_a_tag() {
        for slot in [0, 1, 8191, SLOTS - 1] {
            assert_eq!(slot_of(format!("rlock:{{{}}}:x", tag_of(slot)).as_bytes()), slot);
        }
    }

    fn row(first: i64, last: i64, host: &str, port: i64) -> Value {
        let node = Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn redirection_overrides_the_range_of_a_slot() {
        let answer = Value::Array(vec![row(0, 99, "a", 1), row(200, 300, "", 2)]);
        let mut map = SlotMap::parse(&answer, "speaker").expect("a map");
        let address = |host: &str, port| Address { host: host.to_owned(), port };
        assert_eq!(map.master_of(99), Some(&address("a", 1)));
        assert_eq!(map.master_of(100), None);
        assert_eq!(map.master_of(250), Some(&address("speaker", 2)));
        map.moved(250, address("c", 3));
        assert_eq!(map.master_of(250), Some(&address("c", 3)));
        assert_eq!(map.master_of(251), Some(&address("speaker", 2)));
        let row = Value::Array(vec![Value::SimpleString("a".to_owned()), Value::Int(1)]);
        let simple = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(9), row])]);
        assert_eq!(SlotMap::parse(&simple, "speaker").expect("a map").master_of(9), Some(&address("a", 1)));
    }
}
