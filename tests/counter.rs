//! Shows the purpose of a lock, with an ordinary client library: 1000 clients increment a counter.

use std::sync::Barrier;
use std::thread;

use redis::{Connection, RedisResult, cmd};

use crate::support::{Reply, Server};

const CLIENTS: usize = 1000;

/// What one client saw while it held the lock.
struct Turn {
    token: u64,
    counter: u64,
}

fn count_one_up(connection: &mut Connection, owner: &str) -> RedisResult<Turn> {
    let lease_and_block = ["PX", "30000", "BLOCK", "0"];
    let token = cmd("RLOCK.ACQUIRE").arg("counter-lock").arg(owner).arg(&lease_and_block).query(connection)?;
    let counter: Option<u64> = cmd("GET").arg("counter").query(connection)?;
    let counter = counter.unwrap_or(0) + 1;
    cmd("SET").arg("counter").arg(counter).exec(connection)?;
    let holds_left: u64 = cmd("RLOCK.RELEASE").arg("counter-lock").arg(owner).query(connection)?;
    assert_eq!(holds_left, 0);
    Ok(Turn { token, counter })
}

#[test]
fn one_thousand_clients_count_to_one_thousand() {
    let server = Server::start();
    let library = redis::Client::open(("127.0.0.1", server.port())).expect("an address");
    let all_connected = Barrier::new(CLIENTS);

    let mut turns: Vec<Turn> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (library, all_connected) = (&library, &all_connected);
                let client = move || {
                    let connection = library.get_connection();
                    all_connected.wait();
                    count_one_up(&mut connection?, &format!("client-{number}"))
                };
                // 1000 stacks of the default size (2 MB) would need 2 GB.
                thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, client)
            })
            .collect();
        let join = |client: std::io::Result<thread::ScopedJoinHandle<_>>| {
            let outcome: RedisResult<Turn> = client.expect("a thread").join().expect("no panic");
            outcome.expect("no client gets an error")
        };
        clients.into_iter().map(join).collect()
    });

    turns.sort_by_key(|turn| turn.counter);
    let counters: Vec<_> = turns.iter().map(|turn| turn.counter).collect();
    assert_eq!(counters, (1..=CLIENTS as u64).collect::<Vec<_>>(), "each holder was alone");
    assert!(turns.is_sorted_by(|one, next| one.token < next.token), "tokens rise strictly");

    let mut client = server.client();
    assert_eq!(client.call("GET counter"), "1000");
    assert_eq!(client.call("EXISTS counter-lock"), 0);
    assert_eq!(client.call("RLOCK.WAITERS counter-lock"), Reply::Array(vec![]));
    assert_eq!(client.info_number("rlock_waiting"), 0);
    assert_eq!(client.info_number("blocked_clients"), 0);
}
