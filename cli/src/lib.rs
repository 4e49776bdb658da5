//! `rlock`, the command line tool of the rlock module: runs commands under locks, and shows who holds and who waits.
//!
//! `run` stands on the client crate, which waits, renews and notices losses. All else only looks, by commands that change
//! nothing, over connections of its own ([`observer`]); the one exception is `release --force`.
#![deny(unsafe_code)]
// They panic when nobody reads: see `exit::complain` and `text::print`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod address;
mod answers;
pub mod arguments;
pub mod exit;
mod list;
mod nodes;
pub mod observer;
mod release;
mod run;
mod show;
mod span;
mod text;
pub mod top;
mod wait;

use arguments::{Action, Arguments};
use exit::Failure;

/// Does what was asked for. Returns the status to exit with.
///
/// # Errors
///
/// A [`Failure`], with what to say and the status to exit with.
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
