//! The order in which the server executed the requests that acquire, from `MONITOR`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::wire::Connection;

/// The text that ends the listening.
const END_MARK: &str = "rlock-check-has-seen-enough";

/// For each owner, the positions of its requests in the server's order.
pub type Orders = HashMap<u64, Vec<u64>>;

/// How long a server may be down.
const AWAY: Duration = Duration::from_secs(20);

/// Listens in a thread of its own. It reconnects to a server that restarts; requests that were
/// executed in between have no position.
pub struct Monitor {
    listener: JoinHandle<Result<Orders>>,
    address: SocketAddr,
}

impl Monitor {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// If the server refuses MONITOR.
    pub fn start(address: SocketAddr) -> Result<Self> {
        let mut lines = listen(address)?;
        let listener = thread::spawn(move || {
            let (mut orders, mut place) = (Orders::new(), 0);
            while !take_in(&mut lines, &mut orders, &mut place) {
                lines = listen_again(address)?;
            }
            Ok(orders)
        });
        Ok(Self { listener, address })
    }

    /// Stops, and returns everything heard until now.
    ///
    /// # Errors
    ///
    /// If the connection to the server was lost for good.
    pub fn finish(self) -> Result<Orders> {
        let deadline = Instant::now() + AWAY;
        while !self.listener.is_finished() && Instant::now() < deadline {
            Connection::open(self.address)?.ask(&format!("ECHO {END_MARK}"))?;
            thread::sleep(Duration::from_millis(100));
        }
        self.listener.join().map_err(|_| anyhow!("the listener panicked"))?
    }
}

fn listen(address: SocketAddr) -> Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(AWAY * 2))?;
    stream.write_all(b"MONITOR\r\n")?;
    let mut lines = BufReader::with_capacity(1 << 20, stream);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    ensure!(line.starts_with("+OK"), "expected +OK as the answer to MONITOR, got {line}");
    Ok(lines)
}

fn listen_again(address: SocketAddr) -> Result<BufReader<TcpStream>> {
    let deadline = Instant::now() + AWAY;
    loop {
        match listen(address) {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(5)),
            lines => return lines,
        }
    }
}

/// Listens until the end mark (returns `true`), or until the connection is lost.
fn take_in(lines: &mut BufReader<TcpStream>, orders: &mut Orders, place: &mut u64) -> bool {
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
        if line.contains(END_MARK) {
            return true;
        }
        *place += 1;
        if let Some(owner) = acquiring_owner(&line) {
            orders.entry(owner).or_default().push(*place);
        }
        line.clear();
    }
    false
}

/// The owner of a request that acquires. Lines look like `+1.2 [0 127.0.0.1:3] "RLOCK.ACQUIRE" "k"
/// "o17"`.
fn acquiring_owner(line: &str) -> Option<u64> {
    let mut words = line.split('"').skip(1).step_by(2);
    let verb = words.next()?;
    if !(verb.ends_with("ACQUIRE") || verb.ends_with("DRAIN")) {
        return None;
    }
    words.find_map(|word| word.strip_prefix('o')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_of_an_acquiring_request_is_found() {
        let line = |words: &str| format!("+1700000000.1 [0 127.0.0.1:5] {words}\r\n");
        assert_eq!(acquiring_owner(&line(r#""RLOCK.ACQUIRE" "k1" "o17" "PX" "5""#)), Some(17));
        assert_eq!(acquiring_owner(&line(r#""RLOCK.MACQUIRE" "2" "k1" "k2" "o18" "PX" "5""#)), Some(18));
        assert_eq!(acquiring_owner(&line(r#""RSEMAPHORE.DRAIN" "k1" "o19" "PX" "5""#)), Some(19));
        assert_eq!(acquiring_owner(&line(r#""RLOCK.RELEASE" "k1" "o17""#)), None);
    }
}
