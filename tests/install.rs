//! `make run`, `make install`, and the hints of `scripts/need` about missing programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::support::{Client, OwnedProcess, Server, eventually, free_port, module_path, server_program};

fn make(arguments: &[&str]) -> Output {
    // The settings of the `make` that runs the tests must not reach this one.
    let output = Command::new("make")
        .env_remove("MAKEFLAGS")
        .env_remove("MAKEOVERRIDES")
        .env_remove("MAKELEVEL")
        .args(arguments)
        .output();
    output.expect("make runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn installed_module_is_readable_by_all_users_and_loads() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let module = module_path().display().to_string();
    for (prefix, folder) in [("/usr", "usr/lib/redis/modules"), ("/opt/redis", "opt/redis/lib/redis/modules")] {
        let arguments = [
            "install".to_owned(),
            format!("DESTDIR={}", root.path().display()),
            format!("PREFIX={prefix}"),
            format!("MODULE={module}"),
        ];
        // Twice, because the second run has to replace the first one's files.
        for _ in 0..2 {
            let output = make(&arguments.each_ref().map(String::as_str));
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(text(&output.stdout).contains(&format!("loadmodule {prefix}/lib/redis/modules/librlock.so")));
        }
        let installed = root.path().join(folder).join("librlock.so");
        let mode = |path: &Path| fs::metadata(path).expect("an installed file").permissions().mode() & 0o777;
        assert_eq!(mode(&installed), 0o755);
        assert_eq!(mode(installed.parent().expect("a folder")), 0o755);
        assert_eq!(fs::read_dir(root.path().join(folder)).expect("a folder").count(), 1);

        let server = Server::without_module(&["enable-module-command local"]);
        let mut client = server.client();
        assert_eq!(client.call(format!("MODULE LOAD {}", installed.display())), "OK");
        client.acquire("job a");
    }
}

#[test]
fn make_run_refuses_a_port_in_use_before_it_builds() {
    let server = Server::start();
    let output = make(&["run", &format!("PORT={}", server.port())]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains(&format!("port {} is in use", server.port())) && said.contains("PORT="), "{said}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn ctrl_c_ends_the_server_of_make_run_and_removes_its_data() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let port = free_port();
    // Tests that run in the background may have SIGINT ignored.
    let mut run = Command::new("env");
    run.args(["--default-signal=INT", "scripts/run"])
        .env("TMPDIR", temporary.path())
        .env("MODULE", module_path())
        .env("PORT", port.to_string());
    run.env("SERVER", server_program()).stdout(Stdio::null());
    // A process group of its own, because in a terminal Ctrl-C goes to all processes of a command.
    let child = run.process_group(0).spawn().expect("the script runs");
    let group = format!("-{}", child.id());
    let mut run = OwnedProcess::new(child);
    eventually(Duration::from_secs(30), || Client::connect(port).is_ok());
    let mut client = Client::connect(port).expect("the server runs");
    client.acquire("job a");
    let server = client.info("process_id");
    let signal = |name: &str, to: &str| {
        // The shell's built-in `kill`: a minimal Debian lacks the program.
        assert!(
            Command::new("bash").args(["-c", &format!("kill {name} -- {to}")]).status().expect("bash runs").success()
        );
    };
    // The server notices late: when it continues, all signals are pending.
    signal("-STOP", &server);
    signal("-INT", &group);
    sleep(Duration::from_millis(200));
    signal("-CONT", &server);
    assert!(run.wait().success());
    assert!(Client::connect(port).is_err(), "the server is still running");
    assert_eq!(fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}

/// Runs `scripts/need` as a user without root, with only these programs installed. Returns whether
/// it succeeded, and its error output.
fn need(programs: &[&str], needs: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = |name: &str, body: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/bash\n{body}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script that runs");
    };
    script("id", "echo 1000");
    for program in programs {
        script(program, "exit 1");
    }
    for program in ["bash", "ls"] {
        symlink(Path::new("/bin").join(program), folder.path().join(program)).expect("a link");
    }
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/need");
    let output =
        Command::new("/bin/bash").arg(tool).args(needs).env("PATH", folder.path()).output().expect("bash runs");
    (output.status.success(), text(&output.stderr))
}

#[test]
fn need_prints_one_apt_get_line_for_users_without_root() {
    let (ok, said) = need(&["apt-get", "cargo"], &["build", "server"]);
    assert!(!ok);
    let lines: Vec<_> = said.lines().filter(|line| line.trim_start().starts_with("sudo apt-get install ")).collect();
    let [line] = lines.as_slice() else {
        panic!("{said}");
    };
    for package in ["gcc", "redis-server", "redis-tools"] {
        assert!(line.contains(&format!(" {package}")), "{line}");
    }
    assert!(!said.contains("as root"), "{said}");
}

#[test]
fn need_names_missing_rust_together_with_the_rest() {
    let (ok, said) = need(&["apt-get"], &["build"]);
    assert!(!ok && said.contains("rustup.rs") && said.contains(" gcc"), "{said}");
    let (ok, said) = need(&["apt-get", "cc"], &["build"]);
    assert!(!ok && said.contains("rustup.rs"), "{said}");
}

#[test]
fn need_prints_nothing_if_nothing_is_missing() {
    assert_eq!(need(&["apt-get", "redis-server", "redis-cli"], &["server"]), (true, String::new()));
}
