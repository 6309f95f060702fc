//! Summary of a run, computed from the metrics of its flows, subflows and paths.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_net::Instant;
use towpath_scenario::flow_plan::{FlowGoal, request_directions};
use towpath_scenario::{DataDirection, MessageExchange, Pattern, Scenario, Transport};

use super::disruption::{Disruption, disruptions};
use super::goodput::bits_per_second;
use super::recovery::recovery;
use super::stall::stall;
use super::verdict::verdict;
use super::{DeliveryLog, latency, messages, paths, warnings};
use crate::expect;
use crate::format;
use crate::{
    AccountSummary, Counter, CpuTime, DatagramStats, EmulatorTiming, ExpectationResult,
    FlowSummary, Interface, Message, MessageStats, MultipathUse, PathStats, Probe, StackStats,
    Stall, SubflowSummary, Summary, Warning,
};

/// Last part of a timed flow, in which it must still deliver data.
const FINAL_SPAN: Duration = Duration::from_secs(1);
/// Tolerance for an early end; a run that ends earlier was interrupted.
const END_SLACK: Duration = Duration::from_millis(100);

/// Input of the runner for one flow in one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowInput {
    /// Number of the flow in the scenario.
    pub flow: u32,
    /// Data direction: `up` or `down`.
    pub direction: DataDirection,
    /// Arrivals at the receiver, all streams merged.
    pub delivery: DeliveryLog,
    /// Time from the start of the flow until its last connection was open; `None` if one never
    /// opened.
    pub connect: Option<Duration>,
    /// Error that the runner met, if any.
    pub failure: Option<String>,
    /// Congestion control read back from the sender's subflows.
    pub congestion_control: Vec<String>,
    /// Retransmitted packets of all subflows.
    pub retransmissions: u64,
    /// Connection-level metrics, where the stack reports them.
    pub stack: Option<StackStats>,
    /// Messages of the flow, in both directions.
    pub messages: Vec<Message>,
}

/// Flow with its metrics, and the context needed for sentences.
#[derive(Debug)]
pub(super) struct MeasuredFlow {
    pub(super) stats: FlowSummary,
    pub(super) goal: FlowGoal,
    pub(super) last_arrival: Option<Instant>,
    pub(super) end: Instant,
    /// Events of the timeline that disrupted the flow, in order of time.
    pub(super) disruptions: Vec<Disruption>,
}

/// Collects the input of a runner and computes the [`Summary`].
#[derive(Debug)]
pub struct Summarizer<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) transport: Transport,
    pub(super) flows: Vec<MeasuredFlow>,
    pub(super) subflows: Vec<SubflowSummary>,
    /// Results of `udping` flows, one entry for each path.
    pub(super) udping_paths: Vec<PathStats>,
    pub(super) multipath: MultipathUse,
    cpu: Option<CpuTime>,
    account: Option<Box<AccountSummary>>,
    pub(super) emulator_timing: Option<EmulatorTiming>,
    pub(super) counters: Vec<Counter>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) warnings: Vec<Warning>,
}

impl<'a> Summarizer<'a> {
    /// Creates a summarizer for one run of `scenario` over `transport`.
    pub fn new(scenario: &'a Scenario, transport: Transport) -> Self {
        let requested = match transport {
            Transport::Mptcp | Transport::Mpquic => true,
            Transport::Tcp | Transport::Quic => false,
        };
        Self {
            scenario,
            transport,
            flows: Vec::new(),
            subflows: Vec::new(),
            udping_paths: Vec::new(),
            multipath: MultipathUse { requested, ..MultipathUse::default() },
            cpu: None,
            account: None,
            emulator_timing: None,
            counters: Vec::new(),
            interfaces: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds a flow in one direction.
    #[must_use]
    pub fn flow(mut self, input: FlowInput) -> Self {
        let flow = self.measure(input);
        self.flows.push(flow);
        self
    }

    /// Adds the totals of subflows, from the receiver's side; their shares are computed here.
    #[must_use]
    pub fn subflows(mut self, subflows: impl IntoIterator<Item = SubflowSummary>) -> Self {
        self.subflows.extend(subflows);
        self
    }

    /// Adds the results of datagrams sent over single paths.
    #[must_use]
    pub fn probes(mut self, probes: &[Probe]) -> Self {
        for (number, flow) in (0_u32..).zip(&self.scenario.flows) {
            if let Pattern::Udping(udping) = &flow.pattern {
                self.udping_paths.extend(paths::all_path_stats(probes, number, udping));
                // The pattern `latency` makes two flows: requests, and as the next one `udping`.
                let sends_requests =
                    |flow: &&mut MeasuredFlow| flow.stats.flow.checked_add(1) == Some(number);
                let request_flow = self.flows.iter_mut().find(sends_requests);
                if let Some(messages) = request_flow.and_then(|flow| flow.stats.messages.as_mut()) {
                    latency::add_paths(&mut messages.phases, probes, number);
                }
            }
        }
        self
    }

    /// Adds the results of datagrams that a flow sent at a constant rate.
    pub fn add_datagrams(&mut self, flow: u32, direction: DataDirection, stats: DatagramStats) {
        let is_flow = |measured: &&mut MeasuredFlow| {
            (measured.stats.flow, measured.stats.direction) == (flow, direction)
        };
        if let Some(measured) = self.flows.iter_mut().find(is_flow) {
            measured.stats.datagrams = Some(stats);
        }
    }

    /// Sets the evidence that several paths were used. If it names no used paths, they are taken
    /// from the subflows.
    #[must_use]
    pub fn multipath(mut self, multipath: MultipathUse) -> Self {
        self.multipath = multipath;
        self
    }

    /// Sets the processor time of both ends.
    #[must_use]
    pub fn cpu(mut self, cpu: Option<CpuTime>) -> Self {
        self.cpu = cpu;
        self
    }

    /// Sets the capacity account: the use of each byte that the paths could have carried.
    #[must_use]
    pub fn account(mut self, account: Option<AccountSummary>) -> Self {
        self.account = account.map(Box::new);
        self
    }

    /// Sets the timing accuracy of the emulator.
    #[must_use]
    pub fn emulator_timing(mut self, noise: &EmulatorTiming) -> Self {
        self.emulator_timing = Some(noise.clone());
        self
    }

    /// Adds kernel counters that changed.
    #[must_use]
    pub fn counters(mut self, counters: &[Counter]) -> Self {
        self.counters.extend_from_slice(counters);
        self
    }

    /// Adds the totals of the hosts' interfaces.
    #[must_use]
    pub fn interfaces(mut self, interfaces: &[Interface]) -> Self {
        self.interfaces.extend_from_slice(interfaces);
        self
    }

    /// Adds a warning of the runner; the warnings computed here follow it.
    #[must_use]
    pub fn warning(mut self, warning: Warning) -> Self {
        self.warnings.push(warning);
        self
    }

    /// Computes the summary. An expectation that could not be measured fails the run, like one that
    /// was missed.
    pub fn finish(mut self) -> Summary {
        self.compute_shares();
        let flows: Vec<_> = self.flows.iter().map(|flow| flow.stats.clone()).collect();
        let expectations = expect::evaluate(
            &self.scenario.expect,
            self.transport,
            &expect::MetricInputs {
                flows: &flows,
                subflows: &self.subflows,
                paths: &self.udping_paths,
                paths_used: &self.multipath.paths_used,
                cpu: self.cpu,
            },
        );
        let is_met = |checked: &ExpectationResult| checked.passed == Some(true);
        let ok = !(flows.is_empty() && self.udping_paths.is_empty())
            && flows.iter().all(|flow| flow.completed)
            && expectations.iter().all(is_met);
        let verdict = verdict(&self, &expectations);
        let new_warnings = warnings::find(&self);
        let Self { subflows, udping_paths, multipath, cpu, account, mut warnings, .. } = self;
        warnings.extend(new_warnings);
        Summary {
            ok,
            verdict,
            flows,
            subflows,
            paths: udping_paths,
            multipath,
            cpu,
            account,
            warnings,
            expectations,
        }
    }

    fn measure(&self, input: FlowInput) -> MeasuredFlow {
        let FlowInput { flow, direction, delivery, connect, .. } = input;
        let scenario_flow = self.scenario.flows.get(flow as usize);
        let goal =
            scenario_flow.map_or(FlowGoal::Command(Duration::MAX), |flow| (&flow.pattern).into());
        let disruptions = scenario_flow.map_or_else(Vec::new, |flow| {
            disruptions(self.scenario, flow.transport_in(self.transport), flow, direction)
        });
        let end = end_of(goal, &delivery);
        let messages = scenario_flow
            .filter(|flow| !request_directions(&flow.pattern).is_empty())
            .map(|flow| {
                let messages = &input.messages;
                let mut stats = messages::message_stats(messages, direction, &flow.pattern, end)
                    .unwrap_or_default();
                if let Pattern::Exchange(MessageExchange { phases: Some(load_phases), .. }) =
                    &flow.pattern
                    && direction == DataDirection::Up
                {
                    let times = (Instant::ZERO + flow.start, end);
                    stats.phases = latency::phases(load_phases, messages, times);
                }
                stats
            });
        let failure = match &messages {
            Some(stats) => unanswered(stats, input.failure),
            None => failure(goal, &delivery, end, input.failure),
        };
        let bytes = delivery.total_bytes();
        let duration = end.saturating_since(delivery.start());
        let period_ends = disruptions.iter().skip(1).map(|next| next.at.min(end)).chain([end]);
        let recoveries = disruptions.iter().zip(period_ends);
        // Silence between messages is normal. Their delays show the effect of an event.
        let is_transfer = messages.is_none();
        let stats = FlowSummary {
            flow,
            direction,
            bytes,
            duration_ns: duration.as_nanos() as u64,
            goodput_bps: bits_per_second(bytes, duration),
            completed: failure.is_none(),
            failure,
            connect_ns: connect.map(|connect| connect.as_nanos() as u64),
            stall: if is_transfer { stall(&delivery, end) } else { Stall::default() },
            recoveries: recoveries
                .filter(|_| is_transfer)
                .filter_map(|(d, until)| recovery(&delivery, d, until))
                .collect(),
            congestion_control: input.congestion_control,
            retransmissions: input.retransmissions,
            stack: input.stack,
            messages,
            datagrams: None,
        };
        MeasuredFlow { stats, goal, last_arrival: delivery.last(), end, disruptions }
    }

    /// Computes each subflow's share of its direction, and the paths used.
    fn compute_shares(&mut self) {
        for direction in [DataDirection::Up, DataDirection::Down] {
            let is_in_direction = |subflow: &&mut SubflowSummary| subflow.direction == direction;
            let bytes = self.subflows.iter_mut().filter(is_in_direction).map(|s| s.bytes);
            let total = bytes.fold(0, u64::saturating_add);
            for subflow in self.subflows.iter_mut().filter(is_in_direction) {
                subflow.share = if total == 0 { 0.0 } else { subflow.bytes as f64 / total as f64 };
            }
        }
        let subflows = &self.subflows;
        let paths = &self.scenario.paths;
        let active_paths = |is_relevant: &dyn Fn(&SubflowSummary) -> bool| -> Vec<String> {
            let active = subflows.iter().filter(|s| s.bytes > 0 && is_relevant(s));
            let used: BTreeSet<_> = active.map(|subflow| subflow.path.as_str()).collect();
            let names = paths.iter().map(|path| &path.name);
            names.filter(|name| used.contains(name.as_str())).cloned().collect()
        };
        if self.multipath.paths_used.is_empty() {
            self.multipath.paths_used = active_paths(&|_| true);
        }
        for flow in self.multipath.flows.iter_mut().filter(|flow| flow.paths_used.is_empty()) {
            flow.paths_used = active_paths(&|subflow| subflow.flow == flow.flow);
        }
    }
}

/// Returns the end of a flow, as defined in `docs/reference/metrics.md`.
fn end_of(goal: FlowGoal, log: &DeliveryLog) -> Instant {
    let last_arrival = log.last().unwrap_or(log.start());
    let planned_end = log.start() + goal.limit();
    match goal {
        FlowGoal::Sized { bytes, limit: _ } if log.total_bytes() >= bytes => last_arrival,
        FlowGoal::Command(_) | FlowGoal::Probes(_) => {
            log.eof().unwrap_or(log.watched_until()).max(last_arrival)
        }
        FlowGoal::Messages(_) if log.eof().is_some() => last_arrival,
        FlowGoal::Messages(_) => log.watched_until().max(last_arrival),
        // Nothing can arrive after the end of data, so no further listening is needed.
        FlowGoal::Sized { .. } | FlowGoal::Timed(_) if log.eof().is_some() => {
            planned_end.max(last_arrival)
        }
        FlowGoal::Sized { .. } | FlowGoal::Timed(_) | FlowGoal::ConstantRate(_) => {
            planned_end.min(log.watched_until()).max(last_arrival)
        }
    }
}

/// Returns the reason why messages did not complete; `None` when every request got a reply.
fn unanswered(stats: &MessageStats, runner_failure: Option<String>) -> Option<String> {
    let (missing, count) = (stats.unanswered(), stats.count);
    let unanswered_text = || {
        let verb = if missing == 1 { "was" } else { "were" };
        format!("{missing} of {} {verb} not answered", format::count(count, "request"))
    };
    runner_failure.or_else(|| (missing > 0).then(unanswered_text))
}

/// Returns the reason why a flow did not complete; `None` when it did.
fn failure(
    goal: FlowGoal,
    log: &DeliveryLog,
    end: Instant,
    runner_failure: Option<String>,
) -> Option<String> {
    let last_arrival = log.last().map(|last_arrival| last_arrival.saturating_since(Instant::ZERO));
    let nothing_arrived = || match last_arrival {
        Some(last_arrival) => format!("nothing arrived after {}", format::seconds(last_arrival)),
        None => "nothing arrived".into(),
    };
    let span = end.saturating_since(log.start());
    match goal {
        FlowGoal::Command(_) | FlowGoal::Messages(_) | FlowGoal::Probes(_) => runner_failure,
        FlowGoal::Sized { bytes, limit: _ } => {
            let total = log.total_bytes();
            let shortfall_text = || {
                let (received, planned_size) = (format::bytes(total), format::bytes(bytes));
                format!("{received} of {planned_size} arrived in {}", format::seconds(span))
            };
            (total < bytes).then(|| runner_failure.unwrap_or_else(shortfall_text))
        }
        FlowGoal::ConstantRate(_) => {
            runner_failure.or_else(|| log.last().is_none().then(nothing_arrived))
        }
        FlowGoal::Timed(_) if runner_failure.is_some() => runner_failure,
        FlowGoal::Timed(_)
            if log.last().is_none_or(|last_arrival| last_arrival < end - FINAL_SPAN) =>
        {
            Some(nothing_arrived())
        }
        FlowGoal::Timed(planned) => (span + END_SLACK < planned).then(|| {
            format!("ended after {} of {}", format::seconds(span), format::seconds(planned))
        }),
    }
}
