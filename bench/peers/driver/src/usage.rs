//! The kernel's counters for a server's processes.

use std::collections::HashMap;
use std::fs;

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuNs {
    /// Of the thread that executes commands, if the server has one.
    pub main_thread: u64,
    /// Of the process and all of its descendants, including those that have ended.
    pub all: u64,
}

impl CpuNs {
    /// The CPU time of the server with this process id; zero for processes that are gone.
    pub fn of(process_id: u32) -> Self {
        Self { main_thread: main_thread_ns(process_id).unwrap_or(0), all: tree_ns(process_id) }
    }
}

/// From the scheduler, in nanoseconds. Up to one tick old while the thread runs.
fn main_thread_ns(process_id: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process_id}/task/{process_id}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// A process, from `/proc/ID/stat`.
struct Entry {
    parent: u32,
    /// User and system time of the process and its ended children, in ticks.
    ticks: u64,
}

fn tree_ns(root: u32) -> u64 {
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    let entries = entries();
    let is_below = |mut id: u32| {
        // Process trees are not deeper than this. The limit also ends a loop if the table changes
        // meanwhile.
        for _ in 0..64 {
            if id == root {
                return true;
            }
            match entries.get(&id) {
                Some(entry) => id = entry.parent,
                None => return false,
            }
        }
        false
    };
    let ticks: u64 = entries.iter().filter(|(id, _)| is_below(**id)).map(|(_, entry)| entry.ticks).sum();
    ticks * tick_ns
}

fn entries() -> HashMap<u32, Entry> {
    let Ok(folder) = fs::read_dir("/proc") else { return HashMap::new() };
    let ids = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, entry(id)?))).collect()
}

fn entry(id: u32) -> Option<Entry> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // `id (name) state parent …`, and a name may contain anything. The state is field 3 of proc(5).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)? + number(16)? + number(17)?;
    Some(Entry { parent: u32::try_from(number(4)?).ok()?, ticks })
}
