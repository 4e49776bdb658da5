//! Runs every console block of the documentation on one server, from the first page to the last,
//! and compares the output line by line.
//!
//! Blocks with the word `console` are run. Blocks with the word `sh` are for the reader's own
//! machine: they build, install, or run a service. Of these only the make targets are checked.
//! Blocks that use the command-line tool need the tool, so `cli/tests/documents.rs` runs them,
//! together with all others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{CLIENT_PROMPT, TOOL_PROMPT, blocks, pages, run_every_session};

fn root() -> &'static Path {
    Path::new("")
}

#[test]
fn console_blocks_match_the_server() {
    let ran = run_every_session(root(), None);
    assert!(ran.pages.len() >= 7 && ran.steps >= 50, "{} lines in {:?}", ran.steps, ran.pages);
}

#[test]
fn console_sessions_are_marked_as_console() {
    for block in pages(root()).iter().flat_map(|page| blocks(page)).filter(|block| block.language != "console") {
        for prompt in [CLIENT_PROMPT, "$ redis-cli", TOOL_PROMPT] {
            assert!(
                !block.text.lines().any(|line| line.starts_with(prompt)),
                "{}: no test runs this block",
                block.place
            );
        }
    }
}

/// These commands need a Debian of their own: `make demo-install` runs them in one and records the
/// output.
#[test]
fn commands_of_the_debian_page_are_in_the_recorded_install() {
    let transcript = fs::read_to_string("docs/demo-install.txt").expect("the transcript");
    // The recorded Debian has no systemd, so a restart there is a stop and a start.
    let transcript = transcript.replace("# systemctl start ", "# systemctl restart ");
    let mut found = 0;
    for block in blocks(Path::new("docs/debian.md")) {
        for command in block.text.lines().filter(|line| line.starts_with("# ")) {
            // Commands with quotes must match as a whole. In the others options and names may
            // differ.
            let words = if command.contains('\'') { usize::MAX } else { 3 };
            let typed = command.split(' ').take(words).collect::<Vec<_>>().join(" ");
            assert!(transcript.lines().any(|line| line.starts_with(&typed)), "{}: {command}", block.place);
            found += 1;
        }
    }
    assert!(found >= 10, "the page has {found} commands");
}

#[test]
fn make_targets_in_the_documentation_exist() {
    let makefile = fs::read_to_string("Makefile").expect("the Makefile");
    let targets: BTreeSet<_> = makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let mut found = 0;
    for page in pages(root()) {
        let text = fs::read_to_string(&page).expect("a readable page");
        for part in ["`make ", "$ make "].iter().flat_map(|before| text.split(before).skip(1)) {
            let name = part.split(|letter: char| !letter.is_ascii_lowercase() && letter != '-').next();
            let name = name.expect("the part up to the end of the name");
            assert!(targets.contains(name), "{}: make {name}", page.display());
            found += 1;
        }
    }
    assert!(found >= 20, "the pages name {found} targets");
}

/// A page without its fenced blocks and without code in backquotes.
fn prose(page: &str) -> String {
    let outside_fences = page.split("```").step_by(2).collect::<String>();
    outside_fences.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).expect("a readable page");
    let text = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// The links of pages that lead to no file or to no heading, and the number of all links.
fn broken_links(pages: &[PathBuf]) -> (Vec<String>, usize) {
    let (mut broken, mut count) = (Vec::new(), 0);
    for page in pages {
        let text = prose(&fs::read_to_string(page).expect("a readable page"));
        let addresses = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for address in addresses.filter(|address| !address.contains("://")) {
            count += 1;
            let (file, anchor) = address.split_once('#').unwrap_or((address, ""));
            let file = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            if !file.exists() || !(anchor.is_empty() || anchors(&file).contains(anchor)) {
                broken.push(format!("{}: {address}", page.display()));
            }
        }
    }
    (broken, count)
}

#[test]
fn links_of_the_documents_lead_to_files_and_headings() {
    let more = ["CHANGELOG.md", "SECURITY.md"].map(PathBuf::from);
    let (broken, count) = broken_links(&[pages(root()), more.to_vec()].concat());
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(count >= 200, "the pages have {count} links");
}

#[test]
fn links_of_the_packaged_documents_lead_to_packaged_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let status = Command::new("scripts/package-docs").arg(folder.path()).status();
    assert!(status.is_ok_and(|status| status.success()));
    let packaged = |page: PathBuf| folder.path().join(page.strip_prefix("docs").expect("a page of docs/"));
    let docs: Vec<_> = pages(root()).into_iter().filter(|page| page.starts_with("docs")).map(packaged).collect();
    let (broken, count) = broken_links(&docs);
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(count >= 150, "the packaged pages have {count} links");
}

#[test]
fn code_on_the_clients_page_equals_the_packages() {
    const NAMES: &str = "<!-- ";
    let page = fs::read_to_string("docs/clients.md").expect("the page");
    let parts = page.split(NAMES).skip(1).map(|part| part.split_once(" -->\n```").expect("a block below the name"));
    let mut blocks = 0;
    for (name, rest) in parts {
        let source = fs::read_to_string(name).expect("the file");
        // The language name ends the first line.
        let (_, block) = rest.split_once('\n').expect("a line below the fence");
        let (block, _) = block.split_once("```").expect("an end of the block");
        assert!(source.contains(block), "{name} does not contain:\n{block}");
        blocks += 1;
    }
    assert_eq!(blocks, page.matches("\n```").count() / 2, "each block has the name of its file above it");
    assert!(blocks >= 6, "the page shows {blocks} blocks");
}

/// The README repeats figures of docs/benchmarks.md. `make bench-peers` writes both.
#[test]
fn figures_of_the_readme_are_those_of_the_benchmarks() {
    let readme = fs::read_to_string("README.md").expect("the README");
    let benchmarks = fs::read_to_string("docs/benchmarks.md").expect("the benchmarks page");
    let rows = readme.lines().filter(|line| line.starts_with("| ") && line.ends_with(" ms |"));
    let figures: Vec<_> =
        rows.flat_map(|row| row.split('|')).filter_map(|cell| cell.trim().strip_suffix(" ms")).collect();
    assert!(figures.len() >= 4, "{figures:?}");
    // The paragraphs above the plots: "rlock-java: 16.9 ms; Redisson: 28,145 (1,668 times ours)."
    let summary: Vec<_> = benchmarks.lines().filter(|line| line.starts_with("**")).collect();
    for figure in figures {
        assert!(
            summary.iter().any(|line| line.contains(&format!(": {figure} "))),
            "{figure} ms is not in {summary:#?}"
        );
    }
}
