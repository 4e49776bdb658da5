//! The picture: a few lines about the server, and the table of locks.

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
use crate::text::{Align, with_notes};

/// By what the table is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Waiters,
    LongestWait,
    LeastLease,
    Key,
}

/// What is shown, and how.
pub struct View {
    address: String,
    survey: Survey,
    before: Option<Survey>,
    order: Order,
    offset: usize,
    /// Whether the picture stands still.
    pub is_stopped: bool,
    /// Why there is nothing newer to show.
    pub trouble: Option<String>,
}

impl View {
    /// An empty one.
    pub fn new(address: &str) -> Self {
        let address = address.to_owned();
        let (survey, before, order) = (Survey::default(), None, Order::Waiters);
        Self { address, survey, before, order, offset: 0, is_stopped: false, trouble: None }
    }

    /// Whether anything was seen yet.
    pub fn has_seen(&self) -> bool {
        self.survey.taken_at.is_some()
    }

    /// Shows what was seen last, unless the picture stands still. Rates are against what was seen before.
    pub fn show(&mut self, survey: Survey) {
        self.trouble = None;
        if self.is_stopped {
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

    /// Moves the table by so many lines.
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

    /// A rate between the last two looks.
    fn rate(&self, count: fn(&Totals) -> u64) -> f64 {
        let Some(before) = &self.before else { return 0.0 };
        let span = match (before.taken_at, self.survey.taken_at) {
            (Some(earlier), Some(later)) => later.saturating_duration_since(earlier),
            _ => return 0.0,
        };
        per_second(count(&before.server), count(&self.survey.server), span)
    }
}

/// Draws it.
pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let parts = Layout::vertical([Constraint::Length(4), Constraint::Min(2), Constraint::Length(1)]);
    let [head, body, foot] = parts.areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(view)), head);
    draw_table(frame, body, view);
    let order = match view.order {
        Order::Waiters => "waiters",
        Order::LongestWait => "longest wait",
        Order::LeastLease => "least lease",
        Order::Key => "key",
    };
    let state = if view.is_stopped { "space go on" } else { "space stop" };
    let keys = format!(" q quit   s sort (by {order})   ↑↓ scroll   {state} ");
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn head_lines(view: &View) -> Vec<Line<'static>> {
    let totals = &view.survey.server;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let number = |number: String| Span::styled(number, bold);
    let seen = match view.survey.taken_at {
        Some(_) => {
            format!("the {} most contended locks; looked at in {}", view.survey.locks.len(), brief(view.survey.took_ms))
        }
        None => "looking…".to_owned(),
    };
    vec![
        Line::from(vec![
            Span::styled("rlock top", bold.fg(Color::Cyan)),
            Span::raw(format!("   {}   {}", view.address, totals.version)),
        ]),
        Line::from(vec![
            Span::raw("held "),
            number(totals.held.to_string()),
            Span::raw("   waiting "),
            Span::styled(totals.waiting.to_string(), bold.fg(Color::Yellow)),
            Span::raw("   per second: granted at once "),
            number(format!("{:.0}", view.rate(|totals| totals.granted_at_once))),
            Span::raw(", after waiting "),
            number(format!("{:.0}", view.rate(|totals| totals.granted_after_waiting))),
            Span::raw(", timed out "),
            number(format!("{:.0}", view.rate(|totals| totals.timed_out))),
            Span::raw(", expired "),
            number(format!("{:.0}", view.rate(|totals| totals.expired))),
        ]),
        match &view.trouble {
            Some(trouble) => Line::styled(trouble.clone(), Style::new().fg(Color::Red)),
            None => Line::from(seen),
        },
        Line::default(),
    ]
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let most = view.survey.locks.iter().map(|lock| lock.waiters).max().unwrap_or(0).max(1);
    let shown = || view.survey.locks.iter().skip(view.offset).take(usize::from(area.height));
    let texts: Vec<_> = shown().map(|lock| row(lock, brief)).collect();
    let columns = with_notes(COLUMNS, &texts);
    let rows = shown().zip(texts).map(|(lock, texts)| Row::new(cells(lock, texts, &columns, most)));
    let mut widths = vec![
        Constraint::Min(16),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Min(16),
    ];
    // The bars are a column of their own.
    widths.resize(columns.len() + 1, Constraint::Min(16));
    let mut heads: Vec<_> = columns.iter().map(|(head, align)| cell((*head).to_owned(), *align)).collect();
    heads.insert(3, Cell::default());
    let head = Row::new(heads).style(Style::new().fg(Color::Black).bg(Color::Cyan));
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(1), area);
}

fn cells(lock: &Lock, texts: Vec<String>, columns: &[(&str, Align)], most: i64) -> Vec<Cell<'static>> {
    let mut cells: Vec<_> = texts
        .into_iter()
        .zip(columns)
        .map(|(text, (head, align))| {
            let style = match *head {
                "KEY" => Style::new().add_modifier(Modifier::BOLD),
                "WAITERS" if lock.waiters > 0 => Style::new().fg(Color::Yellow),
                "LONGEST" if lock.longest_wait_ms.is_some_and(|ms| ms >= 10_000) => Style::new().fg(Color::Red),
                "KIND" => Style::new().fg(Color::Green),
                _ => Style::new(),
            };
            cell(text, *align).style(style)
        })
        .collect();
    cells.insert(3, Cell::from(bar(lock.waiters, most)).style(Style::new().fg(Color::Yellow)));
    cells
}

fn cell(text: String, align: Align) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(match align {
        Align::Left => line,
        Align::Right => line.right_aligned(),
    })
}

/// A bar of ten characters for the most.
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
        let mut terminal = Terminal::new(TestBackend::new(100, 9)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view)).expect("a picture");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..9).map(line).collect()
    }

    #[test]
    fn the_table_is_sorted_and_scrolled() {
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
        assert!(first(&view).starts_with("b "), "the last line stays in sight");
    }

    #[test]
    fn notes_are_a_column_where_there_are_any() {
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
    fn bars_grow_with_their_part() {
        assert_eq!([bar(0, 10), bar(5, 10), bar(10, 10), bar(1, 80)], ["", "█████", "██████████", "▏"]);
    }
}
