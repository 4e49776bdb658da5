//! The arguments of a command. They are refused with a readable text, or parsed into options that
//! are within their ranges and survive being written and parsed again.
//!
//! The parser is the module's own, from its source files. A list here replaces the server's
//! strings.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../../src/arguments.rs"]
#[allow(dead_code, reason = "the module uses all of it")]
mod arguments;

#[path = "../../../src/options.rs"]
#[allow(dead_code, reason = "the module uses all of it")]
mod options;

/// Replaces the server's strings.
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
    /// How names appear in errors. The module's own function escapes bytes that are not printable.
    pub(crate) fn shown(name: &[u8]) -> String {
        name.iter().take(64).map(|byte| format!("{byte:02x}")).collect()
    }
}

use arguments::ArgumentError;
use ffi::Args;
use options::{Opt, Options, Takes};

const ACQUIRE: &[Opt] =
    &[Opt::Permits, Opt::Px, Opt::Ex, Opt::Block, Opt::Queue, Opt::Notify, Opt::Session, Opt::Req, Opt::Once];

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
        5 => readable(options::options(args, 2, &[Opt::Owner, Opt::Count]).map(|options| {
            assert!(options.bytes(Opt::Owner).is_none_or(is_owner));
        })),
        6 => readable(arguments::mode(args, 3).map(|mode| assert!(mode.name().eq_ignore_ascii_case(text(argv[3]))))),
        _ => readable(arguments::permits(args, 2).map(|permits| assert_eq!(permits.to_string(), text(argv[2])))),
    }
});

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).expect("a parsed argument is text")
}

fn is_owner(owner: &[u8]) -> bool {
    (1..=512).contains(&owner.len())
}

/// A command for one key.
fn one(args: Args<'_>, first: usize, known: &[Opt]) {
    readable(arguments::key_and_owner(args).map(|(_, owner)| assert!(is_owner(owner))));
    readable(options::options(args, first, known).map(|options| check(args, first, known, &options)));
}

/// A command for many keys.
fn many(args: Args<'_>, known: &[Opt]) {
    let Ok(many) = arguments::keys_and_owner(args) else {
        return;
    };
    assert!((1..=128).contains(&many.keys.len()) && is_owner(many.owner));
    let options = options::options_of_many(args, &many, known);
    readable(options.map(|options| {
        let tokens = options.tokens().len();
        assert!(tokens == 0 || tokens == many.keys.len(), "not one token per key");
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
    // Written in another order, and parsed again.
    let mut written: Vec<Vec<u8>> =
        (0..first).map(|at| args.get(at).map_or(Vec::new(), |arg| arg.bytes().to_vec())).collect();
    for option in known.iter().rev().filter(|option| options.has(**option)) {
        let row = option.row();
        written.push(row.word.to_bytes().to_ascii_lowercase());
        match row.takes {
            Takes::Nothing => {}
            Takes::Integer { min, max, .. } => {
                let integer = options.integer(*option).expect("the option was given");
                assert!((min..=max).contains(&integer));
                written.push(integer.to_string().into_bytes());
            }
            Takes::IntegerOfEachKey { min, max } => {
                assert!(options.tokens().iter().all(|token| (min..=max).contains(token)));
                written.extend(options.tokens().iter().map(|token| token.to_string().into_bytes()));
            }
            Takes::Bytes { min, max } => {
                let bytes = options.bytes(*option).expect("the option was given");
                assert!((min..=max).contains(&bytes.len()));
                written.push(bytes.to_vec());
            }
        }
    }
    for (one, other) in [(Opt::Px, Opt::Ex), (Opt::Block, Opt::Queue)] {
        assert!(!options.has(one) || !options.has(other), "two options that exclude each other were accepted");
    }
    let written: Vec<&[u8]> = written.iter().map(Vec::as_slice).collect();
    match options::options(Args(&written), first, known) {
        Ok(again) => {
            assert_eq!(again.tokens(), options.tokens());
            for option in known {
                let values =
                    |options: &Options<'_>| (options.integer(*option), options.bytes(*option).map(<[u8]>::to_vec));
                assert_eq!(
                    values(&again),
                    values(options),
                    "the options change when they are written and parsed again"
                );
            }
        }
        Err(error) => panic!("parsed options cannot be parsed again: {}", error.text()),
    }
}
