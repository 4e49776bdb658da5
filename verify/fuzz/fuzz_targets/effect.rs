//! What the append-only file and a master may say: refused, or an event that is the same when it is written and read again; and
//! applied to any lock it is refused, or leaves a lock that may be.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rlock_core::{Engine, Facts, KeyId, parse_effect, write_effect};
use rlock_fuzz::{NOW, Open, Values, check_exclusion, key};

// Lines, each with an owner in front of a slash.
fuzz_target!(|bytes: &[u8]| {
    let (mut engine, mut values) = (Engine::new([1, 2, 3, 4]), Values::new());
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b'/');
        let (owner, facts) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let owner = (!owner.is_empty()).then_some(owner);
        let Ok(event) = parse_effect(facts, owner, NOW) else {
            continue;
        };
        let mut text = Facts::default();
        let said = write_effect(&event, NOW, &mut text).map(|owner| owner.as_slice().to_vec());
        assert_eq!(parse_effect(&text, said.as_deref(), NOW).as_ref(), Ok(&event), "what was read can be written");
        let _ = engine.apply_effect(&mut Open::new(&[key(0)], None, &mut values), KeyId(0), &event);
        for lock in values.values() {
            check_exclusion(lock, rlock_core::Now { mono_us: 0, ..NOW });
        }
    }
});
