//! Arguments of commands: owners, numbers and options, checked before anything is touched.

use rlock_core::{MAX_LEASE_MS, MAX_OWNER_BYTES, MAX_TOKEN, Mode};
use smallvec::SmallVec;

use crate::ffi::{Arg, Args};
use crate::reply::shown;

/// Why arguments are refused: the text of the error.
pub(crate) struct ArgumentError(String);

impl ArgumentError {
    fn syntax(what: &str) -> Self {
        Self(format!("ERR syntax error: {what}"))
    }

    /// A word that the command does not know.
    fn unknown(word: &[u8], expected: &str) -> Self {
        Self::syntax(&format!("'{}' {expected}", shown(word)))
    }

    fn twice(what: &str) -> Self {
        Self::syntax(&format!("{what} is given twice"))
    }

    /// Less than the server has counted, which would be a bug.
    fn missing(what: &str) -> Self {
        Self::syntax(&format!("{what} is missing"))
    }

    fn number(name: &str, min: u64, max: u64, unit: &str) -> Self {
        Self(format!("ERR {name} must be a whole number from {min} to {max}{unit}"))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// The options that may follow the key and owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options<'a> {
    /// `PX ms` or `EX s`.
    pub(crate) lease_ms: Option<u64>,
    /// `BLOCK ms`; 0 waits for ever.
    pub(crate) block_ms: Option<u64>,
    /// `QUEUE ms`.
    pub(crate) queue_ms: Option<u64>,
    /// `SESSION ms`.
    pub(crate) session_ms: Option<u64>,
    /// `REQ id`.
    pub(crate) request_id: Option<u64>,
    /// `TOKEN t`, or `TOKENS t …` with one for each key.
    pub(crate) tokens: SmallVec<[u64; 1]>,
    /// `ONCE`.
    pub(crate) is_once: bool,
    /// `NOTIFY channel`.
    pub(crate) channel: Option<&'a [u8]>,
    /// `COUNT n`.
    pub(crate) count: Option<u64>,
    /// `PERMITS n`.
    pub(crate) permits: Option<u64>,
}

impl Options<'_> {
    /// How many holds the command is about: the permits of a semaphore, 1 of anything else.
    pub(crate) fn holds(&self) -> u32 {
        self.permits.map_or(1, |permits| u32::try_from(permits).unwrap_or(u32::MAX))
    }
}

/// An option that a command knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opt {
    Px,
    Ex,
    Block,
    Queue,
    Session,
    Req,
    Token,
    Tokens,
    Once,
    Notify,
    Count,
    Permits,
}

/// How many permits a semaphore may have.
const MAX_PERMITS: u64 = u32::MAX as u64;

/// How many keys one request may be for. Each time one of them comes free, all of them are looked at.
const MAX_KEYS: usize = 128;

const MS: &str = " (milliseconds)";

impl Opt {
    fn name(self) -> &'static str {
        match self {
            Self::Px => "PX",
            Self::Ex => "EX",
            Self::Block => "BLOCK",
            Self::Queue => "QUEUE",
            Self::Session => "SESSION",
            Self::Req => "REQ",
            Self::Token => "TOKEN",
            Self::Tokens => "TOKENS",
            Self::Once => "ONCE",
            Self::Notify => "NOTIFY",
            Self::Count => "COUNT",
            Self::Permits => "PERMITS",
        }
    }

    /// The smallest and the largest value, and the unit for the error.
    fn range(self) -> (u64, u64, &'static str) {
        const MAX: u64 = i64::MAX.unsigned_abs();
        match self {
            Self::Px | Self::Queue => (1, MAX_LEASE_MS, " (milliseconds, 365 days at most)"),
            Self::Ex => (1, MAX_LEASE_MS / 1000, " (seconds, 365 days at most)"),
            Self::Block => (0, MAX, MS),
            Self::Session => (0, MAX_LEASE_MS, MS),
            Self::Req => (1, MAX, ""),
            Self::Token | Self::Tokens => (1, MAX_TOKEN, ""),
            Self::Count | Self::Once | Self::Notify => (0, MAX, ""),
            Self::Permits => (1, MAX_PERMITS, ""),
        }
    }

    /// Where the value goes, if it is one number. PX and EX share a place, so that giving both is giving one twice.
    fn place<'o>(self, options: &'o mut Options<'_>) -> Option<&'o mut Option<u64>> {
        match self {
            Self::Px | Self::Ex => Some(&mut options.lease_ms),
            Self::Block => Some(&mut options.block_ms),
            Self::Queue => Some(&mut options.queue_ms),
            Self::Session => Some(&mut options.session_ms),
            Self::Req => Some(&mut options.request_id),
            Self::Count => Some(&mut options.count),
            Self::Permits => Some(&mut options.permits),
            Self::Token | Self::Tokens | Self::Once | Self::Notify => None,
        }
    }

    /// The word behind the option.
    fn value(self, args: Args<'_>, index: usize) -> Result<Arg<'_>, ArgumentError> {
        args.get(index).ok_or_else(|| ArgumentError::syntax(&format!("{} has no value", self.name())))
    }

    /// Reads a number that belongs to the option.
    fn number(self, args: Args<'_>, index: usize) -> Result<u64, ArgumentError> {
        let value = self.value(args, index)?;
        let (min, max, unit) = self.range();
        number(value.bytes())
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| ArgumentError::number(self.name(), min, max, unit))
    }
}

/// Reads the options from argument `first` on: in any order, each once, in any letter case.
#[inline]
pub(crate) fn options<'a>(args: Args<'a>, first: usize, known: &[Opt]) -> Result<Options<'a>, ArgumentError> {
    let mut options = Options::default();
    if args.get(first).is_some() {
        read_options(args, first, known, &mut options)?;
    }
    Ok(options)
}

fn read_options<'a>(
    args: Args<'a>,
    first: usize,
    known: &[Opt],
    options: &mut Options<'a>,
) -> Result<(), ArgumentError> {
    let mut index = first;
    while let Some(name) = args.get(index) {
        let name = name.bytes();
        let option =
            known.iter().find(|option| name.eq_ignore_ascii_case(option.name().as_bytes())).ok_or_else(|| {
                ArgumentError::unknown(name, &format!("is no option here; known are {}", names_of(known)))
            })?;
        index = index.saturating_add(1);
        match option {
            Opt::Once if options.is_once => return Err(ArgumentError::twice(option.name())),
            Opt::Once => options.is_once = true,
            Opt::Notify if options.channel.is_some() => return Err(ArgumentError::twice(option.name())),
            Opt::Notify => {
                options.channel = Some(channel(option.value(args, index)?)?);
                index = index.saturating_add(1);
            }
            Opt::Token | Opt::Tokens if !options.tokens.is_empty() => return Err(ArgumentError::twice(option.name())),
            Opt::Token | Opt::Tokens => {
                // A command for many keys has said how many.
                let count = if *option == Opt::Tokens { key_count(args).unwrap_or(1) } else { 1 };
                for _ in 0..count {
                    options.tokens.push(option.number(args, index)?);
                    index = index.saturating_add(1);
                }
            }
            _ => {
                let number = option.number(args, index)?;
                let place = option.place(options).ok_or_else(|| ArgumentError::twice(option.name()))?;
                if place.is_some() {
                    let is_lease = matches!(option, Opt::Px | Opt::Ex);
                    return Err(ArgumentError::twice(if is_lease { "a lease (PX or EX)" } else { option.name() }));
                }
                *place = Some(if *option == Opt::Ex { number.saturating_mul(1000) } else { number });
                index = index.saturating_add(1);
            }
        }
    }
    if options.block_ms.is_some() && options.queue_ms.is_some() {
        return Err(ArgumentError::syntax("it is either BLOCK or QUEUE"));
    }
    Ok(())
}

/// How long the name of a channel may be: it is kept as long as somebody waits for an answer on it.
const MAX_CHANNEL_BYTES: usize = 512;

fn channel(arg: Arg<'_>) -> Result<&[u8], ArgumentError> {
    let name = arg.bytes();
    if name.len() > MAX_CHANNEL_BYTES {
        return Err(ArgumentError(format!("ERR the channel of NOTIFY may have {MAX_CHANNEL_BYTES} bytes at most")));
    }
    Ok(name)
}

/// The names of options, for a person.
fn names_of(options: &[Opt]) -> String {
    let names: Vec<_> = options.iter().map(|option| option.name()).collect();
    names.join(", ")
}

/// The key and the owner that most commands begin with.
pub(crate) fn key_and_owner(args: Args<'_>) -> Result<(Arg<'_>, &[u8]), ArgumentError> {
    Ok((key(args)?, owner(args, 2)?))
}

/// The owner in argument `index`.
fn owner(args: Args<'_>, index: usize) -> Result<&[u8], ArgumentError> {
    let owner = args.get(index).ok_or_else(|| ArgumentError::missing("the owner"))?.bytes();
    if (1..=MAX_OWNER_BYTES).contains(&owner.len()) {
        Ok(owner)
    } else {
        Err(ArgumentError(format!("ERR owner must have 1 to {MAX_OWNER_BYTES} bytes")))
    }
}

/// Reads the options of a command for many keys. Where they make no sense, and the owner has the name of an option, it was forgotten.
pub(crate) fn options_of_many<'a>(
    args: Args<'a>,
    many: &KeysAndOwner<'_>,
    known: &[Opt],
) -> Result<Options<'a>, ArgumentError> {
    options(args, many.options_at, known).map_err(|error| {
        let is_option = known.iter().any(|option| many.owner.eq_ignore_ascii_case(option.name().as_bytes()));
        if is_option {
            ArgumentError::unknown(many.owner, "stands where the owner has to be: the owner is missing")
        } else {
            error
        }
    })
}

/// The owner behind several keys. If it is forgotten, the last key or nothing stands there.
fn owner_behind_keys(args: Args<'_>, index: usize) -> Result<&[u8], ArgumentError> {
    let none =
        || ArgumentError::syntax("the owner is missing: it stands behind the keys, of which numkeys says how many");
    args.get(index).ok_or_else(none)?;
    owner(args, index)
}

/// `OWNER owner` in argument `index` and the next, which is the last, if it is there.
pub(crate) fn owner_option(args: Args<'_>, index: usize) -> Result<Option<&[u8]>, ArgumentError> {
    let Some(word) = args.get(index) else {
        return Ok(None);
    };
    if !word.bytes().eq_ignore_ascii_case(b"OWNER") {
        return Err(ArgumentError::unknown(word.bytes(), "is no option here; known are OWNER"));
    }
    let owner_at = index.saturating_add(1);
    args.get(owner_at).ok_or_else(|| ArgumentError::syntax("the option OWNER has no value"))?;
    match args.get(owner_at.saturating_add(1)) {
        None => owner(args, owner_at).map(Some),
        Some(more) => Err(ArgumentError::unknown(more.bytes(), "is more than the one owner")),
    }
}

/// READ or WRITE in argument `index`.
pub(crate) fn mode(args: Args<'_>, index: usize) -> Result<Mode, ArgumentError> {
    let word = args.get(index).ok_or_else(|| ArgumentError::missing("the mode, READ or WRITE,"))?.bytes();
    [Mode::Read, Mode::Write]
        .into_iter()
        .find(|mode| word.eq_ignore_ascii_case(mode.name().as_bytes()))
        .ok_or_else(|| ArgumentError::unknown(word, "stands where READ or WRITE has to be, behind the owner"))
}

/// The number of permits in argument `index`.
pub(crate) fn permits(args: Args<'_>, index: usize) -> Result<u32, ArgumentError> {
    let number = args.get(index).and_then(|arg| number(arg.bytes())).filter(|number| *number != 0);
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| ArgumentError::number("permits", 1, MAX_PERMITS, ""))
}

/// The keys and the owner that a command for many keys begins with.
pub(crate) struct KeysAndOwner<'a> {
    pub(crate) keys: Vec<Arg<'a>>,
    pub(crate) owner: &'a [u8],
    /// Where the options begin.
    pub(crate) options_at: usize,
}

/// Reads `numkeys`.
fn key_count(args: Args<'_>) -> Option<usize> {
    let count = usize::try_from(number(args.get(1)?.bytes())?).ok()?;
    (1..=MAX_KEYS).contains(&count).then_some(count)
}

/// Reads `numkeys key [key …] owner`.
pub(crate) fn keys_and_owner(args: Args<'_>) -> Result<KeysAndOwner<'_>, ArgumentError> {
    let count = key_count(args).ok_or_else(|| ArgumentError::number("numkeys", 1, MAX_KEYS as u64, ""))?;
    let mut keys = Vec::with_capacity(count);
    for index in 0..count {
        let too_few = || ArgumentError::syntax(&format!("numkeys is {count}, and so many keys are not there"));
        keys.push(args.get(index.saturating_add(2)).ok_or_else(too_few)?);
    }
    let mut names: Vec<&[u8]> = keys.iter().map(|key| key.bytes()).collect();
    names.sort_unstable();
    if names.is_sorted_by(|name, next| name < next) {
        let owner_at = count.saturating_add(2);
        Ok(KeysAndOwner { keys, owner: owner_behind_keys(args, owner_at)?, options_at: owner_at.saturating_add(1) })
    } else {
        Err(ArgumentError("ERR a key is given twice".into()))
    }
}

/// The key.
pub(crate) fn key(args: Args<'_>) -> Result<Arg<'_>, ArgumentError> {
    args.get(1).ok_or_else(|| ArgumentError::missing("the key"))
}

/// A number as Redis reads them: digits only, no sign, no leading zero.
fn number(bytes: &[u8]) -> Option<u64> {
    if matches!(bytes, [] | [b'0', _, ..]) {
        return None;
    }
    bytes.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
