//! The program: parses the arguments, runs the subcommand, prints the error.
#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rlock_cli::arguments::Arguments;
use rlock_cli::exit::{self, Failure};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let written = error.print().and_then(|()| io::stdout().flush());
            if error.use_stderr() {
                return ExitCode::from(exit::FAILED);
            }
            return exit_with(exit::unless_pipe_is_closed(written).map(|()| exit::DONE));
        }
    };
    // With several providers linked, rustls chooses none. It fails only if one was chosen already.
    drop(rustls::crypto::ring::default_provider().install_default());
    // One thread: there is nothing to do in parallel, and the kernel kills the command when the
    // thread that started it ends.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            exit::complain(&error.to_string());
            return ExitCode::from(exit::FAILED);
        }
    };
    exit_with(runtime.block_on(rlock_cli::act(arguments)))
}

/// The exit code of an outcome. Prints the message of a failure.
fn exit_with(outcome: Result<u8, Failure>) -> ExitCode {
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if !failure.message.is_empty() {
                exit::complain(&failure.message);
            }
            ExitCode::from(failure.status)
        }
    }
}
