//! What is printed: names that no terminal takes for something else, tables with columns.

use std::io::{self, Write};

use crate::exit::{Failure, unless_nobody_reads};

/// Text of a key or an owner, which may be any bytes. Control characters and what is no UTF-8 are escaped.
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

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Lines of cells below each other, the first of them the heads.
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

/// Columns, and one for what rows have after them if one of the rows has something there: its note.
pub(crate) fn with_notes(columns: &[(&'static str, Align)], rows: &[Vec<String>]) -> Vec<(&'static str, Align)> {
    let has_note = |row: &Vec<String>| row.get(columns.len()).is_some_and(|note| !note.is_empty());
    let notes = rows.iter().any(has_note).then_some(("NOTE", Align::Left));
    columns.iter().copied().chain(notes).collect()
}

/// How many characters a cell has. Wide ones count as one: they are rare in keys, and only move a column.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// Prints.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    unless_nobody_reads(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_command_a_terminal() {
        assert_eq!(printable("küche:1".as_bytes()), "küche:1");
        assert_eq!(printable(b"a\x1b[2Jb\xff\n"), "a\\u{1b}[2Jb\\xff\\n");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [vec!["a".to_owned(), "100".to_owned()], vec!["long".to_owned(), "7".to_owned()]];
        let table = table(&[("KEY", Align::Left), ("N", Align::Right)], &rows);
        assert_eq!(table, "KEY     N\na     100\nlong    7\n");
    }
}
