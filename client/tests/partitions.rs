//! A lock on five independent servers, over networks that partition at random.
//!
//! Each client has a separate path to each server. A blocked path holds data back, as TCP does, and
//! delivers it when it opens again, or loses it in one direction. No two guards that exclude each
//! other are held at once, and tokens rise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rlock_client::{Client, Error, Quorum, QuorumGuard};
use tokio_util::sync::CancellationToken;

use crate::beliefs::{Belief, Register, Share};
use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{Server, at_length, seed};
use crate::{eventually, url};

const LEASE: Duration = Duration::from_millis(400);

/// The number of times that the network changes. `make client-faults` runs the long form.
fn changes() -> usize {
    at_length(60, 3000)
}

/// The state of the path from one client to one server.
#[derive(Clone, Copy, Debug)]
enum Way {
    Open,
    /// Data is held back in both directions.
    Stalled,
    /// Requests arrive, and replies are lost.
    Deaf,
    /// Requests are lost.
    Mute,
    /// Connections are cut.
    Cut,
}

impl Way {
    /// Open more often than not, so that some client usually reaches a majority.
    fn random(random: &mut StdRng) -> Way {
        match random.random_range(0..12) {
            0 | 1 => Way::Stalled,
            2 => Way::Deaf,
            3 => Way::Mute,
            4 => Way::Cut,
            _ => Way::Open,
        }
    }

    fn fate(self, direction: Direction) -> Fate {
        match (self, direction) {
            (Way::Stalled, _) => Fate::Stall,
            (Way::Deaf, Direction::ToClient) | (Way::Mute, Direction::ToServer) => Fate::Swallow,
            (Way::Cut, _) => Fate::CutAfter(0),
            (Way::Open | Way::Deaf | Way::Mute, _) => Fate::Pass,
        }
    }
}

/// A client with a path to each server.
struct Party {
    quorum: Quorum,
    ways: Vec<Proxy>,
}

impl Party {
    async fn new(servers: &[Server]) -> Party {
        let mut ways = Vec::new();
        for server in servers {
            ways.push(Proxy::before(server).await);
        }
        let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        let options =
            Client::builder().connect_timeout(Duration::from_millis(100)).command_timeout(Duration::from_millis(100));
        Party { quorum: Quorum::connect(&options, &urls).expect("addresses"), ways }
    }
}

/// Acquires and releases until it is stopped. Sometimes it holds for longer than a lease.
async fn compete(
    quorum: Quorum,
    register: Arc<Register>,
    losses: Arc<AtomicUsize>,
    mut random: StdRng,
    stop: CancellationToken,
) {
    let lock = quorum.lock("k").lease(LEASE).server_timeout(Duration::from_millis(60));
    while !stop.is_cancelled() {
        let guard = match lock.acquire_timeout(Duration::from_millis(300)).await {
            Ok(guard) => guard,
            Err(Error::Timeout | Error::NoQuorum { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let guard = Arc::new(guard);
        register.enter("k", Share::Alone, guard.clone());
        let stay = Duration::from_millis(match random.random_range(0..3) {
            0 => random.random_range(0..1500),
            _ => random.random_range(0..5),
        });
        tokio::select! {
            () = guard.lost() => drop(losses.fetch_add(1, Ordering::Relaxed)),
            () = tokio::time::sleep(stay) => {}
        }
        register.leave("k", &(guard.clone() as Arc<dyn Belief>));
        let guard: QuorumGuard = Arc::into_inner(guard).expect("the register has let it go");
        if random.random() {
            // The release fails if the hold was lost, or if the client reaches no majority.
            match guard.release().await {
                Ok(()) | Err(Error::Lost | Error::Unavailable { .. } | Error::NoQuorum { .. }) => {}
                Err(error) => panic!("a release: {error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_conflicting_quorum_guards_over_random_partitions() {
    let started = Instant::now();
    let servers: Vec<_> = (0..5).map(|_| Server::start()).collect();
    let mut random = StdRng::seed_from_u64(seed());
    let (register, stop, losses) =
        (Arc::new(Register::default()), CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let (mut parties, mut competing) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let party = Party::new(&servers).await;
        let random = StdRng::seed_from_u64(random.random());
        let (quorum, register) = (party.quorum.clone(), register.clone());
        competing.push(tokio::spawn(compete(quorum, register, losses.clone(), random, stop.clone())));
        parties.push(party);
    }
    // A campaign proves nothing if no client holds the lock, or if no client loses it. The rates
    // depend on the machine, so the campaign continues until there are enough of both.
    let is_enough = || register.believed() > changes() / 10 && losses.load(Ordering::Relaxed) > changes() / 1000;
    let mut changed = 0;
    while changed < changes() || !is_enough() {
        assert!(changed < 10 * changes(), "{} holds over {changed} changes", register.believed());
        changed += 1;
        let party = &parties[random.random_range(0..parties.len())];
        match random.random_range(0..4) {
            // Cuts off one client from any majority. It may be the holder.
            0 => party.ways[..3].iter().for_each(|way| way.set(|direction, _| Way::Stalled.fate(direction))),
            1 => party.ways.iter().for_each(Proxy::clear),
            _ => {
                let weather = Way::random(&mut random);
                party.ways[random.random_range(0..servers.len())].set(move |direction, _| weather.fate(direction));
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..200))).await;
    }
    stop.cancel();
    parties.iter().flat_map(|party| &party.ways).for_each(Proxy::clear);
    for competing in competing {
        competing.await.expect("the task found no error");
    }
    let (held, losses) = (register.believed(), losses.load(Ordering::Relaxed));
    eprintln!("{held} holds, {losses} of them lost, over {changed} changes in {:?}", started.elapsed());
    for server in &servers {
        eventually(|| server.client().call("DBSIZE") == 0).await;
        eventually(|| server.client().info_number("rlock_waiting") == 0).await;
    }
    // When the networks work again, every client can acquire the lock.
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let whole = Quorum::connect(&Client::builder(), &urls).expect("addresses");
    let guard = whole.lock("k").acquire_timeout(crate::PATIENCE).await.expect("free");
    guard.release().await.expect("it was held");
}
