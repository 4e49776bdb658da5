//! A faulty network between clients and a server on loopback.
//!
//! For each piece of data that arrives in either direction, the proxy asks the *weather* for its
//! fate. The two directions of a connection are independent, as on a real network: data sent before
//! a connection closed may arrive after that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rlock_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::Server;

/// The direction of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// The fate of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// It arrives later, and so does all data behind it, in order. Data that has not arrived when
    /// its sender closes the connection is lost.
    Delay(Duration),
    /// It arrives when the weather changes next, even if its sender closed the connection long
    /// before.
    Stall,
    /// Only this many bytes of it arrive. Then the connection is cut in both directions.
    CutAfter(usize),
    /// It is swallowed, and so is all data behind it in this direction, including the close. The
    /// other direction still works. When the weather changes next, the connection is cut and both
    /// ends notice.
    Swallow,
}

type Weather = Box<dyn FnMut(Direction, usize) -> Fate + Send>;

struct Sky {
    weather: Mutex<Weather>,
    /// The number of times that the weather was changed. It changes under the lock of the weather.
    changes: watch::Sender<u64>,
}

impl Sky {
    /// The fate of a piece, and the number of the weather that decided it.
    fn fate(&self, direction: Direction, length: usize) -> (Fate, u64) {
        let mut weather = self.weather.lock().unwrap_or_else(PoisonError::into_inner);
        ((*weather)(direction, length), *self.changes.borrow())
    }

    async fn changed_since(&self, change: u64) {
        // This fails when the proxy has been dropped, which counts as a change.
        let _ = self.changes.subscribe().wait_for(|changes| *changes > change).await;
    }
}

/// Passes data between clients and one server. It ends with the runtime of its test.
pub struct Proxy {
    port: u16,
    sky: Arc<Sky>,
}

impl Proxy {
    /// Starts a proxy in good weather.
    pub async fn before(server: &Server) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let sky = Arc::new(Sky { weather: Mutex::new(Box::new(|_, _| Fate::Pass)), changes: watch::Sender::new(0) });
        let (upstream, above) = (server.port(), sky.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // If there is no server, the client sees its connection close.
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else { continue };
                tokio::spawn(pass_on(client, server, above.clone()));
            }
        });
        Proxy { port, sky }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server takes connections")
    }

    /// From now on each piece asks this weather. Pieces that the last weather stalled arrive.
    /// Connections of which it swallowed data are cut.
    pub fn set(&self, weather: impl FnMut(Direction, usize) -> Fate + Send + 'static) {
        let mut present = self.sky.weather.lock().unwrap_or_else(PoisonError::into_inner);
        *present = Box::new(weather);
        self.sky.changes.send_modify(|changes| *changes += 1);
    }

    /// Restores good weather.
    pub fn clear(&self) {
        self.set(|_, _| Fate::Pass);
    }
}

/// Cuts each connection at the first piece that comes over it.
pub fn cuts_all(_: Direction, _: usize) -> Fate {
    Fate::CutAfter(0)
}

/// How one direction of a connection ended.
#[derive(PartialEq, Eq)]
enum End {
    /// All data has arrived, including the close.
    Whole,
    /// The connection is no longer usable in either direction.
    Cut,
}

/// Passes data until both directions have ended, or one was cut.
async fn pass_on(client: TcpStream, server: TcpStream, sky: Arc<Sky>) {
    // The client must see the part before a cut, so it must not be joined with later data.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut requests = std::pin::pin!(pass_one_way(from_client, to_server, Direction::ToServer, &sky));
    let mut replies = std::pin::pin!(pass_one_way(from_server, to_client, Direction::ToClient, &sky));
    tokio::select! {
        end = &mut requests => if end == End::Whole { replies.await; },
        end = &mut replies => if end == End::Whole { requests.await; },
    }
}

async fn pass_one_way(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, direction: Direction, sky: &Sky) -> End {
    let mut arrived = Vec::new();
    loop {
        if arrived.is_empty() {
            match from.read_buf(&mut arrived).await {
                Ok(0) => return if to.shutdown().await.is_ok() { End::Whole } else { End::Cut },
                Ok(_) => {}
                Err(_) => return End::Cut,
            }
        }
        let mut piece = std::mem::take(&mut arrived);
        let (fate, change) = sky.fate(direction, piece.len());
        match fate {
            Fate::Pass => {}
            Fate::Delay(time) => tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = until_closed(&mut from, &mut arrived) => return End::Cut,
            },
            Fate::Stall => sky.changed_since(change).await,
            Fate::CutAfter(length) => piece.truncate(length),
            Fate::Swallow => {
                sky.changed_since(change).await;
                return End::Cut;
            }
        }
        if to.write_all(&piece).await.is_err() || matches!(fate, Fate::CutAfter(_)) {
            return End::Cut;
        }
    }
}

/// Reads until the sender has closed.
async fn until_closed(from: &mut OwnedReadHalf, arrived: &mut Vec<u8>) {
    while from.read_buf(arrived).await.is_ok_and(|length| length > 0) {}
}
