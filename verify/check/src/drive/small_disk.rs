//! A small disk for one server, which can be filled and freed again.
//!
//! It is a file system in memory (tmpfs) at the server's folder, mounted in a namespace that
//! contains only the server. No other process sees the mount, and it ends with the server, however
//! either process ends. Root mounts it directly; another user mounts it as root of a user
//! namespace, if the kernel allows that.
//!
//! Invariant: the data on the disk is lost with the server's process.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// The disk takes memory for its content, and for all of its size while it is full. A server writes
/// about 100 KB per second under 128 clients.
const SIZE: &str = "64m";

/// The ways to enter a namespace with the right to mount: arguments of `unshare`, which executes
/// the program that it is given.
const WAYS: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// Mounts the disk at `$0`, and executes the program that follows.
const MOUNT: &str = "mount -t tmpfs -o size=$1 tmpfs \"$0\" && shift && exec \"$@\"";

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct SmallDisk {
    unshare: &'static [&'static str],
    folder: PathBuf,
}

impl SmallDisk {
    /// A disk at an existing folder; `None` if nothing can be mounted here.
    pub(super) fn at(folder: PathBuf) -> Option<Self> {
        WAYS.into_iter().map(|unshare| Self { unshare, folder: folder.clone() }).find(|disk| {
            let tried = disk.command().arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        })
    }

    /// A command that mounts the disk and executes the program that the caller adds, with its
    /// arguments. The program replaces the process that the command starts.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        command.args(self.unshare).args(["--", "sh", "-c", MOUNT]).arg(&self.folder).arg(SIZE);
        command
    }

    /// The folder of the disk, as the server sees it.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fills the disk, so that no write succeeds.
    ///
    /// # Errors
    ///
    /// If the disk cannot be written to, or does not get full.
    pub(super) fn fill(&self, server: &Child) -> Result<()> {
        let mut file = File::create(self.filler(server)).context("cannot write to the disk of the server")?;
        match io::copy(&mut io::repeat(0), &mut file) {
            Err(error) if error.kind() == ErrorKind::StorageFull => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("the disk of the server does not get full"),
        }
    }

    /// Makes room again. The file is truncated first, because it may be open elsewhere: a process
    /// that another thread starts has it open until it executes its program.
    ///
    /// # Errors
    ///
    /// If the disk was not filled.
    pub(super) fn free(&self, server: &Child) -> Result<()> {
        let filler = self.filler(server);
        File::options().write(true).truncate(true).open(&filler)?;
        Ok(fs::remove_file(filler)?)
    }

    /// The path of the file that fills the disk. It goes through the server's process, because only
    /// that sees the mount.
    fn filler(&self, server: &Child) -> PathBuf {
        let folder = self.folder.strip_prefix("/").unwrap_or(&self.folder);
        Path::new("/proc").join(server.id().to_string()).join("root").join(folder).join("filler")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes without a check where nothing can be mounted.
    #[test]
    fn full_disk_rejects_writes_until_freed_and_only_its_server_sees_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let Some(disk) = SmallDisk::at(folder.path().into()) else { return };
        let mut server = disk.command().args(["sleep", "60"]).spawn().expect("a standard program");
        let runs = format!("/proc/{}/comm", server.id());
        while fs::read_to_string(&runs).expect("it runs") != "sleep\n" {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let file = disk.filler(&server).with_file_name("file");
        disk.fill(&server).expect("it gets full");
        let full = fs::write(&file, "more").expect_err("it is full");
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let _open_elsewhere = File::open(disk.filler(&server)).expect("the file exists");
        disk.free(&server).expect("it is full");
        fs::write(&file, "more").expect("it is free");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "no other process sees the disk");
        server.kill().and_then(|()| server.wait()).expect("it runs");
        assert!(!fs::read_to_string("/proc/mounts").expect("a list").contains(&*folder.path().to_string_lossy()));
    }
}
