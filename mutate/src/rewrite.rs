//! Puts changes into a file's text, each behind its switch.
//!
//! The text as it was stays where it is: everything is done by what is put between. A place that can be changed is noted as a region, so that an
//! error of the compiler leads to the changes that cause it.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::changes::{Change, Genre, Place};

/// What asks whether a change is on.
const SWITCH: &str = "crate::mutation_switch::is_on";

/// A file with changes in it.
#[derive(Debug)]
pub struct Rewritten {
    pub text: String,
    /// The changes that are in it.
    pub placed: Vec<usize>,
    regions: Vec<Region>,
}

/// A part of the text, and the changes that are to blame if it does not compile.
#[derive(Debug)]
struct Region {
    bytes: Range<usize>,
    changes: Vec<usize>,
}

impl Rewritten {
    /// The changes to blame for an error in a part of the text: those of the smallest region around it.
    pub fn blamed_for(&self, error: &Range<usize>) -> Option<&[usize]> {
        let around = |region: &&Region| region.bytes.start <= error.start && error.end <= region.bytes.end;
        let smallest = self.regions.iter().filter(around).min_by_key(|region| region.bytes.len());
        smallest.map(|region| region.changes.as_slice())
    }
}

/// A file's text with those of the changes in it that can be put into it.
pub fn with_changes(text: &str, changes: &[&Change]) -> Result<Rewritten> {
    let syntax = syn::parse_file(text).context("cannot parse")?;
    let lines = Lines::of(text);
    let mut places = Places { text, lines: &lines, changes, pieces: Vec::new(), placed: Vec::new() };
    places.visit_file(&syntax);
    Ok(places.finish())
}

/// Where the lines of a text begin.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let starts = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    fn offset(&self, line: usize, characters: usize) -> usize {
        let start = self.starts[line - 1];
        start + self.text[start..].chars().take(characters).map(char::len_utf8).sum::<usize>()
    }

    fn of_change(&self, change: &Change) -> Range<usize> {
        let [start, end] = change.span.map(|Place { line, column }| self.offset(line, column - 1));
        start..end
    }

    fn of_syntax(&self, syntax: &impl Spanned) -> Range<usize> {
        let span = syntax.span();
        let [start, end] = [span.start(), span.end()].map(|place| self.offset(place.line, place.column));
        start..end
    }
}

/// What is put into the text.
struct Piece {
    at: usize,
    /// Whether it ends something that another piece began.
    closes: bool,
    text: String,
    /// Parts of its text that one change alone is to blame for.
    parts: Vec<(Range<usize>, usize)>,
    /// If it begins something: the changes to blame for all in it that is not a part of one of them. The next piece ends it.
    around: Option<Vec<usize>>,
}

/// Goes through a file, and collects what is to be put where.
struct Places<'a> {
    text: &'a str,
    lines: &'a Lines<'a>,
    changes: &'a [&'a Change],
    pieces: Vec<Piece>,
    placed: Vec<usize>,
}

impl<'a> Places<'a> {
    /// The changes of a sort that replace a text which begins there.
    fn at(&self, start: usize, genre: Genre) -> Vec<&'a Change> {
        let is_it = |change: &&&Change| change.genre == genre && self.lines.of_change(change).start == start;
        self.changes.iter().filter(is_it).copied().collect()
    }

    /// The change by which a match does not know one of its arms.
    fn deletion_of(&self, arm: &syn::Arm) -> Option<usize> {
        let starts = [self.lines.of_syntax(arm).start, self.lines.of_syntax(&arm.pat).start];
        starts.into_iter().find_map(|start| self.at(start, Genre::MatchArm).first().map(|change| change.id))
    }

    /// Puts a pair of texts around a part of the file.
    fn surround(&mut self, bytes: Range<usize>, before: Parts, after: &str, changes: Vec<usize>) {
        let Parts { text, parts } = before;
        self.pieces.push(Piece { at: bytes.start, closes: false, text, parts, around: Some(changes) });
        let after = after.to_owned();
        self.pieces.push(Piece { at: bytes.end, closes: true, text: after, parts: Vec::new(), around: None });
    }

    /// Lets an expression be another one while a change is on.
    fn choose(&mut self, bytes: Range<usize>, others: Vec<(&Change, String)>) {
        if others.is_empty() {
            return;
        }
        let changes: Vec<_> = others.iter().map(|(change, _)| change.id).collect();
        let mut before = Parts { text: "(".into(), parts: Vec::new() };
        for (change, other) in others {
            before.add(change.id, &format!("if {SWITCH}({}) {{ {other} }}", change.id));
            before.text.push_str(" else ");
        }
        before.text.push_str("{ ");
        self.placed.extend(&changes);
        self.surround(bytes, before, " })", changes);
    }

    /// Lets a function return something at once while a change is on.
    fn return_at_once(&mut self, body: &syn::Block) {
        let (Some(first), Some(last)) = (body.stmts.first(), body.stmts.last()) else { return };
        let inside = self.lines.of_syntax(first).start..self.lines.of_syntax(last).end;
        let open = self.lines.of_syntax(&body.brace_token.span.open()).end;
        let is_of_this = |change: &&&Change| {
            let bytes = self.lines.of_change(change);
            change.genre == Genre::FnValue
                && (open..=inside.start).contains(&bytes.start)
                && bytes.end >= inside.end
                && !self.placed.contains(&change.id)
        };
        let values: Vec<&Change> = self.changes.iter().filter(is_of_this).copied().collect();
        let mut before = Parts::default();
        for change in &values {
            before.add(change.id, &format!(" if {SWITCH}({}) {{ return {}; }}", change.id, change.replacement));
        }
        let changes: Vec<_> = values.iter().map(|change| change.id).collect();
        self.placed.extend(&changes);
        if !changes.is_empty() {
            self.surround(open..inside.end, before, "", changes);
        }
    }

    /// The text of a part of the file without a smaller part of it.
    fn with(&self, bytes: &Range<usize>, replaced: Range<usize>, by: &str) -> String {
        format!("{}{by}{}", &self.text[bytes.start..replaced.start], &self.text[replaced.end..bytes.end])
    }

    fn finish(mut self) -> Rewritten {
        // What is around comes in before what is within. So at one place what closes the inner goes first, and what opens the outer.
        let mut order: Vec<_> = (0..self.pieces.len()).collect();
        order.sort_by_key(|&number| {
            let Piece { at, closes, .. } = self.pieces[number];
            let number = isize::try_from(number).unwrap_or(isize::MAX);
            (at, !closes, if closes { -number } else { number })
        });
        let (mut text, mut at) = (String::new(), 0);
        let mut regions = Vec::new();
        let mut starts = vec![0; self.pieces.len()];
        for number in order {
            let piece = &mut self.pieces[number];
            text.push_str(&self.text[at..piece.at]);
            at = piece.at;
            starts[number] = text.len();
            for (bytes, change) in piece.parts.drain(..) {
                regions.push(Region { bytes: bytes.start + text.len()..bytes.end + text.len(), changes: vec![change] });
            }
            text.push_str(&piece.text);
            if piece.closes {
                let opening = number - 1;
                if let Some(changes) = self.pieces[opening].around.take() {
                    regions.push(Region { bytes: starts[opening]..text.len(), changes });
                }
            }
        }
        text.push_str(&self.text[at..]);
        Rewritten { text, placed: self.placed, regions }
    }
}

/// A text of which parts belong to a change.
#[derive(Default)]
struct Parts {
    text: String,
    parts: Vec<(Range<usize>, usize)>,
}

impl Parts {
    fn add(&mut self, change: usize, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.parts.push((start..self.text.len(), change));
    }
}

impl<'ast> Visit<'ast> for Places<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.return_at_once(&function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.return_at_once(&function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.return_at_once(body);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        // An operand with `let` in it lives in its `if` only.
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let (whole, operator) = (self.lines.of_syntax(binary), self.lines.of_syntax(&binary.op));
            let other = |change: &'_ Change| self.with(&whole, operator.clone(), &change.replacement);
            let changes = self.at(operator.start, Genre::BinaryOperator);
            self.choose(whole.clone(), changes.into_iter().map(|change| (change, other(change))).collect());
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let (whole, operand) = (self.lines.of_syntax(unary), self.lines.of_syntax(&*unary.expr));
        let changes = self.at(whole.start, Genre::UnaryOperator);
        let operand = self.text[operand].to_owned();
        self.choose(whole, changes.into_iter().map(|change| (change, operand.clone())).collect());
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_struct(&mut self, built: &'ast syn::ExprStruct) {
        let whole = self.lines.of_syntax(built);
        let mut others = Vec::new();
        for (number, field) in built.fields.iter().enumerate() {
            let start = self.lines.of_syntax(field).start;
            let next = built.fields.iter().nth(number + 1).map(|next| self.lines.of_syntax(next).start);
            let end = next.or(built.dot2_token.as_ref().map(|dots| self.lines.of_syntax(dots).start));
            if let Some(end) = end {
                let changes = self.at(start, Genre::StructField);
                others.extend(changes.into_iter().map(|change| (change, self.with(&whole, start..end, ""))));
            }
        }
        self.choose(whole, others);
        visit::visit_expr_struct(self, built);
    }

    fn visit_expr_match(&mut self, matching: &'ast syn::ExprMatch) {
        // A match that does not know all cases any more is an error at what is matched.
        let of = |arms: &mut dyn Iterator<Item = &syn::Arm>| -> Vec<_> {
            arms.filter_map(|arm| self.deletion_of(arm)).collect()
        };
        // First the arm that takes whatever is left: without it no other one can be passed by.
        let mut deletions = of(&mut matching.arms.iter().filter(|arm| takes_all(&arm.pat)));
        if deletions.is_empty() {
            deletions = of(&mut matching.arms.iter());
        }
        if !deletions.is_empty() {
            self.surround(self.lines.of_syntax(matching), Parts::default(), "", deletions);
        }
        visit::visit_expr_match(self, matching);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let deletion = self.deletion_of(arm);
        self.placed.extend(deletion);
        let unless_on = |change: usize| format!("!{SWITCH}({change})");
        if let syn::Pat::Guard(guarded) = &arm.pat {
            let bytes = self.lines.of_syntax(&*guarded.guard);
            if let Some(change) = deletion {
                let mut before = Parts::default();
                before.add(change, &unless_on(change));
                before.text.push_str(" && (");
                self.surround(bytes.clone(), before, ")", vec![change]);
            }
            let changes = self.at(bytes.start, Genre::MatchArmGuard);
            self.choose(bytes, changes.into_iter().map(|change| (change, change.replacement.clone())).collect());
        } else if let Some(change) = deletion {
            let mut before = Parts::default();
            before.text.push_str(" if ");
            before.add(change, &unless_on(change));
            let Parts { text, parts } = before;
            let at = self.lines.of_syntax(&arm.pat).end;
            self.pieces.push(Piece { at, closes: false, text, parts, around: None });
        }
        visit::visit_arm(self, arm);
    }
}

/// Whether a pattern is a name for whatever it is. A name in capitals is that of a constant or a variant.
fn takes_all(pattern: &syn::Pat) -> bool {
    matches!(pattern, syn::Pat::Ident(name) if name.ident.to_string().starts_with(char::is_lowercase))
}

fn has_let(condition: &syn::Expr) -> bool {
    match condition {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change whose text begins where `marked` has the sign `|`, and ends at the second one.
    fn change(id: usize, genre: Genre, marked: &str, replacement: &str) -> Change {
        let place = |text: &str| Place {
            line: text.matches('\n').count() + 1,
            column: text.rsplit('\n').next().unwrap_or(text).chars().count() + 1,
        };
        let parts: Vec<_> = marked.split('|').collect();
        let span = [place(parts[0]), place(&parts[..2].concat())];
        Change { genre, span, replacement: replacement.into(), ..Change::called(id, "a.rs:1:1: f") }
    }

    /// The text with the changes, without what only the switch has.
    fn rewritten(text: &str, changes: &[Change]) -> Rewritten {
        let file = with_changes(text, &changes.iter().collect::<Vec<_>>()).unwrap();
        syn::parse_file(&file.text).unwrap();
        file
    }

    fn short(file: &Rewritten) -> String {
        file.text.replace("crate::mutation_switch::is_on", "on")
    }

    #[test]
    fn a_function_returns_at_once() {
        let file = rewritten(
            "fn f() -> u8 { 7 + 2 }",
            &[
                change(1, Genre::FnValue, "fn f() -> u8 { |7 + 2| }", "0"),
                change(2, Genre::BinaryOperator, "fn f() -> u8 { 7 |+| 2 }", "-"),
            ],
        );
        assert_eq!(short(&file), "fn f() -> u8 { if on(1) { return 0; } (if on(2) { 7 - 2 } else { 7 + 2 }) }");
        assert_eq!(file.placed, [1, 2]);
    }

    #[test]
    fn an_expression_in_another_one_can_be_changed_by_itself() {
        let file = rewritten(
            "fn f() { !a && b }",
            &[
                change(1, Genre::BinaryOperator, "fn f() { !a |&&| b }", "||"),
                change(2, Genre::UnaryOperator, "fn f() { |!|a && b }", ""),
            ],
        );
        let expected = "fn f() { (if on(1) { !a || b } else { (if on(2) { a } else { !a }) && b }) }";
        assert_eq!(short(&file), expected);
    }

    #[test]
    fn an_arm_is_passed_by() {
        let file = rewritten(
            "fn f() { match a { A => 1, B if c => 2, _ => 3 } }",
            &[
                change(1, Genre::MatchArm, "fn f() { match a { |A => 1,| B if c => 2, _ => 3 } }", ""),
                change(2, Genre::MatchArm, "fn f() { match a { A => 1, |B if c => 2,| _ => 3 } }", ""),
                change(3, Genre::MatchArmGuard, "fn f() { match a { A => 1, B if |c| => 2, _ => 3 } }", "true"),
            ],
        );
        let expected = "fn f() { match a { A if !on(1) => 1, \
                        B if !on(2) && ((if on(3) { true } else { c })) => 2, _ => 3 } }";
        assert_eq!(short(&file), expected);
    }

    #[test]
    fn a_field_is_taken_from_the_base() {
        let text = "fn f() { S { é: 1, b: 2, ..c } }";
        let file = rewritten(text, &[change(1, Genre::StructField, "fn f() { S { é: 1, |b: 2|, ..c } }", "")]);
        assert_eq!(short(&file), "fn f() { (if on(1) { S { é: 1, ..c } } else { S { é: 1, b: 2, ..c } }) }");
    }

    #[test]
    fn what_has_let_in_it_is_left_alone() {
        let text = "fn f() { if let A = a && b {} }";
        let file = rewritten(text, &[change(1, Genre::BinaryOperator, "fn f() { if let A = a |&&| b {} }", "||")]);
        assert_eq!((file.text.as_str(), file.placed.len()), (text, 0));
    }

    #[test]
    fn an_arm_that_takes_whatever_is_left_is_blamed_first() {
        let text = "fn f() { match a { A => 1, rest => 2 } }";
        let first = change(1, Genre::MatchArm, "fn f() { match a { |A => 1,| rest => 2 } }", "");
        let last = change(2, Genre::MatchArm, "fn f() { match a { A => 1, |rest => 2| } }", "");
        let blamed = |changes: &[Change]| {
            let file = rewritten(text, changes);
            let start = file.text.find("match a").unwrap();
            file.blamed_for(&(start..start + 7)).map(<[usize]>::to_vec)
        };
        assert_eq!(blamed(&[first.clone(), last]), Some(vec![2]));
        assert_eq!(blamed(&[first]), Some(vec![1]));
    }

    #[test]
    fn an_error_leads_to_the_smallest_place_around_it() {
        let text = "fn f() { match a { A => b < c, _ => d } }";
        let file = rewritten(
            text,
            &[
                change(1, Genre::FnValue, "fn f() { |match a { A => b < c, _ => d }| }", "()"),
                change(2, Genre::MatchArm, "fn f() { match a { |A => b < c,| _ => d } }", ""),
                change(3, Genre::BinaryOperator, "fn f() { match a { A => b |<| c, _ => d } }", "=="),
            ],
        );
        let blamed = |part: &str| {
            let start = file.text.find(part).unwrap();
            file.blamed_for(&(start..start + part.len())).map(<[usize]>::to_vec)
        };
        assert_eq!(blamed("return ()"), Some(vec![1]));
        assert_eq!(blamed("b == c"), Some(vec![3]));
        assert_eq!(blamed("{ b < c }"), Some(vec![3]));
        assert_eq!(blamed("match a"), Some(vec![2]));
        assert_eq!(blamed("fn f"), None);
    }
}
