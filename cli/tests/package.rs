//! The files that the Debian package installs, and the version of the tool.

use std::collections::BTreeMap;
use std::process::Command;

use crate::commands::text;
use crate::support::Server;

/// The settings in the comments of a configuration file: lines of the form `# rlock.NAME VALUE`.
fn settings(path: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).expect("a configuration file");
    let settings = text.lines().filter_map(|line| line.strip_prefix("# rlock.")?.split_once(' '));
    settings.map(|(name, value)| (format!("rlock.{name}"), value.to_owned())).collect()
}

#[test]
fn configuration_files_list_the_defaults_of_the_module() {
    let reply = Server::start().client().call("CONFIG GET rlock.*");
    let defaults: BTreeMap<_, _> = reply.array().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
    assert!(defaults.len() >= 9, "{defaults:?}");
    for path in ["../packaging/rlock.conf", "../redis.conf.example"] {
        assert_eq!(settings(path), defaults, "{path}");
    }
}

/// Development builds have the same version, and differ in their commits.
#[test]
fn version_names_the_commit_of_the_build() {
    let said = Command::new(env!("CARGO_BIN_EXE_rlock")).arg("--version").output().expect("the tool runs");
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let head = git.ok().filter(|git| git.status.success()).map(|git| text(&git.stdout).trim().to_owned());
    let commit = std::env::var("RLOCK_COMMIT").ok().or(head).unwrap_or_else(|| "unknown".to_owned());
    assert_eq!(text(&said.stdout), format!("rlock {}, commit {commit}\n", env!("CARGO_PKG_VERSION")));
}
