//! A network that loses replies, and a client that repeats commands without a reply, as libraries
//! of most languages do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::{ALL, Client, Reply, Server};

const ROUNDS: usize = 30;
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts a proxy for a server. On every other connection the server executes the second command,
/// but its reply is lost with the connection. The first command is the CLIENT ID of
/// [`Client::connect`]. The proxy lives as long as the test program.
fn lose_replies_of(server_port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect((Ipv4Addr::LOCALHOST, server_port))) else {
                return;
            };
            let answers = if number % 2 == 0 { 1 } else { usize::MAX };
            thread::spawn(move || pass_on(client, server, answers));
        }
    });
    port
}

/// Relays one command at a time. Each arrives in one piece on loopback. Closes the connection
/// instead of relaying reply number `answers`.
fn pass_on(mut client: TcpStream, mut server: TcpStream, answers: usize) {
    let mut piece = [0; 4096];
    for answered in 0.. {
        let Ok(length @ 1..) = client.read(&mut piece) else { break };
        let answer = server.write_all(&piece[..length]).and_then(|()| server.read(&mut piece));
        let Ok(length @ 1..) = answer else { break };
        if answered == answers || client.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Behaves like a library: sends the command again over a new connection, until it gets a reply.
fn call_like_a_library(port: u16, server: &Server, command: &str) -> Reply {
    let try_once = || {
        let mut connection = Client::connect(port).ok()?;
        connection.speak(server.family());
        connection.send(command);
        connection.reply_within(PATIENCE).ok()
    };
    (0..10).find_map(|_| try_once()).expect("a reply within ten tries")
}

#[test]
fn repeating_library_leaves_one_hold_that_one_release_frees() {
    for server in Server::for_each(ALL) {
        let port = lose_replies_of(server.port());
        let mut client = server.client();
        for round in 0..ROUNDS {
            let owner = format!("acquisition-{round}");
            let token = call_like_a_library(port, &server, &format!("LOCK.ACQUIRE job {owner} PX 60000 ONCE")).int();
            assert_eq!(client.holder("job").expect("a holder").identity(), (owner.as_str(), 1, token));
            // RELEASE may be repeated as well, and then finds that the first one was executed.
            let released = call_like_a_library(port, &server, &format!("LOCK.RELEASE job {owner} TOKEN {token}"));
            released.expect_error("NOTOWNER");
            assert!(client.is_free("job"));
        }
    }
}

#[test]
fn repeating_without_once_makes_a_second_hold() {
    for server in Server::for_each(ALL) {
        let port = lose_replies_of(server.port());
        let mut client = server.client();
        call_like_a_library(port, &server, "LOCK.ACQUIRE job acquisition PX 60000").int();
        assert_eq!(client.call("LOCK.HOLDS job acquisition"), 2);
    }
}
