//! Keyspace events of the module, as a subscriber sees them.

use super::client::Client;
use super::server::Server;

/// A channel that the subscription matches and that no key produces.
const END: &str = "__keyspace@0__:-end-";

/// A subscription to all keyspace events of the module class on one server.
pub struct Events {
    subscriber: Client,
    control: Client,
}

impl Events {
    #[track_caller]
    pub fn subscribe(server: &Server) -> Events {
        let (mut subscriber, mut control) = (server.client(), server.client());
        assert_eq!(control.call("CONFIG SET notify-keyspace-events Kd"), "OK");
        subscriber.call("PSUBSCRIBE __keyspace@*__:*");
        Events { subscriber, control }
    }

    /// The next event, as "event key".
    #[track_caller]
    pub fn next(&mut self) -> String {
        let message = self.subscriber.reply();
        let channel = message.array()[2].text();
        let key = channel.split_once(':').expect("a keyspace channel").1;
        format!("{} {key}", message.array()[3].text())
    }

    /// All events that were published before this call and not read yet.
    #[track_caller]
    pub fn so_far(&mut self) -> Vec<String> {
        assert_eq!(self.control.call(format!("PUBLISH {END} -")), 1);
        std::iter::from_fn(|| Some(self.next()).filter(|event| event != "- -end-")).collect()
    }
}
