//! What the documents show is what a server answers: each session in them is typed into redis-cli and compared.

use std::fs;
use std::process::Command;

use crate::support::{Server, cli};

const PROMPT: &str = "127.0.0.1:6379> ";

/// A session: commands, and the lines that followed each.
fn sessions(document: &str) -> Vec<Vec<(String, String)>> {
    let text = fs::read_to_string(document).expect("the document is there");
    let blocks = text.split("```").skip(1).step_by(2);
    let with_prompt = blocks.filter(|block| block.contains(PROMPT));
    with_prompt
        .map(|block| {
            let steps = block.split(PROMPT).skip(1);
            let split = |step: &str| {
                let (command, answer) = step.split_once('\n').expect("an answer below the command");
                (command.to_owned(), answer.trim_end().to_owned())
            };
            steps.map(split).collect()
        })
        .collect()
}

/// Tokens and times differ from one run to the next: a long number stands for any long number, and white space is laid out
/// by the widest of them.
fn shape(answer: &str) -> String {
    let words = answer.split_whitespace();
    let shapes = words.map(|word| if word.len() >= 5 && word.parse::<u64>().is_ok() { "<number>" } else { word });
    shapes.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_true_to_life(document: &str, at_least: usize) {
    let mut server = Server::start();
    let mut steps = 0;
    for session in sessions(document) {
        for (command, shown) in session {
            let output = Command::new(cli())
                .args(["--no-raw", "-p", &server.port().to_string()])
                .args(command.split_whitespace())
                .output()
                .expect("the command line client runs");
            let answer = String::from_utf8_lossy(&output.stdout);
            assert_eq!(shape(&answer), shape(&shown), "{document}: {command}");
            steps += 1;
        }
    }
    assert!(steps >= at_least, "{document} shows {steps} commands");
    server.assert_alive();
}

#[test]
fn the_session_in_the_readme_is_what_a_server_answers() {
    assert_true_to_life("README.md", 9);
}

#[test]
fn the_session_in_the_page_on_fair_locks_is_what_a_server_answers() {
    assert_true_to_life("docs/commands/rfairlock.md", 5);
}

#[test]
fn the_sessions_in_the_page_on_operations_are_what_a_server_answers() {
    assert_true_to_life("docs/operations.md", 9);
}

#[test]
fn the_sessions_in_the_pages_on_the_other_kinds_are_what_a_server_answers() {
    assert_true_to_life("docs/commands/rrwlock.md", 8);
    assert_true_to_life("docs/commands/rsemaphore.md", 8);
    assert_true_to_life("docs/commands/many.md", 6);
}

#[test]
fn the_code_in_the_page_on_clients_is_that_of_the_examples() {
    const NAMES: &str = "<!-- examples/";
    let page = fs::read_to_string("docs/clients.md").expect("the page is there");
    let parts = page.split(NAMES).skip(1).map(|part| part.split_once(" -->\n```").expect("a block below the name"));
    let mut blocks = 0;
    for (name, rest) in parts {
        let example = fs::read_to_string(format!("examples/{name}")).expect("the example is there");
        // The word for the language ends its first line.
        let (_, block) = rest.split_once('\n').expect("a line below the fence");
        let (block, _) = block.split_once("```").expect("an end of the block");
        assert!(example.contains(block), "examples/{name} has not:\n{block}");
        blocks += 1;
    }
    assert_eq!(blocks, page.matches("\n```").count() / 2, "each block has the name of its file above it");
    assert!(blocks >= 6, "the page shows {blocks} blocks");
}
