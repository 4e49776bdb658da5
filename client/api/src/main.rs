//! Compares the public API of rlock-client with `client/public-api.txt`, so that no change goes
//! unnoticed. Run it with `make client-api`.
//!
//! It needs a nightly Rust for rustdoc's JSON output, so it is not part of the tests. Without a
//! nightly it prints that it compares nothing. `--write` updates the list.

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let nightly = Command::new("rustup").args(["run", "nightly", "rustdoc", "--version"]).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: listing the public API needs a nightly Rust: rustup toolchain install nightly --profile minimal"
        );
        return Ok(ExitCode::SUCCESS);
    }
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let description = rustdoc_json::Builder::default()
        .toolchain("nightly")
        .manifest_path(client.join("Cargo.toml"))
        .all_features(true)
        .quiet(true)
        .build()?;
    let api = public_api::Builder::from_rustdoc_json(description)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?
        .to_string();
    let list = client.join("public-api.txt");
    if std::env::args().any(|argument| argument == "--write") {
        std::fs::write(&list, api)?;
        return Ok(ExitCode::SUCCESS);
    }
    let listed = std::fs::read_to_string(&list)?;
    let differences = differences(&listed, &api);
    if differences.is_empty() {
        println!("The public API of rlock-client matches client/public-api.txt: {} items.", listed.lines().count());
        return Ok(ExitCode::SUCCESS);
    }
    println!("The public API of rlock-client differs from client/public-api.txt:\n");
    differences.iter().for_each(|line| println!("{line}"));
    println!("\nTo accept the change: make client-api WRITE=1");
    Ok(ExitCode::FAILURE)
}

/// The lines that only one of two texts has: `-` for the first, `+` for the second.
fn differences(first: &str, second: &str) -> Vec<String> {
    let only_in = |one: &str, other: &str, sign: char| {
        let others: std::collections::BTreeSet<_> = other.lines().collect();
        one.lines().filter(|line| !others.contains(line)).map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [only_in(first, second, '-'), only_in(second, first, '+')].concat()
}
