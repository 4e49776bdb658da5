//! The peers: their descriptions, and whether they can run here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A library, as described by its `peer.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Peer {
    #[serde(default)]
    pub id: String,
    pub name: String,
    pub version: String,
    pub language: String,
    pub server: String,
    /// Which Redis or Valkey that is, by its name in `scripts/servers`. Empty: that of the command
    /// line.
    #[serde(default)]
    pub on: String,
    /// Whether that server has a replica. Such a peer takes part only in cells that name it.
    #[serde(default)]
    pub replica: bool,
    /// Settings of the module, each a name and a value.
    #[serde(default)]
    pub settings: Vec<[String; 2]>,
    pub locks: Vec<String>,
    #[serde(default)]
    pub variants: Vec<String>,
    #[serde(default)]
    pub note: String,
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A kind of server, which is started once for all peers that use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    pub server: String,
    pub on: String,
    pub replica: bool,
    pub settings: Vec<[String; 2]>,
}

impl Kind {
    /// This module on the Redis of the command line.
    pub fn rlock() -> Self {
        Self { server: "rlock".to_owned(), on: String::new(), replica: false, settings: Vec::new() }
    }

    pub fn is_redis(&self) -> bool {
        self.server == "rlock" || self.server == "redis"
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Description {
    One(Box<Peer>),
    Several(Vec<Peer>),
}

/// A peer in one of its variants: a row of a table.
#[derive(Clone, Debug)]
pub struct Contestant {
    pub peer: Peer,
    pub variant: String,
}

impl Contestant {
    /// The name in files and on the command line.
    pub fn id(&self) -> String {
        match self.peer.variants.len() {
            0 | 1 => self.peer.id.clone(),
            _ => format!("{}/{}", self.peer.id, self.variant),
        }
    }

    /// The name in tables.
    pub fn label(&self) -> String {
        match self.peer.variants.len() {
            0 | 1 => self.peer.name.clone(),
            _ => format!("{}, {}", self.peer.name, self.variant.to_uppercase()),
        }
    }

    pub fn kind(&self) -> Kind {
        let Peer { server, on, replica, settings, .. } = &self.peer;
        Kind { server: server.clone(), on: on.clone(), replica: *replica, settings: settings.clone() }
    }

    pub fn has(&self, lock: &str) -> bool {
        self.peer.locks.iter().any(|own| own == lock)
    }

    /// Whether it is this module, with any client.
    pub fn is_rlock(&self) -> bool {
        self.peer.server == "rlock"
    }

    pub fn is_on_redis(&self) -> bool {
        self.kind().is_redis()
    }
}

/// A peer that cannot take part, and the reason.
#[derive(Clone, Debug)]
pub struct Absent {
    pub peer: Peer,
    pub reason: String,
}

/// Reads the descriptions in the folders of `programs`.
pub fn discover(programs: &[PathBuf]) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for parent in programs {
        let mut folders: Vec<PathBuf> = fs::read_dir(parent)
            .with_context(|| format!("cannot read {}", parent.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()?;
        folders.sort();
        for folder in folders.iter().filter(|folder| folder.join("peer.json").exists()) {
            peers.append(&mut read(folder)?);
        }
    }
    Ok(peers)
}

fn read(folder: &Path) -> Result<Vec<Peer>> {
    let path = folder.join("peer.json");
    let text = fs::read_to_string(&path)?;
    let description =
        serde_json::from_str(&text).with_context(|| format!("{} does not describe a peer", path.display()))?;
    let mut peers = match description {
        Description::One(peer) => vec![*peer],
        Description::Several(peers) => peers,
    };
    for peer in &mut peers {
        if peer.id.is_empty() {
            peer.id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        }
        peer.folder = fs::canonicalize(folder)?;
    }
    Ok(peers)
}

/// Selects peers by their ids, in the order of the folders.
pub fn choose(peers: Vec<Peer>, ids: &[String]) -> Result<Vec<Peer>> {
    if let Some(unknown) = ids.iter().find(|id| peers.iter().all(|peer| peer.id != **id)) {
        let known: Vec<_> = peers.iter().map(|peer| peer.id.as_str()).collect();
        bail!("unknown peer '{unknown}'; expected {}", known.join(" "));
    }
    Ok(peers.into_iter().filter(|peer| ids.is_empty() || ids.contains(&peer.id)).collect())
}

/// Installs what each peer needs, and separates those that can run from those that cannot.
pub fn prepare(peers: Vec<Peer>) -> Result<(Vec<Contestant>, Vec<Absent>)> {
    let (mut contestants, mut absent) = (Vec::new(), Vec::new());
    for peer in peers {
        eprintln!("preparing {} …", peer.id);
        let output = Command::new(peer.folder.join("prepare"))
            .arg(&peer.id)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run prepare in {}", peer.folder.display()))?;
        if output.status.success() {
            let variants = if peer.variants.is_empty() { vec!["default".to_owned()] } else { peer.variants.clone() };
            contestants.extend(variants.into_iter().map(|variant| Contestant { peer: peer.clone(), variant }));
        } else {
            let said = String::from_utf8_lossy(&output.stdout);
            let reason = said.lines().last().unwrap_or("its prepare failed without a reason").to_owned();
            eprintln!("  cannot take part: {reason}");
            absent.push(Absent { peer, reason });
        }
    }
    Ok((contestants, absent))
}
