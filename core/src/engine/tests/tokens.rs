//! Tokens at any clock time: they increase, and every server can encode and decode them.

use proptest::prelude::*;
use std::vec::Vec;

use super::keyspace::Value;
use super::world::{Output, World, asking, key};
use crate::codec::{decode, encode};
use crate::effect::{Facts, parse_effect, write_effect};
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::outbox::Grant;
use crate::request::{Ask, Refusal};
use crate::time::{MAX_TOKEN, TOKEN_CLOCK_END_US};

fn numbers() -> impl Strategy<Value = u64> {
    let near = |at: u64| (0..4u64).prop_map(move |by| at.saturating_sub(2).saturating_add(by));
    prop_oneof![any::<u64>(), 0..=MAX_TOKEN, near(MAX_TOKEN), near(TOKEN_CLOCK_END_US), near(1 << 53)]
}

proptest! {
    #[test]
    fn whatever_is_written_can_be_read(clocks in prop::collection::vec((numbers(), numbers(), 0..4u8), 1..20)) {
        let mut world = World::new();
        for (index, (wall_us, seen, kind)) in clocks.into_iter().enumerate() {
            world.now.wall_us = wall_us;
            if index % 3 == 2 {
                world.engine.raise_token(seen);
            }
            let (kind, mode) = match kind {
                0 => (Kind::Mutex, Mode::Exclusive),
                1 => (Kind::Fair, Mode::Exclusive),
                2 => (Kind::RwLock, Mode::Read),
                _ => (Kind::RwLock, Mode::Write),
            };
            let ask = if kind == Kind::Fair { Ask::Queue { life_ms: 1000 } } else { Ask::Try };
            let request = asking(kind, mode, ask);
            let last = world.engine.last_token();
            let name = key(&std::format!("{}-{}", kind.name(), index / 2));
            match world.on_key(&name, |engine, tx| engine.acquire(tx, &[index as u8], &request)) {
                Ok(Acquired::Granted(Grant { tokens, .. })) => prop_assert!(tokens[0] > last && tokens[0] <= MAX_TOKEN),
                Ok(_) | Err(Refusal::WrongType { .. }) => {}
                Err(Refusal::NoTokens) => prop_assert_eq!(last, MAX_TOKEN),
                Err(other) => panic!("{other:?}"),
            }
            let now = world.now;
            for (_, output) in std::mem::take(&mut world.outputs) {
                if let Output::Effect { event, .. } = output {
                    let mut facts = Facts::default();
                    let arguments = write_effect(&event, now, &mut facts).in_order();
                    prop_assert!(parse_effect(&facts, arguments, now).is_ok());
                }
            }
            for value in world.values.values() {
                if let Value::Lock(lock) = value {
                    let mut bytes = Vec::new();
                    encode(lock, now, &mut bytes);
                    prop_assert!(decode(&bytes, now).is_ok());
                }
            }
        }
    }
}
