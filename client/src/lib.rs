#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// The layers: a file uses only files further down. A test compares this picture with the files.
//
//   blocking
//   quorum
//   quorum_guard
//   semaphore multi
//   lock                 handles: what to acquire, and how
//   observer             a look at a lock from outside
//   guard                what a holder has in its hands
//   client               how to connect
//   follower             following what happens to a lock
//   acquisition          an attempt or a wait, until a hold is in somebody's hands
//   waiter               waiting
//   hold                 a hold: until when it is relied upon, its renewal, its end
//   news                 listening to what happens to its keys
//   request              asking once, giving back, taking back
//   shared               what the handles of a client have in common
//   keeper               one task that renews what is due, many holds in one write
//   call                 one command until it is answered
//   servers              where the locks are: connections to nodes
//   single_flight        what many want at the same time, done once
//   verdict              what an error means
//   link                 one connection
//   together             commands of many tasks over it, in one message
//   answers              who waits for an answer over it, and until when
//   gate                 what the requests of one owner share
//   home mailbox events  the runtime of a client; messages that answer waits; what happens to keys
//   options
//   metrics              what a program may count
//   timer validity       waking at a moment; until when a hold can be relied upon
//   slots kind identity
//   wire                 commands and answers
//   error clock signal   what can go wrong; moments; something that happens once

mod acquisition;
mod answers;
pub mod blocking;
mod call;
mod client;
mod clock;
mod error;
mod events;
mod follower;
mod gate;
mod guard;
mod hold;
mod home;
mod identity;
mod keeper;
mod kind;
mod link;
mod lock;
mod mailbox;
mod metrics;
mod multi;
mod news;
mod observer;
mod options;
mod quorum;
mod quorum_guard;
mod request;
mod semaphore;
mod servers;
mod shared;
mod signal;
mod single_flight;
mod slots;
mod timer;
mod together;
mod validity;
mod verdict;
mod waiter;
mod wire;

pub use client::{Builder, Client};
pub use error::Error;
pub use events::Event;
pub use follower::Events;
pub use guard::{Detached, Guard};
pub use kind::{Fair, Keepable, Kind, Mutex, Permits, Read, Reentrant, Write};
pub use lock::{Lock, RwLock};
pub use metrics::Metrics;
pub use multi::{MultiGuard, MultiLock};
pub use observer::{Holder, Observer, Waiter};
pub use quorum::{Quorum, QuorumLock, QuorumRwLock};
pub use quorum_guard::QuorumGuard;
pub use semaphore::{Drain, Semaphore};

/// The crate that talks to the server: for [`Builder::connect_to`], and for what is in [`Error::Connection`].
pub use redis;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// The files by layer, the highest first, as the picture above shows them. What a line says of its files comes after two spaces.
    fn layers() -> Vec<Vec<String>> {
        let picture = include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("//   "));
        let names = |line: &str| line.split("  ").next().unwrap_or_default().split(' ').map(str::to_owned).collect();
        picture.map(names).collect()
    }

    /// All files with code.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = folder.read_dir().expect("the sources").map(|entry| entry.expect("an entry").path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn a_file_uses_only_files_of_lower_layers() {
        let layers = layers();
        let layer_of = |file: &str| layers.iter().position(|layer| layer.iter().any(|name| name == file));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut seen = std::collections::BTreeSet::new();
        for file in sources(&folder) {
            // What is in a folder belongs to the file of its name.
            let inside = file.strip_prefix(&folder).expect("it is in there").with_extension("");
            let name = inside.iter().next().and_then(|name| name.to_str()).expect("a name").to_owned();
            if name == "lib" {
                continue;
            }
            let own = layer_of(&name).unwrap_or_else(|| panic!("the picture does not show {name}"));
            let code = std::fs::read_to_string(&file).expect("a source");
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            for used in code.flat_map(|line| line.split("crate::").skip(1)) {
                let used: String = used.chars().take_while(|letter| letter.is_lowercase() || *letter == '_').collect();
                if let Some(layer) = layer_of(&used) {
                    assert!(layer > own || used == name, "{name} uses {used}");
                }
            }
            seen.insert(name);
        }
        assert_eq!(seen.len(), layers.iter().flatten().count(), "the picture shows what there is");
    }
}
