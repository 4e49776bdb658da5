//! Effects from the append-only file or a master. They are refused, or parsed into an event that
//! survives being written and parsed again. Applying that event to any lock is refused, or leaves a
//! valid lock.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rlock_core::{Engine, Facts, KeyId, parse_effect, write_effect};
use rlock_fuzz::{NOW, Open, Values, check_exclusion, key};

// Lines of an owner, facts and a note, with slashes between them. An empty owner or note is absent.
fuzz_target!(|bytes: &[u8]| {
    let (mut engine, mut values) = (Engine::new([1, 2, 3, 4]), Values::new());
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(3, |byte| *byte == b'/');
        let [owner, facts, note] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let mut given = [owner, note].into_iter().filter(|argument| !argument.is_empty());
        let Ok(event) = parse_effect(facts, [given.next(), given.next()], NOW) else {
            continue;
        };
        let mut text = Facts::default();
        let written = write_effect(&event, NOW, &mut text).in_order();
        let read = parse_effect(&text, written, NOW);
        assert_eq!(read.as_ref(), Ok(&event), "the effect changes when it is written and parsed again");
        let _ = engine.apply_effect(&mut Open::new(&[key(0)], None, &mut values), KeyId(0), &event);
        for lock in values.values() {
            check_exclusion(lock, rlock_core::Now { mono_us: 0, ..NOW });
        }
    }
});
