//! What the documents show of the tool is what it prints: every session of them, those of the command line client too, from the first page to the
//! last, on one server.

use std::path::Path;

use crate::support::run_every_session;

#[test]
fn every_session_of_the_documents_is_what_the_tool_prints() {
    let told = run_every_session(Path::new(".."), Some(Path::new(env!("CARGO_BIN_EXE_rlock"))));
    assert!(told.steps_of_tool >= 12, "{} lines of the tool in {:?}", told.steps_of_tool, told.pages);
}
