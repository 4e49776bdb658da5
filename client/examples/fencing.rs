//! A worker whose late writes do no harm, even if the process is stopped at the worst moment.
//!
//! The worker checks that it holds the lock before each write. If it is stopped between the check
//! and the write, the store protects itself: each write carries the fencing token of its hold, and
//! the store refuses a token lower than the highest one it has seen.
//!
//! `cargo run --example fencing [URL] [FOLDER] [STEP_MS]`. To see it work, run it in two terminals
//! with the same folder and a step of 2000 ms. Stop the first with Ctrl-Z, wait until the second
//! has begun to write, and resume the first with `fg`.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, thread};

use rlock_client::Client;

const STEPS: u32 = 3;
const LEASE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let given = arguments.next().or_else(|| env::var("REDIS_URL").ok());
    let url = given.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let folder = arguments.next().map_or_else(|| env::temp_dir().join("rlock-example-fencing"), PathBuf::from);
    let step = Duration::from_millis(arguments.next().map_or(Ok(100), |ms| ms.parse())?);

    let store = Store::open(folder)?;
    let client = Client::connect(&url).await?;
    let guard = client.lock("example:fencing").lease(LEASE).acquire().await?;
    let token = guard.token();
    println!("holds with token {token}");
    for number in 1..=STEPS {
        println!("step {number}: computing");
        let computed = tokio::select! {
            // Poll `lost` first.
            biased;
            () = guard.lost() => None,
            text = compute(token, number, step) => Some(text),
        };
        // `lost` was polled before the last part of the computation, which may have taken long. So
        // check again.
        let Some(text) = computed.filter(|_| guard.is_held()) else {
            println!("step {number}: the lock was lost, nothing is written");
            return Ok(());
        };
        println!("step {number}: writing");
        // The write takes a while to reach the store, and the worker does not check the lock
        // meanwhile.
        tokio::task::block_in_place(|| thread::sleep(step));
        match store.write(token, &text)? {
            Written::Done => println!("step {number}: written"),
            Written::Refused { seen } => {
                println!("step {number}: refused, the store has seen token {seen}");
                return Ok(());
            }
        }
    }
    guard.release().await?;
    println!("released");
    Ok(())
}

async fn compute(token: u64, number: u32, step: Duration) -> String {
    tokio::time::sleep(step).await;
    format!("{token}: result {number}\n")
}

/// A file that remembers the highest token written to it. A database does the same with a column
/// and a condition: `UPDATE … SET text = $1, token = $2 WHERE token <= $2`.
struct Store {
    /// A writer holds the operating system's lock on this file, so that the check and the write are
    /// one step.
    gate: File,
    folder: PathBuf,
}

enum Written {
    Done,
    Refused { seen: u64 },
}

impl Store {
    fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let gate = File::options().create(true).append(true).open(folder.join("gate"))?;
        Ok(Self { gate, folder })
    }

    fn write(&self, token: u64, text: &str) -> io::Result<Written> {
        rustix::fs::flock(&self.gate, rustix::fs::FlockOperation::LockExclusive)?;
        let written = self.write_alone(token, text);
        rustix::fs::flock(&self.gate, rustix::fs::FlockOperation::Unlock)?;
        written
    }

    fn write_alone(&self, token: u64, text: &str) -> io::Result<Written> {
        let file = self.folder.join("results");
        let old = match fs::read_to_string(&file) {
            Ok(old) => old,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let token_of = |line: &str| line.split(':').next()?.parse().ok();
        let seen = old.lines().last().and_then(token_of).unwrap_or(0);
        if token < seen {
            return Ok(Written::Refused { seen });
        }
        // A writer that dies here leaves the old file intact.
        let fresh = self.folder.join("results.new");
        fs::write(&fresh, old + text)?;
        fs::rename(&fresh, &file)?;
        Ok(Written::Done)
    }
}
