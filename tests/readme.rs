//! What the documents show is what a server answers: every console block of them, from the first page to the last, line by line, is typed
//! into one server, and compared.
//!
//! A block with the word `console` is run. One with the word `sh` is only for a reader's own machine: it builds, installs, or runs a
//! service. Of that one only the targets of make are looked at. A block that uses the tool is run by the tests of the tool, which run all the others too
//! (`cli/tests/documents.rs`): here there is no tool.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{CLIENT_PROMPT, TOOL_PROMPT, blocks, pages, run_every_session};

fn root() -> &'static Path {
    Path::new("")
}

#[test]
fn every_session_of_the_documents_is_what_a_server_answers() {
    let told = run_every_session(root(), None);
    assert!(told.pages.len() >= 7 && told.steps >= 50, "{} lines in {:?}", told.steps, told.pages);
}

#[test]
fn no_session_of_the_documents_goes_without_a_test() {
    for block in pages(root()).iter().flat_map(|page| blocks(page)).filter(|block| block.language != "console") {
        for prompt in [CLIENT_PROMPT, "$ redis-cli", TOOL_PROMPT] {
            assert!(!block.text.lines().any(|line| line.starts_with(prompt)), "{}: nothing runs this", block.place);
        }
    }
}

/// These need a Debian of their own: `make demo-install` types them into one, and keeps what was answered.
#[test]
fn what_the_page_on_debian_tells_to_type_has_been_typed_into_one() {
    let transcript = fs::read_to_string("docs/demo-install.txt").expect("the transcript is there");
    // There is no systemd in it, and a restart is a stop and a start.
    let transcript = transcript.replace("# systemctl start ", "# systemctl restart ");
    let mut found = 0;
    for block in blocks(Path::new("docs/debian.md")) {
        for command in block.text.lines().filter(|line| line.starts_with("# ")) {
            // What has quotes is typed as it is; of the rest options and names differ.
            let words = if command.contains('\'') { usize::MAX } else { 3 };
            let typed = command.split(' ').take(words).collect::<Vec<_>>().join(" ");
            assert!(transcript.lines().any(|line| line.starts_with(&typed)), "{}: {command}", block.place);
            found += 1;
        }
    }
    assert!(found >= 10, "the page has {found} commands");
}

#[test]
fn the_targets_of_make_in_the_documents_are_there() {
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
fn code_of_the_page_on_clients_is_that_of_the_packages() {
    const NAMES: &str = "<!-- ";
    let page = fs::read_to_string("docs/clients.md").expect("the page is there");
    let parts = page.split(NAMES).skip(1).map(|part| part.split_once(" -->\n```").expect("a block below the name"));
    let mut blocks = 0;
    for (name, rest) in parts {
        let source = fs::read_to_string(name).expect("the file is there");
        // The word for the language ends its first line.
        let (_, block) = rest.split_once('\n').expect("a line below the fence");
        let (block, _) = block.split_once("```").expect("an end of the block");
        assert!(source.contains(block), "{name} has not:\n{block}");
        blocks += 1;
    }
    assert_eq!(blocks, page.matches("\n```").count() / 2, "each block has the name of its file above it");
    assert!(blocks >= 6, "the page shows {blocks} blocks");
}

/// A new run of the benchmarks writes other figures into their page; then the README needs them too.
#[test]
fn figures_of_the_readme_are_those_of_the_benchmarks() {
    let readme = fs::read_to_string("README.md").expect("the README");
    let benchmarks = fs::read_to_string("docs/benchmarks.md").expect("the page of the benchmarks");
    let rows = readme.lines().filter(|line| line.starts_with("| ") && line.ends_with(" ms |"));
    let figures: Vec<_> =
        rows.flat_map(|row| row.split('|')).filter_map(|cell| cell.trim().strip_suffix(" ms")).collect();
    assert_eq!(figures.len(), 4, "{figures:?}");
    // The paragraphs above the plots: "rlock by Jedis: 16.9 ms; Redisson: 28,145 (1,668 times ours)."
    let summary: Vec<_> = benchmarks.lines().filter(|line| line.starts_with("**")).collect();
    for figure in figures {
        assert!(
            summary.iter().any(|line| line.contains(&format!(": {figure} "))),
            "{figure} ms is not in {summary:#?}"
        );
    }
}
