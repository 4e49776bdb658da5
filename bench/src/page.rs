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
make bench SECTION=memory WRITE=1  # one section, here as well
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
        "failover" => {
            "A master dies, and one of its two replicas is promoted at once: a Sentinel or a cluster adds the time in which it finds out. With the settings of \
             [operations.md](operations.md#failover-without-two-holders) the new master grants nothing until each hold that its predecessor \
             may have given has ended: for the longest lease, 3 s of lag, and 1 s more. While nothing fails each grant compares a clock with one \
             number."
        }
        "stalls" => {
            "The longest PING of another client while one client does what is expensive, each with ordinary rights."
        }
        _ => "",
    }
}

/// The page. What `before` says of sections that were not measured now stays.
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

/// The sections of a page: their names, and their texts from the line before the heading to the end.
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
    // Between two sections is a line that belongs to the second one.
    for (_, text) in &mut sections {
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    sections
}

fn section_text(section: &SectionReport, header: &Header, machine: &str) -> String {
    let SectionReport { name, lines } = section;
    let Header { server_version, cpu_count, date, rounds } = header;
    let mut text = format!("\n## {name}\n\n{}\n\n", explanation(name));
    let _ = writeln!(
        text,
        "Redis {server_version}, {cpu_count} CPUs ({machine}), {date}, {rounds} rounds a side in turns.\n"
    );
    text.push_str("| measure | result | min | max | aim | met | figures |\n|---|---:|---:|---:|---|---|---|\n");
    for line in lines {
        let cells = line.cells().map(|cell| cell.replace('|', "\\|").replace('\n', "<br>"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// The model of the CPU.
pub fn machine() -> String {
    let model = |text: String| {
        let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    std::fs::read_to_string("/proc/cpuinfo").ok().and_then(model).unwrap_or_else(|| "of an unknown model".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(date: &str, names: &[&str]) -> Report {
        let header = Header { server_version: "7".to_owned(), cpu_count: 2, date: date.to_owned(), rounds: 5 };
        let sections = names.iter().map(|name| SectionReport { name: (*name).to_owned(), lines: Vec::new() }).collect();
        Report { header, sections }
    }

    #[test]
    fn a_section_that_is_measured_again_takes_its_own_place_and_the_others_stay() {
        let first = write(&report("Monday", &["memory", "fair", "stalls"]), "a machine", "");
        assert_eq!(write(&report("Monday", &["memory", "fair", "stalls"]), "a machine", &first), first);
        let second = write(&report("Tuesday", &["fair"]), "a machine", &first);
        assert_eq!((second.matches("Monday").count(), second.matches("Tuesday").count()), (2, 1));
        let place = |text: &str| second.find(text).expect("it is there");
        assert!(
            place("## memory") < place("## fair")
                && place("## fair") < place("Tuesday")
                && place("Tuesday") < place("## stalls")
        );
    }
}
