//! Events of a round: numbers of their lines in the plots, and their table.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::{Event, EventKind};

use super::plot::WIDTH;
use super::round::{MobileRound, RoundRun, path_name};
use crate::text::esc;

/// Maximum number of events on a page; changes of networks and ends of tests come first.
const MAX_EVENTS: usize = 160;
/// Longest time between the observations of one change by two runs, in nanoseconds.
const MAX_SAME_CHANGE_NS: u64 = 500_000_000;
/// Longest time between two switches of a scheduler that are one event, in nanoseconds.
const MAX_SWITCH_GAP_NS: u64 = 2_000_000_000;
/// Width of the data area that has one number, as a ratio.
const NUMBER_WIDTH_RATIO: f64 = 0.022;
/// Prefix of the detail of a scheduler's event that names the reason of a switch.
const REASON_PREFIX: &str = "because ";
/// Maximum length of an event's text, in characters.
const MAX_TEXT_CHARS: usize = 200;

/// Subject of an event, in order of importance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventSubject {
    /// Network of a host, or end of a test: equal events of several runs are one.
    Network,
    Transport,
}

/// Event of one or several runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoundEvent {
    /// Time on the shared axis.
    at_ns: u64,
    host: String,
    /// Names of the transports whose runs have the event.
    transports: Vec<String>,
    text: String,
    subject: EventSubject,
    /// Last switch and number of switches of a scheduler.
    switches: Option<(u64, u64)>,
}

/// Events that share a number, as their lines are close together.
#[derive(Debug)]
pub(super) struct EventMark {
    pub(super) number: usize,
    /// Position of the first event, in units across.
    pub(super) x: u32,
    /// Events with their positions.
    events: Vec<(u32, RoundEvent)>,
}

impl EventMark {
    /// Returns the positions of all changes of networks and ends of tests, or of all others.
    pub(super) fn lines(&self, of_network: bool) -> impl Iterator<Item = u32> {
        let is_wanted =
            move |event: &RoundEvent| (event.subject == EventSubject::Network) == of_network;
        self.events.iter().filter(move |(_, event)| is_wanted(event)).map(|(x, _)| *x)
    }
}

/// Returns all events in order of time, with the number of those that were left out.
pub(super) fn collect(round: &MobileRound<'_>) -> (Vec<RoundEvent>, usize) {
    let mut events: Vec<RoundEvent> = Vec::new();
    for view in &round.runs {
        let first_of_run = events.len();
        let mut of_run: Vec<&Event> = view.events().collect();
        of_run.sort_by_key(|event| event.t_ns);
        for event in of_run {
            let Some(found) = round_event(view, event) else { continue };
            add(&mut events, first_of_run, found);
        }
        let ended = RoundEvent {
            at_ns: view.end_ns,
            host: String::new(),
            transports: vec![view.name.clone()],
            text: if view.run.summary.is_some() { "end of the test" } else { "last record" }
                .to_owned(),
            subject: EventSubject::Network,
            switches: None,
        };
        add(&mut events, first_of_run, ended);
    }
    events.retain(|event| event.at_ns <= round.end_ns);
    let omitted = events.len().saturating_sub(MAX_EVENTS);
    events.sort_by_key(|event| (event.subject, event.at_ns));
    events.truncate(MAX_EVENTS);
    events.sort_by_key(|event| event.at_ns);
    (events, omitted)
}

/// Adds an event of a run, whose own events begin at `first_of_run`; equal ones are merged.
fn add(events: &mut Vec<RoundEvent>, first_of_run: usize, event: RoundEvent) {
    let is_same = |known: &RoundEvent| (&known.host, &known.text) == (&event.host, &event.text);
    if event.subject == EventSubject::Network {
        let mut earlier = events.iter_mut().take(first_of_run);
        let same_change = earlier.find(|known| {
            is_same(known)
                && known.at_ns.abs_diff(event.at_ns) <= MAX_SAME_CHANGE_NS
                && !known.transports.iter().any(|name| event.transports.contains(name))
        });
        if let Some(known) = same_change {
            known.transports.extend(event.transports);
            return;
        }
    }
    if let Some((last_ns, count)) = event.switches {
        let of_run = events.iter_mut().skip(first_of_run).rev();
        let same_switch = of_run.filter(|known| is_same(known)).find_map(|known| {
            let (until_ns, sum) = known.switches.as_mut()?;
            (last_ns.saturating_sub(*until_ns) <= MAX_SWITCH_GAP_NS).then_some((until_ns, sum))
        });
        if let Some((until_ns, sum)) = same_switch {
            *until_ns = last_ns;
            *sum = sum.saturating_add(count);
            return;
        }
    }
    events.push(event);
}

/// Returns the event for the page; `None` for one that does not concern a handover.
fn round_event(view: &RoundRun<'_>, event: &Event) -> Option<RoundEvent> {
    let at_ns = view.at(event.t_ns);
    let (subject, text, switches) = match event.kind {
        EventKind::Timeline | EventKind::Link | EventKind::Address => {
            (EventSubject::Network, clean(&event.text), None)
        }
        EventKind::Subflow | EventKind::Fallback => {
            (EventSubject::Transport, clean(&event.text), None)
        }
        EventKind::Scheduler => {
            let reasons = || {
                let details = event.detail.iter();
                details.filter_map(|(key, count)| Some((key.strip_prefix(REASON_PREFIX)?, count)))
            };
            let names: Vec<&str> = reasons().map(|(reason, _)| reason).collect();
            if names.is_empty() {
                return None;
            }
            let count = reasons().filter_map(|(_, count)| count.parse::<u64>().ok());
            let count = count.fold(0, u64::saturating_add);
            let text = format!("the scheduler left its preferred path: {}", names.join(", "));
            (EventSubject::Transport, clean(&text), Some((at_ns, count)))
        }
        EventKind::Flow
        | EventKind::PathManager
        | EventKind::Stall
        | EventKind::Reinjection
        | EventKind::Penalisation
        | EventKind::Window => return None,
    };
    Some(RoundEvent {
        at_ns,
        host: path_name(event.host.as_deref().unwrap_or_default()),
        transports: vec![view.name.clone()],
        text: cut(&text, MAX_TEXT_CHARS),
        subject,
        switches,
    })
}

/// Gives numbers to events; those that are close together share one.
pub(super) fn marks(round: &MobileRound<'_>, events: Vec<RoundEvent>) -> Vec<EventMark> {
    let width = (f64::from(WIDTH) * NUMBER_WIDTH_RATIO) as u32;
    let mut marks: Vec<EventMark> = Vec::new();
    for event in events {
        let Some(x) = round.x(event.at_ns) else { continue };
        if let Some(mark) = marks.last_mut().filter(|mark| x < mark.x + width) {
            mark.events.push((x, event));
        } else {
            let number = marks.len() + 1;
            marks.push(EventMark { number, x, events: vec![(x, event)] });
        }
    }
    marks
}

/// Writes the table of all events.
pub(super) fn write_table(out: &mut String, marks: &[EventMark], runs: usize, omitted: usize) {
    out.push_str(
        "<section id=\"events\"><h2>Events</h2><p class=\"about\">The numbers are those of the lines in the \
         plots.</p><div class=\"scroll\"><table class=\"list log\"><thead><tr><th scope=\"col\">no.</th>\
         <th scope=\"col\">time</th><th scope=\"col\">host</th><th scope=\"col\">transport</th>\
         <th scope=\"col\">event</th></tr></thead><tbody>",
    );
    for mark in marks {
        for (_, event) in &mark.events {
            event.write(out, mark.number, runs);
        }
    }
    out.push_str("</tbody></table></div>");
    if omitted > 0 {
        let _ = write!(out, "<p class=\"none\">{omitted} more events are not shown.</p>");
    }
    out.push_str("</section>");
}

impl RoundEvent {
    fn write(&self, out: &mut String, number: usize, runs: usize) {
        let transports = if self.transports.len() == runs && runs > 1 {
            "all".to_owned()
        } else {
            self.transports.join(", ")
        };
        let _ = write!(
            out,
            "<tr><td class=\"n\"><b>{number}</b></td><td class=\"n\">{}</td><td>{}</td><td class=\"keep\">{}</td>\
             <td>{}",
            number::moment(self.at_ns),
            esc(&self.host),
            esc(&transports),
            esc(&self.text)
        );
        if let Some((until_ns, count)) = self.switches.filter(|(_, count)| *count > 1) {
            let until = number::moment(until_ns);
            let _ = write!(out, " <small>{count} times until {until}</small>");
        }
        out.push_str("</td></tr>");
    }
}
