//! A network between clients and a server that loses connections. First neither end receives
//! anything for a while. Then the client sees its connection closed. The server sees that only
//! later; until then the connection is half open for it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// How long the server does not notice a lost connection: less than the slack that the rules allow.
const NOTICES_AFTER: Duration = Duration::from_millis(300);

/// Connecting on this machine is slow only if a server's backlog is full.
const LONGEST_CONNECT: Duration = Duration::from_secs(1);

/// One connection through the network.
struct Wire {
    is_lost: Arc<AtomicBool>,
    /// One of its ends has closed it.
    is_over: Arc<AtomicBool>,
    client: TcpStream,
    server: TcpStream,
}

impl Wire {
    fn close(self) {
        for stream in [self.client, self.server] {
            // The other end may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// See the head of this file. It ends with the process.
#[derive(Clone)]
pub struct Network {
    address: SocketAddr,
    wires: Arc<Mutex<Vec<Wire>>>,
    server: Arc<Mutex<SocketAddr>>,
}

impl Network {
    /// Starts a network in front of a server.
    ///
    /// # Errors
    ///
    /// If there is no free port.
    pub fn before(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let network =
            Self { address: listener.local_addr()?, wires: Arc::default(), server: Arc::new(Mutex::new(server)) };
        let (wires, server) = (Arc::clone(&network.wires), Arc::clone(&network.server));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // This holds the mutex until the connection is registered. Otherwise `route_to`
                // might not close the connection. It would lead to a server that was killed,
                // restarted, and is a master until it follows the new one.
                let server = server.lock().unwrap_or_else(PoisonError::into_inner);
                // A server that is down refuses, and so does the network.
                let _ = connect(client, *server, &wires);
            }
        });
        Ok(network)
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Routes new connections to another server.
    pub fn route_new_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// Routes connections to another server, and closes the existing ones.
    pub fn route_to(&self, server: SocketAddr) {
        self.route_new_to(server);
        self.close();
    }

    /// Closes all connections. Call it when no client needs the network.
    pub fn close(&self) {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(Wire::close);
    }

    /// Loses each connection for which `is_lost` returns true.
    pub fn lose(&self, mut is_lost: impl FnMut() -> bool) {
        let mut wires = self.wires.lock().unwrap_or_else(PoisonError::into_inner);
        let lost: Vec<Wire> = wires.extract_if(.., |_| is_lost()).collect();
        drop(wires);
        for wire in &lost {
            wire.is_lost.store(true, Ordering::SeqCst);
        }
        thread::sleep(Duration::from_millis(20));
        for wire in &lost {
            let _ = wire.client.shutdown(Shutdown::Both);
        }
        thread::sleep(NOTICES_AFTER);
        for wire in &lost {
            let _ = wire.server.shutdown(Shutdown::Both);
        }
    }
}

fn connect(client: TcpStream, server: SocketAddr, wires: &Mutex<Vec<Wire>>) -> Result<()> {
    let server = TcpStream::connect_timeout(&server, LONGEST_CONNECT)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let [is_lost, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server.try_clone()?, client.try_clone()?)] {
        let (is_lost, is_over) = (Arc::clone(&is_lost), Arc::clone(&is_over));
        thread::spawn(move || {
            carry(from, to, &is_lost);
            is_over.store(true, Ordering::SeqCst);
        });
    }
    let mut wires = wires.lock().unwrap_or_else(PoisonError::into_inner);
    // Closed connections would keep their sockets.
    wires.retain(|wire| !wire.is_over.load(Ordering::SeqCst));
    wires.push(Wire { is_lost, is_over, client, server });
    Ok(())
}

/// Forwards data until the connection is lost, and discards it from then on.
fn carry(mut from: TcpStream, mut to: TcpStream, is_lost: &AtomicBool) {
    let mut part = [0; 4096];
    while let Ok(read) = from.read(&mut part) {
        if is_lost.load(Ordering::SeqCst) {
            // A lost connection does not forward the close either.
            if read == 0 {
                return;
            }
            continue;
        }
        if read == 0 || to.write_all(part.get(..read).unwrap_or_default()).is_err() {
            break;
        }
    }
    if !is_lost.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Both);
    }
}
