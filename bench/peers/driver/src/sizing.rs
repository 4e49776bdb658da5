//! What one server can carry, from the figures of the comparison: for `docs/operations/capacity.md`.

use std::fmt::Write;

use crate::aims::CONTENDED_64;
use crate::cell::Work;
use crate::report::{Report, number};
use crate::samples::Summary;

const UNCONTENDED_64: &str = "64 clients";

/// One line: its text, and the figure of a cell and a peer.
struct Line {
    text: &'static str,
    work: Work,
    cell: &'static str,
    peer: &'static str,
    figure: &'static str,
    /// Converts the figure to the shown value.
    shown: fn(f64) -> f64,
}

fn as_it_is(figure: f64) -> f64 {
    figure
}

/// How many operations fit into a second if each takes `us` microseconds.
fn per_second(us: f64) -> f64 {
    1e6 / us
}

const LINES: [Line; 10] = [
    Line {
        text: "pairs per second and core of the server, uncontended, one connection per client",
        work: Work::Uncontended,
        cell: UNCONTENDED_64,
        peer: "jedis",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "the same with rlock-client, whose clients share a connection",
        work: Work::Uncontended,
        cell: UNCONTENDED_64,
        peer: "rlock-client",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "hand-overs per second and core of the server, 64 blocked connections on one lock",
        work: Work::Contended,
        cell: CONTENDED_64,
        peer: "jedis",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "the same with 64 clients of rlock-client, which share a connection",
        work: Work::Contended,
        cell: CONTENDED_64,
        peer: "rlock-client",
        figure: "main_thread_us_per_pair",
        shown: per_second,
    },
    Line {
        text: "measured hand-overs per second on one lock, 64 blocked connections, server and clients on one machine",
        work: Work::Contended,
        cell: CONTENDED_64,
        peer: "jedis",
        figure: "hand_overs_per_s",
        shown: as_it_is,
    },
    Line {
        text: "bytes over the network per pair",
        work: Work::Uncontended,
        cell: UNCONTENDED_64,
        peer: "jedis",
        figure: "bytes_per_pair",
        shown: as_it_is,
    },
    Line {
        text: "bytes of memory per held lock, with a million",
        work: Work::Growth,
        cell: "1000000 locks",
        peer: "jedis",
        figure: "bytes_per_lock",
        shown: as_it_is,
    },
    Line {
        text: "bytes of memory per blocked waiter (a connection), with a thousand",
        work: Work::Growth,
        cell: "1000 waiters",
        peer: "jedis",
        figure: "bytes_per_waiter",
        shown: as_it_is,
    },
    Line {
        text: "bytes of memory per `NOTIFY` waiter of rlock-client, with ten thousand",
        work: Work::Growth,
        cell: "10000 waiters",
        peer: "rlock-client",
        figure: "bytes_per_waiter",
        shown: as_it_is,
    },
    Line {
        text: "µs of the main thread per hand-over of rlock-client, with ten thousand `NOTIFY` waiters on one lock",
        work: Work::Growth,
        cell: "10000 waiters",
        peer: "rlock-client",
        figure: "main_thread_us_per_pair",
        shown: as_it_is,
    },
];

/// The table of the page.
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
