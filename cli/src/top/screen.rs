//! The screen of `top`: a few lines about the server, and the table of locks.

use std::cmp::Reverse;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::survey::{Survey, Totals, per_second};
use super::{COLUMNS, row};
use crate::observer::Lock;
use crate::span::brief;
use crate::text::{Align, shortened};

/// The column that the table is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Waiters,
    LongestWait,
    LeastLease,
    Key,
}

/// The content of the screen, and how to show it.
pub struct View {
    address: String,
    survey: Survey,
    before: Option<Survey>,
    order: Order,
    offset: usize,
    /// Whether the screen is paused.
    pub is_paused: bool,
    /// The error of the last update, if it failed.
    pub trouble: Option<String>,
}

impl View {
    /// A view without content.
    pub fn new(address: &str) -> Self {
        let address = address.to_owned();
        let (survey, before, order) = (Survey::default(), None, Order::Waiters);
        Self { address, survey, before, order, offset: 0, is_paused: false, trouble: None }
    }

    /// Whether it has content.
    pub fn has_content(&self) -> bool {
        self.survey.taken_at.is_some()
    }

    /// Shows a new snapshot, unless the screen is paused. Rates cover the time since the previous
    /// one.
    pub fn show(&mut self, survey: Survey) {
        self.trouble = None;
        if self.is_paused {
            return;
        }
        let before = std::mem::replace(&mut self.survey, survey);
        self.before = before.taken_at.is_some().then_some(before);
        self.sort();
        self.scroll(0);
    }

    /// Sorts by the next column.
    pub fn sort_by_next(&mut self) {
        self.order = match self.order {
            Order::Waiters => Order::LongestWait,
            Order::LongestWait => Order::LeastLease,
            Order::LeastLease => Order::Key,
            Order::Key => Order::Waiters,
        };
        self.sort();
    }

    /// Scrolls the table by a number of lines.
    pub fn scroll(&mut self, lines: isize) {
        let last = self.survey.locks.len().saturating_sub(1);
        self.offset = self.offset.saturating_add_signed(lines).min(last);
    }

    fn sort(&mut self) {
        let locks = &mut self.survey.locks;
        let lease = |lock: &Lock| lock.holders.first().map_or(i64::MAX, |holder| holder.lease_ms);
        match self.order {
            Order::Waiters => locks.sort_by_key(|lock| Reverse(lock.waiters)),
            Order::LongestWait => locks.sort_by_key(|lock| Reverse(lock.longest_wait_ms)),
            Order::LeastLease => locks.sort_by_key(lease),
            Order::Key => locks.sort_by(|one, other| one.key.cmp(&other.key)),
        }
    }

    /// A rate between the last two snapshots.
    fn rate(&self, count: fn(&Totals) -> u64) -> f64 {
        let Some(before) = &self.before else { return 0.0 };
        let span = match (before.taken_at, self.survey.taken_at) {
            (Some(earlier), Some(later)) => later.saturating_duration_since(earlier),
            _ => return 0.0,
        };
        per_second(count(&before.server), count(&self.survey.server), span)
    }
}

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let (head, foot) = (head_lines(view, frame.area().width), foot_lines(view, frame.area().width));
    let [head_height, foot_height] = [&head, &foot].map(|lines| u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let heights = [Constraint::Length(head_height), Constraint::Min(2), Constraint::Length(foot_height)];
    let [head_area, body_area, foot_area] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(Paragraph::new(head), head_area);
    draw_table(frame, body_area, view);
    frame.render_widget(Paragraph::new(foot).style(Style::new().add_modifier(Modifier::DIM)), foot_area);
}

/// A part of a line: a separator, and the text after it. The line wraps at separators.
type Part = (&'static str, Vec<Span<'static>>);

/// Lines of at most `width` characters, unless a part alone is wider.
fn wrapped(parts: Vec<Part>, width: u16) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    for (separator, spans) in parts {
        let part_width: usize = spans.iter().map(Span::width).sum();
        let mut line = lines.pop().unwrap_or_default();
        if line.width() > 0 && line.width() + separator.len() + part_width > usize::from(width) {
            line.push_span(separator.trim_end());
            lines.push(line);
            line = Line::default();
        } else if line.width() > 0 {
            line.push_span(separator);
        }
        spans.into_iter().for_each(|span| line.push_span(span));
        lines.push(line);
    }
    lines
}

fn foot_lines(view: &View, width: u16) -> Vec<Line<'static>> {
    let order = match view.order {
        Order::Waiters => "waiters",
        Order::LongestWait => "longest wait",
        Order::LeastLease => "least lease",
        Order::Key => "key",
    };
    let space = if view.is_paused { "space resume" } else { "space pause" };
    let keys = [" q quit".to_owned(), format!("s sort (by {order})"), "↑↓ scroll".to_owned(), space.to_owned()];
    wrapped(keys.map(|key| ("   ", vec![Span::raw(key)])).into(), width)
}

fn head_lines(view: &View, width: u16) -> Vec<Line<'static>> {
    let totals = &view.survey.server;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let count = |separator, name, number: String| (separator, vec![Span::raw(name), Span::styled(number, bold)]);
    let rate = |separator, name, field| count(separator, name, format!("{:.0}", view.rate(field)));
    let title = vec![
        ("", vec![Span::styled("rlock top", bold.fg(Color::Cyan))]),
        ("   ", vec![Span::raw(view.address.clone())]),
        ("   ", vec![Span::raw(totals.version.clone())]),
    ];
    let waiting = Span::styled(totals.waiting.to_string(), bold.fg(Color::Yellow));
    let numbers = vec![
        count("", "held ", totals.held.to_string()),
        ("   ", vec![Span::raw("waiting "), waiting]),
        rate("   ", "per second: granted at once ", |totals| totals.granted_at_once),
        rate(", ", "after waiting ", |totals| totals.granted_after_waiting),
        rate(", ", "timed out ", |totals| totals.timed_out),
        rate(", ", "expired ", |totals| totals.expired),
    ];
    let (state, style) = match (&view.trouble, view.survey.taken_at) {
        (Some(trouble), _) => (trouble.clone(), Style::new().fg(Color::Red)),
        (None, Some(_)) => {
            let (count, took) = (view.survey.locks.len(), brief(view.survey.took_ms));
            (format!("the {count} most contended locks; updated in {took}"), Style::new())
        }
        (None, None) => ("connecting…".to_owned(), Style::new()),
    };
    let state = state.split(' ').map(|word| (" ", vec![Span::styled(word.to_owned(), style)])).collect();
    [title, numbers, state].into_iter().flat_map(|parts| wrapped(parts, width)).chain([Line::default()]).collect()
}

/// A column of the table on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// A cell of [`row`].
    Cell(usize),
    /// The bar for the number of waiters.
    Bar,
}

const KEY: usize = 0;
const KIND: usize = 1;
const WAITERS: usize = 2;
const LONGEST: usize = 3;
const HOLDERS: usize = 4;
const LEASE: usize = 5;
const OWNER: usize = 6;
const NOTE: usize = 7;

/// All columns from left to right, and their least widths.
const WIDTHS: [(Column, u16); 9] = [
    (Column::Cell(KEY), 16),
    (Column::Cell(KIND), 9),
    (Column::Cell(WAITERS), 7),
    (Column::Bar, 10),
    (Column::Cell(LONGEST), 8),
    (Column::Cell(HOLDERS), 9),
    (Column::Cell(LEASE), 8),
    (Column::Cell(OWNER), 16),
    (Column::Cell(NOTE), 16),
];

/// The columns to drop on a narrow terminal, the least important one first.
const DROPPED: [Column; 7] = [
    Column::Bar,
    Column::Cell(KIND),
    Column::Cell(HOLDERS),
    Column::Cell(NOTE),
    Column::Cell(LEASE),
    Column::Cell(LONGEST),
    Column::Cell(OWNER),
];

/// The columns that fit into a width, and their widths. Keys, owners and notes share the spare
/// width.
fn columns(width: u16, has_notes: bool) -> Vec<(Column, u16)> {
    let mut columns = WIDTHS.to_vec();
    columns.retain(|(column, _)| has_notes || *column != Column::Cell(NOTE));
    // One space between two columns.
    let needed = |columns: &[(Column, u16)]| columns.iter().map(|(_, width)| width + 1).sum::<u16>() - 1;
    for dropped in DROPPED {
        if needed(&columns) > width {
            columns.retain(|(column, _)| *column != dropped);
        }
    }
    let is_text = |column: &Column| [KEY, OWNER, NOTE].map(Column::Cell).contains(column);
    let mut spare = width.saturating_sub(needed(&columns));
    let mut texts = u16::try_from(columns.iter().filter(|(column, _)| is_text(column)).count()).unwrap_or(1);
    for (_, width) in columns.iter_mut().filter(|(column, _)| is_text(column)) {
        let share = spare / texts;
        *width += share;
        spare -= share;
        texts -= 1;
    }
    columns
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let most = view.survey.locks.iter().map(|lock| lock.waiters).max().unwrap_or(0).max(1);
    let shown = || view.survey.locks.iter().skip(view.offset).take(usize::from(area.height));
    let texts: Vec<_> = shown().map(|lock| row(lock, brief)).collect();
    let columns = columns(area.width, texts.iter().any(|row| !row[NOTE].is_empty()));
    let rows = shown().zip(&texts).map(|(lock, texts)| {
        let cell_of = |(column, width): &(Column, u16)| match *column {
            Column::Cell(number) => {
                let text = shortened(&texts[number], usize::from(*width));
                cell(text, align(number)).style(style(number, lock))
            }
            Column::Bar => Cell::from(bar(lock.waiters, most)).style(Style::new().fg(Color::Yellow)),
        };
        Row::new(columns.iter().map(cell_of).collect::<Vec<_>>())
    });
    let heads = columns.iter().map(|(column, _)| match *column {
        Column::Cell(NOTE) => cell("NOTE".to_owned(), Align::Left),
        Column::Cell(number) => cell(COLUMNS[number].0.to_owned(), align(number)),
        Column::Bar => Cell::default(),
    });
    let head = Row::new(heads.collect::<Vec<_>>()).style(Style::new().fg(Color::Black).bg(Color::Cyan));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(1), area);
}

/// The alignment of a cell of [`row`]. The note has no column in `COLUMNS`.
fn align(number: usize) -> Align {
    COLUMNS.get(number).map_or(Align::Left, |(_, align)| *align)
}

fn style(number: usize, lock: &Lock) -> Style {
    match number {
        KEY => Style::new().add_modifier(Modifier::BOLD),
        KIND => Style::new().fg(Color::Green),
        WAITERS if lock.waiters > 0 => Style::new().fg(Color::Yellow),
        LONGEST if lock.longest_wait_ms.is_some_and(|ms| ms >= 10_000) => Style::new().fg(Color::Red),
        _ => Style::new(),
    }
}

fn cell(text: String, align: Align) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(match align {
        Align::Left => line,
        Align::Right => line.right_aligned(),
    })
}

/// A bar in proportion to `part`. The bar for `most` has ten characters.
fn bar(part: i64, most: i64) -> String {
    let eighths = usize::try_from(part.max(0).saturating_mul(80) / most.max(1)).unwrap_or(0).min(80);
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Holder;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn lock(key: &str, waiters: i64, longest_wait_ms: i64) -> Lock {
        let holder = Holder { owner: format!("holder of {key}"), lease_ms: 30_000, ..Holder::default() };
        let (kind, key) = ("mutex".to_owned(), key.to_owned());
        Lock { key, kind, waiters, longest_wait_ms: Some(longest_wait_ms), holders: vec![holder], ..Lock::default() }
    }

    fn lines(view: &View) -> Vec<String> {
        lines_at(view, 110)
    }

    fn lines_at(view: &View, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view)).expect("a screen");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..12).map(line).collect()
    }

    #[test]
    fn table_is_sorted_and_scrolled() {
        let mut view = View::new("redis://here");
        let taken_at = Some(tokio::time::Instant::now());
        view.show(Survey { locks: vec![lock("a", 1, 500), lock("b", 40, 90)], taken_at, ..Survey::default() });
        let first = |view: &View| lines(view)[5].clone();
        assert!(first(&view).starts_with("b ") && first(&view).contains("██████████"), "{:#?}", lines(&view));
        assert!(first(&view).contains("holder of b") && first(&view).contains("90ms"));
        view.sort_by_next();
        assert!(first(&view).starts_with("a "), "{:#?}", lines(&view));
        view.scroll(1);
        assert!(first(&view).starts_with("b "));
        view.scroll(100);
        assert!(first(&view).starts_with("b "), "the last line stays visible");
    }

    #[test]
    fn notes_have_a_column_if_there_are_any() {
        let mut view = View::new("redis://here");
        let taken_at = Some(tokio::time::Instant::now());
        let mut locks = vec![lock("a", 1, 500), lock("b", 40, 90)];
        view.show(Survey { locks: locks.clone(), taken_at, ..Survey::default() });
        assert!(!lines(&view)[4].contains("NOTE"), "{:#?}", lines(&view));
        locks[1].holders[0].note = Some("build 7".to_owned());
        view.show(Survey { locks, taken_at, ..Survey::default() });
        let lines = lines(&view);
        assert!(lines[4].ends_with("NOTE") && lines[5].ends_with("build 7") && lines[6].ends_with("holder of a"));
    }

    #[test]
    fn bars_are_in_proportion() {
        assert_eq!([bar(0, 10), bar(5, 10), bar(10, 10), bar(1, 80)], ["", "█████", "██████████", "▏"]);
    }

    /// The column names at a width, and the first line of the table.
    fn table_at(view: &View, width: u16) -> (Vec<String>, String) {
        let lines = lines_at(view, width);
        let head = lines.iter().position(|line| line.starts_with("KEY")).expect("a table");
        (lines[head].split_whitespace().map(str::to_owned).collect(), lines[head + 1].clone())
    }

    #[test]
    fn narrow_terminal_drops_columns_in_a_fixed_order() {
        let mut view = View::new("redis://here");
        let mut one = lock("tenant:4711:shop:orders", 7, 61_000);
        let holder = Holder { owner: "build-host-7:31337:0123456789abcdef".to_owned(), ..one.holders[0].clone() };
        one.holders[0] = holder.clone();
        let taken_at = Some(tokio::time::Instant::now());
        view.show(Survey { locks: vec![one.clone()], taken_at, ..Survey::default() });
        let all = ["KEY", "KIND", "WAITERS", "LONGEST", "HOLDERS", "LEASE", "OWNER"];
        assert_eq!(table_at(&view, 100).0, all);
        let (heads, row) = table_at(&view, 80);
        assert_eq!(heads, all, "only the bar is dropped");
        assert!(row.contains("tenant:4…:orders") && row.ends_with("build-ho…89abcdef"), "{row}");
        let (heads, row) = table_at(&view, 60);
        assert_eq!(heads, ["KEY", "WAITERS", "LONGEST", "LEASE", "OWNER"]);
        assert!(row.contains("1m01s") && row.contains("30.0s") && row.ends_with("abcdef"), "{row}");
        assert_eq!(table_at(&view, 30).0, ["KEY", "WAITERS"]);

        one.holders[0].note = Some("build 7".to_owned());
        view.show(Survey { locks: vec![one], taken_at, ..Survey::default() });
        assert_eq!(table_at(&view, 80).0, ["KEY", "WAITERS", "LONGEST", "LEASE", "OWNER", "NOTE"]);
        assert!(table_at(&view, 80).1.ends_with("build 7"));
        assert_eq!(table_at(&view, 60).0, ["KEY", "WAITERS", "LONGEST", "LEASE", "OWNER"]);
    }

    #[test]
    fn narrow_terminal_wraps_the_lines_above_and_below_the_table() {
        let mut view = View::new("redis://locks.example");
        let server = Totals { version: "valkey 8.1.1".to_owned(), held: 1000, waiting: 2000, ..Totals::default() };
        let taken_at = Some(tokio::time::Instant::now());
        view.show(Survey { server, locks: vec![lock("a", 1, 500)], taken_at, ..Survey::default() });
        view.trouble = Some("details of 2 locks are missing: the server refused: NOPERM no permissions".to_owned());
        view.sort_by_next();
        for width in [118, 80, 60, 40] {
            let all = lines_at(&view, width).join(" ");
            for words in ["valkey 8.1.1", "waiting 2000", "timed out 0", "expired 0", "NOPERM", "no permissions"] {
                assert!(all.contains(words), "{width}: {words} in {all}");
            }
            for key in ["q quit", "s sort (by longest wait)", "↑↓ scroll", "space pause"] {
                assert!(all.contains(key), "{width}: {key} in {all}");
            }
        }
    }
}
