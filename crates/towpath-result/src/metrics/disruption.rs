//! Timeline events that disrupt a flow, and the capacity of the network after them.

use std::time::Duration;

use towpath_net::config::{DirectionConfig, Loss, Shaper};
use towpath_net::{Instant, Rate};
use towpath_scenario::{
    DataDirection, DownMode, Flow, LinkSide, Scenario, TimelineChange, TimelineEvent,
    TimelineTarget, Transport,
};

use super::goodput::Framing;
use crate::format;

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
    let side_text = |side| match side {
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
        TimelineChange::Rate(link_side, rate) => format!("rate {rate}{}", side_text(*link_side)),
        TimelineChange::Delay(link_side, delay) => {
            format!("delay {}{}", format::time(delay.base), side_text(*link_side))
        }
        TimelineChange::Loss(link_side, Loss::None) => format!("loss 0 %{}", side_text(*link_side)),
        TimelineChange::Loss(link_side, Loss::Random(chance)) => {
            format!("loss {}{}", format::share(chance.as_f64()), side_text(*link_side))
        }
        TimelineChange::Loss(link_side, Loss::GilbertElliott { .. } | Loss::Burst { .. }) => {
            format!("loss in bursts{}", side_text(*link_side))
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
    let mut chains: Vec<EventChain<'_>> = Vec::new();
    for group in scenario.timeline.chunk_by(|a, b| a.at == b.at) {
        let disruptive: Vec<_> = group.iter().filter(|event| network.apply(event)).collect();
        let Some(at) = disruptive.first().map(|event| event.at) else { continue };
        let capacity_bps = network.capacity_bps();
        let open_chain = chains.last_mut().filter(|chain| at < chain.last_at + MERGE_WITHIN);
        let events = match open_chain {
            Some(chain) => {
                // The last step of a fade may come with the end of the path.
                let (path_downs, steps): (Vec<_>, Vec<_>) =
                    disruptive.into_iter().partition(|event| is_path_down(event));
                if !steps.is_empty() {
                    chain.last_at = at;
                    chain.events.extend(steps);
                }
                if path_downs.is_empty() {
                    chain.capacity_bps = capacity_bps;
                    continue;
                }
                path_downs
            }
            None => disruptive,
        };
        chains.push(EventChain { at, last_at: at, events, capacity_bps });
    }
    chains.into_iter().map(|chain| chain.finish(scenario)).collect()
}

/// Returns true if the path goes down, which is always a separate disruption, even at the end of a
/// fade.
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
        let mut last_events: Vec<&TimelineEvent> = Vec::new();
        for event in &self.events {
            last_events.retain(|earlier| earlier.target != event.target);
            last_events.push(event);
        }
        let is_fade = |event: &TimelineEvent| {
            let rate_steps = self.events.iter().filter(|step| step.target == event.target);
            matches!(event.change, TimelineChange::Rate(..))
                && rate_steps.count() > MAX_NON_FADE_STEPS
        };
        let texts = last_events.iter().map(|event| {
            let (target, change) = describe(scenario, event);
            match change.strip_prefix("rate ").filter(|_| is_fade(event)) {
                Some(rate) => format!("{target} fades to {rate}"),
                None => format!("{target} {change}"),
            }
        });
        let clause_of = |event: &TimelineEvent| {
            let text = event_clause(scenario, event);
            if is_fade(event) { text.replacen(" slowed to ", " faded to ", 1) } else { text }
        };
        let clauses: Vec<_> = last_events.iter().map(|event| clause_of(event)).collect();
        Disruption {
            at: Instant::ZERO + self.at,
            text: texts.collect::<Vec<_>>().join(", "),
            happened: clauses.join(" and "),
            capacity_bps: self.capacity_bps,
        }
    }
}

fn event_clause(scenario: &Scenario, event: &TimelineEvent) -> String {
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
    shaper_rate: Option<Rate>,
    /// Rate limit of netem, applied in addition to the shaper.
    netem_rate: Option<Rate>,
    overhead_bytes: u32,
}

impl LinkState {
    fn new(config: &DirectionConfig) -> Self {
        let shaper_rate = match &config.shaper {
            Shaper::Unlimited => None,
            Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
                Some(*rate)
            }
            Shaper::Trace(trace) => trace.mean_rate(),
        };
        let overhead_bytes = config.overhead_bytes;
        Self { up: true, shaper_rate, netem_rate: config.delay.rate, overhead_bytes }
    }

    fn rate(&self) -> Option<Rate> {
        self.shaper_rate.into_iter().chain(self.netem_rate).min()
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
                self.shaper_rate = Some(*rate);
                lower
            }
            TimelineChange::Delay(side, delay) if is_affected(*side) => {
                self.netem_rate = delay.rate;
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

    /// Applies an event; returns true if the event disrupts the flow.
    fn apply(&mut self, event: &TimelineEvent) -> bool {
        match event.target {
            TimelineTarget::Path(index) => {
                let is_usable = self.may_use(index);
                let flow_path = self.paths.get_mut(index).and_then(Option::as_mut);
                flow_path.is_some_and(|path| path.link.apply(&event.change, path.forward))
                    && is_usable
            }
            TimelineTarget::Bottleneck(index) => {
                let Some([first, second]) = self.bottlenecks.get_mut(index) else { return false };
                let is_disruptive =
                    [first.apply(&event.change, true), second.apply(&event.change, false)];
                let mut through = self.flow_paths().filter(|(path, _)| {
                    self.may_use(*path)
                        && self
                            .scenario
                            .paths
                            .get(*path)
                            .is_some_and(|p| p.through.contains(&index))
                });
                through.any(
                    |(_, flow_path)| {
                        if flow_path.forward { is_disruptive[0] } else { is_disruptive[1] }
                    },
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

    fn flow_paths(&self) -> impl Iterator<Item = (usize, FlowPath)> + '_ {
        self.paths.iter().enumerate().filter_map(|(index, flow_path)| Some((index, (*flow_path)?)))
    }

    fn bottleneck(&self, index: usize, forward: bool) -> Option<LinkState> {
        let [first, second] = self.bottlenecks.get(index)?;
        Some(if forward { *first } else { *second })
    }

    fn is_up(&self, path: usize, flow_path: FlowPath) -> bool {
        let through = self.scenario.paths.get(path).map_or(&[][..], |path| &path.through);
        let is_bottleneck_up =
            |index: &usize| self.bottleneck(*index, flow_path.forward).is_none_or(|b| b.up);
        flow_path.link.up && through.iter().all(is_bottleneck_up)
    }

    /// Returns the payload capacity available to the flow now; `None` when unlimited or when
    /// nothing is up.
    ///
    /// Backup paths count only when no other path is up. A single-path transport is compared with
    /// its own path, and with the other paths while its own is down: the cost of using a single
    /// path.
    fn capacity_bps(&self) -> Option<f64> {
        let mut usable: Vec<_> = self.flow_paths().filter(|(i, m)| self.is_up(*i, *m)).collect();
        let is_backup = |path: usize| self.scenario.paths.get(path).is_some_and(|p| p.backup);
        if usable.iter().any(|(path, _)| self.may_use(*path)) {
            usable.retain(|(path, _)| self.may_use(*path));
        }
        if usable.iter().any(|(path, _)| !is_backup(*path)) {
            usable.retain(|(path, _)| !is_backup(*path));
        }
        let mut capacities: Vec<_> = usable
            .iter()
            .map(|(path, m)| (*path, m.forward, self.payload_bps(*path, m.link)))
            .collect();
        for index in 0..self.bottlenecks.len() {
            self.share_bottleneck(index, &mut capacities);
        }
        let sum: f64 = capacities.iter().map(|(_, _, capacity)| capacity).sum();
        (sum > 0.0 && sum.is_finite()).then_some(sum)
    }

    /// Shares the capacity of a bottleneck among the paths through it.
    fn share_bottleneck(&self, bottleneck: usize, capacities: &mut [(usize, bool, f64)]) {
        for forward in [true, false] {
            let Some(link) = self.bottleneck(bottleneck, forward) else { continue };
            let crosses = |path: usize, direction: bool| {
                let path = self.scenario.paths.get(path);
                direction == forward && path.is_some_and(|p| p.through.contains(&bottleneck))
            };
            let (mut sum, mut limit) = (0.0, f64::INFINITY);
            for (path, is_forward, capacity) in
                capacities.iter_mut().filter(|(p, w, _)| crosses(*p, *w))
            {
                let payload_bps = self.payload_bps(*path, LinkState { up: *is_forward, ..link });
                *capacity = capacity.min(payload_bps);
                (sum, limit) = (sum + *capacity, limit.min(payload_bps));
            }
            if sum > limit {
                let through = capacities.iter_mut().filter(|(p, w, _)| crosses(*p, *w));
                through.for_each(|(_, _, capacity)| *capacity *= limit / sum);
            }
        }
    }

    fn payload_bps(&self, path: usize, link: LinkState) -> f64 {
        let framing = Framing {
            transport: self.transport,
            family: self.flow.family,
            mtu_bytes: self.scenario.paths.get(path).map_or(1_500, |path| path.mtu_bytes),
            overhead_bytes: link.overhead_bytes,
        };
        link.rate().map_or(f64::INFINITY, |rate| framing.payload_bps(rate))
    }
}
