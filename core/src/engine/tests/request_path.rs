//! The two requests of a hand-over, each of which is one call of the engine: an ACQUIRE that has to
//! wait, and the RELEASE that hands the lock over to it. `scripts/steps` counts the methods on the
//! path of the last request of each test.

use core::num::NonZeroU32;

use super::world::{Output, World, asking, key, releasing};
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::outbox::{Answer, Belief, Grant};
use crate::request::{Ask, Channel, Request};
use crate::time::US_PER_MS;

/// A connection.
const CLIENT: u64 = 7;
/// The time for which the waiter blocks.
const BLOCK_MS: u64 = 500;

/// Lets an owner wait for a mutex that another one holds. Returns the waiter's ticket.
fn wait(world: &mut World, notify: Option<Channel>) -> u64 {
    let (lock, hold) = (key("lock"), asking(Kind::Mutex, Mode::Exclusive, Ask::Try));
    let held = world.on_key(&lock, |engine, tx| engine.acquire(tx, b"holder", &hold));
    assert!(matches!(held, Ok(Acquired::Granted(_))), "{held:?}");
    world.client = Some(CLIENT);
    let ask = Ask::Wait { until_us: Some(BLOCK_MS * US_PER_MS) };
    let wait = Request { ask, notify, request_id: notify.map(|_| 1), ..hold };
    let waits = world.on_key(&lock, |engine, tx| engine.acquire(tx, b"waiter", &wait));
    let Ok(Acquired::Waiting(ticket)) = waits else { panic!("{waits:?} instead of a wait") };
    world.expect_answer(ticket);
    ticket
}

/// Releases the lock. The waiter holds it then, and gets one answer, which names its channel.
fn hand_over(notify: Option<Channel>) {
    let mut world = World::new();
    let ticket = wait(&mut world, notify);
    let release = releasing(Kind::Mutex, Mode::Exclusive, b"holder");
    let left = world.on_key(&key("lock"), |engine, tx| engine.release(tx, &release));
    assert_eq!(left.unwrap().as_slice(), [Some(0)]);
    let lock = world.lock(&key("lock")).expect("a lock");
    let hold = lock.hold(b"waiter", Mode::Exclusive).expect("the waiter's hold");
    assert_eq!(lock.holds().len(), 1);
    let answers = world.outputs.iter().filter_map(|(_, output)| match output {
        Output::Answer { ticket, answer, notice } => Some((*ticket, answer, notice.map(|notice| notice.channel))),
        Output::Effect { .. } => None,
    });
    let belief = notify.map(|_| Belief { from_us: 0, until_us: hold.deadline_us() });
    let grant = Grant { tokens: [hold.token()].into(), is_many: false, belief };
    assert!(answers.eq([(ticket, &Answer::Granted(grant), notify)]));
}

#[test]
fn acquire_waits_for_the_holder() {
    let mut world = World::new();
    wait(&mut world, None);
    let lock = world.lock(&key("lock")).expect("a lock");
    assert!(lock.hold(b"holder", Mode::Exclusive).is_some() && lock.hold(b"waiter", Mode::Exclusive).is_none());
    assert!(world.is_waiting(1));
}

#[test]
fn release_hands_over_to_a_blocked_client() {
    hand_over(None);
}

#[test]
fn release_hands_over_to_a_channel() {
    hand_over(Some(Channel(NonZeroU32::MIN)));
}
