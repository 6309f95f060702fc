//! Delays of messages and round trips of datagrams.

use towpath_result::format;
use towpath_result::{Message, Probe};
use towpath_scenario::DataDirection;

use super::plot::{PlotLegendEntry, PlotPart, RoundCurve, RoundPlot};
use super::round::{MobileRound, RoundRun, path_name, time_text};
use super::scale::DelayScale;

/// Nanoseconds in a millisecond.
const NS_PER_MS: f64 = 1e6;
/// Maximum length of the label of a row of ticks, in characters.
const MAX_LANE_CHARS: usize = 8;

/// Returns the delay of a message, from its due time to its acknowledgement, in nanoseconds.
pub(super) fn message_delay_ns(message: &Message) -> Option<u64> {
    Some(message.answered_ns?.saturating_sub(message.due_ns))
}

/// Returns the round-trip time of a datagram in nanoseconds; `None` if it was lost.
fn round_trip_ns(probe: &Probe) -> Option<u64> {
    Some(probe.answered_ns?.saturating_sub(probe.sent_ns.unwrap_or(probe.due_ns)))
}

/// Events in order of time, each with its delay in nanoseconds or without one.
type Outcomes = Vec<(u64, Option<u64>)>;

/// Returns the plots of message delays, one for each direction with messages, on one scale.
pub(super) fn message_plots(round: &MobileRound<'_>) -> Vec<RoundPlot> {
    let directions = [DataDirection::Up, DataDirection::Down];
    let outcomes = directions.map(|direction| {
        let of_run = |view: &RoundRun<'_>| -> Outcomes {
            let messages = view.messages(direction).into_iter();
            messages.map(|m| (view.at(m.due_ns), message_delay_ns(m))).collect()
        };
        round.runs.iter().map(of_run).collect::<Vec<_>>()
    });
    let scale = scale_of(outcomes.iter().flatten());
    let mut plots = Vec::new();
    for (direction, runs) in directions.into_iter().zip(outcomes) {
        if runs.iter().all(Vec::is_empty) {
            continue;
        }
        let name = if direction == DataDirection::Down { "down" } else { "up" };
        let mut plot = RoundPlot {
            title: format!("Delay of messages, {name}"),
            about: format!(
                "{}: time from due to reply. Ticks above the curves: no reply.{}",
                host_text(round, direction),
                log_note(scale)
            ),
            legend: Vec::new(),
            parts: Vec::new(),
        };
        let mut curves = Vec::new();
        for (view, outcomes) in round.runs.iter().zip(&runs) {
            let label = view.run.meta.transport.to_string();
            let (text, line) = (delay_text(outcomes), format!("{} line", view.class));
            add_outcomes(&mut plot, round, (&view.name, &label, &text), (&line, outcomes));
            curves.push(curve(round, scale, line, outcomes));
        }
        plot.parts.push(PlotPart::Curves { scale, curves });
        plots.push(plot);
    }
    plots
}

/// Returns the plot of datagrams on each path; `None` without any.
pub(super) fn probe_plot(round: &MobileRound<'_>) -> Option<RoundPlot> {
    let of_path = |path: &str| -> Outcomes {
        let mut outcomes: Outcomes = Vec::new();
        for view in &round.runs {
            let probes = view.probes().filter(|probe| probe.path == path);
            outcomes.extend(probes.map(|probe| (view.at(probe.due_ns), round_trip_ns(probe))));
        }
        outcomes.sort_by_key(|(at_ns, _)| *at_ns);
        outcomes
    };
    let paths: Vec<(usize, &str, Outcomes)> = round
        .paths
        .iter()
        .enumerate()
        .map(|(number, path)| (number, *path, of_path(path)))
        .filter(|(.., outcomes)| !outcomes.is_empty())
        .collect();
    if paths.is_empty() {
        return None;
    }
    let scale = scale_of(paths.iter().map(|(.., outcomes)| outcomes));
    let mut plot = RoundPlot {
        title: "Round-trip time of datagrams".to_owned(),
        about: format!(
            "Datagrams over each interface, outside the transports. Ticks above the curves: lost.{}",
            log_note(scale)
        ),
        legend: Vec::new(),
        parts: Vec::new(),
    };
    let mut curves = Vec::new();
    for (number, path, outcomes) in &paths {
        let lost = outcomes.iter().filter(|(_, delay)| delay.is_none()).count();
        let text = format!("{} of {} lost{}", lost, outcomes.len(), median_text(outcomes));
        let line = format!("p{} line", number % 8);
        let name = (&*round.path_text(path), &*path_name(path), &*text);
        add_outcomes(&mut plot, round, name, (&line, outcomes));
        curves.push(curve(round, scale, line, outcomes));
    }
    plot.parts.push(PlotPart::Curves { scale, curves });
    Some(plot)
}

fn scale_of<'a>(outcomes: impl Iterator<Item = &'a Outcomes>) -> DelayScale {
    let delays = outcomes.flatten().filter_map(|(_, delay)| *delay);
    DelayScale::of(delays.map(|ns| ns as f64 / NS_PER_MS))
}

fn log_note(scale: DelayScale) -> &'static str {
    if scale.is_logarithmic() { " The scale is logarithmic." } else { "" }
}

/// Adds a legend entry, and a row of ticks if a reply is missing.
fn add_outcomes(
    plot: &mut RoundPlot,
    round: &MobileRound<'_>,
    (name, label, text): (&str, &str, &str),
    (class, outcomes): (&str, &Outcomes),
) {
    let text = format!("{name}: {text}");
    plot.legend.push(PlotLegendEntry { class: class.to_owned(), text });
    let missing = outcomes.iter().filter(|(_, delay)| delay.is_none());
    let moments: Vec<u32> = missing.filter_map(|(at_ns, _)| round.x(*at_ns)).collect();
    if !moments.is_empty() {
        let label = format::text::cut(label, MAX_LANE_CHARS);
        plot.parts.push(PlotPart::Ticks { class: class.to_owned(), label, moments });
    }
}

fn curve(
    round: &MobileRound<'_>,
    scale: DelayScale,
    class: String,
    outcomes: &Outcomes,
) -> RoundCurve {
    let mut segments: Vec<Vec<(u32, u32)>> = vec![Vec::new()];
    for (at_ns, delay_ns) in outcomes {
        let point =
            delay_ns.and_then(|ns| Some((round.x(*at_ns)?, scale.y(ns as f64 / NS_PER_MS))));
        match (point, segments.last_mut()) {
            (Some(point), Some(segment)) => segment.push(point),
            (Some(_) | None, None) => {}
            // A missing reply is a gap of the curve.
            (None, Some(segment)) if segment.is_empty() => {}
            (None, Some(_)) => segments.push(Vec::new()),
        }
    }
    RoundCurve { class, segments }
}

/// Returns the number of messages, their median and longest delay.
fn delay_text(outcomes: &Outcomes) -> String {
    let missing = outcomes.iter().filter(|(_, delay)| delay.is_none()).count();
    let longest = outcomes.iter().filter_map(|(_, delay)| *delay).max();
    let longest = longest.map(|ns| format!(", longest {}", time_text(ns)));
    format!(
        "{}{}{}, {missing} without a reply",
        format::count(outcomes.len() as u64, "message"),
        median_text(outcomes),
        longest.unwrap_or_default()
    )
}

fn median_text(outcomes: &Outcomes) -> String {
    let mut delays: Vec<u64> = outcomes.iter().filter_map(|(_, delay)| *delay).collect();
    delays.sort_unstable();
    let median = delays.get(delays.len().saturating_sub(1) / 2);
    median.map_or_else(String::new, |ns| format!(", median {}", time_text(*ns)))
}

/// Returns the sender and the receiver of the requests: `Requests from client to server`.
fn host_text(round: &MobileRound<'_>, direction: DataDirection) -> String {
    let Some(view) = round.runs.first() else { return String::new() };
    let (from, to) = match direction {
        DataDirection::Down => (view.server(), view.client()),
        DataDirection::Up | DataDirection::Both => (view.client(), view.server()),
    };
    format!("Requests from {} to {}", path_name(from), path_name(to))
}
