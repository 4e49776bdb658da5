//! BLOCK … NOTIFY where things go wrong: servers that lack a command, subscribers that are killed, connections that are cut.

use crate::support::{Server, eventually, message, subscriber};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

const DISABLED: [&str; 2] = ["rename-command PUBSUB \"\"", "rename-command PUBSUB SOMETHING"];

#[test]
fn where_the_module_cannot_see_who_listens_notify_is_refused() {
    for line in DISABLED {
        let server = Server::with(&[line]);
        assert!(server.log().contains("rlock: NOTIFY is refused"), "{line}");
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let refused = client.call("RLOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 1");
        assert!(refused.expect_error("ERR").contains("PUBSUB"), "{refused:?}");
        assert_eq!(client.info_number("rlock_waiting"), 0);
        let mut blocked = server.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        client.call("RLOCK.RELEASE job a");
        blocked.reply().int();
    }
}

/// Messages go out without the command.
#[test]
fn a_renamed_publish_is_no_obstacle() {
    let server = Server::with(&["rename-command PUBLISH \"\"", "rename-command SUBSCRIBE LISTEN"]);
    assert!(!server.log().contains("NOTIFY is refused"));
    let (mut client, mut messages) = (server.client(), server.client());
    messages.call("LISTEN answers");
    client.acquire("job a PX 60000");
    assert_eq!(client.call("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), 0);
    client.call("RLOCK.RELEASE job a");
    assert!(message(&mut messages).starts_with("granted 1 "));
}

#[test]
fn a_node_of_a_cluster_that_cannot_see_its_slots_says_so() {
    let cluster_lines = ["cluster-enabled yes", &format!("cluster-port {}", crate::support::free_port())];
    let server = Server::with(&[&cluster_lines[..], &["rename-command EXISTS \"\""]].concat());
    assert!(server.log().contains("command EXISTS is renamed or disabled"));
    let sound = Server::with(&["rename-command EXISTS \"\""]);
    assert!(!sound.log().contains("command EXISTS"));
}
