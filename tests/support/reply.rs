//! Replies of RESP2 and RESP3.

use std::fmt;

/// One reply. Simple and bulk strings are not distinguished, because no test depends on the
/// difference.
#[derive(Clone, PartialEq)]
pub enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    /// The whole line after the `-`, including the code.
    Error(String),
    Array(Vec<Reply>),
    /// Only RESP3 has maps. In RESP2 the same command returns a flat array.
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    /// Parses the first reply in `bytes`, and returns it with its length. Returns None while the
    /// reply is incomplete.
    pub fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
        let line_end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[1..line_end]).expect("the first line of a reply is text");
        let body = line_end + 2;
        let number = || line.parse::<i64>().expect("a length or an integer");
        let parsed = match bytes[0] {
            b'+' => (Reply::Text(line.into()), body),
            b'-' => (Reply::Error(line.into()), body),
            b':' => (Reply::Int(number()), body),
            b'_' => (Reply::Nil, body),
            b'$' | b'*' if number() < 0 => (Reply::Nil, body),
            b'$' => {
                let end = body + number() as usize;
                let text = bytes.get(body..end + 2)?;
                (Reply::Text(text[..text.len() - 2].to_vec()), end + 2)
            }
            b'*' | b'>' => {
                let (items, end) = parse_many(bytes, body, number() as usize)?;
                (Reply::Array(items), end)
            }
            b'%' => {
                let (items, end) = parse_many(bytes, body, 2 * number() as usize)?;
                (Reply::Map(pair_up(&items)), end)
            }
            other => panic!("unknown reply type: {:?}", char::from(other)),
        };
        Some(parsed)
    }

    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Reply::Int(number) => *number,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Reply::Text(text) => text,
            other => panic!("expected a string, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    #[track_caller]
    pub fn array(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// The pairs of a map, in both protocols.
    #[track_caller]
    pub fn pairs(&self) -> Vec<(Reply, Reply)> {
        match self {
            Reply::Map(pairs) => pairs.clone(),
            other => pair_up(other.array()),
        }
    }

    /// A field of a map.
    #[track_caller]
    pub fn field(&self, name: &str) -> Reply {
        let found = self.pairs().into_iter().find(|(key, _)| key == name);
        found.unwrap_or_else(|| panic!("no field {name} in {self:?}")).1
    }

    /// The field names of a map, sorted, because their order is not part of the contract.
    #[track_caller]
    pub fn field_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.pairs().iter().map(|(name, _)| name.text()).collect();
        names.sort();
        names
    }

    /// Fails unless this is an error whose first word is `code`. Returns the whole line.
    #[track_caller]
    pub fn expect_error(&self, code: &str) -> &str {
        match self {
            Reply::Error(line) if line.split(' ').next() == Some(code) => line,
            other => panic!("expected a -{code} error, got {other:?}"),
        }
    }
}

fn parse_many(bytes: &[u8], mut at: usize, count: usize) -> Option<(Vec<Reply>, usize)> {
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let (item, length) = Reply::parse(bytes.get(at..).filter(|rest| !rest.is_empty())?)?;
        items.push(item);
        at += length;
    }
    Some((items, at))
}

fn pair_up(items: &[Reply]) -> Vec<(Reply, Reply)> {
    assert!(items.len().is_multiple_of(2), "a map with an odd number of items: {items:?}");
    items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

impl PartialEq<i64> for Reply {
    fn eq(&self, other: &i64) -> bool {
        matches!(self, Reply::Int(number) if number == other)
    }
}

impl PartialEq<&str> for Reply {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl PartialEq<str> for Reply {
    fn eq(&self, other: &str) -> bool {
        matches!(self, Reply::Text(text) if text == other.as_bytes())
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => write!(out, "nil"),
            Reply::Int(number) => write!(out, "{number}"),
            Reply::Text(text) => write!(out, "\"{}\"", text.escape_ascii()),
            Reply::Error(line) => write!(out, "-{line}"),
            Reply::Array(items) => out.debug_list().entries(items).finish(),
            Reply::Map(pairs) => out.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish(),
        }
    }
}
