//! Cuts a connection after each byte of each request and of each reply, one after the other.
//!
//! Wherever the cut is, the call succeeds as if nothing had happened, and the server's counts agree
//! with the guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rlock_client::Client;

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{self, Server, at_length};
use crate::{PATIENCE, connect, eventually};

/// A server, and a client whose connections will be cut.
struct Stage<'a> {
    observer: support::Client,
    /// A client whose connections are left alone.
    other: &'a Client,
    proxy: &'a Proxy,
    cut: Cut,
}

/// When a connection is cut: at the piece that completes this many bytes in one direction, summed
/// over all connections.
#[derive(Clone, Debug)]
struct Cut {
    direction: Direction,
    after: usize,
    is_done: Arc<AtomicBool>,
}

impl Stage<'_> {
    /// Starts counting bytes.
    fn arm(&self) {
        let Cut { direction, after, is_done } = self.cut.clone();
        let mut passed = 0;
        self.proxy.set(move |way, length| {
            if way != direction || is_done.load(Ordering::SeqCst) {
                return Fate::Pass;
            }
            passed += length;
            if passed < after {
                return Fate::Pass;
            }
            is_done.store(true, Ordering::SeqCst);
            Fate::CutAfter(after + length - passed)
        });
    }

    /// The sum of the holds of all owners.
    fn holds(&mut self, family: &str, key: &str) -> i64 {
        let info = self.observer.call(format!("{family}.INFO {key}"));
        if info == support::Reply::Nil {
            return 0;
        }
        info.field("holders").array().iter().map(|holder| holder.field("holds").int()).sum()
    }

    #[track_caller]
    fn assert_holds(&mut self, family: &str, key: &str, expected: i64) {
        let holds = self.holds(family, key);
        assert_eq!(holds, expected, "{family} {key} under {:?}", self.cut);
    }

    async fn first_use(&mut self) {
        self.arm();
        let client = Client::builder().connect_later(&self.proxy.url()).expect("an address");
        let guard = client.lock("k").try_acquire().await.expect("an answer").expect("a free lock");
        self.assert_holds("RLOCK", "k", 1);
        guard.release().await.expect("it was held");
    }

    async fn holding(&mut self) {
        let client = self.proxy.client().await;
        self.arm();
        let guard = client.lock("k").try_acquire().await.expect("an answer").expect("a free lock");
        self.assert_holds("RLOCK", "k", 1);
        guard.renew().await.expect("it is held");
        assert!(guard.is_held());
        guard.release().await.expect("it was held");
    }

    /// The sums differ between a session that was lost and one that was bound to the next
    /// connection.
    async fn holding_with_a_session(&mut self) {
        let client = self.proxy.client().await;
        self.arm();
        let lock = client.lock("k").session_grace(PATIENCE);
        let guard = lock.try_acquire().await.expect("an answer").expect("a free lock");
        guard.renew().await.expect("it is held");
        self.assert_holds("RLOCK", "k", 1);
        guard.release().await.expect("it was held");
    }

    async fn waiting(&mut self, is_fair: bool) {
        let (client, family) = (self.proxy.client().await, if is_fair { "RFAIRLOCK" } else { "RLOCK" });
        let key = if is_fair { "fair" } else { "k" };
        let first = match is_fair {
            true => Err(self.other.fair_lock(key).acquire().await.expect("a free lock")),
            false => Ok(self.other.lock(key).acquire().await.expect("a free lock")),
        };
        self.arm();
        let waiter = tokio::spawn(async move {
            match is_fair {
                true => Err(client.fair_lock(key).acquire().await.expect("a grant")),
                false => Ok(client.lock(key).acquire().await.expect("a grant")),
            }
        });
        eventually(|| self.observer.info_number("rlock_waiting") == 1).await;
        match first {
            Ok(first) => first.release().await.expect("it was held"),
            Err(first) => first.release().await.expect("it was held"),
        }
        let second = waiter.await.expect("no panic");
        self.assert_holds(family, key, 1);
        match second {
            Ok(second) => second.release().await.expect("it was held"),
            Err(second) => second.release().await.expect("it was held"),
        }
    }

    async fn a_dropped_wait(&mut self) {
        let client = self.proxy.client().await;
        let guard = self.other.fair_lock("fair").acquire().await.expect("a free lock");
        let waiter = tokio::spawn(async move { client.fair_lock("fair").acquire().await });
        eventually(|| self.observer.info_number("rlock_waiting") == 1).await;
        self.arm();
        waiter.abort();
        eventually(|| self.observer.places("fair").is_empty()).await;
        guard.release().await.expect("it was held");
    }

    async fn reading_and_writing(&mut self) {
        let client = self.proxy.client().await;
        self.arm();
        let lock = client.rw_lock("rw");
        let reader = lock.read().acquire().await.expect("free");
        let writer = reader.upgrade().await.expect("the only reader");
        self.assert_holds("RRWLOCK", "rw", 2);
        let second = writer.downgrade().await.expect("it was held");
        // The reader re-enters, which only the client counts.
        self.assert_holds("RRWLOCK", "rw", 1);
        reader.release().await.expect("it was held");
        self.assert_holds("RRWLOCK", "rw", 1);
        second.release().await.expect("it was held");
    }

    async fn permits(&mut self) {
        let client = self.proxy.client().await;
        let semaphore = client.semaphore("s");
        semaphore.init(6).await.expect("an answer");
        self.arm();
        let some = semaphore.permits(2).try_acquire().await.expect("an answer").expect("six are free");
        self.assert_holds("RSEMAPHORE", "s", 2);
        let rest = semaphore.permits(4).acquire().await.expect("four are free");
        some.release().await.expect("it was held");
        self.assert_holds("RSEMAPHORE", "s", 4);
        rest.release().await.expect("it was held");
        self.assert_holds("RSEMAPHORE", "s", 0);
        self.observer.call("DEL s");
    }

    async fn several_keys(&mut self) {
        let client = self.proxy.client().await;
        self.arm();
        let all = client.multi_lock(["k", "l"]).acquire().await.expect("free");
        self.assert_holds("RLOCK", "k", 1);
        self.assert_holds("RLOCK", "l", 1);
        all.release().await.expect("it was held");
    }
}

#[derive(Clone, Copy, Debug)]
enum Scene {
    FirstUse,
    Holding,
    HoldingWithASession,
    Waiting,
    WaitingInAFairQueue,
    ADroppedWait,
    ReadingAndWriting,
    Permits,
    SeveralKeys,
}

/// Plays a scene once per byte of a direction, until a run ends before its cut is due. Returns the
/// number of cuts.
async fn cut_everywhere(scene: Scene, direction: Direction, stride: usize) -> usize {
    let server = Server::start();
    let (proxy, other) = (Proxy::before(&server).await, connect(&server).await);
    for after in (0..).step_by(stride) {
        let cut = Cut { direction, after, is_done: Arc::default() };
        let mut stage = Stage { observer: server.client(), other: &other, proxy: &proxy, cut: cut.clone() };
        let play = async {
            match scene {
                Scene::FirstUse => stage.first_use().await,
                Scene::Holding => stage.holding().await,
                Scene::HoldingWithASession => stage.holding_with_a_session().await,
                Scene::Waiting => stage.waiting(false).await,
                Scene::WaitingInAFairQueue => stage.waiting(true).await,
                Scene::ADroppedWait => stage.a_dropped_wait().await,
                Scene::ReadingAndWriting => stage.reading_and_writing().await,
                Scene::Permits => stage.permits().await,
                Scene::SeveralKeys => stage.several_keys().await,
            }
            eventually(|| stage.observer.call("DBSIZE") == 0 && stage.observer.info_number("rlock_waiting") == 0).await;
        };
        tokio::time::timeout(PATIENCE * 2, play).await.unwrap_or_else(|_| panic!("{scene:?} hangs under {cut:?}"));
        proxy.clear();
        if !cut.is_done.load(Ordering::SeqCst) {
            eprintln!("{scene:?}: {direction:?} cut at {} places", after / stride);
            return after / stride;
        }
    }
    unreachable!("a scene has an end")
}

/// Plays the scenes with every cut in the replies. `make test` tries only every seventh cut in the
/// requests, which are longer.
async fn cut_both_ways(scenes: &[Scene]) {
    for scene in scenes {
        assert!(cut_everywhere(*scene, Direction::ToClient, 1).await > 0);
        assert!(cut_everywhere(*scene, Direction::ToServer, at_length(7, 1)).await > 0);
    }
}

#[tokio::test]
async fn connection_cut_anywhere_does_no_harm_to_holders() {
    cut_both_ways(&[Scene::FirstUse, Scene::Holding, Scene::HoldingWithASession]).await;
}

#[tokio::test]
async fn connection_cut_anywhere_does_no_harm_to_waiters() {
    cut_both_ways(&[Scene::Waiting, Scene::WaitingInAFairQueue, Scene::ADroppedWait]).await;
}

#[tokio::test]
async fn connection_cut_anywhere_does_no_harm_to_other_kinds_of_locks() {
    cut_both_ways(&[Scene::ReadingAndWriting, Scene::Permits, Scene::SeveralKeys]).await;
}
