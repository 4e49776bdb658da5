//! The beliefs of a history, in the form that `verify/porcupine` reads.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::history::{History, Key, Kind, Mode, Rule, Violation};
use crate::timeline::{Belief, each_key};

/// The environment variable with the folder for these files.
pub const HISTORIES: &str = "RLOCK_HISTORIES";

/// The permits of a read-write lock: a writer takes all of them.
const READERS: u32 = u32::MAX;

/// Writes a line for each belief, and one with the number of violations of exclusion.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(path: &Path, mut history: History, violations: &[Violation]) -> Result<()> {
    let is_overlap = |one: &&Violation| matches!(one.rule, Rule::Exclusion | Rule::Permits);
    let mut text = format!("{{\"overlaps\":{}}}\n", violations.iter().filter(is_overlap).count());
    let keys = history.keys.clone();
    each_key(&mut history, |timeline, _| {
        if let Some(key) = keys.get(timeline.key as usize) {
            timeline.beliefs.iter().enumerate().for_each(|(at, belief)| line(&mut text, key, at, belief));
        }
    });
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(path, text)).with_context(|| format!("cannot write {}", path.display()))
}

fn line(text: &mut String, Key { name, kind, permits }: &Key, at: usize, belief: &Belief) {
    let Belief { owner, mode, count, asked_us, from_us, until_us, .. } = belief;
    // The permits of one owner add up.
    let owner = if *kind == Kind::Semaphore { format!("{owner}-{at}") } else { owner.to_string() };
    let (takes, of) = match (kind, mode) {
        (Kind::Semaphore, _) => (*count, *permits),
        (Kind::RwLock, Mode::Read) => (1, READERS),
        (Kind::RwLock, _) => (READERS, READERS),
        (Kind::Mutex | Kind::Fair, _) => (1, 1),
    };
    // The orders in which owners may have shared a lock are too many to search, so there each
    // acquisition takes effect when the belief begins.
    let asked_us = if of == 1 { asked_us } else { from_us };
    let [sent, from, until] = [asked_us, from_us, until_us].map(|us| us * 1000);
    let _ = writeln!(
        text,
        "{{\"key\":\"{name}\",\"owner\":\"{owner}\",\"sent\":{sent},\"from\":{from},\"until\":{until},\"takes\":{takes},\"of\":{of}}}"
    );
}
