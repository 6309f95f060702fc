//! The summary on a terminal: a table with transports side by side, readable without colour.

use std::fmt::Write as _;

use towpath_result::format;
use towpath_result::format::number;
use towpath_result::format::text::{clean, cut, pad, wrap};
use towpath_result::store::StoredRun;
use towpath_result::{Record, SIMULATED_BECAUSE, Warning};
use towpath_scenario::World;

use crate::chart::{robust_top, tick_label, time_ticks};
use crate::compare::{
    Cell, TableBlock, TableRow, Tone, expectation_rows, headlines, table as compare_table,
};
use crate::comparison::timing;
use crate::group::{RunGroup, groups};
use crate::repetitions::{group_account, group_verdict};
use crate::series::{self, Grid, Mark, Values};

/// Maximum number of lines of a sentence, because a file may contain an endless one.
const MAX_SENTENCE_LINES: usize = 8;
/// Minimum width of a value column, in characters; narrower ones would break values in two.
const MIN_COLUMN_WIDTH: usize = 16;
/// Maximum width of the summary, in characters; wider lines are hard to read.
const MAX_WIDTH: usize = 100;

/// Returns the summary of any number of runs, at most `width` (and at most 100) columns wide.
/// Repetitions are shown as a median with its range. For warnings, see [`warnings`].
pub fn table(runs: &[StoredRun], width: usize, colour: bool) -> String {
    let width = width.clamp(40, MAX_WIDTH);
    let groups = groups(runs);
    let ink = TermStyle(colour);
    let mut out = String::new();
    if groups.is_empty() {
        out.push_str("no results\n");
        return out;
    }
    header(&mut out, runs, width, ink);
    verdicts(&mut out, &groups, width, ink);
    let blocks = compare_table(&groups);
    let label_width = (width / 4).clamp(14, 24);
    let groups_per_part = ((width - label_width) / (MIN_COLUMN_WIDTH + 2)).max(1);
    let mut first = 0;
    for part_groups in groups.chunks(groups_per_part) {
        let layout = Layout {
            label: label_width,
            column: column(width - label_width, part_groups.len()),
            ink,
        };
        layout.write(&mut out, part_groups, &blocks, first);
        first += part_groups.len();
    }
    sparklines(&mut out, &groups, width, ink);
    expectations(&mut out, &groups, width, ink);
    exactness(&mut out, runs, width, ink);
    out
}

/// Returns reasons to distrust the results: every run's own warnings and missing summaries. Each
/// appears once, with the runs concerned if not all are.
pub fn warnings(runs: &[StoredRun]) -> Vec<Warning> {
    let mut by_warning: Vec<(Warning, Vec<&StoredRun>)> = Vec::new();
    let mut add_warning =
        |warning: Warning, run| match by_warning.iter_mut().find(|(w, _)| *w == warning) {
            Some((_, runs)) => runs.push(run),
            None => by_warning.push((warning, vec![run])),
        };
    for run in runs {
        let mut warn = |text: String, hint: &str| {
            add_warning(Warning { text, hint: Some(hint.to_owned()) }, run);
        };
        if run.skipped > 0 {
            let text = format!("{} lines have a type that this version does not know", run.skipped);
            warn(text, "use the towpath that wrote the result, or a newer one");
        }
        if run.truncated || run.summary.is_none() {
            let problem = if run.summary.is_none() {
                "the result has no summary"
            } else {
                "the result is incomplete"
            };
            warn(
                format!("{problem}: the run ended early or the file is truncated"),
                "run it again",
            );
        }
        let Some(summary) = &run.summary else { continue };
        summary.warnings.iter().for_each(|warning| add_warning(warning.clone(), run));
    }
    let total = runs.len();
    let warning_text = |(warning, concerned): (Warning, Vec<&StoredRun>)| {
        let text = clean(&warning.text);
        let text = if concerned.len() == total {
            text
        } else {
            format!("{}: {text}", run_names(&concerned, runs))
        };
        Warning { text, hint: warning.hint.as_deref().map(clean) }
    };
    by_warning.into_iter().map(warning_text).collect()
}

/// Names the runs: `tcp`, `tcp, mptcp 2`, `5 of 10 runs`; with the world if there are several:
/// `tcp emu`.
fn run_names(runs: &[&StoredRun], all: &[StoredRun]) -> String {
    let first = all.first().map(|run| run.meta.world);
    let several = all.iter().any(|run| Some(run.meta.world) != first);
    let name = |run: &&StoredRun| {
        let world = if several { format!(" {}", run.meta.world) } else { String::new() };
        match run.meta.repeat {
            0 | 1 => format!("{}{world}", run.meta.transport),
            n => format!("{}{world} {n}", run.meta.transport),
        }
    };
    if runs.len() > 3 {
        return format!("{} of {} runs", runs.len(), all.len());
    }
    runs.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Terminal styling; true if escape sequences for colour and weight are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TermStyle(pub(crate) bool);

impl TermStyle {
    fn paint(self, text: &str, code: &str) -> String {
        if self.0 && !text.trim().is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(text, "1")
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.paint(text, "2")
    }

    fn tone(self, text: &str, tone: Tone) -> String {
        match tone {
            Tone::Plain => text.to_owned(),
            Tone::Good => self.paint(text, "32"),
            Tone::Bad => self.paint(text, "31"),
        }
    }
}

fn header(out: &mut String, runs: &[StoredRun], width: usize, ink: TermStyle) {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let name = clean(&run.meta.scenario);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let _ = writeln!(out, "{}", ink.bold(&cut(&names.join(", "), width)));
    let Some(run) = runs.first() else { return };
    let kernels = runs.iter().map(|run| clean(&run.meta.kernel));
    let kernel = kernels.into_iter().find(|kernel| !kernel.is_empty()).unwrap_or_default();
    let mut facts = vec![worlds(runs), number::short_moment(run.meta.duration_ns as f64 / 1e9)];
    if !kernel.is_empty() {
        facts.push(format!("kernel {kernel}"));
    }
    let paths = run.meta.paths.iter();
    facts.extend(paths.map(|path| clean(&format!("{}: {}", path.name, path.text))));
    for line in wrap(&facts.join(" · "), width).iter().take(8) {
        let _ = writeln!(out, "{}", ink.faint(line));
    }
    out.push('\n');
}

/// Names the worlds: `sim`, `sim and emu`; with the reason when a run was simulated instead of
/// emulated.
pub(crate) fn worlds(runs: &[StoredRun]) -> String {
    let mut worlds: Vec<String> = Vec::new();
    let name = |run: &StoredRun| {
        let captured = run.records.iter().any(|record| matches!(record, Record::Capture(_)));
        match run.meta.conditions.get(SIMULATED_BECAUSE) {
            _ if captured => "capture".to_owned(),
            Some(reason) => format!("{} instead of emu, because {}", run.meta.world, clean(reason)),
            None => run.meta.world.to_string(),
        }
    };
    for world in runs.iter().map(name) {
        if !worlds.contains(&world) {
            worlds.push(world);
        }
    }
    format::list(&worlds)
}

fn verdicts(out: &mut String, groups: &[RunGroup<'_>], width: usize, ink: TermStyle) {
    for text in headlines(groups) {
        for line in wrap(&text, width) {
            let _ = writeln!(out, "{}", ink.bold(&line));
        }
    }
    for group in groups {
        let summaries: Vec<_> = group.summaries().collect();
        let ok_count = summaries.iter().filter(|summary| summary.ok).count();
        let (sign, tone) = match ok_count {
            _ if summaries.is_empty() => ("?", Tone::Plain),
            count if count == group.runs.len() => ("✓", Tone::Good),
            _ => ("✗", Tone::Bad),
        };
        let count = match group.runs.len() {
            1 => String::new(),
            runs => format!(" ({ok_count} of {runs} runs as planned)"),
        };
        let text = match group_verdict(group) {
            Some(verdict) => format!("{}{count}: {verdict}", group.label),
            None => format!("{}: no summary", group.label),
        };
        for (line_number, line) in
            wrap(&text, width - 2).iter().take(MAX_SENTENCE_LINES).enumerate()
        {
            let sign = if line_number == 0 { ink.tone(sign, tone) } else { " ".to_owned() };
            let _ = writeln!(out, "{sign} {line}");
        }
        let sentence = group_account(group).unwrap_or_default();
        for line in wrap(&sentence, width - 2)
            .iter()
            .filter(|line| !line.is_empty())
            .take(MAX_SENTENCE_LINES)
        {
            let _ = writeln!(out, "  {line}");
        }
    }
    out.push('\n');
}

fn column(room: usize, columns: usize) -> usize {
    (room / columns.max(1)).clamp(MIN_COLUMN_WIDTH, 32)
}

/// Widths of one part of the table.
#[derive(Debug, Clone, Copy)]
struct Layout {
    label: usize,
    column: usize,
    ink: TermStyle,
}

impl Layout {
    fn write(self, out: &mut String, groups: &[RunGroup<'_>], blocks: &[TableBlock], from: usize) {
        let mut head = pad("", self.label);
        for group in groups {
            let count = if group.runs.len() > 1 {
                format!(" × {}", group.runs.len())
            } else {
                String::new()
            };
            let title = cut(&format!("{}{count}", group.label), self.column - 2);
            head.push_str(&self.ink.bold(&pad(&title, self.column)));
        }
        let _ = writeln!(out, "{}", head.trim_end());
        let _ = writeln!(
            out,
            "{}",
            self.ink.faint(&"─".repeat(self.label + self.column * groups.len()))
        );
        for block in blocks {
            if !block.title.is_empty() {
                let _ = writeln!(
                    out,
                    "{}",
                    self.ink.bold(&cut(&block.title, self.label + self.column * groups.len()))
                );
            }
            for row in &block.rows {
                self.row(out, row, from, groups.len());
            }
        }
        out.push('\n');
    }

    fn row(self, out: &mut String, row: &TableRow, from: usize, count: usize) {
        let label = wrap(&row.label, self.label - 2);
        let cells: Vec<_> = row.cells.iter().skip(from).take(count).collect();
        let wrapped: Vec<Vec<String>> = cells.iter().map(|cell| self.cell(cell)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(1).max(label.len());
        for line_number in 0..height {
            let line = |lines: &[String]| lines.get(line_number).cloned().unwrap_or_default();
            let mut text = self.ink.faint(&pad(&line(&label), self.label));
            for (cell, lines) in cells.iter().zip(&wrapped) {
                text.push_str(&self.ink.tone(&pad(&line(lines), self.column), cell.tone));
            }
            let _ = writeln!(out, "{}", text.trim_end());
        }
    }

    /// Formats a value, with its note behind it where that fits, else below.
    fn cell(self, cell: &Cell) -> Vec<String> {
        let width = self.column - 2;
        let joined = if cell.note.is_empty() {
            cell.text.clone()
        } else {
            format!("{} ({})", cell.text, cell.note)
        };
        if joined.chars().count() <= width || cell.note.is_empty() {
            return wrap(&joined, width);
        }
        let mut lines = wrap(&cell.text, width);
        lines.extend(wrap(&format!("({})", cell.note), width));
        lines
    }
}

fn sparklines(out: &mut String, groups: &[RunGroup<'_>], width: usize, ink: TermStyle) {
    let runs: Vec<&StoredRun> =
        groups.iter().flat_map(|group| group.runs.iter().copied()).collect();
    let grid = Grid::of(&runs);
    let name_width =
        groups.iter().map(|group| group.label.chars().count()).max().unwrap_or(0).min(18);
    let spark_width = width - name_width - 4;
    let mut lines: Vec<(String, Vec<f64>)> = Vec::new();
    for group in groups {
        let Some(run) = group.runs.first() else { continue };
        let directions = series::directions(run);
        let totals: Vec<Values> = directions
            .iter()
            .map(|direction| {
                let goodputs = group.runs.iter().map(|run| series::goodput(run, &grid, *direction));
                series::envelope(&goodputs.collect::<Vec<_>>()).0
            })
            .collect();
        if !totals.is_empty() {
            lines.push((
                cut(&group.label, name_width),
                columns(&totals, spark_width.min(grid.points * 2)),
            ));
        }
    }
    let max_bps = lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let robust_tops = lines.iter().map(|(_, values)| robust_top(values.iter().copied().map(Some)));
    let top_bps = robust_tops.fold(0.0, f64::max);
    if top_bps <= 0.0 {
        return;
    }
    let end = number::short_moment(grid.end_s());
    let peak = if max_bps > top_bps {
        format!(", ^ up to {}", number::rate(max_bps))
    } else {
        String::new()
    };
    let title = format!("goodput, 0 to {end}; full height {}{peak}", number::rate(top_bps));
    let _ = writeln!(out, "{}", cut(&title, width));
    let drawn_columns = lines.first().map_or(0, |(_, values)| values.len());
    for (name, values) in &lines {
        let bars: String = values.iter().map(|value| spark(*value, top_bps)).collect();
        let _ = writeln!(out, "  {} {}", pad(name, name_width), ink.paint(&bars, "36"));
    }
    ruler(out, name_width + 3, drawn_columns, grid.end_s(), ink);
    let marks = runs.iter().map(|run| series::marks(run)).find(|marks| !marks.is_empty());
    event_marks(
        out,
        &marks.unwrap_or_default(),
        name_width + 3,
        drawn_columns,
        grid.end_s(),
        width,
        ink,
    );
    out.push('\n');
}

/// Resamples to a number of columns; directions are added up.
fn columns(totals: &[Values], count: usize) -> Vec<f64> {
    let points = totals.iter().map(Vec::len).max().unwrap_or(0);
    let total_at = |point: usize| -> f64 {
        totals.iter().filter_map(|values| values.get(point).copied().flatten()).sum()
    };
    let mean = |column: usize| {
        let start = column * points / count.max(1);
        let end = ((column + 1) * points / count.max(1)).max(start + 1);
        (start..end).map(total_at).sum::<f64>() / (end - start) as f64
    };
    (0..count).map(mean).collect()
}

fn spark(value: f64, top: f64) -> char {
    if value > top * 1.0001 {
        return '^';
    }
    let level = (value / top * 8.0).round() as usize;
    // Only a true zero leaves the column empty.
    let level = if value > 0.0 { level.clamp(1, 8) } else { 0 };
    [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'].get(level).copied().unwrap_or('█')
}

fn ruler(out: &mut String, indent: usize, width: usize, end_s: f64, ink: TermStyle) {
    let ticks = time_ticks(end_s);
    let step = ticks.get(1).copied().unwrap_or(1.0);
    let mut line = String::new();
    for tick in ticks {
        let column = (tick / end_s * width as f64) as usize;
        let text = tick_label(tick, step);
        if column >= line.chars().count() && column + text.chars().count() <= width {
            line = pad(&line, column);
            line.push_str(&text);
        }
    }
    let line = format!("{}{line} s", " ".repeat(indent));
    let _ = writeln!(out, "{}", ink.faint(&line));
}

fn event_marks(
    out: &mut String,
    marks: &[Mark],
    indent: usize,
    columns: usize,
    end_s: f64,
    width: usize,
    ink: TermStyle,
) {
    let mut line = String::new();
    let mut legend = Vec::new();
    for mark in marks.iter().filter(|mark| mark.at_s <= end_s) {
        let column = (mark.at_s / end_s * columns as f64) as usize;
        if column >= line.chars().count() && column < columns {
            line = pad(&line, column);
            line.push_str(&mark.letter);
        }
        let text = format!("{} {}: {}", mark.letter, number::short_moment(mark.at_s), mark.text);
        legend.push(text.replace(' ', "\u{a0}"));
    }
    if legend.is_empty() {
        return;
    }
    let _ = writeln!(out, "{}{}", " ".repeat(indent), ink.bold(&line));
    for line in wrap(&legend.join(" "), width.saturating_sub(indent)).iter().take(8) {
        let spaced = line.replace(' ', "   ").replace('\u{a0}', " ");
        let _ =
            writeln!(out, "{}{}", " ".repeat(indent), cut(&spaced, width.saturating_sub(indent)));
    }
}

fn expectations(out: &mut String, groups: &[RunGroup<'_>], width: usize, ink: TermStyle) {
    let rows = expectation_rows(groups);
    if rows.is_empty() {
        return;
    }
    out.push_str("expectations\n");
    for row in rows {
        let sign = match row.tone {
            Tone::Good => "✓",
            Tone::Bad => "✗",
            Tone::Plain => "?",
        };
        let outcome = if row.runs > 1 { format!(" ({})", row.outcome) } else { String::new() };
        let text = format!("{}: {}, measured {}{outcome}", row.label, row.text, row.measured);
        let _ = writeln!(out, "  {} {}", ink.tone(sign, row.tone), cut(&text, width - 4));
    }
}

/// Writes the timing error of emulated links, for the run with the largest one.
fn exactness(out: &mut String, runs: &[StoredRun], width: usize, ink: TermStyle) {
    let emulated = || runs.iter().filter(|run| run.meta.world == World::Emu).filter_map(timing);
    let Some(worst) = emulated().max_by_key(|timing| timing.lateness_p99_ns) else { return };
    let text = match emulated().count() {
        1 => worst.describe(),
        runs => format!("in the worst of {runs} runs {}", worst.describe()),
    };
    for line in wrap(&text, width) {
        let _ = writeln!(out, "{}", ink.faint(&line));
    }
}
