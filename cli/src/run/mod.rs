//! `run`: a command under a lock.
//!
//! What holds always: the command does not start before the lock is held; it is ended when the lock is lost, and told so before that if no
//! server answers; when rlock ends, in whatever way, neither the command nor a wait is left, and the lock is released or ends by itself.

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
use crate::exit::{FAILED, Failure, LOST, REFUSED, SIGNALLED, TIMED_OUT, complain, without_password};
use crate::observer::Observer;
use crate::text::printable;
use attend::{Notice, attend};
use command::Command;
use signals::Signals;

/// How long a release may take when the command has ended. The lease ends what is not released by then.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait for what the client tidies up in the background.
const TIDYING_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(url: &str, options: Run) -> Result<u8, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::new(FAILED, format!("signals: {error}")))?;
    let outcome = connect_and_run(url, &options, &mut signals).await;
    tidy_up().await;
    outcome
}

async fn connect_and_run(url: &str, options: &Run, signals: &mut Signals) -> Result<u8, Failure> {
    let key = options.key.as_bytes();
    let connecting = async {
        let client = Address::parse(url)?.client().await.map_err(|error| name_server(url, error))?;
        if let Some(permits) = options.semaphore {
            make_semaphore(&client, url, key, permits).await?;
        }
        Ok(client)
    };
    let client = unless_signalled(signals, connecting).await?;
    if options.fair {
        under(client.fair_lock(key), options, signals, Guard::release_and_keep).await
    } else if options.read {
        under(client.rw_lock(key).read(), options, signals, release).await
    } else if options.write {
        under(client.rw_lock(key).write(), options, signals, release).await
    } else if options.semaphore.is_some() {
        under(client.semaphore(key).permits(1), options, signals, release).await
    } else {
        under(client.lock(key), options, signals, Guard::release_and_keep).await
    }
}

/// Releases a lock of a kind that cannot be kept closed.
async fn release<K: Kind>(guard: Guard<K>, _keep: Duration) -> Result<(), Error> {
    guard.release().await
}

/// A failure to connect says where to.
fn name_server(url: &str, error: Error) -> Failure {
    let failure = Failure::from(error);
    if failure.is_about_missing_module() {
        // Whoever has no module was reached, and every other command says it in these words.
        return failure;
    }
    Failure { message: format!("{}: {}", without_password(url), failure.message), ..failure }
}

/// Whatever is waited for before the command runs is given up for a signal.
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

/// Makes the semaphore, or sees that it has the number of permits that the caller counts on.
async fn make_semaphore(client: &Client, url: &str, key: &[u8], wanted: u32) -> Result<(), Failure> {
    let mut observer = Observer::connect(url).await?;
    if observer.lock(key).await?.is_none() {
        client.semaphore(key).init(wanted).await?;
    }
    match observer.lock(key).await?.and_then(|lock| lock.permits) {
        Some(permits) if permits != i64::from(wanted) => {
            let name = printable(key);
            let text = format!(
                "the semaphore {name} has {permits} permits and not {wanted}; RSEMAPHORE.RESIZE {name} {wanted} changes that"
            );
            Err(Failure::new(REFUSED, text))
        }
        // What is something else is refused when it is asked for.
        _ => Ok(()),
    }
}

/// Takes the lock, runs the command, gives the lock back.
async fn under<K: Kind>(
    lock: Lock<K>,
    options: &Run,
    signals: &mut Signals,
    release: impl AsyncFnOnce(Guard<K>, Duration) -> Result<(), Error>,
) -> Result<u8, Failure> {
    let name = printable(options.key.as_bytes());
    let owner = options.owner.as_ref().map_or_else(unique_owner, |owner| owner.as_bytes().to_vec());
    let mut lock = lock.lease(options.lease).owner(&owner);
    if let Some(grace) = options.session {
        lock = lock.session_grace(grace);
    }
    if let Some(note) = &options.note {
        lock = lock.note(note.as_bytes());
    }
    let guard = unless_signalled(signals, acquire(&lock, options.wait, &name)).await?;
    let granted = Instant::now();
    let mut command = match Command::start(options, guard.token(), &owner) {
        Ok(command) => command,
        Err(failure) => {
            give_back(guard, Duration::ZERO, release, &name).await?;
            return Err(failure);
        }
    };
    let notice = Notice::new(options);
    let end = attend(&guard, &mut command, signals, notice, &name).await;
    let was_held = guard.is_held();
    let keep = options.at_least.unwrap_or_default().saturating_sub(granted.elapsed());
    give_back(guard, keep, release, &name).await?;
    match end {
        Ok(status) if was_held => Ok(status),
        // Whoever relies on the status is to know, also if the command came to its end by itself.
        Ok(_) => Err(Failure::new(LOST, format!("the lock {name} was lost while the command ran"))),
        Err(failure) => Err(failure),
    }
}

async fn acquire<K: Kind>(lock: &Lock<K>, wait: Option<Duration>, name: &str) -> Result<Guard<K>, Failure> {
    let guard = match wait {
        None => lock.acquire().await.map(Some),
        Some(Duration::ZERO) => lock.try_acquire().await,
        Some(wait) => match lock.acquire_timeout(wait).await {
            Err(Error::Timeout) => Ok(None),
            outcome => outcome.map(Some),
        },
    };
    guard?.ok_or_else(|| Failure::new(TIMED_OUT, format!("the lock {name} was not free in time")))
}

/// Releases the lock, and keeps it closed for `keep`. An error says that the hold had ended before, so the command may not have run alone to its end.
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
            complain(&format!("{name} was released, and is not kept closed: {message}"));
            Ok(())
        }
        Ok(Err(error)) => {
            complain(&format!("{name} was not released, and ends with its lease: {error}"));
            Ok(())
        }
        Err(_) => {
            complain(&format!("{name} was not released, and ends with its lease: no answer"));
            Ok(())
        }
    }
}

/// An owner that nobody else has, by which a person finds the process.
fn unique_owner() -> Vec<u8> {
    let host = rustix::system::uname();
    let host = String::from_utf8_lossy(host.nodename().to_bytes());
    // A host's name is short enough everywhere; an owner has at most 512 bytes.
    let host: String = host.chars().take(100).collect();
    format!("{host}:{}:{:016x}", std::process::id(), rand::rng().random::<u64>()).into_bytes()
}

/// Waits for what the client does in the background: it takes back what was asked for and is not wanted any more. When the last task has
/// ended, nothing is left on the server.
async fn tidy_up() {
    let deadline = Instant::now() + TIDYING_PATIENCE;
    let metrics = tokio::runtime::Handle::current().metrics();
    while metrics.num_alive_tasks() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
