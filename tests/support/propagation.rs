//! The commands that a server propagates, read from its append-only file. Replicas receive the same
//! commands.

use std::fs;

use super::reply::Reply;
use super::server::Server;

/// Returns the commands appended since the last rewrite, each as its words. SELECT is left out,
/// because it is not a change.
///
/// The server writes the file before it replies, so everything that a client has seen is in it.
#[track_caller]
pub fn propagated(server: &Server) -> Vec<Vec<Vec<u8>>> {
    let folder = server.folder().join("appendonlydir");
    let files = fs::read_dir(folder).expect("a server with an append-only file");
    let mut increments: Vec<_> = files
        .map(|file| file.expect("a readable entry").path())
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    increments.sort();
    let newest = increments.last().expect("an increment is always open");
    let stream = fs::read(newest).expect("a readable append-only file");

    let mut commands = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let (command, length) = Reply::parse(&stream[at..]).expect("a complete command");
        let words: Vec<_> = command.array().iter().map(|word| word.bytes().to_vec()).collect();
        if words[0] != b"SELECT" {
            commands.push(words);
        }
        at += length;
    }
    commands
}
