//! The command line. The doc comments are the help texts and the manual pages.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use crate::exit::TABLE;
use crate::span;

/// The version, and the commit of the build, as in the module's log.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), ", commit ", env!("RLOCK_COMMIT"));

/// Distributed locks in Redis: run a command under a lock, inspect locks and release them
///
/// The server must have loaded the module rlock.
#[derive(Debug, Parser)]
#[command(name = "rlock", version = VERSION, after_help = TABLE)]
pub struct Arguments {
    /// Address of the server: host[:port], redis://[user:password@]host[:port][/db] or
    /// redis+unix:///path
    ///
    /// Sentinel: redis+sentinel://[user:password@]host[:port][,host…]/NAME[/db] uses the master
    /// NAME. Cluster: redis+cluster://[user:password@]host[:port][,host…] names some of the nodes.
    /// User and password are those of the servers, not of the sentinels. For TLS write rediss in
    /// place of redis; SSL_CERT_FILE names the file of a private certificate authority.
    ///
    /// Put an address with a password into RLOCK_URL: other users can read the command line.
    #[arg(long, global = true, env = "RLOCK_URL", hide_env_values = true, default_value = "redis://127.0.0.1/")]
    pub url: String,
    /// The subcommand.
    #[command(subcommand)]
    pub action: Action,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a command while holding a lock
    ///
    /// rlock renews the lock while the command runs and releases it afterwards. It exits with the
    /// status of the command. The command finds the fencing token in RLOCK_TOKEN, the key in
    /// RLOCK_KEY and the owner in RLOCK_OWNER.
    ///
    /// If the lock is lost, or no server answers and the lease is about to expire, the command gets
    /// SIGTERM, and SIGKILL after --kill-after. rlock forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT,
    /// SIGUSR1 and SIGUSR2 to the command. If rlock is killed, the kernel kills the command too,
    /// and the lock expires with its session or lease.
    ///
    /// While no server can be reached, as during a failover, rlock tries again until --wait ends,
    /// or for 30 s without --wait.
    Run(Run),
    /// Watch the most contended locks
    ///
    /// In a cluster, top shows the locks of all masters. A key of another database than that of the
    /// address has the number of its database before it. q quits, s sorts by the next column,
    /// arrows scroll, space pauses. A narrow terminal shows fewer columns.
    Top(Top),
    /// List all locks
    Ls(Ls),
    /// Show the holders and waiters of a lock
    Show(Show),
    /// Take a lock away from its holder
    ///
    /// The holder notices at its next renewal or release. Until then it keeps working: only a
    /// resource that checks the fencing token refuses it.
    Release(Release),
    /// Wait until a lock is free, without acquiring it
    ///
    /// A lock is free if it has no holder, has no waiter and is not kept closed. A semaphore is
    /// free if a permit is available and it has no waiter. rlock checks ten times a second. Another
    /// client may acquire the lock right after that: use run to hold it. While no server can be
    /// reached, rlock tries again until --wait ends; without --wait for 30 s.
    Wait(Wait),
}

/// The arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = TABLE)]
pub struct Run {
    /// Key of the lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// The lock expires after this time without renewal. rlock renews it when a third has passed.
    /// If the server allows only a shorter lease, rlock uses that
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span::parse)]
    pub lease: Duration,
    /// Give up after this time; 0 tries once [default: wait forever]
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub wait: Option<Duration>,
    /// Free the lock this long after rlock's connection has closed (10ms or more), instead of at the
    /// end of the lease
    #[arg(long, value_name = "DURATION", value_parser = span::parse_session)]
    pub session: Option<Duration>,
    /// Use a fair lock, whose queue survives a restart and a failover of the server
    #[arg(long, group = "kind")]
    pub fair: bool,
    /// Hold a read-write lock for reading, together with other readers
    #[arg(long, group = "kind")]
    pub read: bool,
    /// Hold a read-write lock for writing, alone
    #[arg(long, group = "kind")]
    pub write: bool,
    /// Take a permit of a semaphore that has N permits. rlock creates the semaphore if it is
    /// missing
    #[arg(long, value_name = "N", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub semaphore: Option<u32>,
    /// Keep the lock closed for at least this long after the grant, so that a job runs at most once
    /// in that time
    ///
    /// For a mutex or a fair lock. When the command ends, even with an error, the server keeps the
    /// lock closed for the rest of the time; rlock itself exits at once. If the command cannot be
    /// started, rlock releases the lock. If the lock is lost or rlock is killed, the lock expires
    /// as without this option.
    #[arg(long, value_name = "DURATION", value_parser = span::parse_keep, conflicts_with_all = ["read", "write", "semaphore"])]
    pub at_least: Option<Duration>,
    /// A note that show, ls and top print with the lock, such as the URL of a build; up to 256
    /// bytes
    #[arg(long, value_name = "TEXT")]
    pub note: Option<OsString>,
    /// The owner to hold the lock as, 1 to 512 bytes [default: host:process:random]
    ///
    /// A command that runs under a lock acquires it again with --owner "$RLOCK_OWNER". Commands
    /// that run side by side need different owners: with the same owner all of them hold the lock.
    #[arg(long, value_name = "NAME")]
    pub owner: Option<OsString>,
    /// Time from SIGTERM to SIGKILL when the lock is lost [default: a third of the lease or
    /// --session, at most 5s]
    ///
    /// A signal may end the command and leave processes in its group. rlock kills those this long
    /// after the command's end.
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub kill_after: Option<Duration>,
    /// The command and its arguments. rlock runs it directly, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The arguments of `top`.
#[derive(Args, Debug)]
pub struct Top {
    /// Print the table once and exit
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object and exit
    #[arg(long)]
    pub json: bool,
    /// Show at most N locks
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: usize,
    /// Time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span::parse)]
    pub every: Duration,
}

/// The arguments of `ls`.
#[derive(Args, Debug)]
pub struct Ls {
    /// List only keys that match this glob pattern, as in SCAN's MATCH
    #[arg(value_name = "PATTERN")]
    pub pattern: Option<OsString>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `show`.
#[derive(Args, Debug)]
pub struct Show {
    /// Key of the lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// Show at most N waiters
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `release`.
#[derive(Args, Debug)]
pub struct Release {
    /// Key of the lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// Required, because another owner holds the lock
    #[arg(long, required = true)]
    pub force: bool,
    /// Release only the hold with this token, and not a newer one
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<u64>,
}

/// The arguments of `wait`.
#[derive(Args, Debug)]
pub struct Wait {
    /// Key of the lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// Give up after this time; 0 checks once [default: wait forever]
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub wait: Option<Duration>,
}

/// Refuses an empty key: a script whose variable is not set would lock that key on every machine.
fn key() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new()
        .try_map(|key| if key.is_empty() { Err("the key is empty; expected 1 byte or more") } else { Ok(key) })
}

/// The path of the command, for messages.
pub(crate) fn name_of(command: &OsString) -> String {
    PathBuf::from(command).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn document_names_every_option() {
        use clap::CommandFactory;
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
        let document = std::fs::read_to_string(path).expect("the document is there");
        let synopsis = document.split("```").nth(1).expect("a synopsis");
        for command in Arguments::command().get_subcommands() {
            let begin = format!("\nrlock {} ", command.get_name());
            let usage = synopsis.split(&begin).nth(1).unwrap_or_else(|| panic!("{begin} is missing"));
            let usage = usage.split("\nrlock ").next().expect("the first part");
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(usage.contains(&format!("--{option}")), "{usage}: --{option}");
            }
        }
    }

    #[test]
    fn impossible_arguments_are_refused() {
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

    #[test]
    fn empty_key_is_refused() {
        for words in [&["run", "", "--", "true"][..], &["show", ""], &["release", "", "--force"], &["wait", ""]] {
            let refused = Arguments::try_parse_from(["rlock"].iter().chain(words)).expect_err("an error").to_string();
            assert!(refused.contains("the key is empty; expected 1 byte or more"), "{words:?}: {refused}");
        }
        assert!(Arguments::try_parse_from(["rlock", "ls", ""]).is_ok(), "an empty pattern matches nothing");
    }
}
