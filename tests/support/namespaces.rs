//! Network namespaces: servers with an address each, between which blackhole routes lose packets.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::relay::Relay;
use super::server::{Server, free_port};

/// Namespaces on one bridge, which has no connection to the rest of the machine. The test reaches a
/// server in one of them over a relay to its Unix socket. Dropping the value removes them.
pub struct Namespaces {
    names: Vec<String>,
    folder: TempDir,
    relays: Vec<Relay>,
}

/// The name of each namespace's interface, and of the bridge.
const INTERFACE: &str = "rlock0";

impl Namespaces {
    /// `None` if this process may not make namespaces.
    pub fn new(count: usize) -> Option<Namespaces> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |at| format!("rlock-{}-{number}-{at}", std::process::id());
        // The last one has the bridge.
        let names: Vec<String> = (0..=count).map(name).collect();
        let made = Namespaces { names, folder: tempfile::tempdir().expect("a folder"), relays: Vec::new() };
        let hub = &made.names[count];
        ip(&format!("netns add {hub}")).then_some(())?;
        let mut is_made = ip(&format!("-n {hub} link add {INTERFACE} type bridge"));
        is_made &= ip(&format!("-n {hub} link set {INTERFACE} up"));
        for (at, name) in made.names[..count].iter().enumerate() {
            for step in [
                format!("netns add {name}"),
                format!("-n {name} link set lo up"),
                format!("-n {name} link add {INTERFACE} type veth peer name port{at} netns {hub}"),
                format!("-n {name} address add {}/24 dev {INTERFACE}", made.address(at)),
                format!("-n {name} link set {INTERFACE} up"),
                format!("-n {hub} link set port{at} master {INTERFACE} up"),
            ] {
                is_made &= ip(&step);
            }
        }
        is_made.then_some(made)
    }

    /// The address of a namespace, as the others see it.
    pub fn address(&self, at: usize) -> String {
        format!("10.0.0.{}", at + 1)
    }

    /// Starts a server in a namespace.
    pub fn start(&mut self, at: usize, lines: &[&str]) -> Server {
        let (port, socket): (u16, PathBuf) = (free_port(), self.folder.path().join(at.to_string()));
        let own = [
            format!("bind {}", self.address(at)),
            "protected-mode no".to_owned(),
            format!("unixsocket {}", socket.display()),
        ];
        self.relays.push(Relay::to_socket(port, socket));
        let wrapper = ["ip", "netns", "exec", &self.names[at]].map(str::to_owned);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        Server::wrapped(wrapper.to_vec(), port, &[lines, &own].concat())
    }

    /// Cuts a namespace off from another one, or connects them again: a blackhole route in each of
    /// them loses what it sends to the other.
    #[track_caller]
    pub fn cut(&self, at: usize, other: usize, is_cut: bool) {
        let verb = if is_cut { "replace" } else { "del" };
        for (here, there) in [(at, other), (other, at)] {
            let step = format!("-n {} route {verb} blackhole {}/32", self.names[here], self.address(there));
            assert!(ip(&step), "ip {step}");
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Interfaces end with their namespace.
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Runs the command `ip`. Returns whether it succeeded.
fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
