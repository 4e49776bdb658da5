//! An upgrade from the commit before the settings for failovers, under load, as
//! docs/operations/upgrade.md describes it: replicas first.

use std::env;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::SHORT;
use super::assert_no_overlap;
use super::beliefs::overlaps;
use super::faults::Fault;
use super::fleet::{Fleet, SOON, Settings, lines};
use super::workers::Load;
use crate::support::{Client, Reply, Server, eventually, module_path};

/// The path of the module of that commit. `make test-failover` builds it.
const BEFORE: &str = "RLOCK_MODULE_BEFORE";

/// The longest lease that the servers allow.
const LONG_LEASE: Duration = Duration::from_secs(8);

/// Starts three servers with the old module, without the settings.
fn old_fleet(module: &Path) -> Fleet {
    let load = format!("loadmodule {}", module.display());
    let mut fleet = Fleet::empty(SHORT, StdRng::seed_from_u64(0));
    fleet.servers = (0..3).map(|_| Server::without_module(&[&load])).collect();
    for replica in [1, 2] {
        fleet.follow(replica, 0);
        fleet.servers[replica].catch_up_with(&fleet.servers[0]);
    }
    fleet
}

/// Restarts a replica with the new module and the settings.
fn upgrade(fleet: &mut Fleet, number: usize, master: usize) {
    let upstream = format!("127.0.0.1 {}", fleet.servers[master].port());
    let module = module_path().display().to_string();
    let settings = lines(Fault::SplitBrain, Settings::Safe, LONG_LEASE);
    let settings = settings.iter().map(|line| line.split_once(' ').expect("a name and a value"));
    let mut words = vec!["--loadmodule".to_owned(), module, "--replicaof".to_owned(), upstream];
    words.extend(settings.flat_map(|(name, value)| [format!("--{name}"), value.to_owned()]));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    fleet.kill(number);
    fleet.servers[number].remove_line("loadmodule ");
    fleet.servers[number].restart_in_place(&words);
    fleet.servers[number].catch_up_with(&fleet.servers[master]);
}

/// Repeats a RENEW until a master accepts it. Fails if the hold must have expired before that.
#[track_caller]
fn renew(client: &mut Client, renewed: &mut Instant) {
    let sent = Instant::now();
    eventually(LONG_LEASE, || matches!(client.call("RLOCK.RENEW kept owner"), Reply::Int(_)));
    assert!(renewed.elapsed() < LONG_LEASE, "the hold may have expired");
    *renewed = sent;
}

#[test]
fn a_rolling_upgrade_under_load_loses_no_hold_and_gives_none_twice() {
    let Some(before) = env::var_os(BEFORE).filter(|path| !path.is_empty()) else {
        eprintln!("not run: {BEFORE} names no module to upgrade from; make test-failover builds one");
        return;
    };
    let mut fleet = old_fleet(Path::new(&before));
    let load = Load::new(fleet.ports(), LONG_LEASE);
    let began = Instant::now();
    thread::scope(|scope| {
        let _end = load.begin(scope);
        eventually(SOON, || load.acquired() > 100);
        let mut client = fleet.servers[0].client();
        let mut renewed = Instant::now();
        let token = client.acquire(&format!("kept owner PX {}", LONG_LEASE.as_millis()));
        for replica in [1, 2] {
            upgrade(&mut fleet, replica, 0);
            renew(&mut client, &mut renewed);
            // Only a pause between two renewals.
            thread::sleep(LONG_LEASE / 80);
        }

        let promoted = fleet.servers[1].port();
        fleet.tell(0, format!("FAILOVER TO 127.0.0.1 {promoted}"));
        eventually(SOON, || fleet.servers[1].has_role("master") && fleet.servers[0].has_role("slave"));
        fleet.follow(2, 1);
        let mut client = fleet.servers[1].client();
        renew(&mut client, &mut renewed);
        upgrade(&mut fleet, 0, 1);
        renew(&mut client, &mut renewed);
        while client.info_number("rlock_may_grant") == 0 {
            renew(&mut client, &mut renewed);
        }
        assert_eq!(client.holder("kept").expect("it is held").token, token);
        let acquired = load.acquired();
        eventually(SOON, || load.acquired() > acquired + 100);
    });
    let report: Vec<String> = overlaps(&load.beliefs(), began).iter().map(ToString::to_string).collect();
    assert_no_overlap("upgrade", &report);
}
