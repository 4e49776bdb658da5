//! What each server says about itself, at all times of a run: whether it is a master that enough
//! replicas follow, and whether it grants.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::workers::Load;
use crate::support::Client;

/// How long a server is given to answer. A stopped server does not.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause between two looks. The measured times are inexact by that.
const PAUSE: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    is_followed: bool,
    grants: bool,
}

/// The changes of the states, by port.
#[derive(Default)]
pub struct Watch(Mutex<BTreeMap<u16, Vec<(Instant, State)>>>);

impl Watch {
    /// Looks at all servers until the load is over.
    pub fn run(&self, load: &Load) {
        let mut connections = BTreeMap::new();
        while !load.is_over() {
            for port in load.ports() {
                let asked = connections.remove(&port).or_else(|| Client::connect_within(port, PATIENCE).ok());
                let looked = asked.and_then(|mut client| Some((look(&mut client)?, client)));
                self.note(port, looked.as_ref().map(|(state, _)| *state).unwrap_or_default(), Instant::now());
                connections.extend(looked.map(|(_, client)| (port, client)));
            }
            thread::sleep(PAUSE);
        }
    }

    fn note(&self, port: u16, state: State, at: Instant) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_port = changes.entry(port).or_default();
        if of_port.last().is_none_or(|(_, last)| *last != state) {
            of_port.push((at, state));
        }
    }

    /// Returns the longest time from the moment when enough replicas followed a master, or when a
    /// server without replicas was up, until it granted, both within a time.
    pub fn longest_until_grants(&self, from: Instant, until: Instant) -> Duration {
        let changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut longest = Duration::ZERO;
        for of_port in changes.values() {
            let mut followed_at = None;
            for (at, state) in of_port {
                followed_at = followed_at.filter(|_| state.is_followed).or(state.is_followed.then_some(*at));
                let began_at = followed_at.filter(|began_at| state.grants && *began_at > from && *at < until);
                longest = longest.max(began_at.map_or(Duration::ZERO, |began_at| *at - began_at));
                // Only the first grants count: a pause that the fault did not cause may follow.
                followed_at = followed_at.map(|began_at| if state.grants { from } else { began_at });
            }
        }
        longest
    }
}

fn look(client: &mut Client) -> Option<State> {
    client.try_send(&["INFO replication".into(), "INFO rlock".into()]).ok()?;
    let [replication, rlock] = [(); 2].map(|()| client.reply_within(PATIENCE).ok());
    let (replication, rlock) = (replication?.text(), rlock?.text());
    let number = |name: &str| -> Option<usize> {
        rlock.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    let is_master = replication.contains("role:master");
    let online = replication.matches("state=online").count();
    let is_followed = is_master && online >= number("rlock_replicas_needed").unwrap_or(0);
    Some(State { is_followed, grants: is_master && number("rlock_may_grant") == Some(1) })
}

#[test]
fn time_from_the_following_to_the_first_grant_is_found() {
    let (watch, began) = (Watch::default(), Instant::now());
    let at = |ms| began + Duration::from_millis(ms);
    let state = |is_followed, grants| State { is_followed, grants };
    for (ms, one) in
        [(0, state(true, true)), (10, state(false, false)), (20, state(true, false)), (50, state(true, true))]
    {
        watch.note(1, one, at(ms));
        watch.note(1, one, at(ms + 1));
    }
    watch.note(1, state(true, false), at(60));
    watch.note(1, state(true, true), at(99));
    assert_eq!(watch.longest_until_grants(at(5), at(100)), Duration::from_millis(30));
    assert_eq!(watch.longest_until_grants(at(25), at(100)), Duration::ZERO, "it was followed before");
    assert_eq!(watch.longest_until_grants(at(5), at(40)), Duration::ZERO);
}
