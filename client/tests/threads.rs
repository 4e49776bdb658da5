//! The blocking client, where it does more than wait for the async one.

use std::time::Duration;

use rlock_client::blocking::{Client, Interrupt};
use rlock_client::{Error, Event};

use crate::support::{Reply, Server, eventually};
use crate::{PATIENCE, url};

#[test]
fn interrupted_wait_leaves_nothing() {
    let server = Server::start();
    let client = Client::connect(&url(&server)).expect("a server");
    let held = client.lock("k").acquire().expect("free");
    let interrupt = Interrupt::new();
    let waiting = std::thread::spawn({
        let lock = client.lock("k").interrupted_by(&interrupt);
        move || lock.acquire()
    });
    eventually(PATIENCE, || server.client().waiting_owners("k").len() == 1);
    assert!(!interrupt.is_interrupted());
    interrupt.interrupt();
    assert!(matches!(waiting.join().expect("no panic"), Err(Error::Interrupted)));
    eventually(PATIENCE, || server.client().waiting_owners("k").is_empty());
    assert!(interrupt.is_interrupted());
    held.release().expect("it was held");
    let again = client.lock("k").interrupted_by(&interrupt).try_acquire();
    assert!(matches!(again, Err(Error::Interrupted)), "the interruption persists");
    client.lock("k").acquire().expect("no interruption is pending").release().expect("it was held");
}

#[test]
fn blocking_client_supports_what_the_async_client_does() {
    let server = Server::with(&["notify-keyspace-events Kd"]);
    let client = Client::connect(&url(&server)).expect("a server");
    let mut events = client.observe("k").events().expect("the server sends events");
    let seen = client.lock("k").run(|guard| (guard.is_held(), client.observe("k").is_locked().expect("an answer")));
    assert_eq!(seen.expect("a grant"), (true, true));
    assert_eq!(events.next().expect("endless").expect("an event"), Event::Acquired);
    assert_eq!(events.next().expect("endless").expect("an event"), Event::Released);
    let detached = client.lock("k").acquire().expect("free").detach().expect("it is held");
    let guard = client.lock("k").attach(&detached).expect("it is held");
    assert!(!guard.is_suspected() && guard.token() == detached.token);
    guard.release_and_keep(Duration::from_secs(600)).expect("it was held");
    assert!(client.lock("k").try_acquire().expect("an answer").is_none());
    assert!(client.observe("k").force_release().expect("an answer"));
    let noted = client.lock("k").note("host-1").acquire().expect("free");
    assert_eq!(client.observe("k").holders().expect("an answer")[0].note.as_deref(), Some(b"host-1".as_slice()));
    noted.release().expect("it was held");
    let semaphore = client.semaphore("s");
    semaphore.init(3).expect("an answer");
    let guard = semaphore.permits(2).acquire().expect("free");
    assert_eq!((guard.permits(), semaphore.available_permits().expect("an answer")), (2, Some(1)));
    guard.release().expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), Reply::Int(0));
}
