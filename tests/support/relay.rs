//! A network between two processes that can lose everything without closing a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long a thread of a relay sleeps before it looks whether the relay is cut.
const TICK: Duration = Duration::from_millis(10);

/// The place that a relay connects to.
enum Target {
    Port(u16),
    Socket(PathBuf),
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    has_ended: AtomicBool,
}

/// Accepts connections on a port, and passes what it receives on to a server. While it is cut, no
/// connection closes and no byte arrives. Later all of them arrive, as TCP repeats lost packets.
pub struct Relay {
    port: u16,
    state: Arc<State>,
}

impl Relay {
    /// A relay to a port of this machine.
    pub fn to(port: u16) -> Relay {
        Relay::start(0, Target::Port(port))
    }

    /// A relay on a port to a Unix socket, which processes of every network namespace can reach.
    pub fn to_socket(port: u16, socket: PathBuf) -> Relay {
        Relay::start(port, Target::Socket(socket))
    }

    fn start(port: u16, target: Target) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let relay = Relay { port, state: Arc::default() };
        let state = relay.state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if state.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                // A failed connection closes the client's.
                if let Some(server) = target.connect() {
                    join(client, server, &state);
                }
            }
        });
        relay
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.has_ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Target {
    fn connect(&self) -> Option<TcpStream> {
        match self {
            Target::Port(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).ok(),
            // Only operations follow that all stream sockets have.
            Target::Socket(path) => Some(TcpStream::from(OwnedFd::from(UnixStream::connect(path).ok()?))),
        }
    }
}

fn join(client: TcpStream, server: TcpStream, state: &Arc<State>) {
    for stream in [&client, &server] {
        // The option does not exist for a Unix socket.
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(TICK));
    }
    let Ok(pair) = client.try_clone().and_then(|client| Ok((client, server.try_clone()?))) else { return };
    for (from, to) in [(client, server), (pair.1, pair.0)] {
        let state = state.clone();
        thread::spawn(move || {
            carry(&from, &to, &state);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
}

/// Passes on everything until one side closes.
fn carry(mut from: &TcpStream, mut to: &TcpStream, state: &State) {
    let mut chunk = [0; 16 * 1024];
    while !state.has_ended.load(Ordering::Relaxed) {
        let read = from.read(&mut chunk);
        if matches!(&read, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)) {
            continue;
        }
        while state.is_cut.load(Ordering::Relaxed) && !state.has_ended.load(Ordering::Relaxed) {
            thread::sleep(TICK);
        }
        match read {
            Ok(length) if length > 0 && to.write_all(&chunk[..length]).is_ok() => {}
            _ => return,
        }
    }
}
