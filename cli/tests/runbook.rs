//! The runbook: the logs of servers that do not start are those that it shows.

use crate::support::{Server, module_path};

/// Whether the log has each of these lines, and the runbook too.
#[track_caller]
fn is_in_the_runbook(log: &str, lines: &[&str]) {
    let page = std::fs::read_to_string("../docs/operations/runbook.md").expect("a page");
    let section = page.split("## The server does not start\n").nth(1).expect("a section");
    for line in lines {
        assert!(log.contains(line), "{line} is not in the log:\n{log}");
        assert!(section.contains(line), "the runbook lacks {line}");
    }
}

#[track_caller]
fn log_of(module_arguments: &str, line: &str) -> String {
    Server::try_start(module_arguments, &[line]).err().unwrap_or_else(|| panic!("the server starts with {line}"))
}

#[test]
fn append_only_file_with_a_lock_needs_the_module() {
    let mut server = Server::with_aof(&[]);
    server.client().acquire("k me PX 600000");
    server.kill();
    let log = server.try_restart_without_module().expect_err("the server starts");
    is_in_the_runbook(&log, &["Unknown command 'RLOCK.APPLY' reading the append only file"]);
    server.restart_in_place(&["--loadmodule", &module_path().display().to_string()]);
    assert!(server.client().holder("k").is_some(), "the file is intact");
    server.client().call("RLOCK.RELEASE k me");
    server.client().rewrite_append_only_file();
    server.kill();
    server.try_restart().expect("the server starts without the module");
}

#[test]
fn configuration_that_a_server_refuses_is_in_the_runbook() {
    let unknown = "Module Configuration detected without loadmodule directive or no ApplyConfig call: aborting";
    is_in_the_runbook(&log_of("", "rlock.max-lease 5000"), &[unknown]);
    let value = "Issue during loading of configuration rlock.max-lease-ms : argument must be between 1 and 31536000000 inclusive";
    let not_loaded = "not loaded: a value in the configuration is out of range";
    is_in_the_runbook(&log_of("", "rlock.max-lease-ms 0"), &[value, not_loaded]);
    let argument = "not loaded: unknown argument 'max-lease'; expected default-lease-ms, max-lease-ms, ";
    is_in_the_runbook(&log_of("max-lease 5000", ""), &[argument]);
    let lines = ["FATAL CONFIG FILE ERROR", ">>> 'requirepass a b'", "wrong number of arguments"];
    is_in_the_runbook(&log_of("", "requirepass a b"), &lines);
}
