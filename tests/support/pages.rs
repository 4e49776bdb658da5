//! The pages of the documentation and their fenced blocks.

use std::fs;
use std::path::{Path, PathBuf};

pub const CLIENT_PROMPT: &str = "127.0.0.1:6379> ";
pub const SHELL_PROMPT: &str = "$ ";
/// Lines with this prompt run the project's command-line tool.
pub const TOOL_PROMPT: &str = "$ rlock ";

/// A fenced block of a page.
pub struct Block {
    /// The page, and the line on which the block begins.
    pub place: String,
    /// The word after the opening fence.
    pub language: String,
    pub text: String,
}

impl Block {
    /// Whether the block is a session of `redis-cli` over one connection. Otherwise it is a shell
    /// session.
    pub fn is_client_session(&self) -> bool {
        self.text.starts_with(CLIENT_PROMPT)
    }

    /// Whether any line runs the project's tool.
    pub fn needs_tool(&self) -> bool {
        self.text.lines().any(|line| line.starts_with(TOOL_PROMPT))
    }

    /// The commands after a prompt, each with the lines that follow it.
    pub fn steps(&self) -> Vec<(String, String)> {
        let prompt = if self.is_client_session() { CLIENT_PROMPT } else { SHELL_PROMPT };
        let mut steps: Vec<(String, String)> = Vec::new();
        for line in self.text.lines() {
            match (line.strip_prefix(prompt), steps.last_mut()) {
                (Some(command), _) => steps.push((command.to_owned(), String::new())),
                (None, Some((_, answer))) => *answer += &format!("{line}\n"),
                (None, None) => panic!("{}: a console block must begin with a prompt", self.place),
            }
        }
        steps
    }
}

/// All pages in reading order. `root` is the workspace folder.
pub fn pages(root: &Path) -> Vec<PathBuf> {
    let folder = |name: &str| {
        let entries = fs::read_dir(root.join(name)).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut pages: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
        pages.sort();
        pages
    };
    let rest = ["docs", "docs/guides", "docs/commands", "docs/operations", "docs/internals"].map(folder).concat();
    [root.join("README.md"), root.join("CONTRIBUTING.md")].into_iter().chain(rest).collect()
}

pub fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).expect("a readable page");
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        // Blocks inside list items are indented.
        match (line.trim_start().strip_prefix("```"), is_inside) {
            (Some(language), false) => {
                let place = format!("{}:{}", page.display(), number + 1);
                blocks.push(Block { place, language: language.to_owned(), text: String::new() });
                is_inside = true;
            }
            (Some(_), true) => is_inside = false,
            (None, true) => blocks.last_mut().expect("the open block").text += &format!("{line}\n"),
            (None, false) => {}
        }
    }
    assert!(!is_inside, "{}: a fenced block is not closed", page.display());
    blocks
}
