//! Registration of commands, configuration and INFO with the server.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use redis_module::raw;

use super::at_load::AtLoad;
use super::command_info::{Access, CommandSpec, KeyArguments, set_command_info};
use super::{Args, Ctx, INTERNAL_ERROR, api, guard};

/// A command of the module.
pub(crate) trait Command {
    /// Its description for the server.
    const SPEC: CommandSpec;
    /// Whether it is for operators, because it affects other owners.
    const IS_DANGEROUS: bool = false;
    /// Runs the command and replies. The number of arguments matches [`CommandSpec::arity`].
    fn run(ctx: Ctx<'_>, args: Args<'_>);
}

/// A setting of the module: a number, or one of some words.
pub(crate) struct ConfigSpec {
    /// The name without the prefix `rlock.`.
    pub(crate) name: &'static CStr,
    pub(crate) default: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
    pub(crate) place: &'static AtomicI64,
    /// The words for the numbers from 0 on; empty if the value is a number.
    pub(crate) words: &'static [&'static CStr],
}

/// The reason why the module does not load.
pub(crate) struct LoadError(pub(crate) String);

/// The option with which a module supports atomic slot migration, in Valkey 9 and newer. The
/// bindings do not have it yet.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// The ACL category of the module's commands.
const CATEGORY: &CStr = c"rlock";

static HAS_CATEGORY: AtomicBool = AtomicBool::new(false);

/// Registers the parts of the module when it loads.
pub(crate) struct Registrar<'c> {
    ctx: Ctx<'c>,
}

impl<'c> Registrar<'c> {
    pub(super) fn new(ctx: Ctx<'c>) -> Self {
        Self { ctx }
    }

    pub(crate) fn ctx(&self) -> Ctx<'c> {
        self.ctx
    }

    /// Sets the options that the callbacks rely on.
    pub(crate) fn set_options(&self) {
        let mut options =
            raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
        // Only Valkey uses this bit. It refuses to migrate slots if a module has not set it.
        if super::blocked::is_valkey() {
            options |= HANDLE_ATOMIC_SLOT_MIGRATION;
        }
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_SetModuleOptions, self.ctx.raw(), options.cast_signed()) };
    }

    /// Creates the ACL category of all commands, on servers where a module can have one (Redis 7.4,
    /// Valkey 8).
    pub(crate) fn category(&self) {
        // SAFETY: the pointer is read once, and is null where the server lacks the call; context
        // and name are alive.
        let status = unsafe { raw::RedisModule_AddACLCategory.map(|add| add(self.ctx.raw(), CATEGORY.as_ptr())) };
        HAS_CATEGORY.store(status == Some(raw::REDISMODULE_OK as c_int), Ordering::Relaxed);
    }

    pub(crate) fn command<C: Command>(&self) -> Result<(), LoadError> {
        let spec = &C::SPEC;
        let failed = |what: &str| LoadError(format!("cannot {what} {}", spec.name.to_string_lossy()));
        // SAFETY: the context is alive and the strings are static; `Some(entry::<C>)` has the
        // required type.
        let command = unsafe {
            let (first, last, step) = if spec.keys == KeyArguments::First { (1, 1, 1) } else { (0, 0, 0) };
            let status = api!(
                RedisModule_CreateCommand,
                self.ctx.raw(),
                spec.name.as_ptr(),
                Some(entry::<C>),
                spec.flags.as_ptr(),
                first,
                last,
                step
            );
            if status != raw::REDISMODULE_OK as c_int {
                return Err(failed("create the command"));
            }
            api!(RedisModule_GetCommand, self.ctx.raw(), spec.name.as_ptr())
        };
        if command.is_null() || !set_command_info(command, spec) {
            return Err(failed("describe the command"));
        }
        set_categories::<C>(command);
        Ok(())
    }

    pub(crate) fn config(&self, spec: &ConfigSpec, default: i64) -> Result<(), LoadError> {
        spec.place.store(default, Ordering::Relaxed);
        let status =
            if spec.words.is_empty() { self.numeric_config(spec, default) } else { self.enum_config(spec, default) };
        if status == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err(LoadError(format!("cannot register the configuration {}", spec.name.to_string_lossy())))
        }
    }

    fn numeric_config(&self, spec: &ConfigSpec, default: i64) -> c_int {
        // SAFETY: the context is alive; the name and the place that the callbacks get are static.
        unsafe {
            api!(
                RedisModule_RegisterNumericConfig,
                self.ctx.raw(),
                spec.name.as_ptr(),
                default,
                raw::REDISMODULE_CONFIG_DEFAULT,
                spec.min,
                spec.max,
                Some(get_config),
                Some(set_config),
                Some(on_applied),
                ptr::from_ref(spec.place).cast_mut().cast::<c_void>()
            )
        }
    }

    fn enum_config(&self, spec: &ConfigSpec, default: i64) -> c_int {
        let mut words: Vec<*const c_char> = spec.words.iter().map(|word| word.as_ptr()).collect();
        let numbers: Vec<c_int> = (0..).take(words.len()).collect();
        // SAFETY: the context is alive; the name, the words and the place that the callbacks get
        // are static. The server copies both lists, which have the length that is passed.
        unsafe {
            api!(
                RedisModule_RegisterEnumConfig,
                self.ctx.raw(),
                spec.name.as_ptr(),
                c_int::try_from(default).unwrap_or(0),
                raw::REDISMODULE_CONFIG_DEFAULT,
                words.as_mut_ptr(),
                numbers.as_ptr(),
                c_int::try_from(words.len()).unwrap_or(0),
                Some(get_enum_config),
                Some(set_enum_config),
                Some(on_applied),
                ptr::from_ref(spec.place).cast_mut().cast::<c_void>()
            )
        }
    }

    /// Loads the values of the registered settings from the configuration file.
    pub(crate) fn load_configs(&self) -> Result<(), LoadError> {
        // SAFETY: the context is alive.
        let status = unsafe { api!(RedisModule_LoadConfigs, self.ctx.raw()) };
        if status == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err(LoadError("a value in the configuration is out of range".into()))
        }
    }

    /// Sets the function that writes the module's INFO section.
    pub(crate) fn info(&self, write: fn(&InfoCtx)) {
        WRITE_INFO.set(write);
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_RegisterInfoFunc, self.ctx.raw(), Some(on_info)) };
    }

    /// Random numbers from the server, for seeds.
    pub(crate) fn random<const N: usize>(&self) -> [u64; N] {
        let mut numbers = [0u64; N];
        // SAFETY: the buffer has the length that is passed.
        unsafe {
            api!(RedisModule_GetRandomBytes, numbers.as_mut_ptr().cast::<u8>(), size_of_val(&numbers));
        }
        numbers
    }
}

/// Puts a command into ACL categories, on servers that support this for modules (Redis 7.2).
/// Without it a user with `+@write` may not run the command.
fn set_categories<C: Command>(command: *mut raw::RedisModuleCommand) {
    // SAFETY: the pointer is read once; it is null if this server lacks the call.
    let Some(set_categories) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else {
        return;
    };
    let flags = C::SPEC.flags.to_bytes();
    let mut categories = Vec::from(match C::SPEC.access {
        Access::Read => "read",
        Access::Write => "write",
    });
    categories.extend(if flags.ends_with(b"fast") { " fast" } else { " slow" }.bytes());
    if flags.ends_with(b"blocking") {
        categories.extend(b" blocking");
    }
    if C::IS_DANGEROUS {
        categories.extend(b" dangerous");
    }
    if HAS_CATEGORY.load(Ordering::Relaxed) {
        categories.push(b' ');
        categories.extend(CATEGORY.to_bytes());
    }
    categories.push(0);
    if let Ok(categories) = CStr::from_bytes_with_nul(&categories) {
        // SAFETY: the command was just created; the server keeps no pointer to the string.
        unsafe { set_categories(command, categories.as_ptr()) };
    }
}

unsafe extern "C" fn entry<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes a context and arguments that live as long as the call.
    let (ctx, args) = unsafe { (Ctx::new(ctx), Args::new(argv, argc)) };
    let arity = C::SPEC.arity;
    let fits = if arity >= 0 { argc == arity } else { argc >= -arity };
    if !fits {
        ctx.reply_wrong_arity();
        return raw::REDISMODULE_OK as c_int;
    }
    let ran = guard(false, || {
        C::run(ctx, args);
        true
    });
    if !ran {
        ctx.reply_error(INTERNAL_ERROR);
    }
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn get_config(_name: *const c_char, place: *mut c_void) -> c_longlong {
    // SAFETY: `place` is the static of the `ConfigSpec`.
    unsafe { &*place.cast::<AtomicI64>() }.load(Ordering::Relaxed)
}

unsafe extern "C" fn get_enum_config(_name: *const c_char, place: *mut c_void) -> c_int {
    // SAFETY: `place` is the static of the `ConfigSpec`.
    let value = unsafe { &*place.cast::<AtomicI64>() }.load(Ordering::Relaxed);
    c_int::try_from(value).unwrap_or(0)
}

unsafe extern "C" fn set_enum_config(
    _name: *const c_char,
    value: c_int,
    place: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `place` is the static of the `ConfigSpec`. The server passes one of the numbers of
    // the words.
    unsafe { &*place.cast::<AtomicI64>() }.store(value.into(), Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn set_config(
    _name: *const c_char,
    value: c_longlong,
    place: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `place` is the static of the `ConfigSpec`. The server has checked the range.
    unsafe { &*place.cast::<AtomicI64>() }.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

/// CONFIG SET has changed settings. If they contradict each other, the server takes them back.
unsafe extern "C" fn on_applied(
    _ctx: *mut raw::RedisModuleCtx,
    _place: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let checked = guard(Err(INTERNAL_ERROR.to_owned()), || (CHECK_SETTINGS.get())());
    let Err(text) = checked else {
        return raw::REDISMODULE_OK as c_int;
    };
    // SAFETY: the server takes the string from `error`, and frees it.
    unsafe { *error = api!(RedisModule_CreateString, ptr::null_mut(), text.as_ptr().cast::<c_char>(), text.len()) };
    raw::REDISMODULE_ERR as c_int
}

static CHECK_SETTINGS: AtLoad<fn() -> Result<(), String>> = AtLoad::new();

/// Sets the function that checks settings after CONFIG SET.
pub(crate) fn set_settings_check(check: fn() -> Result<(), String>) {
    CHECK_SETTINGS.set(check);
}

static WRITE_INFO: AtLoad<fn(&InfoCtx)> = AtLoad::new();

/// The INFO section that is being written.
pub(crate) struct InfoCtx(*mut raw::RedisModuleInfoCtx);

impl InfoCtx {
    pub(crate) fn add_word(&self, name: &CStr, word: &CStr) {
        // SAFETY: the context lives as long as the callback; the server copies both strings.
        unsafe { api!(RedisModule_InfoAddFieldCString, self.0, name.as_ptr(), word.as_ptr()) };
    }

    pub(crate) fn add(&self, name: &CStr, number: u64) {
        // SAFETY: the context lives as long as the callback; the server copies the name.
        unsafe { api!(RedisModule_InfoAddFieldULongLong, self.0, name.as_ptr(), number) };
    }
}

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    guard((), || {
        // SAFETY: the context lives as long as the callback; a null name means the module's own
        // section.
        let wanted = unsafe { api!(RedisModule_InfoAddSection, ctx, ptr::null()) };
        if wanted == raw::REDISMODULE_OK as c_int {
            (WRITE_INFO.get())(&InfoCtx(ctx));
        }
    });
}
