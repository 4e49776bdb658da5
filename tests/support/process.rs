//! What a test asks of the operating system: all that is unsafe is in this file.

use std::process::{Child, ExitStatus};
use std::sync::OnceLock;

/// A child that does not outlive this value, whatever ends the test.
pub struct OwnedProcess(Child);

impl OwnedProcess {
    pub fn new(child: Child) -> OwnedProcess {
        OwnedProcess(child)
    }

    pub fn has_ended(&mut self) -> bool {
        let status = self.0.try_wait().expect("a child of this process");
        status.is_some()
    }

    /// SIGKILL. Does nothing to a process that has ended.
    pub fn kill(&mut self) {
        self.0.kill().expect("a child of this process");
        self.0.wait().expect("a child of this process");
    }

    /// SIGTERM. The process ends when it gets to it.
    #[track_caller]
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// Waits until the process ends by itself. An end that was seen before counts.
    pub fn wait(&mut self) -> ExitStatus {
        self.0.wait().expect("a child of this process")
    }

    /// SIGSTOP. The process runs no further when this returns.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` outlives the call. A child that has stopped is only reported, not reaped.
        let id = unsafe { libc::waitpid(self.id(), &mut status, libc::WUNTRACED) };
        assert!(id == self.id() && libc::WIFSTOPPED(status), "the process has ended");
    }

    /// SIGCONT.
    #[track_caller]
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// From now on none of its files may grow beyond so many bytes.
    #[track_caller]
    pub fn limit_files(&self, bytes: u64) {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the struct outlives the call, and where the former limit would be written is null.
        let status = unsafe { libc::prlimit(self.id(), libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
        assert_eq!(status, 0, "the files of a process cannot be limited");
    }

    #[track_caller]
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: only numbers are passed. The child has not been reaped, so its id is nobody else's.
        let status = unsafe { libc::kill(self.id(), signal) };
        assert_eq!(status, 0, "there is no process to signal");
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

/// Many systems allow a process 1024 open files by default, fewer than the largest test has connections. And for a process whose files may not
/// grow any more, that is an error of its writes, as on a full disk, and not its end. Children inherit both.
pub fn set_limits() {
    static SET: OnceLock<()> = OnceLock::new();
    SET.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the calls only read or write the struct that they are given, which outlives them.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                // If it fails, the test that needs more says so by itself.
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            }
        }
    });
}
