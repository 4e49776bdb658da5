//! The scripts of the container image, on a server of this machine: programs before the real ones
//! on PATH replace the paths of the image.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::commands::text;
use crate::eventually;
use crate::support::{OwnedProcess, Server, cli, free_port, module_path, server_program};

/// A folder for the data, with the programs that the scripts call.
struct Image {
    folder: TempDir,
    port: u16,
}

impl Image {
    fn new() -> Self {
        let image = Self { folder: tempfile::tempdir().expect("a folder"), port: free_port() };
        // The real programs are on the outer PATH, where these are not.
        let outer = std::env::var("PATH").expect("a path");
        let folder = image.folder.path().display();
        for product in ["valkey", "redis"] {
            let server = format!(
                "sed 's#/usr/lib/redis/modules/librlock.so#{}#; s#^dir /data#dir {folder}#' \"$1\" > {folder}/configuration\n\
                 shift\nPATH='{outer}' exec {} {folder}/configuration \"$@\"",
                module_path().display(),
                Path::new(&server_program()).display(),
            );
            image.write(&format!("{product}-server"), &server);
            image.write(&format!("{product}-cli"), &format!("PATH='{outer}' exec {} \"$@\"", cli().display()));
        }
        image
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, script: &str) {
        fs::write(self.path(name), format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o755)).expect("rights");
    }

    /// A script of the image, with these variables.
    fn script(&self, name: &str, environment: &[(&str, &str)]) -> Command {
        let mut script = Command::new("sh");
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").expect("a path"));
        script.arg(format!("../packaging/container/{name}")).stdin(Stdio::null());
        script.env_clear().env("PATH", path).envs(environment.iter().copied());
        script
    }

    /// Starts the server, and waits until it answers. Returns what the entry point has told.
    fn start(&self, environment: &[(&str, &str)]) -> (OwnedProcess, String) {
        let log = File::create(self.path("log")).expect("a log");
        let mut entry = self.script("entrypoint", environment);
        entry.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--logfile", "server.log"]);
        entry.stdout(log.try_clone().expect("a log")).stderr(log);
        let mut process = OwnedProcess::new(entry.spawn().expect("sh runs"));
        let told = || fs::read_to_string(self.path("log")).expect("a log");
        eventually(|| {
            assert!(!process.has_ended(), "{}", told());
            self.is_healthy(self.port, environment)
        });
        (process, told())
    }

    fn is_healthy(&self, port: u16, environment: &[(&str, &str)]) -> bool {
        let output = self.script("health", environment).arg(port.to_string()).output().expect("sh runs");
        output.status.success()
    }

    /// The value of a setting, as a user with this password sees it.
    fn setting(&self, name: &str, password: &str) -> String {
        let mut question = Command::new(cli());
        question.args(["-p", &self.port.to_string(), "--raw", "CONFIG", "GET", name]);
        let answer = question.env("REDISCLI_AUTH", password).env("VALKEYCLI_AUTH", password).output();
        let answer = answer.expect("the command line client runs");
        text(&answer.stdout).lines().nth(1).unwrap_or_default().to_owned()
    }
}

#[test]
fn variables_of_the_container_are_settings_of_the_server() {
    let image = Image::new();
    let password = "a \"b\\c' $d #e";
    let environment = [
        ("RLOCK_SETTING_MAX_LEASE_MS", "5000"),
        ("RLOCK_SETTING_EXCLUSION", "restart"),
        ("SAVE", "3600 1 60 100"),
        ("MAXMEMORY", "64mb"),
        ("REQUIREPASS", password),
    ];
    let (_server, told) = image.start(&environment);
    assert!(!told.contains("entrypoint:"), "{told}");
    for (name, value) in [
        ("rlock.max-lease-ms", "5000"),
        ("rlock.exclusion", "restart"),
        ("save", "3600 1 60 100"),
        ("maxmemory", "67108864"),
        ("masterauth", password),
    ] {
        assert_eq!(image.setting(name, password), value, "{name}");
    }
    assert!(image.is_healthy(image.port, &environment));
    assert!(!image.is_healthy(free_port(), &environment));
    assert!(!image.is_healthy(image.port, &[("REQUIREPASS", "another")]));
}

/// The variables of Kubernetes for a Service named `rlock-metrics`, and misspelt settings.
#[test]
fn variables_that_are_no_settings_are_named_and_ignored() {
    let image = Image::new();
    let (_server, told) = image.start(&[
        ("RLOCK_URL", "redis://127.0.0.1/"),
        ("RLOCK_METRICS_SERVICE_HOST", "10.0.0.1"),
        ("RLOCK_METRICS_PORT_9121_TCP", "tcp://10.0.0.1:9121"),
        ("RLOCK_SETTING_MAX_LEASE", "5000"),
        ("RLOCK_MAX_LEASE_MS", "5000"),
        ("RLOCK_SETTING_MAX_WAITERS", "7"),
    ]);
    let expected = "entrypoint: ignored, because they are no settings: RLOCK_MAX_LEASE_MS \
                    RLOCK_METRICS_PORT_9121_TCP RLOCK_METRICS_SERVICE_HOST RLOCK_SETTING_MAX_LEASE; \
                    expected RLOCK_SETTING_DEFAULT_LEASE_MS RLOCK_SETTING_MAX_LEASE_MS ";
    assert!(told.contains(expected), "{told}");
    assert_eq!(image.setting("rlock.max-waiters", ""), "7");
}

#[test]
fn container_knows_every_setting_of_the_module() {
    let settings = Server::start().client().call("CONFIG GET rlock.*");
    let settings: Vec<_> = settings.array().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
    assert!(!settings.is_empty());
    let variable = |name: &str| name.replace("rlock.", "RLOCK_SETTING_").replace('-', "_").to_uppercase();
    let environment: Vec<_> = settings.iter().map(|(name, value)| (variable(name), value.as_str())).collect();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let (_server, told) = Image::new().start(&environment);
    assert!(!told.contains("entrypoint:"), "{told}");
}

#[test]
fn value_with_a_line_break_is_refused_by_the_name_of_its_variable() {
    for name in ["REQUIREPASS", "MAXMEMORY", "RLOCK_SETTING_MAX_WAITERS"] {
        let output = Image::new().script("entrypoint", &[(name, "7\n8")]).output().expect("sh runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(text(&output.stderr), format!("entrypoint: {name} has a line break; expected one line\n"));
    }
}
