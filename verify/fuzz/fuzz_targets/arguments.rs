//! What a command is sent: refused with a text that a client can read, or options that are within their ranges and the same when they
//! are written and read again.
//!
//! The parser is the module's own file; its words come from a list here, in place of the server's strings.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rlock_core::{MAX_LEASE_MS, MAX_TOKEN};

#[path = "../../../src/arguments.rs"]
#[allow(dead_code, reason = "the module uses all of it")]
mod arguments;

/// In place of the server's strings.
mod ffi {
    #[derive(Clone, Copy)]
    pub(crate) struct Arg<'a>(pub(crate) &'a [u8]);

    impl<'a> Arg<'a> {
        pub(crate) fn bytes(self) -> &'a [u8] {
            self.0
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Args<'a>(pub(crate) &'a [&'a [u8]]);

    impl<'a> Args<'a> {
        pub(crate) fn get(self, index: usize) -> Option<Arg<'a>> {
            self.0.get(index).map(|word| Arg(word))
        }
    }
}

mod reply {
    /// Names in errors; the module's own escapes what is not printable.
    pub(crate) fn shown(name: &[u8]) -> String {
        name.iter().take(64).map(|byte| format!("{byte:02x}")).collect()
    }
}

use arguments::{ArgumentError, Opt, Options};
use ffi::Args;

const ACQUIRE: &[Opt] =
    &[Opt::Permits, Opt::Px, Opt::Ex, Opt::Block, Opt::Queue, Opt::Session, Opt::Req, Opt::Once, Opt::Notify];

fuzz_target!(|bytes: &[u8]| {
    let Some((command, words)) = bytes.split_first() else {
        return;
    };
    let mut argv: Vec<&[u8]> = vec![b"COMMAND"];
    argv.extend(words.split(|byte| *byte == b' '));
    let args = Args(&argv);
    match command % 8 {
        0 => one(args, 3, ACQUIRE),
        1 => one(args, 4, ACQUIRE),
        2 => one(args, 3, &[Opt::Permits, Opt::Req, Opt::Token]),
        3 => many(args, ACQUIRE),
        4 => many(args, &[Opt::Req, Opt::Tokens]),
        5 => readable(arguments::owner_option(args, 2).map(|owner| assert!(owner.is_none_or(is_owner)))),
        6 => readable(arguments::mode(args, 3).map(|mode| assert!(mode.name().eq_ignore_ascii_case(text(argv[3]))))),
        _ => readable(arguments::permits(args, 2).map(|permits| assert_eq!(permits.to_string(), text(argv[2])))),
    }
});

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).expect("what was understood is text")
}

fn is_owner(owner: &[u8]) -> bool {
    (1..=512).contains(&owner.len())
}

/// A command for one key.
fn one(args: Args<'_>, first: usize, known: &[Opt]) {
    readable(arguments::key_and_owner(args).map(|(_, owner)| assert!(is_owner(owner))));
    readable(arguments::options(args, first, known).map(|options| check(args, first, known, &options)));
}

/// A command for many keys.
fn many(args: Args<'_>, known: &[Opt]) {
    let Ok(many) = arguments::keys_and_owner(args) else {
        return;
    };
    assert!((1..=128).contains(&many.keys.len()) && is_owner(many.owner));
    let options = arguments::options_of_many(args, &many, known);
    readable(options.map(|options| {
        assert!(options.tokens.is_empty() || options.tokens.len() == many.keys.len(), "a token for each key");
        check(args, many.options_at, known, &options);
    }));
}

fn readable(parsed: Result<(), ArgumentError>) {
    if let Err(error) = parsed {
        let text = error.text();
        assert!(text.starts_with("ERR ") && !text.contains(['\r', '\n']) && text.len() < 1024, "{text}");
    }
}

fn check(args: Args<'_>, first: usize, known: &[Opt], options: &Options<'_>) {
    let Options { lease_ms, block_ms, queue_ms, session_ms, request_id, tokens, is_once, channel, permits, .. } =
        options;
    assert!([lease_ms, queue_ms].iter().all(|ms| ms.is_none_or(|ms| (1..=MAX_LEASE_MS).contains(&ms))));
    assert!(session_ms.is_none_or(|ms| ms <= MAX_LEASE_MS) && block_ms.is_none_or(|ms| ms <= i64::MAX as u64));
    assert!(request_id.is_none_or(|id| (1..=i64::MAX as u64).contains(&id)));
    assert!(tokens.iter().all(|token| (1..=MAX_TOKEN).contains(token)));
    assert!(permits.is_none_or(|permits| (1..=u64::from(u32::MAX)).contains(&permits)));
    assert!(block_ms.is_none() || queue_ms.is_none());
    // Written in another order, and read again.
    let mut written: Vec<Vec<u8>> =
        (0..first).map(|at| args.get(at).map_or(Vec::new(), |arg| arg.bytes().to_vec())).collect();
    if *is_once {
        written.push(b"once".to_vec());
    }
    if let Some(channel) = channel {
        written.extend([b"notify".to_vec(), channel.to_vec()]);
    }
    if !tokens.is_empty() {
        let name: &[u8] = if known.contains(&Opt::Tokens) { b"tokens" } else { b"token" };
        written.push(name.to_vec());
        written.extend(tokens.iter().map(|token| token.to_string().into_bytes()));
    }
    let numbers = [
        ("permits", permits),
        ("req", request_id),
        ("session", session_ms),
        ("queue", queue_ms),
        ("block", block_ms),
        ("px", lease_ms),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            written.extend([name.as_bytes().to_vec(), number.to_string().into_bytes()]);
        }
    }
    let written: Vec<&[u8]> = written.iter().map(Vec::as_slice).collect();
    match arguments::options(Args(&written), first, known) {
        Ok(again) => assert_eq!(again, *options, "what was read can be written and read"),
        Err(error) => panic!("what was read cannot be read again: {}", error.text()),
    }
}
