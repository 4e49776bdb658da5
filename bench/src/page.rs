//! The page of a run, in Markdown: what was measured, where, and why the figures are what they are.
//!
//! Every figure comes from the run. The texts only explain, and hold for any figures.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::{Header, Line, Report, SectionReport};

const HEAD: &str = "# Benchmarks of the module

<!-- Written by `make bench`. Change the texts in bench/src/page.rs, and write the page again. -->

```sh
make bench                         # all sections, and this page
make bench SECTION=uncontended     # prints one section
make bench SECTION=memory WRITE=1  # writes one section into this page
```

[benchmarks.md](benchmarks.md) compares the module with other locks. This page compares each part of
the module with what the server itself can do. Each section starts its own server and measures both
sides in turns. A result is the median of the ratios of the rounds, with the smallest and the largest
ratio. Where the client's own speed would distort a result, the figure is the CPU time of the
server's main thread. A missed aim is shown as missed.
";

/// Why the figures of a section are what they are.
fn explanation(section: &str) -> &'static str {
    match section {
        "uncontended" => {
            "A client acquires and releases a free lock: a *pair*. With *no listener*, the server has neither an \
             append-only file nor a replica. `SET NX PX` with `DEL` is a client that releases without checking the \
             owner; `SET NX PX` with a script is one that checks. Besides its own work, the module pays for work that \
             the server does for every module: opening the key, wrapping the value, and counting each change."
        }
        "floor" => {
            "From an empty command to a lock in scripts, each row does a little more. So the rows show which part of \
             a pair's cost is the server's and which the module's. `bare` is a module with the smallest possible \
             lock. To acquire, it opens the key, sets a value and replies; to release, it opens, compares, deletes \
             and replies."
        }
        "current-servers" => {
            "The server's CPU per pair on servers that compare and delete in one command, `DELEX … IFEQ` and `DELIFEQ`, so a client \
             needs no script. The rows of the bare lock show the server's own share, as in [floor](#floor): a module has \
             to look up the key, wrap the value, and build each effect as a command of its own. With an append-only \
             file, the difference between *bare lock, with events and effects* and rlock is the lock itself: owners, \
             tokens, leases, queues and statistics. Without a listener, rlock builds no effects."
        }
        "handover" => {
            "64 connections pass one lock around, against a list that does the same with `BLPOP` and `RPUSH`. A client \
             that sleeps waits in `poll`, as most clients do. One that spins polls all the time, so the server is the \
             bottleneck. A hand-over with `BLOCK` has a cost that `BLPOP` does not have: a module has to tell the \
             server through a pipe that a client is no longer blocked. A hand-over with `NOTIFY` needs no connection \
             of its own, but three messages where `BLPOP` needs two: the reply to the release, the notice to the next \
             owner, and the reply to its next request, which says that it waits. The hand-overs of one lock form a \
             chain: each waits until the client and the server have woken up, so saving work in the server hardly \
             makes them faster. With many locks at once, many messages travel together. The same messages without a \
             lock (`PUBLISH` to the next client, and `PING`) are the minimum for a server over the same connections."
        }
        "queue-length" => {
            "A hand-over with few and with many waiters: the server's work for it does not depend on the number of \
             waiters."
        }
        "memory" => {
            "A lock has data that a string does not have: a token, a count, the granted lease, and an entry in the \
             order of deadlines, which keeps a copy of the key's name. The server's own memory for a module's value \
             comes on top."
        }
        "notify" => {
            "Requests that wait without a blocked connection. The figures are the memory for one of them, and the \
             longest PING of another client while something happens to all of them: they begin to wait, are granted \
             one after the other, lose half of their connections, or time out within one second. While the server \
             grants one lock after the other, a thousand commands are under way at any time, and a PING waits for all \
             commands before it. The first row shows how long that takes without the module: there clients publish \
             the same number of messages without a lock."
        }
        "mass-expiry" => {
            "The module expires leases for a few milliseconds at a time, and then lets the server execute other commands. \
             The longest PING includes the time that the machine itself took: compare it with the idle server just \
             before, and with the time that the server waited for a CPU."
        }
        "punctuality" => "The time from the deadline of a lease to the reply of the next owner, as the client sees it.",
        "fair" => {
            "Three operations in a short and in a long queue: taking a place, leaving from the middle, and a \
             hand-over."
        }
        "client" => "The crate rlock-client, against the same commands with redis-rs.",
        "deadlock" => {
            "A request that does not wait searches nothing. For a request that waits, the search ends after a step or \
             two in two cases: its owner holds nothing that others wait for, or the owners that it waits for do not \
             wait themselves. Other waiters on the server make no difference. Only a request that links two long \
             chains is expensive: the search follows both, up to its limit."
        }
        "failover" => {
            "A master dies, and one of its two replicas is promoted at once: a Sentinel or a cluster adds the time \
             that it takes to detect the death. With the settings of [Failover without two \
             holders](operations/failover.md#failover-without-two-holders) the new master renews holds once the votes \
             of its replicas count, 3 s after they follow it, and grants after the longest lease and a second more. \
             While nothing fails, the settings cost little: each grant only compares a clock with two numbers."
        }
        "stalls" => {
            "The longest PING of another client while one client does something expensive. Each case needs only ordinary \
             rights."
        }
        _ => "",
    }
}

/// Returns the page. The text of `before` about sections that were not measured now is kept.
pub fn write(report: &Report, machine: &str, before: &str) -> String {
    let mut sections = sections_of(before);
    for section in &report.sections {
        let new = (section.name.clone(), section_text(section, &report.header, machine));
        match sections.iter_mut().find(|(name, _)| *name == section.name) {
            Some(place) => *place = new,
            None => sections.push(new),
        }
    }
    let texts: String = sections.into_iter().map(|(_, text)| text).collect();
    format!("{HEAD}{texts}")
}

/// The sections of a page: name, and text from the line before the heading to the end.
fn sections_of(page: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            sections.push((name.to_owned(), "\n".to_owned()));
        }
        if let Some((_, text)) = sections.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    // The empty line between two sections belongs to the second one.
    for (_, text) in &mut sections {
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    sections
}

fn section_text(section: &SectionReport, header: &Header, machine: &str) -> String {
    let SectionReport { name, servers, lines } = section;
    let Header { cpu_count, date, rounds } = header;
    let mut text = format!("\n## {name}\n\n{}\n\n", explanation(name));
    let _ = writeln!(text, "{servers}, {cpu_count} CPUs ({machine}), {date}, {rounds} rounds per side, in turns.\n");
    text.push_str("| measure | result | min | max | aim | met | figures |\n|---|---:|---:|---:|---|---|---|\n");
    for line in lines {
        let cells = line.cells().map(|cell| cell.replace('|', "\\|").replace('\n', "<br>"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Writes the times of the section `failover` between the marks of another document.
pub fn write_prices(section: &SectionReport, document: &Path) -> Result<()> {
    const MARKS: [&str; 2] =
        ["<!-- figures of the failover section: begin -->", "<!-- figures of the failover section: end -->"];
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    let parts = text.split_once(MARKS[0]).and_then(|(before, rest)| Some((before, rest.split_once(MARKS[1])?.1)));
    let (before, after) = parts.with_context(|| format!("{} has no marks for the figures", document.display()))?;
    let mut table = "| | median | min | max |\n|---|---:|---:|---:|\n".to_owned();
    let cells = section.lines.iter().map(Line::cells);
    for [measure, median, min, max, ..] in cells.filter(|[measure, ..]| measure.starts_with("from the promotion")) {
        let _ = writeln!(table, "| {measure} | {} | {min} | {max} |", median.trim_start_matches("median "));
    }
    let [begin, end] = MARKS;
    Ok(fs::write(document, format!("{before}{begin}\n\n{table}\n{end}{after}"))?)
}

/// The model of the CPU.
pub fn machine() -> String {
    let model = |text: String| {
        let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    std::fs::read_to_string("/proc/cpuinfo").ok().and_then(model).unwrap_or_else(|| "unknown model".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(date: &str, names: &[&str]) -> Report {
        let header = Header { cpu_count: 2, date: date.to_owned(), rounds: 5 };
        let sections = names
            .iter()
            .map(|name| SectionReport { name: (*name).to_owned(), servers: "Redis 7".to_owned(), lines: Vec::new() })
            .collect();
        Report { header, sections }
    }

    #[test]
    fn a_section_that_is_measured_again_takes_its_own_place_and_the_others_stay() {
        let first = write(&report("Monday", &["memory", "fair", "stalls"]), "a machine", "");
        assert_eq!(write(&report("Monday", &["memory", "fair", "stalls"]), "a machine", &first), first);
        let second = write(&report("Tuesday", &["fair"]), "a machine", &first);
        assert_eq!((second.matches("Monday").count(), second.matches("Tuesday").count()), (2, 1));
        let place = |text: &str| second.find(text).expect("the text is on the page");
        assert!(
            place("## memory") < place("## fair")
                && place("## fair") < place("Tuesday")
                && place("Tuesday") < place("## stalls")
        );
    }
}
