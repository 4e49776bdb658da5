//! The console sessions in the documents, run from the first page to the last on one server.

use std::path::Path;

use crate::support::run_every_session;

#[test]
fn sessions_in_documents_show_the_output_of_the_tool() {
    let told = run_every_session(Path::new(".."), Some(Path::new(env!("CARGO_BIN_EXE_rlock"))));
    assert!(told.steps_of_tool >= 12, "{} commands of the tool in {:?}", told.steps_of_tool, told.pages);
}
