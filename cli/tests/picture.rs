//! `top` with a thousand contended locks, and its picture in docs/.
//!
//! The tool draws its screen into a buffer. If RLOCK_PICTURE names a file, the test writes the
//! buffer there as SVG.

use std::fmt::Write;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use rlock_cli::observer::Observer;
use rlock_cli::top::screen::{View, draw};
use rlock_cli::top::survey::Survey;

use crate::commands::url;
use crate::support::{Client, Server, eventually};

const LOCKS: usize = 1000;

/// First parts of the keys.
const SUBJECTS: [&str; 8] = ["orders", "invoices", "accounts", "stock", "mailing", "export", "reports", "carts"];

/// The number of waiters of a lock: many for the first few, one for the others.
fn demand(number: usize) -> usize {
    1 + 60 / (number + 1)
}

fn key(number: usize) -> String {
    format!("{}:{}", SUBJECTS[number % SUBJECTS.len()], 4000 + number * 37 % 1009)
}

fn family(number: usize) -> &'static str {
    if number % 5 == 3 { "RFAIRLOCK" } else { "RLOCK" }
}

/// Clients of a thousand locks, each of which has a holder and waiters.
struct Crowd<'a> {
    server: &'a Server,
    /// The connections of holders and waiters.
    clients: Vec<Client>,
}

impl Crowd<'_> {
    fn gather(server: &Server) -> Crowd<'_> {
        let mut crowd = Crowd { server, clients: Vec::new() };
        for number in 0..LOCKS {
            // The first one is granted the lock and does not wait.
            (0..=demand(number)).for_each(|_| crowd.join(number));
        }
        crowd
    }

    fn join(&mut self, number: usize) {
        let mut client = self.server.client();
        let (family, key, name) = (family(number), key(number), self.clients.len());
        let lease_ms = 60_000 + number * 613 % 500_000;
        client.send(format!("{family}.ACQUIRE {key} worker-{}:{} PX {lease_ms} BLOCK 600000", name % 7, 2000 + name));
        self.clients.push(client);
    }

    /// Hands a lock over to the next waiter, and adds a waiter.
    fn hand_over(&mut self, number: usize) {
        self.server.client().call(format!("{}.FORCERELEASE {}", family(number), key(number))).int();
        self.join(number);
    }

    fn wait_until_all_wait(&self) {
        let mut client = self.server.client();
        let waiting: usize = (0..LOCKS).map(demand).sum();
        let waiting = i64::try_from(waiting).expect("few");
        eventually(Duration::from_secs(60), || client.info_number("rlock_waiting") == waiting);
    }
}

#[test]
fn top_requests_only_the_locks_that_it_shows() {
    let server = Server::with(&["maxclients 20000"]);
    let mut crowd = Crowd::gather(&server);
    crowd.wait_until_all_wait();
    let mut client = server.client();
    client.call("CONFIG RESETSTAT");

    let picture = std::env::var_os("RLOCK_PICTURE");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let view = runtime.block_on(async {
        let mut observer = Observer::connect(&url(&server)).await.map_err(|failure| failure.message).expect("a server");
        let mut view = View::new("redis://locks.example");
        for _ in 0..2 {
            // The picture shows the rate of these hand-overs.
            let pause = Duration::from_millis(if picture.is_some() { 5 } else { 0 });
            for number in 0..200 {
                crowd.hand_over(number);
                std::thread::sleep(pause);
            }
            crowd.wait_until_all_wait();
            let survey = Survey::take(&mut observer, 100).await.map_err(|failure| failure.message).expect("an answer");
            assert_eq!(survey.locks.len(), 100);
            assert_eq!(survey.locks[0].waiters, i64::try_from(demand(0)).expect("few"));
            view.show(survey);
        }
        view
    });
    // One request for each shown lock in each snapshot.
    let calls = |stat: &str| {
        let text = stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next()).expect("a count");
        text.parse::<u64>().expect("a number")
    };
    assert_eq!(calls(&client.info("cmdstat_RLOCK.TOP")), 2);
    assert_eq!(calls(&client.info("cmdstat_RLOCK.INFO")), 2 * 100);

    let mut terminal = Terminal::new(TestBackend::new(118, 34)).expect("a terminal");
    terminal.draw(|frame| draw(frame, &view)).expect("a picture");
    let drawn = svg(terminal.backend().buffer());
    assert!(drawn.contains("the 100 most contended locks"), "{drawn}");
    if let Some(path) = picture {
        std::fs::write(path, drawn).expect("a writable file");
    }
}

const CELL_WIDTH: usize = 8;
const CELL_HEIGHT: usize = 17;

/// A terminal's buffer as SVG: one text for each run of cells with the same style.
fn svg(buffer: &Buffer) -> String {
    let (columns, lines) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (width, height) = (columns * CELL_WIDTH + 24, lines * CELL_HEIGHT + 24);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f27\"/>\n"
    );
    for line in 0..lines {
        let cells = &buffer.content[line * columns..(line + 1) * columns];
        let mut start = 0;
        for run in cells.chunk_by(|one, other| style(one) == style(other)) {
            let text: String = run.iter().map(Cell::symbol).collect();
            put_run(&mut out, (start, line), &text, &run[0]);
            start += run.len();
        }
    }
    out + "</svg>\n"
}

fn style(cell: &Cell) -> (Color, Color, Modifier) {
    (cell.fg, cell.bg, cell.modifier)
}

fn put_run(out: &mut String, (column, line): (usize, usize), text: &str, cell: &Cell) {
    let (x, y) = (12 + column * CELL_WIDTH, 12 + line * CELL_HEIGHT);
    let length = text.chars().count() * CELL_WIDTH;
    if cell.bg != Color::Reset {
        let fill = color(cell.bg);
        writeln!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{length}\" height=\"{CELL_HEIGHT}\" fill=\"{fill}\"/>")
            .expect("text");
    }
    if text.trim().is_empty() {
        return;
    }
    let fill = if cell.fg == Color::Reset { "#d7dae0" } else { color(cell.fg) };
    let weight = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let opacity = if cell.modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let baseline = y + 13;
    writeln!(
        out,
        "<text x=\"{x}\" y=\"{baseline}\" fill=\"{fill}\"{weight}{opacity} textLength=\"{length}\" xml:space=\"preserve\">{escaped}</text>"
    )
    .expect("text");
}

fn color(color: Color) -> &'static str {
    match color {
        Color::Black => "#1b1f27",
        Color::Cyan => "#5cc8d6",
        Color::Yellow => "#e5c07b",
        Color::Green => "#98c379",
        Color::Red => "#e06c75",
        _ => "#d7dae0",
    }
}
