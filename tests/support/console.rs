//! Runs the console sessions of the documentation on one server, from the first page to the last,
//! and compares each reply with the page.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::pages::{Block, blocks, pages};
use super::{OwnedProcess, Server, cli, eventually};

/// Printed after each reply, to mark its end.
const END: &str = "end-of-the-answer";

const SOON: Duration = Duration::from_secs(20);

/// Replaces the parts of a reply that vary between runs: fencing tokens, by numbers in the order of
/// their first appearance; values of the fields `…-ms` and `client`; and, in the output of the
/// command-line tool, durations and the padding of columns.
struct Shape {
    tokens: Vec<u64>,
    is_of_tool: bool,
}

impl Shape {
    fn new() -> Shape {
        Shape { tokens: Vec::new(), is_of_tool: false }
    }

    fn of(&mut self, answer: &str) -> String {
        let mut is_time = false;
        let mut lines = Vec::new();
        for line in answer.trim_end().lines() {
            let words = line.trim_end().split(' ').filter(|word| !(self.is_of_tool && word.is_empty()));
            let words: Vec<_> = words.collect();
            let words: Vec<_> =
                words.into_iter().map(|word| if is_time { of_time(word) } else { self.of_word(word) }).collect();
            is_time = line.ends_with("-ms\"") || line.ends_with("\"client\"");
            lines.push(words.join(" "));
        }
        lines.join("\n")
    }

    /// Tokens begin at the microseconds of the clock, so they have 16 digits for the next two
    /// centuries.
    fn of_word(&mut self, word: &str) -> String {
        if self.is_of_tool && is_span(word) {
            return "<span>".to_owned();
        }
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

/// A duration as the tool prints it: `7ms`, `12.3s`, `1m01s`, `2h30m`, `1d01h`.
fn is_span(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h'])
        && word.chars().all(|letter| letter.is_ascii_digit() || ".dhms".contains(letter))
}

/// A shell in its own folder. Its `redis-cli` and `rlock` are the programs under test and connect
/// to the server of the test.
struct Shell {
    /// Kills the shell when dropped, however the test ends.
    _process: OwnedProcess,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(folder: &Path, port: u16, tool: Option<&Path>) -> Shell {
        // The wrapper in this folder must not call itself, so it searches the outer PATH.
        let outer = std::env::var("PATH").expect("a path");
        let (cli, seconds) = (cli(), SOON.as_secs());
        // Into a file, `redis-cli` prints raw output; otherwise, as at a terminal, formatted
        // output. It must not read the shell's input.
        write_program(
            &folder.join("redis-cli"),
            &format!(
                "if [ -f /dev/stdout ]; then layout=--raw; else layout=--no-raw; fi\nPATH='{outer}'\n\
                 [ \"$1\" != -p ] || shift 2\nexec timeout {seconds} {} $layout -p {port} \"$@\" < /dev/null\n",
                cli.display()
            ),
        );
        if let Some(tool) = tool {
            // A terminal shows both stdout and stderr.
            let tool = tool.display();
            write_program(&folder.join("rlock"), &format!("exec timeout {seconds} {tool} \"$@\" 2>&1 < /dev/null\n"));
        }
        let path = format!("{}:{outer}", folder.display());
        let mut shell = Command::new("sh");
        shell.current_dir(folder).env("PATH", path).env("RLOCK_URL", format!("redis://127.0.0.1:{port}/"));
        let mut child: Child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the shell runs");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Shell { _process: OwnedProcess::new(child), input, output }
    }

    fn type_in(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}\necho {END}").expect("the shell accepts input");
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("readable output");
            assert_ne!(length, 0, "the shell ended at {command}");
            if line.trim_end() == END {
                return answer;
            }
            answer += &line;
        }
    }
}

fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}")).expect("a script");
    let mode = Command::new("chmod").arg("+x").arg(path).status();
    assert!(mode.is_ok_and(|status| status.success()));
}

/// Runs the commands of a `redis-cli` session over one connection, and returns the reply to each.
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
        writeln!(input, "{command}\nECHO {END}").expect("the client accepts input");
    }
    drop(input);
    let output = child.wait_with_output().expect("the client ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut answers: Vec<_> = text.split(&format!("\"{END}\"\n")).map(str::to_owned).collect();
    assert_eq!(answers.pop().as_deref(), Some(""), "the session ended early");
    answers
}

fn in_a_shell(server: &Server, tool: Option<&Path>, commands: &[(String, String)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shell = Shell::start(folder.path(), server.port(), tool);
    let mut client = server.client();
    let mut requests = || client.info_number("rlock_waiting") + client.info_number("rlock_granted_at_once");
    let answers = commands.iter().map(|(command, _)| {
        let before = requests();
        let answer = shell.type_in(command);
        if command.ends_with('&') {
            // A person would type the next line only after the server has received this one.
            eventually(SOON, || requests() > before);
        }
        answer
    });
    answers.collect()
}

/// The sessions that ran.
pub struct Ran {
    pub steps: usize,
    pub steps_of_tool: usize,
    pub pages: BTreeSet<PathBuf>,
}

/// Runs every session of the documentation in order, on one server. Without a tool it skips the
/// sessions that use one.
#[track_caller]
pub fn run_every_session(root: &Path, tool: Option<&Path>) -> Ran {
    // The documentation shows MODULE UNLOAD. Without this setting the server would refuse it for
    // another reason.
    let mut server = Server::with(&["enable-module-command local"]);
    let mut ran = Ran { steps: 0, steps_of_tool: 0, pages: BTreeSet::new() };
    for page in pages(root) {
        for block in blocks(&page).into_iter().filter(|block| block.language == "console") {
            if block.needs_tool() && tool.is_none() {
                continue;
            }
            run(&server, tool, &block, &mut ran);
            ran.pages.insert(page.clone());
        }
    }
    server.assert_alive();
    ran
}

#[track_caller]
fn run(server: &Server, tool: Option<&Path>, block: &Block, ran: &mut Ran) {
    let commands = block.steps();
    let answers =
        if block.is_client_session() { in_one_session(server, &commands) } else { in_a_shell(server, tool, &commands) };
    let (mut shown_shape, mut actual_shape) = (Shape::new(), Shape::new());
    for ((command, shown), actual) in commands.iter().zip(&answers) {
        let is_of_tool = command.starts_with("rlock ");
        (shown_shape.is_of_tool, actual_shape.is_of_tool) = (is_of_tool, is_of_tool);
        assert_eq!(actual_shape.of(actual), shown_shape.of(shown), "{}: {command}", block.place);
        ran.steps += 1;
        ran.steps_of_tool += usize::from(is_of_tool);
    }
    for tokens in [shown_shape.tokens, actual_shape.tokens] {
        assert!(tokens.is_sorted(), "{}: a later hold has a lower token: {tokens:?}", block.place);
    }
}
