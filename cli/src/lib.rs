//! `rlock`, the command line tool of the rlock module: it runs commands under locks, and shows the
//! holders and waiters of locks.
//!
//! `run` uses the client crate, which waits, renews and detects a lost lock. The other subcommands
//! use their own connections ([`observer`]) and change nothing, except `release --force`.
#![deny(unsafe_code)]
// They panic when the reader has closed the pipe: use `exit::complain` and `text::print`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod address;
mod answers;
pub mod arguments;
pub mod exit;
mod list;
mod nodes;
pub mod observer;
mod release;
mod retry;
mod run;
mod show;
mod span;
mod text;
pub mod top;
mod wait;

use arguments::{Action, Arguments};
use exit::Failure;

/// Runs the subcommand. Returns the exit status.
///
/// # Errors
///
/// A [`Failure`], with the message and the exit status.
pub async fn act(arguments: Arguments) -> Result<u8, Failure> {
    let url = arguments.url.as_str();
    match arguments.action {
        Action::Run(run) => run::run(url, run).await,
        Action::Top(options) => top::top(url, options).await,
        Action::Ls(options) => list::list(url, options).await,
        Action::Show(options) => show::show(url, options).await,
        Action::Release(options) => release::release(url, options).await,
        Action::Wait(options) => wait::wait(url, options).await,
    }
}
