//! Puts the commit that the module was built from into it, for the line that it logs when it is loaded.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A new commit or another branch changes one of these; outside a checkout neither exists, which is fine.
    println!("cargo:rerun-if-changed=.git/HEAD");
    println!("cargo:rerun-if-changed=.git/logs/HEAD");
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".into(), |commit| commit.trim().to_owned());
    println!("cargo:rustc-env=RLOCK_COMMIT={commit}");
}
