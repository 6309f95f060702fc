//! Parses `[[timeline]]` and expands fades.

use std::ops::Range;
use std::time::Duration;

use super::fade::{LinkDirectionState, LinkValues, fade, set_values, step_count};
use super::link::loss;
use super::{MAX_DELAY, MAX_RUN, NameTable, ReadContext, UNKNOWN_ENDS};
use crate::keys::EVENT;
use crate::model::{
    Bottleneck, DownMode, LinkSide, Path, TimelineChange, TimelineEvent, TimelineTarget,
};
use crate::problem::{SpannedProblem, quote};
use crate::section::{Section, Value};
use crate::units::duration_text;

/// Maximum number of events in a run, including the steps of fades.
const MAX_EVENTS: u128 = 100_000;

/// Initial states of all links, the starting point of the timeline.
pub(super) struct InitialLinkStates<'a> {
    paths: &'a [Path],
    bottlenecks: &'a [Bottleneck],
}

impl<'a> InitialLinkStates<'a> {
    pub(super) fn new(paths: &'a [Path], bottlenecks: &'a [Bottleneck]) -> Self {
        Self { paths, bottlenecks }
    }

    fn start(&self, target: TimelineTarget) -> Option<[LinkDirectionState; 2]> {
        let (up, down) = match target {
            TimelineTarget::Path(i) => self.paths.get(i).map(|path| (&path.up, &path.down))?,
            TimelineTarget::Bottleneck(i) => self.bottlenecks.get(i).map(|b| (&b.up, &b.down))?,
        };
        Some([LinkDirectionState::new(up), LinkDirectionState::new(down)])
    }
}

/// An event as parsed.
struct RawEvent {
    at: Duration,
    span: Range<usize>,
    target: TimelineTarget,
    action: EventAction,
}

enum EventAction {
    Now(TimelineChange),
    Set(LinkSide, LinkValues),
    Fade(LinkSide, LinkValues, Duration),
}

pub(super) fn timeline(
    value: &Value<'_>,
    names: &NameTable,
    links: &InitialLinkStates<'_>,
    last_flow_end: Option<Duration>,
    context: &ReadContext<'_>,
) -> Vec<TimelineEvent> {
    let list = super::sections(value, &EVENT, "the event", "expected `[[timeline]]`");
    let parse_event = |mut section: Section<'_>| {
        let event = event(&mut section, names, links.paths, last_flow_end);
        section.finish();
        event
    };
    let mut events: Vec<RawEvent> = list.into_iter().filter_map(parse_event).collect();
    events.sort_by_key(|event| event.at);
    let steps: u128 = events.iter().map(RawEvent::step_count).sum();
    if steps > MAX_EVENTS {
        value.fail(
            format!("the timeline has {steps} steps, fades included"),
            "expected at most 100000; a fade takes 20 steps a second",
        );
        return Vec::new();
    }
    let mut expander = TimelineExpander { links, context, states: Vec::new(), fades: Vec::new() };
    let mut out: Vec<TimelineEvent> =
        events.into_iter().flat_map(|event| expander.expand(event)).collect();
    out.sort_by_key(|event| event.at);
    out
}

impl RawEvent {
    fn step_count(&self) -> u128 {
        match self.action {
            EventAction::Now(_) | EventAction::Set(..) => 1,
            EventAction::Fade(_, _, duration) => step_count(duration),
        }
    }
}

/// Processes the events in order of time and tracks the current values.
struct TimelineExpander<'a> {
    links: &'a InitialLinkStates<'a>,
    context: &'a ReadContext<'a>,
    states: Vec<(TimelineTarget, [LinkDirectionState; 2])>,
    fades: Vec<ActiveFade>,
}

/// A fade that may overlap the next event.
struct ActiveFade {
    target: TimelineTarget,
    side: LinkSide,
    values: LinkValues,
    start: Duration,
    end: Duration,
}

impl TimelineExpander<'_> {
    fn expand(&mut self, event: RawEvent) -> Vec<TimelineEvent> {
        let RawEvent { at, span, target, action } = event;
        let to_event = |(offset, change)| TimelineEvent { at: at + offset, target, change };
        let (side, values, fade_duration) = match action {
            EventAction::Now(change) => return vec![to_event((Duration::ZERO, change))],
            EventAction::Set(side, values) => (side, values, None),
            EventAction::Fade(side, values, fade_duration) => (side, values, Some(fade_duration)),
        };
        let Some(mut state) = self.state(target) else { return Vec::new() };
        let is_netem = state.iter().any(LinkDirectionState::is_netem);
        self.fades.retain(|active| active.end > at);
        if let Some(overlapping) =
            self.fades.iter().find(|active| active.overlaps(target, side, &values, is_netem))
        {
            let (from, until) = (duration_text(overlapping.start), duration_text(overlapping.end));
            let message = format!("the fade from {from} to {until} still changes this");
            self.context.problems.push(SpannedProblem::new(span, message, "expected a later time"));
            return Vec::new();
        }
        let changes = match fade_duration {
            None => set_values(&mut state, side, values)
                .into_iter()
                .map(|c| (Duration::ZERO, c))
                .collect(),
            Some(fade_duration) => match fade(&mut state, side, values, fade_duration) {
                Ok(changes) => {
                    let end = at + fade_duration;
                    self.fades.push(ActiveFade { target, side, values, start: at, end });
                    changes
                }
                Err(reason) => {
                    self.context.problems.push(SpannedProblem::new(
                        span,
                        "this cannot fade",
                        reason,
                    ));
                    return Vec::new();
                }
            },
        };
        self.store(target, state);
        changes.into_iter().map(to_event).collect()
    }

    fn state(&self, target: TimelineTarget) -> Option<[LinkDirectionState; 2]> {
        let stored = self.states.iter().find(|(stored_target, _)| *stored_target == target);
        stored.map(|&(_, state)| state).or_else(|| self.links.start(target))
    }

    fn store(&mut self, target: TimelineTarget, state: [LinkDirectionState; 2]) {
        self.states.retain(|(stored_target, _)| *stored_target != target);
        self.states.push((target, state));
    }
}

impl ActiveFade {
    /// Returns true if a new event changes a value that this fade still changes.
    fn overlaps(
        &self,
        target: TimelineTarget,
        side: LinkSide,
        values: &LinkValues,
        is_netem: bool,
    ) -> bool {
        let share_side = self.side == side || self.side == LinkSide::Both || side == LinkSide::Both;
        let has_rate = (self.values.rate.is_some(), values.rate.is_some());
        let has_delay = (self.values.delay.is_some(), values.delay.is_some());
        let share_value = has_rate == (true, true)
            || has_delay == (true, true)
            || (self.values.loss.is_some() && values.loss.is_some())
            || is_netem && (has_rate.0 && has_delay.1 || has_delay.0 && has_rate.1);
        self.target == target && share_side && share_value
    }
}

#[derive(Clone, Copy)]
enum SetKey {
    Down,
    Up,
    Rate,
    Delay,
    Loss,
    Fade,
    Address,
}

const SETS: [(&str, SetKey); 7] = [
    ("down", SetKey::Down),
    ("up", SetKey::Up),
    ("rate", SetKey::Rate),
    ("delay", SetKey::Delay),
    ("loss", SetKey::Loss),
    ("fade", SetKey::Fade),
    ("address", SetKey::Address),
];

/// Phrase in the message about an event that is too late.
pub const AFTER_LAST_FLOW: &str = "after the last flow";

fn event(
    section: &mut Section<'_>,
    names: &NameTable,
    paths: &[Path],
    last_flow_end: Option<Duration>,
) -> Option<RawEvent> {
    let at = section.require("at", "at = \"3 s\"").and_then(|v| {
        let at = v.duration(MAX_RUN)?;
        if let Some(last_flow_end) = last_flow_end.filter(|&last_flow_end| at > last_flow_end) {
            let message = format!(
                "this is {AFTER_LAST_FLOW}, which ends at {}",
                duration_text(last_flow_end)
            );
            v.fail(message, "expected an earlier time");
        }
        Some(at)
    });
    let target = target(section, names);
    let set_key = section.require("set", "set = \"down\"");
    let set_key = set_key.and_then(|v| {
        let set_key = v.word(&SETS);
        section.set_label(format!("an event that sets {}", quote(v.as_str().unwrap_or(""))));
        set_key
    });
    let Some(set_key) = set_key else {
        // Without a valid action, the other keys cannot be judged.
        for key in ["mode", "host", "rate", "delay", "loss", "over", "direction"] {
            section.take(key);
        }
        return None;
    };
    let action = event_action(section, set_key, target, names, paths);
    Some(RawEvent { at: at?, span: section.span(), target: target?, action: action? })
}

fn target(section: &mut Section<'_>, names: &NameTable) -> Option<TimelineTarget> {
    match (section.take("path"), section.take("bottleneck")) {
        (Some(path), None) => names.path(&path).map(TimelineTarget::Path),
        (None, Some(bottleneck)) => names.bottleneck(&bottleneck).map(TimelineTarget::Bottleneck),
        (Some(_), Some(bottleneck)) => {
            bottleneck.fail("an event is about a path or a bottleneck, not both", "remove one");
            None
        }
        (None, None) => {
            let expected = "add `path = \"…\"` or `bottleneck = \"…\"`";
            section.fail("the event does not say what changes", expected);
            None
        }
    }
}

fn event_action(
    section: &mut Section<'_>,
    set_key: SetKey,
    target: Option<TimelineTarget>,
    names: &NameTable,
    paths: &[Path],
) -> Option<EventAction> {
    match set_key {
        SetKey::Up => Some(EventAction::Now(TimelineChange::Up)),
        SetKey::Down => down_mode(section, target, names, paths)
            .map(|mode| EventAction::Now(TimelineChange::Down(mode))),
        SetKey::Address => {
            let host = interface_host(section, target, names, paths);
            if matches!(target, Some(TimelineTarget::Bottleneck(_))) {
                section.fail("a bottleneck has no address", "expected a path");
            }
            Some(EventAction::Now(TimelineChange::Address { host: host? }))
        }
        SetKey::Rate => {
            let rate = section.require("rate", "rate = \"5 Mbit/s\"").and_then(|v| v.rate());
            let side = link_side(section);
            Some(EventAction::Set(side?, LinkValues { rate: Some(rate?), ..LinkValues::default() }))
        }
        SetKey::Delay => {
            let value = section.require("delay", "delay = \"50 ms\"");
            let delay = value.and_then(|v| v.duration(MAX_DELAY));
            let side = link_side(section);
            Some(EventAction::Set(
                side?,
                LinkValues { delay: Some(delay?), ..LinkValues::default() },
            ))
        }
        SetKey::Loss => {
            let loss = section.require("loss", "loss = \"1 %\"").and_then(|v| loss(&v));
            let side = link_side(section);
            Some(EventAction::Set(side?, LinkValues { loss: Some(loss?), ..LinkValues::default() }))
        }
        SetKey::Fade => fade_values(section),
    }
}

fn fade_values(section: &mut Section<'_>) -> Option<EventAction> {
    let duration =
        section.require("over", "over = \"2 s\"").and_then(|v| v.positive_duration(MAX_DELAY));
    let (rate, delay, loss_value) =
        (section.take("rate"), section.take("delay"), section.take("loss"));
    if rate.is_none() && delay.is_none() && loss_value.is_none() {
        section.fail("the fade has no target", "add the `rate`, `delay` or `loss` at its end");
        return None;
    }
    let values = LinkValues {
        rate: rate.and_then(|v| v.rate()),
        delay: delay.and_then(|v| v.duration(MAX_DELAY)),
        loss: loss_value.and_then(|v| loss(&v)),
    };
    let side = link_side(section);
    Some(EventAction::Fade(side?, values, duration?))
}

fn link_side(section: &mut Section<'_>) -> Option<LinkSide> {
    let words = [("up", LinkSide::Up), ("down", LinkSide::Down), ("both", LinkSide::Both)];
    section.take("direction").map_or(Some(LinkSide::Both), |v| v.word(&words))
}

#[derive(Clone, Copy, PartialEq)]
enum DownKey {
    Silent,
    Carrier,
    Interface,
}

fn down_mode(
    section: &mut Section<'_>,
    target: Option<TimelineTarget>,
    names: &NameTable,
    paths: &[Path],
) -> Option<DownMode> {
    let words = [
        ("silent", DownKey::Silent),
        ("carrier", DownKey::Carrier),
        ("interface", DownKey::Interface),
    ];
    let value = section.take("mode");
    let mode = value.as_ref().map_or(Some(DownKey::Silent), |v| v.word(&words));
    if let (Some(value), Some(TimelineTarget::Bottleneck(_))) = (&value, target)
        && mode.is_some_and(|mode| mode != DownKey::Silent)
    {
        value.fail("a bottleneck has no interface of its own", "expected `silent`");
    }
    match mode {
        Some(DownKey::Silent) => Some(DownMode::Silent),
        Some(DownKey::Carrier) => Some(DownMode::Carrier),
        Some(DownKey::Interface) => {
            interface_host(section, target, names, paths).map(|host| DownMode::Interface { host })
        }
        None => {
            section.take("host");
            None
        }
    }
}

/// Parses the host of an interface; the path must end there.
fn interface_host(
    section: &mut Section<'_>,
    target: Option<TimelineTarget>,
    names: &NameTable,
    paths: &[Path],
) -> Option<usize> {
    let value = section.require("host", "host = \"client\"")?;
    let host = names.host(&value)?;
    if let Some(TimelineTarget::Path(path)) = target {
        let ends = paths.get(path).map_or(UNKNOWN_ENDS, |path| path.between);
        if ends != UNKNOWN_ENDS && !ends.contains(&host) {
            value.fail("the path does not end at this host", "expected one of its two ends");
        }
    }
    Some(host)
}
