//! Positional arguments of commands: keys, owners, modes and numbers. A command checks them before
//! it opens a key. Options are in `options.rs`.

use rlock_core::{MAX_OWNER_BYTES, Mode};

use crate::ffi::{Arg, Args};
use crate::reply::shown;

/// The error text of a command with a wrong argument.
pub(crate) struct ArgumentError(String);

impl ArgumentError {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self(format!("ERR {}", text.as_ref()))
    }

    /// A value that is not an integer in the range.
    pub(crate) fn integer(name: &str, value: &[u8], (min, max): (u64, u64), unit: &str) -> Self {
        Self::new(format!("{name} takes an integer from {min} to {max}{unit}, not '{}'", shown(value)))
    }

    /// A missing argument. The server checks the arity, so only commands with `numkeys` need this.
    fn missing(what: &str) -> Self {
        Self::new(format!("{what} is missing"))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// The largest number of permits of a semaphore.
pub(crate) const MAX_PERMITS: u64 = u32::MAX as u64;

/// The largest number of keys in one request. When one of them becomes free, the engine looks at
/// all of them.
const MAX_KEYS: usize = 128;

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
        Err(ArgumentError::new(format!("the owner must have 1 to {MAX_OWNER_BYTES} bytes, not {}", owner.len())))
    }
}

/// The owner after several keys. It is missing if the caller forgot it, or if `numkeys` is too
/// high.
fn owner_behind_keys(args: Args<'_>, index: usize) -> Result<&[u8], ArgumentError> {
    args.get(index).ok_or_else(|| ArgumentError::missing("the owner, which follows numkeys keys,"))?;
    owner(args, index)
}

/// READ or WRITE in argument `index`.
pub(crate) fn mode(args: Args<'_>, index: usize) -> Result<Mode, ArgumentError> {
    let word = args.get(index).ok_or_else(|| ArgumentError::missing("the mode, READ or WRITE,"))?.bytes();
    [Mode::Read, Mode::Write]
        .into_iter()
        .find(|mode| word.eq_ignore_ascii_case(mode.name().as_bytes()))
        .ok_or_else(|| ArgumentError::new(format!("the mode must be READ or WRITE, not '{}'", shown(word))))
}

/// The number of permits in argument `index`.
pub(crate) fn permits(args: Args<'_>, index: usize) -> Result<u32, ArgumentError> {
    let value = args.get(index).map_or(&[][..], |arg| arg.bytes());
    let permits = integer(value).filter(|permits| *permits != 0).and_then(|permits| u32::try_from(permits).ok());
    permits.ok_or_else(|| ArgumentError::integer("permits", value, (1, MAX_PERMITS), ""))
}

/// The keys and the owner of a command for several keys.
pub(crate) struct KeysAndOwner<'a> {
    pub(crate) keys: Vec<Arg<'a>>,
    pub(crate) owner: &'a [u8],
    /// The index of the first option.
    pub(crate) options_at: usize,
}

/// Reads `numkeys`. `None` if it is missing or out of range.
pub(crate) fn key_count(args: Args<'_>) -> Option<usize> {
    let count = usize::try_from(integer(args.get(1)?.bytes())?).ok()?;
    (1..=MAX_KEYS).contains(&count).then_some(count)
}

/// Reads `numkeys key [key …] owner`.
pub(crate) fn keys_and_owner(args: Args<'_>) -> Result<KeysAndOwner<'_>, ArgumentError> {
    let refused = || {
        let value = args.get(1).map_or(&[][..], |arg| arg.bytes());
        ArgumentError::integer("numkeys", value, (1, MAX_KEYS as u64), "")
    };
    let count = key_count(args).ok_or_else(refused)?;
    let mut keys = Vec::with_capacity(count);
    for index in 0..count {
        let too_few = || ArgumentError::new(format!("numkeys is {count}, but fewer keys follow"));
        keys.push(args.get(index.saturating_add(2)).ok_or_else(too_few)?);
    }
    let mut names: Vec<&[u8]> = keys.iter().map(|key| key.bytes()).collect();
    names.sort_unstable();
    if names.is_sorted_by(|name, next| name < next) {
        let owner_at = count.saturating_add(2);
        Ok(KeysAndOwner { keys, owner: owner_behind_keys(args, owner_at)?, options_at: owner_at.saturating_add(1) })
    } else {
        Err(ArgumentError::new("a key is given twice"))
    }
}

/// The key.
pub(crate) fn key(args: Args<'_>) -> Result<Arg<'_>, ArgumentError> {
    args.get(1).ok_or_else(|| ArgumentError::missing("the key"))
}

/// Parses an integer as Redis does, but without a sign: digits only, no leading zero.
pub(crate) fn integer(bytes: &[u8]) -> Option<u64> {
    if matches!(bytes, [] | [b'0', _, ..]) {
        return None;
    }
    bytes.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
