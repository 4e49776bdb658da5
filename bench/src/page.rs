//! The page of a run, in Markdown: what was measured, where, and why a figure is as it is.
//!
//! Every figure comes from the run. The words beside them explain, and hold whatever the figures are.

use std::fmt::Write as _;

use crate::report::{Header, Report, SectionReport};

const HEAD: &str = "# Benchmarks of the module

<!-- Written by `make bench`. Change the words in bench/src/page.rs, and let it write again. -->

```sh
make bench                         # everything, and this page
make bench SECTION=uncontended     # one section, shown only
```

How the module compares with other locks is in [benchmarks.md](benchmarks.md). Here each part of it is compared with what the server itself
can do. Each section starts a server of its own and measures both sides in turns on it. A result is the median of the quotients of the
rounds, with the smallest and the largest. Costs are the CPU time of the server's main thread where a client's own speed would blur the answer.
An aim that is missed is shown as missed.
";

/// Why the figures of a section are as they are.
fn explanation(section: &str) -> &'static str {
    match section {
        "uncontended" => {
            "A free lock is acquired and released again. `SET NX PX` and `DEL` is what a client pays that does not check who releases; with a \
             script it does. Beside its own work the module pays for what the server does for any module: it opens the key, wraps the value, \
             and counts each change."
        }
        "floor" => {
            "A ladder from an empty command to a lock in scripts, so that it can be seen what of a pair is the server's and what is the \
             module's own. `bare` is a module with the least that could be called a lock: it opens the key, sets a value, replies; opens, compares, \
             deletes, replies."
        }
        "handover" => {
            "One lock goes around 64 connections, against a list that does the same by `BLPOP` and `RPUSH`. A client that sleeps waits in `poll`, as \
             most do; one that spins asks again and again, and makes the server the bottleneck. A hand-over by `BLOCK` costs what `BLPOP` has not: \
             the pipe by which a module's unblocked client is told to the server. One by `NOTIFY` needs no connection of its own, but three messages \
             where `BLPOP` has two: the release is answered, the next is told, and the request that waits anew is answered that it does. One \
             lock is one chain, in which each hand-over waits for the client to wake up and for the server to wake up, whatever the server saves; with \
             many locks at once the messages travel together. The same messages without a lock (`PUBLISH` to the next, and `PING`) are the least \
             that a server can do over the same connections."
        }
        "queue-length" => {
            "The same with few and with many waiters: the server's work for one hand-over does not depend on how many wait."
        }
        "memory" => {
            "A lock has what a string has not: a token, a count, the lease that was given, and a place in the order of deadlines, which has to name \
             the key and so keeps a copy of it. The server's own part of a module value comes on top."
        }
        "notify" => {
            "Requests that wait without a blocked connection: what one of them takes, and the longest PING of another client while all of \
             them come, are granted one after the other, lose half of their connections, or time out in one second. While locks are passed on, \
             a thousand commands are under way at any time, and a PING waits for all that are before it: the same number of messages, \
             published by clients without a lock, shows the server's own part of that."
        }
        "mass-expiry" => {
            "The module ends leases for a few milliseconds at a time, and then lets others have their turn. The longest PING contains what the machine \
             itself took away: compare the idle server right before, and the time that the server waited for a CPU."
        }
        "punctuality" => "From the deadline of a lease to the next owner's reply, as the client sees it.",
        "fair" => "Taking a place, leaving from the middle, and a hand-over, in a short and in a long queue.",
        "client" => "The crate rlock-client against the same commands by redis-rs.",
        "deadlock" => {
            "A request that does not wait searches nothing. One that waits is done after a step or two if it holds nothing that is waited for, or if \
             those it waits for do not wait themselves, whatever else waits on the server. What costs is a request that links two long chains: both \
             have to be walked, up to the limit of a search."
        }
        "stalls" => {
            "The longest PING of another client while one client does what is expensive, each with ordinary rights."
        }
        _ => "",
    }
}

/// The page.
pub fn write(report: &Report, machine: &str) -> String {
    let Header { server_version, cpu_count, date, rounds } = &report.header;
    let mut page = HEAD.to_owned();
    let _ = writeln!(
        page,
        "\nRedis {server_version}, {cpu_count} CPUs ({machine}), {date}, {rounds} rounds a side in turns."
    );
    for SectionReport { name, lines } in &report.sections {
        let _ = write!(page, "\n## {name}\n\n{}\n\n", explanation(name));
        page.push_str("| measure | result | min | max | aim | met | figures |\n|---|---:|---:|---:|---|---|---|\n");
        for line in lines {
            let cells = line.cells().map(|cell| cell.replace('|', "\\|").replace('\n', "<br>"));
            let _ = writeln!(page, "| {} |", cells.join(" | "));
        }
    }
    page
}

/// The model of the CPU.
pub fn machine() -> String {
    let model = |text: String| {
        let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    std::fs::read_to_string("/proc/cpuinfo").ok().and_then(model).unwrap_or_else(|| "of an unknown model".to_owned())
}
