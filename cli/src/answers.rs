//! Parts of a server's reply. A part that is missing or has another type is empty.

use redis::Value;

use crate::text::printable;

/// The items of an array; none if the value is no array.
pub(crate) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

pub(crate) fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.as_bytes(),
        Value::VerbatimString { text, .. } => text.as_bytes(),
        _ => &[],
    }
}

pub(crate) fn text(value: &Value) -> String {
    String::from_utf8_lossy(bytes(value)).into_owned()
}

/// A field of a map. RESP2 sends a map as an array.
pub(crate) fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    match map {
        Value::Map(fields) => fields.iter().find(|(key, _)| bytes(key) == name.as_bytes()).map(|(_, value)| value),
        Value::Array(fields) => {
            fields.chunks_exact(2).find(|pair| bytes(&pair[0]) == name.as_bytes()).map(|pair| &pair[1])
        }
        _ => None,
    }
}

pub(crate) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(crate) fn number(map: &Value, name: &str) -> Option<i64> {
    field(map, name).and_then(integer)
}

pub(crate) fn words(map: &Value, name: &str) -> String {
    field(map, name).map(|value| printable(bytes(value))).unwrap_or_default()
}
