//! Operating-system calls of the tests. All unsafe code is in this file.

use std::process::{Child, ExitStatus};
use std::sync::OnceLock;

/// A child process that is killed when this value is dropped, however the test ends.
pub struct OwnedProcess(Child);

impl OwnedProcess {
    pub fn new(child: Child) -> OwnedProcess {
        OwnedProcess(child)
    }

    pub fn has_ended(&mut self) -> bool {
        let status = self.0.try_wait().expect("a child of this process");
        status.is_some()
    }

    /// Sends SIGKILL. Does nothing to a process that has ended.
    pub fn kill(&mut self) {
        self.0.kill().expect("a child of this process");
        self.0.wait().expect("a child of this process");
    }

    /// Sends SIGTERM. The process ends when it handles the signal.
    #[track_caller]
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// Waits until the process ends, and returns its status even if the end was seen before.
    pub fn wait(&mut self) -> ExitStatus {
        self.0.wait().expect("a child of this process")
    }

    /// Sends SIGSTOP, and returns when the process has stopped.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` outlives the call. A stopped child is only reported, not reaped.
        let id = unsafe { libc::waitpid(self.id(), &mut status, libc::WUNTRACED) };
        assert!(id == self.id() && libc::WIFSTOPPED(status), "the process has ended");
    }

    /// Sends SIGCONT.
    #[track_caller]
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Limits the size of all files of the process to `bytes`.
    #[track_caller]
    pub fn limit_files(&self, bytes: u64) {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the struct outlives the call, and the pointer for the former limit is null.
        let status = unsafe { libc::prlimit(self.id(), libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
        assert_eq!(status, 0, "cannot limit the file size of the process");
    }

    #[track_caller]
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: only numbers are passed. The child has not been reaped, so its id is not reused.
        let status = unsafe { libc::kill(self.id(), signal) };
        assert_eq!(status, 0, "cannot signal the process");
    }

    pub fn id(&self) -> libc::pid_t {
        self.0.id().try_into().expect("an id of a process")
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the time on the clock of `std::time::Instant`, which all processes share, in
/// microseconds.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes the given struct, which outlives it.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    assert_eq!(status, 0, "there is such a clock");
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1000).expect("a time since the start of the machine")
}

/// Raises the limit of open files, and ignores SIGXFSZ. Many systems allow 1024 open files by
/// default, fewer than the largest test has connections. With SIGXFSZ ignored, a process at its
/// file size limit gets a write error, as on a full disk, instead of being killed. Child processes
/// inherit both.
pub fn set_limits() {
    static SET: OnceLock<()> = OnceLock::new();
    SET.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the calls only read or write the given struct, which outlives them.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                // If this fails, the test that needs more files reports it.
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            }
        }
    });
}
