//! The signals that are passed on.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Those that somebody sends to end a command, or to tell it something.
const PASSED_ON: [Signal; 6] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Signals that come to this process.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From here on they are taken note of. What was ignored when rlock was started (nohup(1), a job in the background of a script) stays
    /// ignored, also by the command.
    pub(crate) fn listen() -> io::Result<Self> {
        // Whoever started rlock may ignore the end of children, and the kernel would then forget how the command has ended. Nobody listens here:
        // that there is a handler is enough, and it stays.
        drop(unix::signal(SignalKind::child())?);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let heard = PASSED_ON.into_iter().filter(|signal| !is_ignored(&status, *signal));
        let listen = |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        heard.map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next one.
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

/// Whether a process ignores a signal, by what /proc/PID/status says of it.
fn is_ignored(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tnohup\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, Signal::HUP));
        assert!(!is_ignored(status, Signal::INT));
        assert!(!is_ignored("", Signal::HUP));
    }
}
