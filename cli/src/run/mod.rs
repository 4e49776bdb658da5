//! `run`: a command under a lock.
//!
//! Invariants:
//! - The command starts after the lock is granted.
//! - The command ends when the lock is lost. If no server answers, it gets SIGTERM before the lease
//!   expires.
//! - However rlock ends, it leaves neither the command nor a waiter behind, and the lock is
//!   released or expires.

mod attend;
mod command;
mod signals;

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rand::Rng;
use rlock_client::{Client, Error, Guard, Kind, Lock};
use tokio::time::Instant;

use crate::address::Address;
use crate::arguments::Run;
use crate::exit::{FAILED, Failure, LOST, REFUSED, SIGNALLED, complain, without_password};
use crate::observer::Observer;
use crate::retry::until_reached;
use crate::text::printable;
use attend::attend;
use command::Command;
use signals::Signals;

/// The time for the release after the end of the command. If it is not enough, the lock expires
/// with its lease.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// The time for the client's background tasks.
const TIDYING_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(url: &str, options: Run) -> Result<u8, Failure> {
    let deadline = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut signals = Signals::listen().map_err(|error| Failure::new(FAILED, format!("signals: {error}")))?;
    let outcome = connect_and_run(url, &options, deadline, &mut signals).await;
    tidy_up().await;
    outcome
}

async fn connect_and_run(
    url: &str,
    options: &Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let key = options.key.as_bytes();
    let connect = async || {
        let client = Address::parse(url)?.client().await.map_err(|error| name_server(url, error))?;
        if let Some(permits) = options.semaphore {
            make_semaphore(&client, url, key, permits).await?;
        }
        Ok(client)
    };
    let client = unless_signalled(signals, until_reached(deadline, connect)).await?;
    if options.fair {
        under(client.fair_lock(key), options, deadline, signals, Guard::release_and_keep).await
    } else if options.read {
        under(client.rw_lock(key).read(), options, deadline, signals, release).await
    } else if options.write {
        under(client.rw_lock(key).write(), options, deadline, signals, release).await
    } else if options.semaphore.is_some() {
        under(client.semaphore(key).permits(1), options, deadline, signals, release).await
    } else {
        under(client.lock(key), options, deadline, signals, Guard::release_and_keep).await
    }
}

/// Releases a lock of a kind that cannot be kept closed.
async fn release<K: Kind>(guard: Guard<K>, _keep: Duration) -> Result<(), Error> {
    guard.release().await
}

/// The failure of a connection attempt, with the address.
fn name_server(url: &str, error: Error) -> Failure {
    let failure = Failure::from(error);
    if failure.is_about_missing_module() {
        // The server was reached, so the message needs no address.
        return failure;
    }
    Failure { message: format!("{}: {}", without_password(url), failure.message), ..failure }
}

/// Awaits `work`, and gives up when a signal arrives. Used before the command starts.
async fn unless_signalled<T>(
    signals: &mut Signals,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        signal = signals.next() => {
            let number = u8::try_from(signal.as_raw()).unwrap_or(0);
            Err(Failure::new(SIGNALLED.saturating_add(number), ""))
        }
        outcome = work => outcome,
    }
}

/// Creates the semaphore if it is missing, or checks that it has `wanted` permits.
async fn make_semaphore(client: &Client, url: &str, key: &[u8], wanted: u32) -> Result<(), Failure> {
    let mut observer = Observer::connect(url).await?;
    if observer.lock(key).await?.is_none() {
        client.semaphore(key).init(wanted).await?;
    }
    match observer.lock(key).await?.and_then(|lock| lock.permits) {
        Some(permits) if permits != i64::from(wanted) => {
            let name = printable(key);
            let text = format!(
                "the semaphore {name} has {permits} permits; expected {wanted}. RSEMAPHORE.RESIZE {name} {wanted} changes that"
            );
            Err(Failure::new(REFUSED, text))
        }
        // The acquisition refuses a lock of another kind.
        _ => Ok(()),
    }
}

/// Acquires the lock, runs the command, releases the lock.
async fn under<K: Kind>(
    lock: Lock<K>,
    options: &Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
    release: impl AsyncFnOnce(Guard<K>, Duration) -> Result<(), Error>,
) -> Result<u8, Failure> {
    let name = printable(options.key.as_bytes());
    let owner = options.owner.as_ref().map_or_else(unique_owner, |owner| owner.as_bytes().to_vec());
    let mut lock = lock.lease(options.lease).shared_owner(&owner);
    if let Some(grace) = options.session {
        lock = lock.session_grace(grace);
    }
    if let Some(note) = &options.note {
        lock = lock.note(note.as_bytes());
    }
    let attempt = async || acquire(&lock, options.wait, deadline, &name).await;
    let guard = unless_signalled(signals, until_reached(deadline, attempt)).await?;
    let granted = Instant::now();
    let mut command = match Command::start(options, guard.token(), &owner) {
        Ok(command) => command,
        Err(failure) => {
            give_back(guard, Duration::ZERO, release, &name).await?;
            return Err(failure);
        }
    };
    let end = attend(&guard, &mut command, signals, options, &name).await;
    let was_held = guard.is_held();
    let keep = options.at_least.unwrap_or_default().saturating_sub(granted.elapsed());
    give_back(guard, keep, release, &name).await?;
    match end {
        Ok(status) if was_held => Ok(status),
        // The command has ended by itself, and may have worked without the lock.
        Ok(_) => Err(Failure::new(LOST, format!("the lock {name} was lost while the command ran"))),
        Err(failure) => Err(failure),
    }
}

async fn acquire<K: Kind>(
    lock: &Lock<K>,
    wait: Option<Duration>,
    deadline: Option<Instant>,
    name: &str,
) -> Result<Guard<K>, Failure> {
    // Less than `wait` if reaching a server took a while.
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let guard = match left {
        None => lock.acquire().await.map(Some),
        Some(Duration::ZERO) => lock.try_acquire().await,
        Some(left) => match lock.acquire_timeout(left).await {
            Err(Error::Timeout) => Ok(None),
            outcome => outcome.map(Some),
        },
    };
    let guard = guard?.ok_or_else(|| Failure::timed_out(name, wait))?;
    // A new hold lasts for a short claim. The command shall begin with the whole lease.
    guard.renew().await?;
    Ok(guard)
}

/// Releases the lock, and keeps it closed for `keep`. Fails if the hold had ended before, so that
/// the command may have worked without the lock.
async fn give_back<K: Kind>(
    guard: Guard<K>,
    keep: Duration,
    release: impl AsyncFnOnce(Guard<K>, Duration) -> Result<(), Error>,
    name: &str,
) -> Result<(), Failure> {
    let was_held = guard.is_held();
    match tokio::time::timeout(RELEASE_PATIENCE, release(guard, keep)).await {
        Ok(Err(Error::Lost)) if was_held => {
            Err(Failure::new(LOST, format!("the lock {name} was lost while the command ran")))
        }
        Ok(Ok(()) | Err(Error::Lost)) => Ok(()),
        Ok(Err(Error::Refused { code, message })) if code == "ERR" && !keep.is_zero() => {
            complain(&format!("released the lock {name}, but did not keep it closed: {message}"));
            Ok(())
        }
        Ok(Err(error)) => {
            complain(&format!("could not release the lock {name}, which expires with its lease: {error}"));
            Ok(())
        }
        Err(_) => {
            complain(&format!("could not release the lock {name}, which expires with its lease: no reply"));
            Ok(())
        }
    }
}

/// A unique owner that shows host and process id.
fn unique_owner() -> Vec<u8> {
    let host = rustix::system::uname();
    let host = String::from_utf8_lossy(host.nodename().to_bytes());
    // An owner has at most 512 bytes.
    let host: String = host.chars().take(100).collect();
    format!("{host}:{}:{:016x}", std::process::id(), rand::rng().random::<u64>()).into_bytes()
}

/// Waits for the client's background tasks. They cancel requests and release grants that were
/// dropped; when the last task has ended, nothing is left on the server.
async fn tidy_up() {
    let deadline = Instant::now() + TIDYING_PATIENCE;
    let metrics = tokio::runtime::Handle::current().metrics();
    while metrics.num_alive_tasks() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
