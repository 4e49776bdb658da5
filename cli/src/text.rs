//! Output: names without control characters, and tables.

use std::io::{self, Write};

use crate::exit::{Failure, unless_pipe_is_closed};

/// The text of a key, owner or note, which may be any bytes. Escapes control characters and bytes
/// that are no UTF-8.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table as text, with a first line of column names.
pub(crate) fn table(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect::<Vec<_>>();
    let lines = || std::iter::once(&heads).chain(rows);
    let width_of = |column: usize| lines().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width_of).collect();
    let mut out = String::new();
    for row in lines() {
        let mut line = String::new();
        for ((cell, (_, align)), column_width) in row.iter().zip(columns).zip(&widths) {
            let padding = " ".repeat(column_width.saturating_sub(width(cell)));
            match align {
                Align::Left => line.extend([cell, padding.as_str(), "  "]),
                Align::Right => line.extend([padding.as_str(), cell, "  "]),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The columns, and a column NOTE if a row has a note: the cell after the last column.
pub(crate) fn with_notes(columns: &[(&'static str, Align)], rows: &[Vec<String>]) -> Vec<(&'static str, Align)> {
    let has_note = |row: &Vec<String>| row.get(columns.len()).is_some_and(|note| !note.is_empty());
    let notes = rows.iter().any(has_note).then_some(("NOTE", Align::Left));
    columns.iter().copied().chain(notes).collect()
}

/// Shortens a text to `width` characters. It removes the middle, because keys and owners often
/// differ at the end.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width || width == 0 {
        return text.to_owned();
    }
    let head = width / 2;
    let tail = width - head - 1;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// The width of a cell in characters. Wide characters count as one: they are rare in keys, and only
/// shift a column.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    unless_pipe_is_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("küche:1".as_bytes()), "küche:1");
        assert_eq!(printable(b"a\x1b[2Jb\xff\n"), "a\\u{1b}[2Jb\\xff\\n");
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(
            ["orders", "orders:42", "orders:4711"].map(|text| shortened(text, 9)),
            ["orders", "orders:42", "orde…4711"]
        );
        assert_eq!(["kürzer", "a"].map(|text| shortened(text, 1)), ["…", "a"]);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "100".to_owned()], vec!["long".to_owned(), "7".to_owned()]];
        let table = table(&[("KEY", Align::Left), ("N", Align::Right)], &rows);
        assert_eq!(table, "KEY     N\na     100\nlong    7\n");
    }
}
