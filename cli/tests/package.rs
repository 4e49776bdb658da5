//! The files that the Debian package installs.

use std::collections::BTreeMap;

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
