//! Timeline events that disrupt a flow, and the capacity of the network after them.

use std::time::Duration;

use towpath_net::config::{DirectionConfig, Loss, Shaper};
use towpath_net::{Instant, Rate};

use super::goodput::Framing;
use crate::format;
use crate::scenario::{
    DataDirection, DownMode, Flow, LinkSide, Scenario, TimelineChange, TimelineEvent,
    TimelineTarget, Transport,
};

/// Events closer together than this count as one. A recovery between them could not be measured,
/// and the steps of a fade belong together.
const MERGE_WITHIN: Duration = Duration::from_secs(1);

/// Largest number of rate changes that are not yet called a fade.
const MAX_NON_FADE_STEPS: usize = 3;

/// Timeline event, or several in quick succession, that reduces the capacity of a flow or changes
/// an address.
#[derive(Debug, Clone, PartialEq)]
pub struct Disruption {
    /// Time of the first event.
    pub at: Instant,
    /// Description as on the timeline: `wifi down`.
    pub text: String,
    /// Description as a clause: `wifi went down`.
    pub happened: String,
    /// Payload capacity of the paths that are up afterwards; `None` when unlimited or when no path
    /// is up.
    pub capacity_bps: Option<f64>,
}

/// Returns target and change of an event as text, such as `wifi` and `rate 5 Mbit/s`.
pub fn describe(scenario: &Scenario, event: &TimelineEvent) -> (String, String) {
    let side = |side| match side {
        LinkSide::Both => "",
        LinkSide::Up => " (up)",
        LinkSide::Down => " (down)",
    };
    let text = match &event.change {
        TimelineChange::Down(DownMode::Silent) => "down".into(),
        TimelineChange::Down(DownMode::Carrier) => "down (carrier)".into(),
        TimelineChange::Down(DownMode::Interface { host }) => {
            format!("down (interface of {})", host_name(scenario, *host))
        }
        TimelineChange::Up => "up".into(),
        TimelineChange::Rate(of, rate) => format!("rate {rate}{}", side(*of)),
        TimelineChange::Delay(of, delay) => {
            format!("delay {}{}", format::time(delay.base), side(*of))
        }
        TimelineChange::Loss(of, Loss::None) => format!("loss 0 %{}", side(*of)),
        TimelineChange::Loss(of, Loss::Random(chance)) => {
            format!("loss {}{}", format::share(chance.as_f64()), side(*of))
        }
        TimelineChange::Loss(of, Loss::GilbertElliott { .. } | Loss::Burst { .. }) => {
            format!("loss in bursts{}", side(*of))
        }
        TimelineChange::Address { host } => {
            format!("new address of {}", host_name(scenario, *host))
        }
    };
    (target_name(scenario, event.target), text)
}

/// Returns the events that disrupt `flow` in `direction`, in order of time.
///
/// Disruptive events are: going down, a lower rate, a new address. A single-path transport is
/// disrupted only by events on its own path.
pub fn disruptions(
    scenario: &Scenario,
    transport: Transport,
    flow: &Flow,
    direction: DataDirection,
) -> Vec<Disruption> {
    let mut network = PathCapacity::new(scenario, transport, flow, direction);
    let mut found: Vec<EventChain<'_>> = Vec::new();
    for group in scenario.timeline.chunk_by(|a, b| a.at == b.at) {
        let hits: Vec<_> = group.iter().filter(|event| network.apply(event)).collect();
        let Some(at) = hits.first().map(|event| event.at) else { continue };
        let capacity_bps = network.capacity_bps();
        let near = found.last_mut().filter(|chain| at < chain.last_at + MERGE_WITHIN);
        let events = match near {
            Some(chain) => {
                // The last step of a fade may come with the end of the path.
                let (ends, steps): (Vec<_>, Vec<_>) =
                    hits.into_iter().partition(|event| is_path_down(event));
                if !steps.is_empty() {
                    chain.last_at = at;
                    chain.events.extend(steps);
                }
                if ends.is_empty() {
                    chain.capacity_bps = capacity_bps;
                    continue;
                }
                ends
            }
            None => hits,
        };
        found.push(EventChain { at, last_at: at, events, capacity_bps });
    }
    found.into_iter().map(|chain| chain.finish(scenario)).collect()
}

/// Returns true for the end of a path, which is always a disruption of its own, even at the end of
/// a fade.
fn is_path_down(event: &TimelineEvent) -> bool {
    matches!(event.change, TimelineChange::Down(_))
}

/// Chain of disruptive events, each less than [`MERGE_WITHIN`] after the one before.
struct EventChain<'a> {
    at: Duration,
    last_at: Duration,
    events: Vec<&'a TimelineEvent>,
    capacity_bps: Option<f64>,
}

impl EventChain<'_> {
    /// Converts the chain to a disruption, named after the last event on each target. Many rate
    /// steps are a fade to the last rate.
    fn finish(self, scenario: &Scenario) -> Disruption {
        let mut named: Vec<&TimelineEvent> = Vec::new();
        for event in &self.events {
            named.retain(|earlier| earlier.target != event.target);
            named.push(event);
        }
        let fades = |event: &TimelineEvent| {
            let own = self.events.iter().filter(|step| step.target == event.target);
            matches!(event.change, TimelineChange::Rate(..)) && own.count() > MAX_NON_FADE_STEPS
        };
        let texts = named.iter().map(|event| {
            let (target, change) = describe(scenario, event);
            match change.strip_prefix("rate ").filter(|_| fades(event)) {
                Some(rate) => format!("{target} fades to {rate}"),
                None => format!("{target} {change}"),
            }
        });
        let clause = |event: &TimelineEvent| {
            let text = clause(scenario, event);
            if fades(event) { text.replacen(" slowed to ", " faded to ", 1) } else { text }
        };
        let clauses: Vec<_> = named.iter().map(|event| clause(event)).collect();
        Disruption {
            at: Instant::ZERO + self.at,
            text: texts.collect::<Vec<_>>().join(", "),
            happened: clauses.join(" and "),
            capacity_bps: self.capacity_bps,
        }
    }
}

fn clause(scenario: &Scenario, event: &TimelineEvent) -> String {
    let target = target_name(scenario, event.target);
    match &event.change {
        TimelineChange::Down(_) => format!("{target} went down"),
        TimelineChange::Rate(_, rate) => format!("{target} slowed to {rate}"),
        TimelineChange::Address { host } => {
            format!("the address of {} on {target} changed", host_name(scenario, *host))
        }
        TimelineChange::Up | TimelineChange::Delay(..) | TimelineChange::Loss(..) => {
            format!("{target} changed")
        }
    }
}

fn target_name(scenario: &Scenario, target: TimelineTarget) -> String {
    let name = match target {
        TimelineTarget::Path(index) => scenario.paths.get(index).map(|path| &path.name),
        TimelineTarget::Bottleneck(index) => scenario.bottlenecks.get(index).map(|item| &item.name),
    };
    name.cloned().unwrap_or_default()
}

fn host_name(scenario: &Scenario, index: usize) -> String {
    scenario.hosts.get(index).map(|host| host.name.clone()).unwrap_or_default()
}

/// Links that a flow can use, in the direction of its data, as the timeline changes them.
struct PathCapacity<'a> {
    scenario: &'a Scenario,
    flow: &'a Flow,
    transport: Transport,
    /// Paths, parallel to the scenario's; `None` for paths between other hosts.
    paths: Vec<Option<FlowPath>>,
    /// Bottlenecks, parallel to the scenario's, from their first side and from their second.
    bottlenecks: Vec<[LinkState; 2]>,
}

/// Path between the flow's hosts.
#[derive(Debug, Clone, Copy)]
struct FlowPath {
    /// True if the data goes from the path's first host to its second.
    forward: bool,
    link: LinkState,
}

#[derive(Debug, Clone, Copy)]
struct LinkState {
    up: bool,
    shaper: Option<Rate>,
    /// Rate of netem itself, a second limit in the delay line.
    line: Option<Rate>,
    overhead_bytes: u32,
}

impl LinkState {
    fn new(config: &DirectionConfig) -> Self {
        let shaper = match &config.shaper {
            Shaper::Unlimited => None,
            Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
                Some(*rate)
            }
            Shaper::Trace(trace) => trace.mean_rate(),
        };
        let overhead_bytes = config.overhead_bytes;
        Self { up: true, shaper, line: config.delay.rate, overhead_bytes }
    }

    fn rate(&self) -> Option<Rate> {
        self.shaper.into_iter().chain(self.line).min()
    }

    /// Applies a change to the link that data in direction `forward` crosses. Returns true if the
    /// change is disruptive.
    fn apply(&mut self, change: &TimelineChange, forward: bool) -> bool {
        let is_affected = |side: LinkSide| match side {
            LinkSide::Both => true,
            LinkSide::Up => forward,
            LinkSide::Down => !forward,
        };
        match change {
            TimelineChange::Down(_) => std::mem::replace(&mut self.up, false),
            TimelineChange::Up => {
                self.up = true;
                false
            }
            TimelineChange::Rate(side, rate) if is_affected(*side) => {
                let lower = self.rate().is_none_or(|old| *rate < old);
                self.shaper = Some(*rate);
                lower
            }
            TimelineChange::Delay(side, delay) if is_affected(*side) => {
                self.line = delay.rate;
                false
            }
            TimelineChange::Address { .. } => true,
            TimelineChange::Rate(..) | TimelineChange::Delay(..) | TimelineChange::Loss(..) => {
                false
            }
        }
    }
}

impl<'a> PathCapacity<'a> {
    fn new(
        scenario: &'a Scenario,
        transport: Transport,
        flow: &'a Flow,
        direction: DataDirection,
    ) -> Self {
        let hosts = match direction {
            DataDirection::Up | DataDirection::Both => [flow.from, flow.to],
            DataDirection::Down => [flow.to, flow.from],
        };
        let paths = scenario.paths.iter().map(|path| {
            let forward = path.between == hosts;
            let backward = path.between == [hosts[1], hosts[0]];
            let config = if forward { &path.up } else { &path.down };
            (forward || backward).then(|| FlowPath { forward, link: LinkState::new(config) })
        });
        let bottlenecks = scenario
            .bottlenecks
            .iter()
            .map(|item| [LinkState::new(&item.up), LinkState::new(&item.down)]);
        let (paths, bottlenecks) = (paths.collect(), bottlenecks.collect());
        Self { scenario, flow, transport, paths, bottlenecks }
    }

    /// Applies an event; returns true if it disrupts the flow.
    fn apply(&mut self, event: &TimelineEvent) -> bool {
        match event.target {
            TimelineTarget::Path(index) => {
                let own = self.may_use(index);
                let member = self.paths.get_mut(index).and_then(Option::as_mut);
                member.is_some_and(|path| path.link.apply(&event.change, path.forward)) && own
            }
            TimelineTarget::Bottleneck(index) => {
                let Some([first, second]) = self.bottlenecks.get_mut(index) else { return false };
                let captured_rate =
                    [first.apply(&event.change, true), second.apply(&event.change, false)];
                let mut through = self.members().filter(|(path, _)| {
                    self.may_use(*path)
                        && self
                            .scenario
                            .paths
                            .get(*path)
                            .is_some_and(|p| p.through.contains(&index))
                });
                through.any(
                    |(_, member)| if member.forward { captured_rate[0] } else { captured_rate[1] },
                )
            }
        }
    }

    fn may_use(&self, path: usize) -> bool {
        match self.transport {
            Transport::Tcp | Transport::Quic => path == self.flow.via,
            Transport::Mptcp | Transport::Mpquic => true,
        }
    }

    fn members(&self) -> impl Iterator<Item = (usize, FlowPath)> + '_ {
        self.paths.iter().enumerate().filter_map(|(index, member)| Some((index, (*member)?)))
    }

    fn bottleneck(&self, index: usize, forward: bool) -> Option<LinkState> {
        let [first, second] = self.bottlenecks.get(index)?;
        Some(if forward { *first } else { *second })
    }

    fn is_up(&self, path: usize, member: FlowPath) -> bool {
        let through = self.scenario.paths.get(path).map_or(&[][..], |path| &path.through);
        let passes = |index: &usize| self.bottleneck(*index, member.forward).is_none_or(|b| b.up);
        member.link.up && through.iter().all(passes)
    }

    /// Returns the payload capacity available to the flow now; `None` when unlimited or when
    /// nothing is up.
    ///
    /// Backup paths count only when no other path is up. A single-path transport is compared with
    /// its own path, and with the other paths while its own is down: the cost of using a single
    /// path.
    fn capacity_bps(&self) -> Option<f64> {
        let mut usable: Vec<_> = self.members().filter(|(i, m)| self.is_up(*i, *m)).collect();
        let backup = |path: usize| self.scenario.paths.get(path).is_some_and(|p| p.backup);
        if usable.iter().any(|(path, _)| self.may_use(*path)) {
            usable.retain(|(path, _)| self.may_use(*path));
        }
        if usable.iter().any(|(path, _)| !backup(*path)) {
            usable.retain(|(path, _)| !backup(*path));
        }
        let mut amounts: Vec<_> = usable
            .iter()
            .map(|(path, m)| (*path, m.forward, self.payload(*path, m.link)))
            .collect();
        for index in 0..self.bottlenecks.len() {
            self.share_bottleneck(index, &mut amounts);
        }
        let sum: f64 = amounts.iter().map(|(_, _, amount)| amount).sum();
        (sum > 0.0 && sum.is_finite()).then_some(sum)
    }

    /// Shares the capacity of a bottleneck among the paths through it.
    fn share_bottleneck(&self, bottleneck: usize, amounts: &mut [(usize, bool, f64)]) {
        for forward in [true, false] {
            let Some(server) = self.bottleneck(bottleneck, forward) else { continue };
            let passes = |path: usize, direction: bool| {
                let path = self.scenario.paths.get(path);
                direction == forward && path.is_some_and(|p| p.through.contains(&bottleneck))
            };
            let (mut sum, mut limit) = (0.0, f64::INFINITY);
            for (path, way, amount) in amounts.iter_mut().filter(|(p, w, _)| passes(*p, *w)) {
                let carries = self.payload(*path, LinkState { up: *way, ..server });
                *amount = amount.min(carries);
                (sum, limit) = (sum + *amount, limit.min(carries));
            }
            if sum > limit {
                let through = amounts.iter_mut().filter(|(p, w, _)| passes(*p, *w));
                through.for_each(|(_, _, amount)| *amount *= limit / sum);
            }
        }
    }

    fn payload(&self, path: usize, server: LinkState) -> f64 {
        let framing = Framing {
            transport: self.transport,
            family: self.flow.family,
            mtu_bytes: self.scenario.paths.get(path).map_or(1_500, |path| path.mtu_bytes),
            overhead_bytes: server.overhead_bytes,
        };
        server.rate().map_or(f64::INFINITY, |rate| framing.payload_bps(rate))
    }
}
