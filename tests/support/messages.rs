//! Connections that listen to channels.

use std::io::ErrorKind;
use std::time::Duration;

use super::client::Client;
use super::server::Server;

/// Returns a connection that listens to a channel.
#[track_caller]
pub fn subscriber(server: &Server, channel: &str) -> Client {
    let mut client = server.client();
    assert_eq!(client.call(format!("SUBSCRIBE {channel}")).array()[1], channel);
    client
}

/// Returns the next message on the only channel of this connection.
#[track_caller]
pub fn message(subscriber: &mut Client) -> String {
    subscriber.reply().array()[2].text()
}

/// Asserts that no message arrives. A module that sends one by mistake has 100 ms to do so.
#[track_caller]
pub fn assert_silent(subscriber: &mut Client) {
    let message = subscriber.reply_within(Duration::from_millis(100));
    assert_eq!(message.expect_err("a message arrived").kind(), ErrorKind::TimedOut);
}
