//! What one server carries, from the figures of the comparison: for `docs/operations/capacity.md`.

use std::fmt::Write;

use crate::aims::CONTENDED_64;
use crate::cell::Work;
use crate::report::{Report, number};
use crate::samples::Summary;

const UNCONTENDED_64: &str = "64 clients";

/// One line: what, and which figure of which cell and client says so.
struct Line {
    text: &'static str,
    work: Work,
    cell: &'static str,
    peer: &'static str,
    figure: &'static str,
    /// From the figure to what is shown.
    shown: fn(f64) -> f64,
}

fn as_it_is(figure: f64) -> f64 {
    figure
}

/// How often something fits into a second that takes so many microseconds.
fn per_second(us: f64) -> f64 {
    1e6 / us
}

const LINES: [Line; 10] = [
    Line {
        text: "pairs a second of one core of the server, uncontended, a connection for each client",
        work: Work::Uncontended,
        cell: UNCONTENDED_64,
        peer: "jedis",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "the same, clients of rlock-client that share a connection",
        work: Work::Uncontended,
        cell: UNCONTENDED_64,
        peer: "rlock-client",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "hand-overs a second of one core of the server, 64 blocked connections on one lock",
        work: Work::Contended,
        cell: CONTENDED_64,
        peer: "jedis",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "the same, 64 clients of rlock-client that share a connection",
        work: Work::Contended,
        cell: CONTENDED_64,
        peer: "rlock-client",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "hand-overs a second that were measured on one lock, server and 64 clients on one machine",
        work: Work::Contended,
        cell: CONTENDED_64,
        peer: "jedis",
        figure: "pairs_per_s",
        shown: as_it_is,
    },
    Line {
        text: "bytes over the network for a pair",
        work: Work::Uncontended,
        cell: UNCONTENDED_64,
        peer: "jedis",
        figure: "bytes_per_pair",
        shown: as_it_is,
    },
    Line {
        text: "bytes of memory for a held lock, of a million",
        work: Work::Growth,
        cell: "1000000 locks",
        peer: "jedis",
        figure: "bytes_per_lock",
        shown: as_it_is,
    },
    Line {
        text: "bytes of memory for a blocked waiter, of a thousand: a connection",
        work: Work::Growth,
        cell: "1000 waiters",
        peer: "jedis",
        figure: "bytes_per_waiter",
        shown: as_it_is,
    },
    Line {
        text: "bytes of memory for a waiter by `NOTIFY`, of ten thousand of rlock-client",
        work: Work::Growth,
        cell: "10000 waiters",
        peer: "rlock-client",
        figure: "bytes_per_waiter",
        shown: as_it_is,
    },
    Line {
        text: "µs of the main thread a pair with ten thousand who wait",
        work: Work::Growth,
        cell: "10000 waiters",
        peer: "rlock-client",
        figure: "main_thread_us_per_pair",
        shown: as_it_is,
    },
];

/// The table.
pub fn table(report: &Report<'_>) -> String {
    let mut text = String::from("| what | median | rounds |\n|---|---:|---:|\n");
    for line in &LINES {
        let summary = report.samples.summary(line.work, line.cell, line.peer, line.figure);
        let (median, ends) = summary.map_or(("not measured".to_owned(), String::new()), |summary| shown(line, summary));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {} | {median} | {ends} |", line.text);
    }
    text
}

fn shown(line: &Line, summary: Summary) -> (String, String) {
    let of = |figure| number((line.shown)(figure));
    let (a, b) = ((line.shown)(summary.min), (line.shown)(summary.max));
    (of(summary.median), format!("{}–{}", number(a.min(b)), number(a.max(b))))
}
