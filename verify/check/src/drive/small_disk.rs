//! A small disk for one server, which can be filled up, and freed again.
//!
//! It is a file system in memory (tmpfs) at the server's folder, mounted in a namespace that only the server is in. So no other process sees the
//! mount, and it ends with the server, however either process ends. Who is root mounts it so; anybody else as root of a user namespace, if the
//! kernel lets them.
//!
//! Invariant: what is on the disk is lost with the server's process.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// It takes memory for what is on it, and while it is full, for all of it. A server writes some 100 KB a second under 128 clients.
const SIZE: &str = "64m";

/// The ways to a namespace of one's own with the right to mount: arguments of `unshare`, which becomes the program that it is given.
const WAYS: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// Mounts the disk at `$0`, and becomes the program that follows.
const MOUNT: &str = "mount -t tmpfs -o size=$1 tmpfs \"$0\" && shift && exec \"$@\"";

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct SmallDisk {
    unshare: &'static [&'static str],
    folder: PathBuf,
}

impl SmallDisk {
    /// One at a folder that is there; `None` if nothing can be mounted here.
    pub(super) fn at(folder: PathBuf) -> Option<Self> {
        WAYS.into_iter().map(|unshare| Self { unshare, folder: folder.clone() }).find(|disk| {
            let tried = disk.command().arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        })
    }

    /// A command that runs the program and the arguments that are added to it, with the disk, as the process that it starts.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        command.args(self.unshare).args(["--", "sh", "-c", MOUNT]).arg(&self.folder).arg(SIZE);
        command
    }

    /// Where it is, for the server.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lets nothing be written any more.
    ///
    /// # Errors
    ///
    /// If the disk cannot be written to, or has no end.
    pub(super) fn fill(&self, server: &Child) -> Result<()> {
        let mut file = File::create(self.filler(server)).context("the disk of the server cannot be written to")?;
        match io::copy(&mut io::repeat(0), &mut file) {
            Err(error) if error.kind() == ErrorKind::StorageFull => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("the disk of the server has no end"),
        }
    }

    /// Makes room again. Also while the file is open elsewhere: a process that another thread starts has it until it becomes its program.
    ///
    /// # Errors
    ///
    /// If it was not filled.
    pub(super) fn free(&self, server: &Child) -> Result<()> {
        let filler = self.filler(server);
        File::options().write(true).truncate(true).open(&filler)?;
        Ok(fs::remove_file(filler)?)
    }

    /// The file that takes all the room, by the way through the server's process to what only that sees.
    fn filler(&self, server: &Child) -> PathBuf {
        let folder = self.folder.strip_prefix("/").unwrap_or(&self.folder);
        Path::new("/proc").join(server.id().to_string()).join("root").join(folder).join("filler")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where nothing can be mounted there is nothing to see.
    #[test]
    fn a_full_disk_takes_nothing_until_it_is_freed_and_is_seen_by_its_server_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let Some(disk) = SmallDisk::at(folder.path().into()) else { return };
        let mut server = disk.command().args(["sleep", "60"]).spawn().expect("a program that is everywhere");
        let runs = format!("/proc/{}/comm", server.id());
        while fs::read_to_string(&runs).expect("it runs") != "sleep\n" {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let file = disk.filler(&server).with_file_name("file");
        disk.fill(&server).expect("it has an end");
        let full = fs::write(&file, "more").expect_err("it is full");
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let _open_elsewhere = File::open(disk.filler(&server)).expect("it is there");
        disk.free(&server).expect("it is full");
        fs::write(&file, "more").expect("it is free");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nobody else sees the disk");
        server.kill().and_then(|()| server.wait()).expect("it runs");
        assert!(!fs::read_to_string("/proc/mounts").expect("a list").contains(&*folder.path().to_string_lossy()));
    }
}
