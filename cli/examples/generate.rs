//! Writes the manual pages and the completions of the shells, from the same definition as `--help`:
//!
//!     cargo run --package rlock-cli --example generate -- FOLDER

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use rlock_cli::arguments::Arguments;

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("usage: generate FOLDER"))?;
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(Arguments::command(), &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "rlock", &completions)?;
    }
    Ok(())
}
