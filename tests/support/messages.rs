//! Listening: connections that hear what is published.

use std::io::ErrorKind;
use std::time::Duration;

use super::client::Client;
use super::server::Server;

/// A connection that listens to a channel.
#[track_caller]
pub fn subscriber(server: &Server, channel: &str) -> Client {
    let mut client = server.client();
    assert_eq!(client.call(format!("SUBSCRIBE {channel}")).array()[1], channel);
    client
}

/// The next message on the one channel that a connection listens to.
#[track_caller]
pub fn message(subscriber: &mut Client) -> String {
    subscriber.reply().array()[2].text()
}

/// Nothing comes: so long the module had to do the wrong thing.
#[track_caller]
pub fn assert_silent(subscriber: &mut Client) {
    let message = subscriber.reply_within(Duration::from_millis(100));
    assert_eq!(message.expect_err("nothing to say").kind(), ErrorKind::TimedOut);
}
