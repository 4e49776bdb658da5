//! The order in which the server executed the requests that acquire: what `MONITOR` tells.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::wire::Connection;

/// What ends the listening.
const LAST_WORD: &str = "rlock-check-has-seen-enough";

/// Of each owner, the places of its requests in the order of the server.
pub type Orders = HashMap<u64, Vec<u64>>;

/// Listens, in a thread of its own.
pub struct Monitor {
    listener: JoinHandle<Result<Orders>>,
    address: SocketAddr,
}

impl Monitor {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// If the server does not want to be listened to.
    pub fn start(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::with_capacity(1 << 20, stream);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let listener = thread::spawn(move || {
            let mut orders = Orders::new();
            let mut place = 0;
            loop {
                line.clear();
                lines.read_line(&mut line).context("MONITOR has ended")?;
                if line.contains(LAST_WORD) {
                    return Ok(orders);
                }
                place += 1;
                if let Some(owner) = acquiring_owner(&line) {
                    orders.entry(owner).or_default().push(place);
                }
            }
        });
        Ok(Self { listener, address })
    }

    /// Everything that was heard until now.
    ///
    /// # Errors
    ///
    /// If the listening has failed.
    pub fn finish(self) -> Result<Orders> {
        Connection::open(self.address)?.ask(&format!("ECHO {LAST_WORD}"))?;
        self.listener.join().map_err(|_| anyhow!("the listener has panicked"))?
    }
}

/// Whose request a line tells of, if it acquires. Lines look like `+1.2 [0 127.0.0.1:3] "RLOCK.ACQUIRE" "k" "o17"`.
fn acquiring_owner(line: &str) -> Option<u64> {
    let mut words = line.split('"').skip(1).step_by(2);
    if !words.next()?.ends_with("ACQUIRE") {
        return None;
    }
    words.find_map(|word| word.strip_prefix('o')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_request_is_found() {
        let line = |words: &str| format!("+1700000000.1 [0 127.0.0.1:5] {words}\r\n");
        assert_eq!(acquiring_owner(&line(r#""RLOCK.ACQUIRE" "k1" "o17" "PX" "5""#)), Some(17));
        assert_eq!(acquiring_owner(&line(r#""RLOCK.MACQUIRE" "2" "k1" "k2" "o18" "PX" "5""#)), Some(18));
        assert_eq!(acquiring_owner(&line(r#""RLOCK.RELEASE" "k1" "o17""#)), None);
    }
}
