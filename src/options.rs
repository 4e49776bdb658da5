//! The options of commands. One table has everything about each option: its word, its values, and
//! its name in COMMAND DOCS. A command lists its options. Parsing and COMMAND DOCS follow from that
//! list, and a test compares COMMAND DOCS with `docs/commands`.

use std::ffi::CStr;

use rlock_core::{MAX_LEASE_MS, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TOKEN};
use smallvec::SmallVec;

use crate::arguments::{ArgumentError, KeysAndOwner, MAX_PERMITS, integer, key_count};
use crate::ffi::Args;
use crate::reply::shown;

/// An option, in the order of `docs/commands` and COMMAND DOCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opt {
    Permits,
    Px,
    Ex,
    Block,
    Queue,
    Grace,
    Notify,
    Claim,
    Session,
    Req,
    Once,
    Timed,
    Keep,
    Note,
    Idle,
    Token,
    Tokens,
    Each,
    Count,
    Owner,
}

/// A row of the table.
pub(crate) struct Row {
    /// The option as users type it.
    pub(crate) word: &'static CStr,
    /// The name of its value in COMMAND DOCS; of a flag, its own name.
    pub(crate) name: &'static CStr,
    pub(crate) takes: Takes,
    /// Options of one group exclude each other. COMMAND DOCS shows the group as a choice with this
    /// name.
    pub(crate) group: Option<&'static CStr>,
}

/// The value that an option takes.
pub(crate) enum Takes {
    /// None.
    Nothing,
    /// One integer in a range. `unit` follows the range in errors.
    Integer { min: u64, max: u64, unit: &'static str },
    /// One integer for each key of the command.
    IntegerOfEachKey { min: u64, max: u64 },
    /// From `min` to `max` arbitrary bytes.
    Bytes { min: usize, max: usize },
}

/// The longest name of a channel. The module stores the name while a request waits.
const MAX_CHANNEL_BYTES: usize = 512;

const LEASE: Option<&CStr> = Some(c"lease");
const WAY_TO_WAIT: Option<&CStr> = Some(c"way-to-wait");
const MAX: u64 = i64::MAX.unsigned_abs();

impl Opt {
    #[rustfmt::skip]
    pub(crate) const fn row(self) -> Row {
        const fn row(word: &'static CStr, name: &'static CStr, takes: Takes, group: Option<&'static CStr>) -> Row {
            Row { word, name, takes, group }
        }
        const fn integer(min: u64, max: u64, unit: &'static str) -> Takes {
            Takes::Integer { min, max, unit }
        }
        const fn bytes(min: usize, max: usize) -> Takes {
            Takes::Bytes { min, max }
        }
        const YEAR_MS: &str = " (milliseconds, at most 365 days)";
        match self {
            Self::Permits => row(c"PERMITS", c"permits", integer(1, MAX_PERMITS, ""), None),
            Self::Px => row(c"PX", c"milliseconds", integer(1, MAX_LEASE_MS, YEAR_MS), LEASE),
            Self::Ex => row(c"EX", c"seconds", integer(1, MAX_LEASE_MS / 1000, " (seconds, at most 365 days)"), LEASE),
            Self::Block => row(c"BLOCK", c"wait-milliseconds", integer(0, MAX, " (milliseconds)"), WAY_TO_WAIT),
            Self::Queue => row(c"QUEUE", c"life-milliseconds", integer(1, MAX_LEASE_MS, YEAR_MS), WAY_TO_WAIT),
            Self::Grace => row(c"GRACE", c"place-milliseconds", integer(0, MAX_LEASE_MS, YEAR_MS), None),
            Self::Notify => row(c"NOTIFY", c"channel", bytes(0, MAX_CHANNEL_BYTES), None),
            Self::Claim => row(c"CLAIM", c"claim-milliseconds", integer(1, MAX_LEASE_MS, YEAR_MS), None),
            Self::Session => row(c"SESSION", c"grace-milliseconds", integer(0, MAX_LEASE_MS, YEAR_MS), None),
            Self::Req => row(c"REQ", c"id", integer(1, MAX, ""), None),
            Self::Once => row(c"ONCE", c"once", Takes::Nothing, None),
            Self::Timed => row(c"TIMED", c"timed", Takes::Nothing, None),
            Self::Keep => row(c"KEEP", c"keep-milliseconds", integer(0, MAX_LEASE_MS, YEAR_MS), None),
            Self::Note => row(c"NOTE", c"text", bytes(0, MAX_NOTE_BYTES), None),
            Self::Idle => row(c"IDLE", c"idle-milliseconds", integer(0, MAX_LEASE_MS, YEAR_MS), None),
            Self::Token => row(c"TOKEN", c"token", integer(1, MAX_TOKEN, ""), None),
            Self::Tokens => row(c"TOKENS", c"token", Takes::IntegerOfEachKey { min: 1, max: MAX_TOKEN }, None),
            Self::Each => row(c"EACH", c"each", Takes::Nothing, None),
            Self::Count => row(c"COUNT", c"count", integer(0, MAX, ""), None),
            Self::Owner => row(c"OWNER", c"owner", bytes(1, MAX_OWNER_BYTES), None),
        }
    }

    fn word(self) -> &'static str {
        self.row().word.to_str().unwrap_or_default()
    }
}

/// An option that a caller gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Given<'a> {
    option: Opt,
    integer: u64,
    bytes: &'a [u8],
}

/// The options of one command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options<'a> {
    given: SmallVec<[Given<'a>; 4]>,
    tokens: SmallVec<[u64; 1]>,
}

impl<'a> Options<'a> {
    fn get(&self, option: Opt) -> Option<&Given<'a>> {
        self.given.iter().find(|given| given.option == option)
    }

    /// Whether the option is given.
    pub(crate) fn has(&self, option: Opt) -> bool {
        self.get(option).is_some()
    }

    /// The integer of an option.
    pub(crate) fn integer(&self, option: Opt) -> Option<u64> {
        self.get(option).map(|given| given.integer)
    }

    /// The bytes of an option.
    pub(crate) fn bytes(&self, option: Opt) -> Option<&'a [u8]> {
        self.get(option).map(|given| given.bytes)
    }

    /// The lease of PX or EX, in milliseconds.
    pub(crate) fn lease_ms(&self) -> Option<u64> {
        self.integer(Opt::Px).or_else(|| Some(self.integer(Opt::Ex)?.saturating_mul(1000)))
    }

    /// The tokens of TOKEN or TOKENS; empty if none was given.
    pub(crate) fn tokens(&self) -> &[u64] {
        &self.tokens
    }

    /// The count of holds to acquire or release: the permits of a semaphore, 1 for any other lock.
    pub(crate) fn holds(&self) -> u32 {
        self.integer(Opt::Permits).map_or(1, |permits| u32::try_from(permits).unwrap_or(u32::MAX))
    }
}

/// Reads the options from argument `first` on: in any order and letter case, each at most once.
#[inline]
pub(crate) fn options<'a>(args: Args<'a>, first: usize, known: &[Opt]) -> Result<Options<'a>, ArgumentError> {
    let mut options = Options::default();
    if args.get(first).is_some() {
        read(args, first, known, &mut options)?;
    }
    Ok(options)
}

/// Reads the options of a command for several keys. If they are wrong and the owner looks like an
/// option, the error says that the owner is missing.
pub(crate) fn options_of_many<'a>(
    args: Args<'a>,
    many: &KeysAndOwner<'_>,
    known: &[Opt],
) -> Result<Options<'a>, ArgumentError> {
    options(args, many.options_at, known).map_err(|error| {
        let names = |option: &Opt| many.owner.eq_ignore_ascii_case(option.row().word.to_bytes());
        if known.iter().any(names) {
            ArgumentError::new(format!("the owner is missing; found option '{}' instead", shown(many.owner)))
        } else {
            error
        }
    })
}

fn read<'a>(args: Args<'a>, first: usize, known: &[Opt], options: &mut Options<'a>) -> Result<(), ArgumentError> {
    let mut at = first;
    while let Some(word) = args.get(at) {
        let word = word.bytes();
        let is_it = |option: &&Opt| word.eq_ignore_ascii_case(option.row().word.to_bytes());
        let option = *known.iter().find(is_it).ok_or_else(|| unknown(word, known))?;
        check_alone(options, option)?;
        at = at.saturating_add(1);
        let (mut integer, mut bytes): (u64, &[u8]) = (0, &[]);
        match option.row().takes {
            Takes::Nothing => {}
            Takes::Integer { min, max, unit } => {
                integer = integer_of(args, at, option, (min, max, unit))?;
                at = at.saturating_add(1);
                if option == Opt::Token {
                    options.tokens.push(integer);
                }
            }
            Takes::IntegerOfEachKey { min, max } => {
                // The command has read `numkeys` already.
                for _ in 0..key_count(args).unwrap_or(1) {
                    options.tokens.push(integer_of(args, at, option, (min, max, ""))?);
                    at = at.saturating_add(1);
                }
            }
            Takes::Bytes { min, max } => {
                bytes = value(args, at, option)?;
                if !(min..=max).contains(&bytes.len()) {
                    let (word, length) = (option.word(), bytes.len());
                    return Err(ArgumentError::new(format!("{word} takes {min} to {max} bytes, not {length}")));
                }
                at = at.saturating_add(1);
            }
        }
        options.given.push(Given { option, integer, bytes });
    }
    Ok(())
}

fn unknown(word: &[u8], known: &[Opt]) -> ArgumentError {
    let words: Vec<_> = known.iter().map(|option| option.word()).collect();
    ArgumentError::new(format!("unknown option '{}'; expected {}", shown(word), words.join(", ")))
}

/// Refuses an option that is given twice, or with one that it excludes.
fn check_alone(options: &Options<'_>, option: Opt) -> Result<(), ArgumentError> {
    let group = option.row().group;
    let excludes =
        |given: &&Given<'_>| given.option == option || (group.is_some() && given.option.row().group == group);
    let Some(other) = options.given.iter().find(excludes) else {
        return Ok(());
    };
    Err(ArgumentError::new(if other.option == option {
        format!("option {} is given twice", option.word())
    } else {
        format!("options {} and {} exclude each other", other.option.word(), option.word())
    }))
}

fn value<'a>(args: Args<'a>, at: usize, option: Opt) -> Result<&'a [u8], ArgumentError> {
    let value = args.get(at).ok_or_else(|| ArgumentError::new(format!("option {} needs a value", option.word())))?;
    Ok(value.bytes())
}

fn integer_of(
    args: Args<'_>,
    at: usize,
    option: Opt,
    (min, max, unit): (u64, u64, &str),
) -> Result<u64, ArgumentError> {
    let value = value(args, at, option)?;
    let read = integer(value).filter(|integer| (min..=max).contains(integer));
    read.ok_or_else(|| ArgumentError::integer(option.word(), value, (min, max), unit))
}
