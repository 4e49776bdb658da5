//! A network with a delay: a proxy on loopback that delivers every byte later.
//!
//! It uses threads instead of tasks: the timer of a runtime counts whole milliseconds, and half of
//! 5 ms is not a whole number.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::clock;

const CHUNK_BYTES: usize = 64 * 1024;

/// Listens until the driver ends. Without connections it costs nothing.
pub struct Proxy {
    address: SocketAddr,
}

impl Proxy {
    /// Listens for connections to `server`. Each direction takes half of `round_trip`.
    pub fn start(server: SocketAddr, round_trip: Duration) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the server is gone, the client's connection closes, as without a proxy.
                let _ = join(client, server, round_trip / 2);
            }
        });
        Ok(Self { address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn join(client: TcpStream, server: SocketAddr, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    carry(client.try_clone()?, server.try_clone()?, delay);
    carry(server, client, delay);
    Ok(())
}

/// Forwards bytes in one direction: one thread notes when they arrive, another sends them when they
/// are due.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let bytes: Vec<u8> = buffer.iter().take(length).copied().collect();
            if sender.send((clock::now() + delay, bytes)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(clock::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The other side sees the end or the failure, as without a proxy.
        let _ = to.shutdown(Shutdown::Both);
    });
}
