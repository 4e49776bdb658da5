//! Sets `RLOCK_COMMIT`, the commit of the build. The module logs it when it loads, and the tool shows
//! it with `--version`. A build outside a checkout takes it from the environment.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=RLOCK_COMMIT");
    // A new commit or another branch changes one of these files. List only files that exist: cargo
    // treats a missing file as changed, and would rebuild the module each time. Ask git for the
    // paths: in a linked worktree they are not in `.git/`.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let named = std::env::var("RLOCK_COMMIT").ok();
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=RLOCK_COMMIT={commit}");
}

/// The output of a git command; `None` outside a checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}
