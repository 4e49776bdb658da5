//! The command line. Its comments are the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::exit::TABLE;
use crate::span;

/// Distributed locks in Redis from the command line: run a command under a lock, see who holds and who waits.
///
/// The server needs the module rlock.
#[derive(Debug, Parser)]
#[command(name = "rlock", version, after_help = TABLE)]
pub struct Arguments {
    /// Where the server is: redis://[user:password@]host[:port][/db], or redis+unix:///path
    ///
    /// The master that Sentinel names, followed after a failover: redis+sentinel://[user:password@]host[:port][,host…]/NAME[/db]. A
    /// cluster, by some of its nodes: redis+cluster://[user:password@]host[:port][,host…]. User and password are those of the servers, not
    /// of the sentinels.
    ///
    /// Prefer the variable for an address with a password: others can read the command line.
    #[arg(long, global = true, env = "RLOCK_URL", hide_env_values = true, default_value = "redis://127.0.0.1/")]
    pub url: String,
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a command while holding a lock
    ///
    /// The lock is renewed while the command runs, and released when it ends. The command finds the fencing token in RLOCK_TOKEN, and the
    /// key and the owner in RLOCK_KEY and RLOCK_OWNER. Its exit status becomes that of rlock.
    ///
    /// If the lock is lost, or is about to be because no server answers, the command gets SIGTERM, and SIGKILL after --kill-after.
    /// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to it. If rlock itself is killed, the command is killed too, and
    /// the lock ends with its session or lease.
    Run(Run),
    /// Watch the most contended locks
    ///
    /// Of a cluster those of all masters. Keys of other databases have the number before them. q ends it, s sorts by another column, the
    /// arrows scroll, space stops and starts the picture.
    Top(Top),
    /// List all locks
    Ls(Ls),
    /// Show who holds a lock and who waits for it
    Show(Show),
    /// Take a lock away from whoever holds it
    ///
    /// The holder hears of it when it renews or releases. Until then it works on: only a resource that looks at the fencing token refuses it.
    Release(Release),
    /// Wait until a lock is free, without taking it
    ///
    /// Free means that it has no holder and no waiter and is not kept closed; of a semaphore, that a permit is available. It looks
    /// ten times a second. Nothing says that the lock is still free a moment later: to be the next one, use run.
    Wait(Wait),
}

/// What `run` is told.
#[derive(Args, Debug)]
#[command(after_help = TABLE)]
pub struct Run {
    /// The lock
    pub key: OsString,
    /// How long the lock lives without renewal. It is renewed every third of it
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    pub lease: Duration,
    /// Wait no longer than this for the lock; 0 does not wait. Without it, wait for ever
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub wait: Option<Duration>,
    /// End the lock this long after the connection of rlock has closed: when rlock dies, nobody waits for the lease
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub session: Option<Duration>,
    /// A fair lock: the server keeps its queue over a restart and a failover
    #[arg(long, group = "kind")]
    pub fair: bool,
    /// The readers' side of a read-write lock: many may hold it
    #[arg(long, group = "kind")]
    pub read: bool,
    /// The writer's side of a read-write lock
    #[arg(long, group = "kind")]
    pub write: bool,
    /// A semaphore that so many may hold at once. It is made if there is none
    #[arg(long, value_name = "N", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub semaphore: Option<u32>,
    /// Keep the lock closed for at least this long from the grant on, also if the command ends earlier or fails: at most one run per period
    ///
    /// Only for a mutex or a fair lock. When the command ends, the server keeps the lock closed for the rest of the time, and rlock does not wait
    /// for that. If the command cannot be started, the lock is released at once. If the lock is lost or rlock is killed, the lock ends as without
    /// this option.
    #[arg(long, value_name = "SPAN", value_parser = span::parse_keep, conflicts_with_all = ["read", "write", "semaphore"])]
    pub at_least: Option<Duration>,
    /// A text for people, up to 256 bytes, that show, ls and top show with the lock, such as the URL of a build
    #[arg(long, value_name = "TEXT")]
    pub note: Option<OsString>,
    /// The name to hold in, 1 to 512 bytes. Default: host:process:random
    ///
    /// Who has the same owner holds together: --owner "$RLOCK_OWNER" lets a command that runs under a lock enter it again.
    #[arg(long, value_name = "NAME")]
    pub owner: Option<OsString>,
    /// How long after SIGTERM the command gets SIGKILL when the lock is lost [default: a third of --lease or --session, at most 5s]
    ///
    /// Also how long after the end of a command that was sent a signal SIGKILL comes for what it has left in its process group.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub kill_after: Option<Duration>,
    /// The command and its arguments. It is run as it is, by no shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What `top` is told.
#[derive(Args, Debug)]
pub struct Top {
    /// Look once, print the table and end
    #[arg(long)]
    pub once: bool,
    /// Look once, print everything as JSON and end
    #[arg(long)]
    pub json: bool,
    /// How many locks to show at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: usize,
    /// How long to pause between two looks
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = span::parse)]
    pub every: Duration,
}

/// What `ls` is told.
#[derive(Args, Debug)]
pub struct Ls {
    /// Only keys of this form, as SCAN's MATCH has it
    #[arg(value_name = "PATTERN")]
    pub pattern: Option<OsString>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// What `show` is told.
#[derive(Args, Debug)]
pub struct Show {
    /// The lock
    pub key: OsString,
    /// How many waiters to show at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: usize,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// What `release` is told.
#[derive(Args, Debug)]
pub struct Release {
    /// The lock
    pub key: OsString,
    /// Yes, take it away. Without it nothing is done: a lock is its owner's to release
    #[arg(long, required = true)]
    pub force: bool,
    /// Only the hold with this token, so that the next holder is not hit by mistake
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<u64>,
}

/// What `wait` is told.
#[derive(Args, Debug)]
pub struct Wait {
    /// The lock
    pub key: OsString,
    /// Wait no longer than this. Without it, wait for ever
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub wait: Option<Duration>,
}

/// Where the command is, for messages.
pub(crate) fn name_of(command: &OsString) -> String {
    PathBuf::from(command).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_document_names_every_option() {
        use clap::CommandFactory;
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
        let document = std::fs::read_to_string(path).expect("the document is there");
        for command in Arguments::command().get_subcommands() {
            let begin = format!("rlock {} ", command.get_name());
            let synopsis = document.lines().find(|line| line.starts_with(&begin));
            let synopsis = synopsis.unwrap_or_else(|| panic!("{begin} is missing"));
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(synopsis.contains(&format!("--{option}")), "{synopsis}: --{option}");
            }
        }
    }

    #[test]
    fn a_lock_has_one_kind() {
        let parse = |words: &str| Arguments::try_parse_from(words.split(' '));
        assert!(parse("rlock run k --fair -- true").is_ok());
        assert!(parse("rlock run k --fair --semaphore 2 -- true").is_err());
        assert!(parse("rlock run k --semaphore 0 -- true").is_err());
        assert!(parse("rlock release k").is_err());
        assert!(parse("rlock run k --fair --at-least 365d -- true").is_ok());
        assert!(parse("rlock run k --at-least 366d -- true").is_err());
        for kind in ["--read", "--write", "--semaphore 2"] {
            assert!(parse(&format!("rlock run k {kind} --at-least 1s -- true")).is_err(), "{kind}");
        }
    }
}
