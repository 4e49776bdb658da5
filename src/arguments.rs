//! Arguments of commands: owners, numbers and options, checked before anything is touched.

use rlock_core::{MAX_LEASE_MS, MAX_OWNER_BYTES, MAX_TOKEN, Mode};

use crate::ffi::{Arg, Args};
use crate::reply;

/// Why arguments are refused: the text of the error.
pub(crate) struct ArgumentError(String);

impl ArgumentError {
    fn syntax() -> Self {
        Self(reply::SYNTAX.into())
    }

    fn number(name: &str, min: u64, max: u64, unit: &str) -> Self {
        Self(format!("ERR {name} must be a whole number from {min} to {max}{unit}"))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// The options that may follow the key and owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
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
    /// `TOKEN t`.
    pub(crate) token: Option<u64>,
    /// `COUNT n`.
    pub(crate) count: Option<u64>,
    /// `PERMITS n`.
    pub(crate) permits: Option<u64>,
}

impl Options {
    /// How many holds the command is about: the permits of a semaphore, 1 of anything else.
    pub(crate) fn holds(self) -> u32 {
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
            Self::Token => (1, MAX_TOKEN, ""),
            Self::Count => (0, MAX, ""),
            Self::Permits => (1, MAX_PERMITS, ""),
        }
    }

    /// Where the value goes. PX and EX share a place, so that giving both is giving one twice.
    fn place(self, options: &mut Options) -> &mut Option<u64> {
        match self {
            Self::Px | Self::Ex => &mut options.lease_ms,
            Self::Block => &mut options.block_ms,
            Self::Queue => &mut options.queue_ms,
            Self::Session => &mut options.session_ms,
            Self::Req => &mut options.request_id,
            Self::Token => &mut options.token,
            Self::Count => &mut options.count,
            Self::Permits => &mut options.permits,
        }
    }
}

/// Reads the options from argument `first` on: in any order, each once, in any letter case.
#[inline]
pub(crate) fn options(args: Args<'_>, first: usize, known: &[Opt]) -> Result<Options, ArgumentError> {
    let mut options = Options::default();
    if args.get(first).is_some() {
        read_options(args, first, known, &mut options)?;
    }
    Ok(options)
}

fn read_options(args: Args<'_>, first: usize, known: &[Opt], options: &mut Options) -> Result<(), ArgumentError> {
    let mut index = first;
    while let Some(name) = args.get(index) {
        let name = name.bytes();
        let option = known
            .iter()
            .find(|option| name.eq_ignore_ascii_case(option.name().as_bytes()))
            .ok_or_else(ArgumentError::syntax)?;
        let value = args.get(index.saturating_add(1)).ok_or_else(ArgumentError::syntax)?;
        let place = option.place(options);
        if place.is_some() {
            return Err(ArgumentError::syntax());
        }
        let (min, max, unit) = option.range();
        let number = number(value.bytes())
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| ArgumentError::number(option.name(), min, max, unit))?;
        *place = Some(if *option == Opt::Ex { number.saturating_mul(1000) } else { number });
        index = index.saturating_add(2);
    }
    if options.block_ms.is_some() && options.queue_ms.is_some() {
        return Err(ArgumentError::syntax());
    }
    Ok(())
}

/// The key and the owner that most commands begin with.
pub(crate) fn key_and_owner(args: Args<'_>) -> Result<(Arg<'_>, &[u8]), ArgumentError> {
    Ok((key(args)?, owner(args, 2)?))
}

/// The owner in argument `index`.
fn owner(args: Args<'_>, index: usize) -> Result<&[u8], ArgumentError> {
    let owner = args.get(index).ok_or_else(ArgumentError::syntax)?.bytes();
    if (1..=MAX_OWNER_BYTES).contains(&owner.len()) {
        Ok(owner)
    } else {
        Err(ArgumentError(format!("ERR owner must have 1 to {MAX_OWNER_BYTES} bytes")))
    }
}

/// READ or WRITE in argument `index`.
pub(crate) fn mode(args: Args<'_>, index: usize) -> Result<Mode, ArgumentError> {
    let word = args.get(index).ok_or_else(ArgumentError::syntax)?.bytes();
    [Mode::Read, Mode::Write]
        .into_iter()
        .find(|mode| word.eq_ignore_ascii_case(mode.name().as_bytes()))
        .ok_or_else(ArgumentError::syntax)
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
pub(crate) fn key_count(args: Args<'_>) -> Option<usize> {
    let count = usize::try_from(number(args.get(1)?.bytes())?).ok()?;
    (1..=MAX_KEYS).contains(&count).then_some(count)
}

/// Reads `numkeys key [key …] owner`.
pub(crate) fn keys_and_owner(args: Args<'_>) -> Result<KeysAndOwner<'_>, ArgumentError> {
    let count = key_count(args).ok_or_else(|| ArgumentError::number("numkeys", 1, MAX_KEYS as u64, ""))?;
    let mut keys = Vec::with_capacity(count);
    for index in 0..count {
        keys.push(args.get(index.saturating_add(2)).ok_or_else(ArgumentError::syntax)?);
    }
    let mut names: Vec<&[u8]> = keys.iter().map(|key| key.bytes()).collect();
    names.sort_unstable();
    if names.is_sorted_by(|name, next| name < next) {
        let owner_at = count.saturating_add(2);
        Ok(KeysAndOwner { keys, owner: owner(args, owner_at)?, options_at: owner_at.saturating_add(1) })
    } else {
        Err(ArgumentError("ERR a key is given twice".into()))
    }
}

/// The key.
pub(crate) fn key(args: Args<'_>) -> Result<Arg<'_>, ArgumentError> {
    args.get(1).ok_or_else(ArgumentError::syntax)
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
