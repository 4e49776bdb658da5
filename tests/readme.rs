//! What the documents show is what a server answers: every console block of them, from the first page to the last, line by line, is typed
//! into one server, and compared.
//!
//! A block with the word `console` is run. One with the word `sh` is only for a reader's own machine: it builds, installs, or runs a
//! service. Of that one only the targets of make are looked at.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::support::{OwnedProcess, Server, cli, eventually};

const CLIENT_PROMPT: &str = "127.0.0.1:6379> ";
const SHELL_PROMPT: &str = "$ ";

/// Follows each answer, so that its end is seen.
const END: &str = "end-of-the-answer";

const SOON: Duration = Duration::from_secs(20);

/// A fenced block of a page.
struct Block {
    /// The page, and the line where it begins.
    place: String,
    /// The word behind the fence.
    language: String,
    text: String,
}

impl Block {
    /// The commands behind a prompt, and the lines that follow each.
    fn steps(&self, prompt: &str) -> Vec<(String, String)> {
        let mut steps: Vec<(String, String)> = Vec::new();
        for line in self.text.lines() {
            match (line.strip_prefix(prompt), steps.last_mut()) {
                (Some(command), _) => steps.push((command.to_owned(), String::new())),
                (None, Some((_, answer))) => *answer += &format!("{line}\n"),
                (None, None) => panic!("{}: a console block begins with a prompt", self.place),
            }
        }
        steps
    }
}

/// The pages in the order in which somebody may read them.
fn pages() -> Vec<PathBuf> {
    let folder = |name: &str| {
        let entries = fs::read_dir(name).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut pages: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
        pages.sort();
        pages
    };
    let rest = [folder("docs"), folder("docs/commands")].concat();
    [PathBuf::from("README.md")].into_iter().chain(rest).collect()
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).expect("a readable page");
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        // A block in an item of a list is indented.
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
    assert!(!is_inside, "{}: a block has no end", page.display());
    blocks
}

/// What differs from one run to the next, and nothing else, is replaced: fencing tokens, by their order, which has to be the same; and
/// the value of a field whose name ends in -ms.
struct Shape {
    tokens: Vec<u64>,
}

impl Shape {
    fn of(&mut self, answer: &str) -> String {
        let mut is_time = false;
        let mut lines = Vec::new();
        for line in answer.trim_end().lines() {
            let words: Vec<_> = line
                .trim_end()
                .split(' ')
                .map(|word| if is_time { of_time(word) } else { self.of_token(word) })
                .collect();
            is_time = line.ends_with("-ms\"");
            lines.push(words.join(" "));
        }
        lines.join("\n")
    }

    /// Tokens begin at the microseconds of the clock, and so have 16 digits for the next two centuries.
    fn of_token(&mut self, word: &str) -> String {
        let Some(token) = word.parse::<u64>().ok().filter(|_| word.len() == 16) else {
            return word.to_owned();
        };
        let known = self.tokens.iter().position(|known| *known == token);
        let number = known.unwrap_or_else(|| {
            self.tokens.push(token);
            self.tokens.len() - 1
        });
        format!("<token {number}>")
    }
}

fn of_time(word: &str) -> String {
    if word.parse::<u64>().is_ok() { "<time>".to_owned() } else { word.to_owned() }
}

/// A shell in a folder of its own, whose `redis-cli` is the one under test and talks to the server of the test.
struct Shell {
    /// Ends the shell, whatever happens to the test.
    _process: OwnedProcess,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(folder: &Path, port: u16) -> Shell {
        let program = folder.join("redis-cli");
        // As in a terminal, but not into a file. The shell's own input is not for the client.
        let cli = cli();
        let (cli, seconds) = (cli.display(), SOON.as_secs());
        // The client of the server's own name is looked for elsewhere than here.
        let outer = std::env::var("PATH").expect("a path");
        let script = format!(
            "#!/bin/sh\nif [ -f /dev/stdout ]; then layout=--raw; else layout=--no-raw; fi\nPATH='{outer}'\n\
             exec timeout {seconds} {cli} $layout -p {port} \"$@\" < /dev/null\n"
        );
        fs::write(&program, script).expect("a script");
        let mode = Command::new("chmod").arg("+x").arg(&program).status();
        assert!(mode.is_ok_and(|status| status.success()));
        let path = format!("{}:{outer}", folder.display());
        let mut shell = Command::new("sh");
        let child = shell.current_dir(folder).env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child: Child = child.expect("the shell runs");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Shell { _process: OwnedProcess::new(child), input, output }
    }

    fn type_in(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}\necho {END}").expect("the shell reads");
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("an answer");
            assert_ne!(length, 0, "the shell has ended at {command}");
            if line.trim_end() == END {
                return answer;
            }
            answer += &line;
        }
    }
}

/// The commands of a session with the client, over one connection, and what each was answered.
fn in_one_session(server: &Server, commands: &[(String, String)]) -> Vec<String> {
    let mut child = Command::new("timeout")
        .arg(SOON.as_secs().to_string())
        .arg(cli())
        .args(["--no-raw", "-p", &server.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line client runs");
    let mut input = child.stdin.take().expect("its input");
    for (command, _) in commands {
        writeln!(input, "{command}\nECHO {END}").expect("the client reads");
    }
    drop(input);
    let output = child.wait_with_output().expect("the client ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut answers: Vec<_> = text.split(&format!("\"{END}\"\n")).map(str::to_owned).collect();
    assert_eq!(answers.pop().as_deref(), Some(""), "the session ended before its time");
    answers
}

fn in_a_shell(server: &Server, commands: &[(String, String)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shell = Shell::start(folder.path(), server.port());
    let mut client = server.client();
    let answers = commands.iter().map(|(command, _)| {
        let waiting = client.info_number("rlock_waiting");
        let answer = shell.type_in(command);
        if command.ends_with('&') {
            // A reader has typed the next line later than the server has seen this one.
            eventually(SOON, || client.info_number("rlock_waiting") > waiting);
        }
        answer
    });
    answers.collect()
}

#[test]
fn every_session_of_the_documents_is_what_a_server_answers() {
    // MODULE UNLOAD is shown too, and refused for another reason without this.
    let mut server = Server::with(&["enable-module-command local"]);
    let mut steps = 0;
    let mut pages_with_sessions = BTreeSet::new();
    for page in pages() {
        for block in blocks(&page).into_iter().filter(|block| block.language == "console") {
            let is_session = block.text.starts_with(CLIENT_PROMPT);
            let commands = block.steps(if is_session { CLIENT_PROMPT } else { SHELL_PROMPT });
            let answers = if is_session { in_one_session(&server, &commands) } else { in_a_shell(&server, &commands) };
            let (mut shown_shape, mut actual_shape) = (Shape { tokens: Vec::new() }, Shape { tokens: Vec::new() });
            for ((command, shown), actual) in commands.iter().zip(&answers) {
                assert_eq!(actual_shape.of(actual), shown_shape.of(shown), "{}: {command}", block.place);
                steps += 1;
            }
            for tokens in [shown_shape.tokens, actual_shape.tokens] {
                assert!(tokens.is_sorted(), "{}: a later hold has a lower token: {tokens:?}", block.place);
            }
            pages_with_sessions.insert(page.clone());
        }
    }
    assert!(pages_with_sessions.len() >= 7 && steps >= 60, "{steps} lines in {pages_with_sessions:?}");
    server.assert_alive();
}

#[test]
fn no_session_of_the_documents_goes_without_a_test() {
    for block in pages().iter().flat_map(|page| blocks(page)).filter(|block| block.language != "console") {
        for prompt in [CLIENT_PROMPT, "$ redis-cli"] {
            assert!(!block.text.lines().any(|line| line.starts_with(prompt)), "{}: nothing runs this", block.place);
        }
    }
}

#[test]
fn the_targets_of_make_in_the_documents_are_there() {
    let makefile = fs::read_to_string("Makefile").expect("the Makefile");
    let targets: BTreeSet<_> = makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let mut found = 0;
    for page in pages() {
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
