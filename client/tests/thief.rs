//! Loses replies together with their connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rlock_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::eventually;
use crate::support::Server;

/// A proxy between a client and a server. On demand it swallows the next reply, or a later one, and
/// cuts the connection on which the reply came.
pub struct Thief {
    port: u16,
    /// Which of the coming replies it steals; 0 for none.
    steals: Arc<AtomicUsize>,
    /// Runs when a reply is stolen, before the client can notice.
    then: Arc<Mutex<Option<Deed>>>,
}

type Deed = Box<dyn FnOnce() + Send>;

impl Thief {
    pub async fn before(server: &Server) -> Thief {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let steals = Arc::new(AtomicUsize::new(0));
        let then = Arc::new(Mutex::new(None));
        let (upstream, of_all, deed) = (server.port(), steals.clone(), then.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", upstream)).await.expect("the server takes connections");
                tokio::spawn(pass_on(client, server, of_all.clone(), deed.clone()));
            }
        });
        Thief { port, steals, then }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server takes connections")
    }

    pub fn steal_next(&self) {
        self.steal(1);
    }

    /// The next reply is 1.
    pub fn steal(&self, number: usize) {
        self.steals.store(number, Ordering::SeqCst);
    }

    /// Steals the next reply, and then runs `deed`.
    pub fn steal_next_and(&self, deed: impl FnOnce() + Send + 'static) {
        *self.then.lock().expect("no panic") = Some(Box::new(deed));
        self.steal_next();
    }

    pub fn has_stolen(&self) -> bool {
        self.steals.load(Ordering::SeqCst) == 0
    }
}

/// Passes data until one side closes or a reply is stolen, and then closes both connections.
async fn pass_on(client: TcpStream, server: TcpStream, steals: Arc<AtomicUsize>, then: Arc<Mutex<Option<Deed>>>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let replies = async {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let length = from_server.read(&mut bytes).await?;
            let count_down = |number: usize| number.checked_sub(1);
            if length == 0 {
                return Ok(());
            }
            if steals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down) == Ok(1) {
                if let Some(deed) = then.lock().expect("no panic").take() {
                    deed();
                }
                return Ok(());
            }
            to_client.write_all(&bytes[..length]).await?;
        }
    };
    let _: std::io::Result<()> = tokio::select! { done = requests => done, done = replies => done };
}

/// The first waiter on a connection subscribes to messages. Use the connection once, so that the
/// next reply is that of ACQUIRE.
pub async fn use_once(client: &Client) {
    client.lock("warm").acquire().await.expect("free").release().await.expect("it was held");
}

/// Lets an attempt send its request, and drops it when `has_come` is true.
pub async fn give_up_when<T>(attempt: impl Future<Output = T>, has_come: impl FnMut() -> bool) {
    let mut attempt = std::pin::pin!(attempt);
    let asks = std::future::poll_fn(|context| {
        assert!(attempt.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    });
    asks.await;
    eventually(has_come).await;
}

pub fn holds(server: &Server) -> i64 {
    server.client().holder("k").map_or(0, |holder| holder.holds)
}
