//! Shared by both programs: the parts of a page that a run writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Replaces the text between the two marks of a program in a page, so that no figure is typed by
/// hand.
///
/// # Errors
///
/// If the page cannot be read or written, or has no such marks.
pub fn fill_in(page: &Path, program: &str, text: &str) -> Result<()> {
    let old = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let new = replaced(&old, program, text)
        .with_context(|| format!("{} has no marks for the figures of {program}", page.display()))?;
    fs::write(page, new).with_context(|| format!("cannot write {}", page.display()))
}

fn replaced(old: &str, program: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- figures of {program}: written by the run -->\n");
    let end = format!("<!-- end of the figures of {program} -->\n");
    let (before, rest) = old.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_the_marks_is_replaced() {
        let page = "a\n<!-- figures of x: written by the run -->\nold\n<!-- end of the figures of x -->\nb\n";
        assert_eq!(replaced(page, "x", "new\n").unwrap(), page.replace("old", "new"));
        assert_eq!(replaced(page, "y", "new\n"), None);
    }
}
