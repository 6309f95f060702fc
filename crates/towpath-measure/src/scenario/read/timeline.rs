//! Parses `[[timeline]]` and expands fades.

use std::ops::Range;
use std::time::Duration;

use super::fade::{LinkDirectionState, LinkValues, fade, set, step_count};
use super::link::loss;
use super::{MAX_DELAY, MAX_RUN, NameTable, ReadContext, UNKNOWN_ENDS};
use crate::scenario::keys::EVENT;
use crate::scenario::model::{
    Bottleneck, DownMode, LinkSide, Path, TimelineChange, TimelineEvent, TimelineTarget,
};
use crate::scenario::problem::{SpannedProblem, quote};
use crate::scenario::section::{Section, Value};
use crate::scenario::units::duration_text;

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
    end: Option<Duration>,
    context: &ReadContext<'_>,
) -> Vec<TimelineEvent> {
    let list = super::sections(value, &EVENT, "the event", "expected `[[timeline]]`");
    let read = |mut section: Section<'_>| {
        let event = event(&mut section, names, links.paths, end);
        section.finish();
        event
    };
    let mut events: Vec<RawEvent> = list.into_iter().filter_map(read).collect();
    events.sort_by_key(|event| event.at);
    let steps: u128 = events.iter().map(RawEvent::step_count).sum();
    if steps > MAX_EVENTS {
        value.fail(
            format!("the timeline has {steps} steps, fades included"),
            "expected at most 100000; a fade takes 20 steps a second",
        );
        return Vec::new();
    }
    let mut replay = TimelineExpander { links, context, states: Vec::new(), fades: Vec::new() };
    let mut out: Vec<TimelineEvent> =
        events.into_iter().flat_map(|event| replay.expand(event)).collect();
    out.sort_by_key(|event| event.at);
    out
}

impl RawEvent {
    fn step_count(&self) -> u128 {
        match self.action {
            EventAction::Now(_) | EventAction::Set(..) => 1,
            EventAction::Fade(_, _, over) => step_count(over),
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
    from: Duration,
    until: Duration,
}

impl TimelineExpander<'_> {
    fn expand(&mut self, event: RawEvent) -> Vec<TimelineEvent> {
        let RawEvent { at, span, target, action: what } = event;
        let make = |(after, change)| TimelineEvent { at: at + after, target, change };
        let (side, values, over) = match what {
            EventAction::Now(change) => return vec![make((Duration::ZERO, change))],
            EventAction::Set(side, values) => (side, values, None),
            EventAction::Fade(side, values, over) => (side, values, Some(over)),
        };
        let Some(mut state) = self.state(target) else { return Vec::new() };
        let netem = state.iter().any(LinkDirectionState::is_netem);
        self.fades.retain(|active| active.until > at);
        if let Some(running) = self.fades.iter().find(|r| r.overlaps(target, side, &values, netem))
        {
            let (from, until) = (duration_text(running.from), duration_text(running.until));
            let message = format!("the fade from {from} to {until} still changes this");
            self.context.problems.push(SpannedProblem::new(span, message, "expected a later time"));
            return Vec::new();
        }
        let changes = match over {
            None => {
                set(&mut state, side, values).into_iter().map(|c| (Duration::ZERO, c)).collect()
            }
            Some(over) => match fade(&mut state, side, values, over) {
                Ok(changes) => {
                    let until = at + over;
                    self.fades.push(ActiveFade { target, side, values, from: at, until });
                    changes
                }
                Err(why) => {
                    self.context.problems.push(SpannedProblem::new(span, "this cannot fade", why));
                    return Vec::new();
                }
            },
        };
        self.store(target, state);
        changes.into_iter().map(make).collect()
    }

    fn state(&self, target: TimelineTarget) -> Option<[LinkDirectionState; 2]> {
        let changed = self.states.iter().find(|(other, _)| *other == target);
        changed.map(|&(_, state)| state).or_else(|| self.links.start(target))
    }

    fn store(&mut self, target: TimelineTarget, state: [LinkDirectionState; 2]) {
        self.states.retain(|(other, _)| *other != target);
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
        netem: bool,
    ) -> bool {
        let sides = self.side == side || self.side == LinkSide::Both || side == LinkSide::Both;
        let rate = (self.values.rate.is_some(), values.rate.is_some());
        let delay = (self.values.delay.is_some(), values.delay.is_some());
        let same = rate == (true, true)
            || delay == (true, true)
            || (self.values.loss.is_some() && values.loss.is_some())
            || netem && (rate.0 && delay.1 || delay.0 && rate.1);
        self.target == target && sides && same
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
    end: Option<Duration>,
) -> Option<RawEvent> {
    let at = section.require("at", "at = \"3 s\"").and_then(|v| {
        let at = v.duration(MAX_RUN)?;
        if let Some(end) = end.filter(|&end| at > end) {
            let message =
                format!("this is {AFTER_LAST_FLOW}, which ends at {}", duration_text(end));
            v.fail(message, "expected an earlier time");
        }
        Some(at)
    });
    let target = target(section, names);
    let set = section.require("set", "set = \"down\"");
    let set = set.and_then(|v| {
        let set = v.word(&SETS);
        section.set_label(format!("an event that sets {}", quote(v.as_str().unwrap_or(""))));
        set
    });
    let Some(set) = set else {
        // Without a valid action, the other keys cannot be judged.
        for key in ["mode", "host", "rate", "delay", "loss", "over", "direction"] {
            section.take(key);
        }
        return None;
    };
    let what = event_action(section, set, target, names, paths);
    Some(RawEvent { at: at?, span: section.span(), target: target?, action: what? })
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
    set: SetKey,
    target: Option<TimelineTarget>,
    names: &NameTable,
    paths: &[Path],
) -> Option<EventAction> {
    match set {
        SetKey::Up => Some(EventAction::Now(TimelineChange::Up)),
        SetKey::Down => down(section, target, names, paths)
            .map(|how| EventAction::Now(TimelineChange::Down(how))),
        SetKey::Address => {
            let host = host(section, target, names, paths);
            if matches!(target, Some(TimelineTarget::Bottleneck(_))) {
                section.fail("a bottleneck has no address", "expected a path");
            }
            Some(EventAction::Now(TimelineChange::Address { host: host? }))
        }
        SetKey::Rate => {
            let rate = section.require("rate", "rate = \"5 Mbit/s\"").and_then(|v| v.rate());
            let side = side(section);
            Some(EventAction::Set(side?, LinkValues { rate: Some(rate?), ..LinkValues::default() }))
        }
        SetKey::Delay => {
            let value = section.require("delay", "delay = \"50 ms\"");
            let delay = value.and_then(|v| v.duration(MAX_DELAY));
            let side = side(section);
            Some(EventAction::Set(
                side?,
                LinkValues { delay: Some(delay?), ..LinkValues::default() },
            ))
        }
        SetKey::Loss => {
            let loss = section.require("loss", "loss = \"1 %\"").and_then(|v| loss(&v));
            let side = side(section);
            Some(EventAction::Set(side?, LinkValues { loss: Some(loss?), ..LinkValues::default() }))
        }
        SetKey::Fade => fade_values(section),
    }
}

fn fade_values(section: &mut Section<'_>) -> Option<EventAction> {
    let over =
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
    let side = side(section);
    Some(EventAction::Fade(side?, values, over?))
}

fn side(section: &mut Section<'_>) -> Option<LinkSide> {
    let words = [("up", LinkSide::Up), ("down", LinkSide::Down), ("both", LinkSide::Both)];
    section.take("direction").map_or(Some(LinkSide::Both), |v| v.word(&words))
}

#[derive(Clone, Copy, PartialEq)]
enum DownKey {
    Silent,
    Carrier,
    Interface,
}

fn down(
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
    let how = value.as_ref().map_or(Some(DownKey::Silent), |v| v.word(&words));
    if let (Some(value), Some(TimelineTarget::Bottleneck(_))) = (&value, target)
        && how.is_some_and(|how| how != DownKey::Silent)
    {
        value.fail("a bottleneck has no interface of its own", "expected `silent`");
    }
    match how {
        Some(DownKey::Silent) => Some(DownMode::Silent),
        Some(DownKey::Carrier) => Some(DownMode::Carrier),
        Some(DownKey::Interface) => {
            host(section, target, names, paths).map(|host| DownMode::Interface { host })
        }
        None => {
            section.take("host");
            None
        }
    }
}

/// Parses the host of an interface; the path must end there.
fn host(
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
