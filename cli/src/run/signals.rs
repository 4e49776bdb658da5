//! The signals that rlock forwards to the command.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that end a command or notify it.
const FORWARDED: [Signal; 6] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// The signals that this process receives.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to receive the signals. A signal that was ignored when rlock started (nohup(1), a
    /// background job of a script) stays ignored, by the command too.
    pub(crate) fn listen() -> io::Result<Self> {
        // The parent may have ignored SIGCHLD, and the kernel would then discard the exit status of
        // the command. Tokio's handler replaces that setting, and stays when the listener is
        // dropped.
        drop(unix::signal(SignalKind::child())?);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let heard = FORWARDED.into_iter().filter(|signal| !is_ignored(&status, *signal));
        let listen = |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        heard.map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, heard) in &mut self.0 {
                if heard.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether a process ignores a signal, according to its /proc/PID/status.
fn is_ignored(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_detected() {
        let status = "Name:\tnohup\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, Signal::HUP));
        assert!(!is_ignored(status, Signal::INT));
        assert!(!is_ignored("", Signal::HUP));
    }
}
