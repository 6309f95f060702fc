//! A time–sequence picture as SVG: bars for sent data, lines for acknowledgement and window,
//! letters for retransmissions and reinjections. Every colour is repeated as a shape or a letter.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::{SequenceKind, SequenceMark};

use super::canvas::{HEIGHT, WIDTH};
use super::tick_label;
use crate::series::Mark as Event;
use crate::text::esc;

/// Limit of drawn marks of one kind; our own results have fewer.
const MAX_DRAWN_MARKS: usize = 4_000;
/// Marks of one kind that get a tooltip of their own.
const MAX_TITLES: usize = 100;
/// Minimum distance between the names of sent data, in per cent.
const MIN_NAME_GAP_PERCENT: f64 = 22.0;
/// Maximum number of names of one subflow.
const MAX_NAMES: usize = 5;
/// Maximum number of letters of one kind.
const MAX_LETTERS_PER_KIND: usize = 150;
/// Minimum heights of a thin and of a thick bar, in units of the data area. Round line ends make
/// the thick bar higher at any zoom.
const MIN_BAR_HEIGHTS: (f64, f64) = (4.0, 1.0);
/// Room for the receive window above the highest sent number, as a share of the sent range.
const WINDOW_HEADROOM: f64 = 0.25;

/// All marks of one kind, with their name.
#[derive(Debug)]
pub(crate) struct MarkGroup {
    pub(crate) kind: SequenceKind,
    /// Name as in the legend.
    pub(crate) name: String,
    /// Classes of the style sheet.
    pub(crate) class: String,
    /// Label at some of the bars, which distinguishes them without colour.
    pub(crate) label: Option<String>,
    pub(crate) marks: Vec<SequenceMark>,
}

/// A time–sequence picture of the marks between two times.
#[derive(Debug)]
pub(crate) struct SequencePlot<'a> {
    pub(crate) title: String,
    pub(crate) groups: Vec<MarkGroup>,
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
    pub(crate) events: &'a [Event],
    /// CSS class: `large`, or empty.
    pub(crate) class: &'static str,
}

/// Mapping of times and sequence numbers to positions in per cent, from the left and the top.
#[derive(Debug, Clone, Copy)]
struct SequenceArea {
    from_s: f64,
    length_s: f64,
    low: f64,
    height: f64,
}

impl SequenceArea {
    fn of(plot: &SequencePlot<'_>) -> Self {
        let (low, high) = plot.range();
        let length_s = (plot.to_s - plot.from_s).max(1e-9);
        Self { from_s: plot.from_s, length_s, low, height: (high - low).max(1.0) }
    }

    fn x(self, at_s: f64) -> f64 {
        (100.0 * (at_s - self.from_s) / self.length_s).clamp(-100.0, 200.0)
    }

    fn y(self, bytes: f64) -> f64 {
        (100.0 - 100.0 * (bytes - self.low) / self.height).clamp(-100.0, 200.0)
    }

    /// Returns the position in units of the data area.
    fn position(self, at_s: f64, bytes: f64) -> (i64, f64) {
        let x = self.x(at_s) * f64::from(WIDTH) / 100.0;
        (x.round() as i64, self.y(bytes) * f64::from(HEIGHT) / 100.0)
    }
}

fn time_s(mark: &SequenceMark) -> f64 {
    mark.t_ns as f64 / 1e9
}

/// Returns true if the bars of this kind are sent data.
fn is_data(kind: SequenceKind) -> bool {
    use SequenceKind as Kind;
    matches!(
        kind,
        Kind::Sent | Kind::OutOfOrder | Kind::Retransmitted | Kind::Spurious | Kind::Reinjected
    )
}

impl SequencePlot<'_> {
    /// Returns the lowest and the highest number that the picture shows.
    fn range(&self) -> (f64, f64) {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut window_end = f64::NEG_INFINITY;
        for group in &self.groups {
            for mark in &group.marks {
                low = low.min(mark.start_bytes as f64);
                if is_data(group.kind) {
                    high = high.max(mark.end_bytes as f64);
                } else if group.kind == SequenceKind::Ack {
                    high = high.max(mark.start_bytes as f64);
                    window_end = window_end.max(mark.end_bytes as f64);
                }
            }
        }
        if low > high {
            return (0.0, 1.0);
        }
        let high = window_end.min(high + WINDOW_HEADROOM * (high - low)).max(high);
        let margin = 0.03 * (high - low).max(1.0);
        (if self.from_s > 0.0 { low - margin } else { low }, high + margin)
    }

    /// Returns the unit of the number axis.
    fn unit(&self) -> number::ScaledUnit {
        number::bytes_unit(self.range().1)
    }

    /// Returns true if the window's end is visible somewhere.
    pub(crate) fn shows_window(&self) -> bool {
        let top = self.range().1;
        let acks = self.groups.iter().filter(|group| group.kind == SequenceKind::Ack);
        acks.flat_map(|group| &group.marks).any(|mark| (mark.end_bytes as f64) < top)
    }

    /// Returns true if the window is known at all.
    pub(crate) fn has_window(&self) -> bool {
        let acks = self.groups.iter().filter(|group| group.kind == SequenceKind::Ack);
        acks.flat_map(|group| &group.marks).any(|mark| mark.end_bytes > mark.start_bytes)
    }

    /// Returns the script's read-out, in the axis's unit: the range, and the lowest and highest
    /// relevant number in each of `points` parts of the time up to `end_s`.
    pub(crate) fn readout(&self, points: usize, end_s: f64) -> (f64, f64, Vec<f64>, Vec<f64>) {
        let (low, high) = self.range();
        let unit = self.unit().size;
        let (mut bottoms, mut tops) = (vec![f64::NEG_INFINITY; points], vec![low; points]);
        for group in &self.groups {
            for mark in &group.marks {
                let index = (time_s(mark) / end_s * points as f64) as usize;
                let index = index.min(points.saturating_sub(1));
                if is_data(group.kind)
                    && let Some(top) = tops.get_mut(index)
                {
                    *top = top.max(mark.end_bytes as f64);
                }
                if group.kind == SequenceKind::Ack
                    && let Some(bottom) = bottoms.get_mut(index)
                {
                    *bottom = bottom.max(mark.start_bytes as f64);
                }
            }
        }
        // Data acknowledged before a part begins lies below it.
        let (mut acked, mut sent) = (low, low);
        for (bottom, top) in bottoms.iter_mut().zip(&mut tops) {
            sent = sent.max(*top);
            let acked_before = acked;
            acked = acked.max(*bottom);
            (*bottom, *top) = (acked_before / unit, sent.max(acked) / unit);
        }
        (low / unit, high / unit, bottoms, tops)
    }

    /// Draws the picture with axes, bars, lines and marks.
    pub(crate) fn svg(&self) -> String {
        let plane = SequenceArea::of(self);
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg class=\"plot sequence {}\" role=\"img\" aria-label=\"{}\">",
            self.class,
            esc(&self.aria_label())
        );
        self.y_axis(&mut out, plane);
        let _ = write!(
            out,
            "<svg class=\"data\" width=\"100%\" height=\"100%\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             preserveAspectRatio=\"none\">"
        );
        for (number, group) in self.groups.iter().enumerate() {
            let _ = write!(out, "<g class=\"{}\" data-s=\"{number}\">", group.class);
            self.draw_group(&mut out, group, plane);
            out.push_str("</g>");
        }
        out.push_str("</svg>");
        self.x_axis(&mut out, plane);
        self.draw_marks(&mut out, plane);
        out.push_str("</svg>");
        out
    }

    /// Returns the text that a screen reader reads instead of the picture.
    fn aria_label(&self) -> String {
        let mut text = format!("{} from {:.2} to {:.2} s", self.title, self.from_s, self.to_s);
        for group in &self.groups {
            let packets: u64 = group.marks.iter().map(|mark| u64::from(mark.packets)).sum();
            let _ = write!(text, "; {}: {packets}", group.name);
        }
        text
    }

    fn y_axis(&self, out: &mut String, plane: SequenceArea) {
        let unit = self.unit();
        let (low, high) = (plane.low / unit.size, (plane.low + plane.height) / unit.size);
        let step = tick_step((high - low) / 6.5);
        let _ = write!(
            out,
            "<text class=\"unit\" x=\"-46\" y=\"-12\">{}</text><g class=\"levels\">",
            esc(unit.name)
        );
        for (tick, label) in ticks(low, high, step) {
            let y = plane.y(tick * unit.size);
            let class = if tick == 0.0 { "zero" } else { "grid" };
            let _ = write!(
                out,
                "<line class=\"{class}\" x2=\"100%\" y1=\"{y:.2}%\" y2=\"{y:.2}%\"/>\
                 <text x=\"-6\" y=\"{y:.2}%\" dy=\".33em\" text-anchor=\"end\">{label}</text>"
            );
        }
        out.push_str("</g>");
    }

    fn x_axis(&self, out: &mut String, plane: SequenceArea) {
        out.push_str("<g class=\"times\">");
        let step = tick_step((self.to_s - self.from_s) / 5.0);
        for (tick, label) in ticks(self.from_s, self.to_s, step) {
            let x = plane.x(tick);
            let _ = write!(
                out,
                "<line class=\"tick\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"100%\" y2=\"100%\"/>\
                 <text x=\"{x:.2}%\" y=\"100%\" dy=\"16\" text-anchor=\"middle\">{label}</text>",
            );
        }
        out.push_str(
            "</g><text class=\"unit\" x=\"50%\" y=\"100%\" dy=\"31\" text-anchor=\"middle\">time, s</text>",
        );
    }

    fn draw_group(&self, out: &mut String, group: &MarkGroup, plane: SequenceArea) {
        let marks = || group.marks.iter().take(MAX_DRAWN_MARKS);
        match group.kind {
            SequenceKind::Ack => self.draw_acks(out, group, plane),
            SequenceKind::DuplicateAck | SequenceKind::ZeroWindow => {
                let mut path = String::new();
                for mark in marks() {
                    let (x, y) = plane.position(time_s(mark), mark.start_bytes as f64);
                    let _ = write!(path, "M{x} {}h0", y.round() as i64);
                }
                let _ = write!(out, "<path d=\"{path}\"/>");
            }
            SequenceKind::Syn | SequenceKind::Fin | SequenceKind::Rst => {}
            SequenceKind::Sent | SequenceKind::Sack => {
                let path: String =
                    marks().map(|mark| bar_path(mark, plane, MIN_BAR_HEIGHTS.0)).collect();
                let _ =
                    write!(out, "<path d=\"{path}\"><title>{}</title></path>", esc(&group.name));
            }
            SequenceKind::OutOfOrder
            | SequenceKind::Retransmitted
            | SequenceKind::Spurious
            | SequenceKind::Reinjected => {
                for mark in marks().take(MAX_TITLES) {
                    let (path, text) =
                        (bar_path(mark, plane, MIN_BAR_HEIGHTS.1), tooltip(group, mark));
                    let _ = write!(out, "<path d=\"{path}\"><title>{text}</title></path>");
                }
                let merged_path =
                    marks().skip(MAX_TITLES).map(|mark| bar_path(mark, plane, MIN_BAR_HEIGHTS.1));
                let merged_path: String = merged_path.collect();
                if !merged_path.is_empty() {
                    let name = esc(&group.name);
                    let _ = write!(out, "<path d=\"{merged_path}\"><title>{name}</title></path>");
                }
            }
        }
    }

    /// Draws the acknowledged number and the end of the window.
    fn draw_acks(&self, out: &mut String, group: &MarkGroup, plane: SequenceArea) {
        let end_x = plane.position(self.to_s, 0.0).0;
        let line = |bytes_of: fn(&SequenceMark) -> i64| {
            let mut path = String::new();
            for mark in group.marks.iter().take(MAX_DRAWN_MARKS) {
                let (x, y) = plane.position(time_s(mark), bytes_of(mark) as f64);
                let y = y.round() as i64;
                let _ = if path.is_empty() {
                    write!(path, "M{x} {y}")
                } else {
                    write!(path, "H{x}V{y}")
                };
            }
            if !path.is_empty() {
                let _ = write!(path, "H{end_x}");
            }
            path
        };
        let acked = line(|mark| mark.start_bytes);
        let _ = write!(out, "<path d=\"{acked}\"><title>{}</title></path>", esc(&group.name));
        if self.has_window() {
            let window = line(|mark| mark.end_bytes);
            let _ = write!(
                out,
                "<path class=\"edge\" d=\"{window}\"><title>end of the receive window</title></path>"
            );
        }
    }

    /// Draws events, letters and names: everything that keeps its shape when the data area is
    /// stretched.
    fn draw_marks(&self, out: &mut String, plane: SequenceArea) {
        out.push_str("<g class=\"marks\">");
        let mut min_letter_x = f64::NEG_INFINITY;
        for event in self.events {
            let x = plane.x(event.at_s);
            if !(0.0..=100.0).contains(&x) {
                continue;
            }
            let _ = write!(
                out,
                "<g data-at=\"{:.3}\"><line class=\"event\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" \
                 y2=\"100%\"><title>{}</title></line>",
                event.at_s,
                esc(&event.text)
            );
            if x >= min_letter_x {
                let _ = write!(
                    out,
                    "<text class=\"letter\" x=\"{x:.2}%\" y=\"-7\" text-anchor=\"middle\">{}</text>",
                    event.letter
                );
                min_letter_x = x + 6.0;
            }
            out.push_str("</g>");
        }
        let (scale, mut texts) = ((plane, self.unit().size), LabelPlacer::default());
        // Retransmissions matter most, so they are placed first.
        for group in self.groups.iter().enumerate().rev() {
            write_letters(out, group, scale, &mut texts);
        }
        out.push_str("</g>");
    }
}

/// Draws a bar from the first number of a mark to the last.
fn bar_path(mark: &SequenceMark, plane: SequenceArea, min_height: f64) -> String {
    let (x, low) = plane.position(time_s(mark), mark.start_bytes as f64);
    let (_, high) = plane.position(time_s(mark), mark.end_bytes as f64);
    let middle = f64::midpoint(low, high);
    let half_height = ((low - high) / 2.0).max(min_height / 2.0);
    let (bottom, top) =
        ((middle + half_height).round() as i64, (middle - half_height).round() as i64);
    format!("M{x} {bottom}V{top}")
}

/// Returns a mark's tooltip: `3.012 s: retransmitted, bytes 1 234 to 2 634`.
fn tooltip(group: &MarkGroup, mark: &SequenceMark) -> String {
    let several =
        if mark.packets > 1 { format!(", {} packets", mark.packets) } else { String::new() };
    format!(
        "{}: {}, bytes {} to {}{several}",
        number::moment(mark.t_ns),
        esc(&group.name),
        number::count(mark.start_bytes as f64),
        number::count(mark.end_bytes as f64)
    )
}

/// Returns the letter or word shown at a mark.
pub(crate) fn mark_letter(kind: SequenceKind) -> &'static str {
    match kind {
        SequenceKind::OutOfOrder => "O",
        SequenceKind::Retransmitted => "R",
        SequenceKind::Spurious => "D",
        SequenceKind::Reinjected => "J",
        SequenceKind::ZeroWindow => "Z",
        SequenceKind::Syn => "SYN",
        SequenceKind::Fin => "FIN",
        SequenceKind::Rst => "RST",
        SequenceKind::Sent
        | SequenceKind::Ack
        | SequenceKind::DuplicateAck
        | SequenceKind::Sack => "",
    }
}

/// Areas taken by texts, in pixels of a picture on a usual screen; they prevent overlaps.
#[derive(Debug, Default)]
struct LabelPlacer {
    taken: Vec<[f64; 4]>,
}

impl LabelPlacer {
    /// Reserves room for a text of `letters` characters at a place in per cent. Returns true if it
    /// fits.
    fn try_place(&mut self, position: (f64, f64), letters: usize, leans_left: bool) -> bool {
        const PIXELS: (f64, f64) = (3.7, 2.2);
        const LINE_PX: f64 = 11.0;
        let (anchor_x, bottom) = (position.0 * PIXELS.0, position.1 * PIXELS.1);
        let width = letters as f64 * 7.2 + 4.0;
        let left = if leans_left { anchor_x - width } else { anchor_x };
        let area = [left, left + width, bottom - LINE_PX, bottom];
        let overlaps = |other: &[f64; 4]| {
            let [left, right, top, bottom] = *other;
            area[0] < right && left < area[1] && area[2] < bottom && top < area[3]
        };
        let free = !self.taken.iter().any(overlaps);
        if free {
            self.taken.push(area);
        }
        free
    }
}

/// Writes letters and names; `unit` is the value of one unit of the axis.
fn write_letters(
    out: &mut String,
    (number, group): (usize, &MarkGroup),
    (plane, unit): (SequenceArea, f64),
    texts: &mut LabelPlacer,
) {
    let is_name = group.kind == SequenceKind::Sent;
    let text = if is_name { group.label.as_deref().unwrap_or("") } else { mark_letter(group.kind) };
    if text.is_empty() {
        return;
    }
    let max_labels = if is_name { MAX_NAMES } else { MAX_LETTERS_PER_KIND };
    let (mut placed, mut last_x) = (0, f64::NEG_INFINITY);
    for mark in group.marks.iter().take(MAX_DRAWN_MARKS) {
        let at_s = time_s(mark);
        let (x, y) = (plane.x(at_s), plane.y(mark.end_bytes as f64));
        let inside = (0.0..=100.0).contains(&x) && (0.0..=100.0).contains(&y);
        if placed >= max_labels || !inside || (is_name && x < last_x + MIN_NAME_GAP_PERCENT) {
            continue;
        }
        // A name is left of its bars, where the line of its subflow has not been yet.
        let leans_left = is_name && x > 12.0;
        if !texts.try_place((x, y), text.chars().count(), leans_left) {
            continue;
        }
        (placed, last_x) = (placed + 1, x);
        let class = if is_name { "name" } else { "what" };
        let (dx, anchor) = if leans_left { (-5, "end") } else { (4, "start") };
        let _ = write!(
            out,
            "<g data-at=\"{at_s:.4}\" data-of=\"{number}\"><text class=\"{class}\" x=\"{x:.2}%\" \
             y=\"{y:.2}%\" dx=\"{dx}\" dy=\"-2\" text-anchor=\"{anchor}\" data-level=\"{:.6}\">{}\
             </text></g>",
            mark.end_bytes as f64 / unit,
            esc(text)
        );
    }
}

/// Returns 1, 2 or 5 times a power of ten, at least `least`.
fn tick_step(min_step: f64) -> f64 {
    let min_step =
        if min_step.is_finite() && min_step > 0.0 { min_step.clamp(1e-9, 1e15) } else { 1.0 };
    let power = 10_f64.powf(min_step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * power)
        .find(|n| *n >= min_step)
        .unwrap_or(min_step)
}

/// Returns round numbers from `low` to `high`, with their labels.
fn ticks(low: f64, high: f64, step: f64) -> Vec<(f64, String)> {
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    if !(first.is_finite() && last.is_finite()) {
        return Vec::new();
    }
    let count = (last - first).clamp(-1.0, 12.0) as i64;
    let tick_values = (0..=count).map(|number| (first + number as f64) * step);
    // Adding 0 turns −0 into 0.
    tick_values.map(|tick| (tick + 0.0, tick_label(tick + 0.0, step))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(kind: SequenceKind, marks: &[(u64, i64, i64)]) -> MarkGroup {
        let mark = |&(ms, start_bytes, end_bytes): &(u64, i64, i64)| SequenceMark {
            t_ns: ms * 1_000_000,
            start_bytes,
            end_bytes,
            packets: 1,
        };
        MarkGroup {
            kind,
            name: kind.name().to_owned(),
            class: kind.name().to_owned(),
            label: None,
            marks: marks.iter().map(mark).collect(),
        }
    }

    fn plot_of(groups: Vec<MarkGroup>) -> SequencePlot<'static> {
        SequencePlot {
            title: "t".to_owned(),
            groups,
            from_s: 0.0,
            to_s: 1.0,
            events: &[],
            class: "",
        }
    }

    #[test]
    fn a_bar_is_at_the_time_and_sequence_of_its_packet() {
        let sent = group(SequenceKind::Sent, &[(0, 0, 500), (500, 500, 1_000)]);
        let area = SequenceArea { from_s: 0.0, length_s: 1.0, low: 0.0, height: 1_000.0 };
        assert_eq!(bar_path(&sent.marks[0], area, 4.0), "M0 1000V500");
        assert_eq!(bar_path(&sent.marks[1], area, 4.0), "M5000 500V0");
    }

    #[test]
    fn resent_data_is_drawn_with_a_title_and_a_letter() {
        let mark = |n: u32| (u64::from(2 * n), i64::from(n) * 100, i64::from(n) * 100 + 90);
        let marks: Vec<_> = (0..500).map(mark).collect();
        let svg_text = plot_of(vec![group(SequenceKind::Retransmitted, &marks)]).svg();
        assert_eq!(svg_text.matches('V').count(), 500);
        assert_eq!(svg_text.matches(": retransmitted, bytes").count(), MAX_TITLES);
        let letters = svg_text.matches(">R</text>").count();
        assert!((20..=MAX_LETTERS_PER_KIND).contains(&letters), "{letters}");
    }

    #[test]
    fn a_window_far_above_does_not_flatten_the_picture() {
        let sent = group(SequenceKind::Sent, &[(0, 0, 1_000)]);
        let far_acks = group(SequenceKind::Ack, &[(10, 1_000, 9_000_000)]);
        let near_acks = group(SequenceKind::Ack, &[(10, 1_000, 1_100)]);
        let far_plot = plot_of(vec![group(SequenceKind::Sent, &[(0, 0, 1_000)]), far_acks]);
        assert!(far_plot.range().1 < 1_300.0 && !far_plot.shows_window() && far_plot.has_window());
        assert!(plot_of(vec![sent, near_acks]).shows_window());
    }

    #[test]
    fn ticks_are_round_and_begin_where_the_picture_does() {
        let labels: Vec<String> =
            ticks(2.93, 3.61, tick_step(0.68 / 5.0)).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["3.0", "3.2", "3.4", "3.6"]);
        assert!(ticks(f64::NAN, f64::INFINITY, 1.0).is_empty());
        assert!(ticks(-1e300, 1e300, 1.0).len() < 20);
    }
}
