//! One run: one scenario, one transport, from empty namespaces to the last record.
//!
//! Runs in the inner process of the [`sandbox`](crate::sandbox). Threads: one for each flow, one
//! for the timeline, one for the series, one for events, one for the emulator. The calling thread
//! writes the records in order of arrival.

mod account;
mod conditions;
pub(crate) mod evidence;
mod kernel_events;
mod quic;
pub(crate) mod series;

pub(crate) use evidence::FALLBACKS;

pub use crate::emulator::capture::{PcapError, PcapOptions};

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use towpath_measure::metrics::disruption::describe;
use towpath_measure::metrics::{DeliveryLog, FlowInput, Summarizer};
use towpath_measure::result::{
    Counter, CpuTime, Event, EventKind, Interface, Probe, Record, RunOrder, Warning,
};
use towpath_measure::scenario::{DataDirection, Pattern, Scenario, Transport};
use towpath_measure::traffic::summary_directions;
use towpath_mptcp::stack::StackNotice;
use towpath_net::Instant;

use crate::clock::Clock;
use crate::cpu_time::{CpuMeters, StackCpuStart};
use crate::emulator::capture::{self, CaptureWriter};
use crate::emulator::engine::{EmulatorReport, EngineCommand};
use crate::lab::LabPrograms;
use crate::network::{self, Backend, EmulatedNetwork, NetworkError};
use crate::program_connections::ProgramTracker;
use crate::run_clock::RunClock;
use crate::sandbox::EmulatorThread;
use crate::stack::status::notice_text;
use crate::traffic::{self, DirectionDelivery, FlowOutcome, TrafficContext};
use crate::{interrupt, program};

use conditions::RunBaseline;
use kernel_events::{FinalTcpInfo, KernelEventWatcher};
use series::{RunSeries, Totals};

/// Time between the network being ready and the start of the traffic.
const START_LEAD: Duration = Duration::from_millis(250);
/// Maximum sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval between two polls for readiness.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of polls for readiness: about 5 s.
const MAX_READY_POLLS: u32 = 5_000;

/// Scenario, transport and options of a run.
#[derive(Debug, Clone)]
pub struct RunJob {
    /// Scenario to run, before changes for the transport.
    pub scenario: Arc<Scenario>,
    /// Transport of the flows that do not specify one.
    pub transport: Transport,
    /// Number of the repetition, from 1.
    pub repeat: u32,
    /// Back-end of the emulator; with `None`, the best that works.
    pub backend: Option<Backend>,
    /// Position in a series of runs, if there are several.
    pub order: Option<RunOrder>,
    /// Options of the packet capture; `None` for no capture.
    pub pcap: Option<PcapOptions>,
}

/// Reason why a run has no result.
#[derive(Debug, Error)]
pub enum RunError {
    /// The network could not be created.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The emulator failed during the run.
    #[error("the emulator failed: {0}")]
    Emulator(io::Error),
    /// The captured packets cannot be written.
    #[error(transparent)]
    Capture(#[from] PcapError),
    /// The receiver of the records is gone.
    #[error("cannot write the result: {0}")]
    Write(io::Error),
}

/// Runs `job` and passes every record to `write`.
pub fn run(
    job: &RunJob,
    thread: EmulatorThread,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let scenario = network::for_transport(&job.scenario, job.transport);
    let seed = scenario.run.seed.wrapping_add(u64::from(job.repeat.saturating_sub(1)));
    let mut network = network::build(thread, &scenario, Clock::start(), seed, job.backend)?;
    network.start_quic(job.transport, seed)?;
    run_in_network(job, network, None, write)
}

/// Runs `job` in an existing network; with lab programs, the last one is the only flow.
pub(crate) fn run_in_network(
    job: &RunJob,
    network: EmulatedNetwork,
    cast: Option<Arc<LabPrograms>>,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let writing = match &job.pcap {
        Some(pcap) => {
            let (tape, writing) = capture::begin(pcap, &network.scenario, network.clock)?;
            network.emulator.send(EngineCommand::Capture(tape));
            Some(writing)
        }
        None => None,
    };
    let network = Arc::new(network);
    let before = RunBaseline::read(&network);
    let watcher = KernelEventWatcher::open(&network.hosts)?;
    let stage = TrafficContext {
        pace: RunClock::new(network.clock, network.clock.now() + START_LEAD),
        network,
        transport: job.transport,
        streams: Mutex::default(),
        udp_bytes: Mutex::default(),
        meters: CpuMeters::default(),
        lab_programs: cast,
    };
    let mut meta = conditions::meta(job, &stage.network, stage.network.seed);
    if writing.is_some() {
        let zero = stage.pace.zero().saturating_since(Instant::ZERO).as_nanos() as u64;
        let zero_ns = stage.network.clock.epoch_ns() + zero;
        let text = format!("{zero_ns} ns since 1970");
        meta.conditions.insert("time 0 of captures".to_owned(), text);
    }
    write(&Record::Meta(Box::new(meta))).map_err(RunError::Write)?;
    let played = run_traffic(&stage, watcher, write)?;
    conclude(job, stage, &before, RunOutput { capture_writer: writing, ..played }, write)
}

/// Results of the threads.
#[derive(Default)]
struct RunOutput {
    outcomes: Vec<FlowOutcome>,
    totals: Totals,
    /// Congestion control by flow and direction, read from the senders' subflows.
    congestion_control: BTreeMap<(u32, DataDirection), Vec<String>>,
    warnings: Vec<String>,
    cpu: Option<CpuTime>,
    /// Writer of the packet captures, if there are any.
    capture_writer: Option<CaptureWriter>,
    account: account::AccountResult,
}

/// Runs the traffic, timeline and samplers; writes records until all threads have ended.
fn run_traffic(
    stage: &TrafficContext,
    watcher: KernelEventWatcher,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<RunOutput, RunError> {
    let (records, inbox) = mpsc::channel();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let director = {
            let done = &done;
            scope.spawn(move || run_threads(stage, watcher, &records, done))
        };
        let mut written = Ok(());
        for record in inbox {
            if written.is_ok() {
                written = write(&record);
                if written.is_err() {
                    stage.pace.interrupt();
                }
            }
        }
        written.map_err(RunError::Write)?;
        director.join().map_err(|_| RunError::Emulator(io::Error::other("a thread panicked")))
    })
}

/// Starts all threads and waits for the flows.
fn run_threads(
    stage: &TrafficContext,
    watcher: KernelEventWatcher,
    records: &Sender<Record>,
    done: &AtomicBool,
) -> RunOutput {
    let scenario = &stage.network.scenario;
    let emulator = &stage.network.emulator;
    stage.network.schedule_link_changes(stage.pace.zero());
    emulator.send(EngineCommand::Report {
        zero: stage.pace.zero(),
        period: scenario.run.sample,
        to: records.clone(),
    });
    let (counts, counted) = mpsc::channel();
    emulator.send(EngineCommand::Snapshots {
        zero: stage.pace.zero(),
        period: account::SAMPLE_INTERVAL,
        to: counts,
    });
    listen_to_stacks(stage, records);
    let programs = ProgramTracker::open(&stage.network);
    let sampled_once = &AtomicBool::new(programs.is_none());
    let cpu_baseline = StackCpuStart::now(&stage.network);
    thread::scope(|scope| {
        let flows: Vec<_> = scenario
            .flows
            .iter()
            .enumerate()
            .map(|(index, flow)| scope.spawn(move || run_flow(stage, index, flow)))
            .collect();
        let timeline = scope.spawn(|| play_timeline(stage, records, done));
        let follower = programs.map(|mut programs| {
            scope.spawn(move || {
                programs.run(stage, done);
                sampled_once.store(true, Ordering::Release);
                programs
            })
        });
        let final_tcp_info = scope.spawn(|| watcher.run(stage, records, done));
        let series = scope.spawn(|| sample(stage, records.clone(), (done, sampled_once)));
        let account = scope.spawn(move || account::collect(stage, &counted));
        let mut outcomes: Vec<_> =
            flows.into_iter().map(|flow| flow.join().unwrap_or_default()).collect();
        let cpu = cpu_baseline.until_now(&stage.network, &stage.meters);
        done.store(true, Ordering::Release);
        emulator.send(EngineCommand::StopReports);
        // The receiver ends when the last sender is gone, and the stacks hold senders.
        for stack in stage.network.hosts.iter().filter_map(|host| host.stack.as_ref()) {
            let _ = stack.call(|turn| turn.on_notice(|_, _, _| {})); // fails if the stack has ended
        }
        let mut warnings = timeline.join().unwrap_or_default();
        let programs = follower.and_then(|follower| follower.join().ok());
        let words: Vec<FinalTcpInfo> = final_tcp_info.join().unwrap_or_default();
        let series = series.join().unwrap_or_else(|_| RunSeries::new(records.clone()));
        if let Some(programs) = &programs {
            attribute_program_traffic(programs, &stage.network.scenario, &mut outcomes);
            warnings.extend(programs.warning());
        }
        let account = account.join().unwrap_or_default();
        let played = RunOutput { outcomes, warnings, cpu, account, ..RunOutput::default() };
        finish_series(stage, series, words, played)
    })
}

/// Adds the final samples and the sums of the series.
fn finish_series(
    stage: &TrafficContext,
    mut series: RunSeries,
    final_tcp_info: Vec<FinalTcpInfo>,
    played: RunOutput,
) -> RunOutput {
    series.sample_final_paths(stage);
    for (local, remote, info) in final_tcp_info {
        series.on_final_tcp_info(local, remote, info);
    }
    let streams = stage.streams();
    let congestion_control = series.congestion_control(&stage.network, &streams);
    RunOutput { totals: series.totals(&streams), congestion_control, ..played }
}

/// Attributes the bytes that programs moved to their flows.
fn attribute_program_traffic(
    programs: &ProgramTracker,
    scenario: &Scenario,
    outcomes: &mut [FlowOutcome],
) {
    for ((index, flow), outcome) in (0_u32..).zip(&scenario.flows).zip(outcomes) {
        if !matches!(flow.pattern, Pattern::Run { .. }) {
            continue;
        }
        let moved: Vec<_> = programs
            .logs(index)
            .into_iter()
            .map(|(direction, log)| DirectionDelivery { direction, logs: vec![log.clone()] })
            .collect();
        if !moved.is_empty() {
            outcome.delivered = moved;
        }
    }
}

/// Emits an event for each notice of the hosts' own stacks, like those of kernels.
fn listen_to_stacks(stage: &TrafficContext, records: &Sender<Record>) {
    for host in &stage.network.hosts {
        let Some(stack) = &host.stack else { continue };
        let (name, records, zero) = (host.name.clone(), records.clone(), stage.pace.zero());
        // Fails if the stack has ended.
        let _ = stack.call(move |turn| {
            turn.on_notice(move |now, _, notice| {
                let fallback = matches!(notice, StackNotice::Fallback(_));
                let kind = if fallback { EventKind::Fallback } else { EventKind::PathManager };
                let (text, subflow) = notice_text(notice);
                let detail = subflow.map(|number| ("subflow".to_owned(), number.to_string()));
                // The receiver may be gone.
                let _ = records.send(Record::Event(Event {
                    t_ns: now.saturating_since(zero).as_nanos() as u64,
                    kind,
                    host: Some(name.clone()),
                    path: None,
                    text,
                    detail: detail.into_iter().collect(),
                }));
            });
        });
    }
}

/// Runs a flow; if it opens no connection, returns an empty log and the reason.
fn run_flow(
    stage: &TrafficContext,
    index: usize,
    flow: &towpath_measure::scenario::Flow,
) -> FlowOutcome {
    let mut outcome = attempt_flow(stage, index, flow);
    for direction in summary_directions(&flow.pattern) {
        let known = outcome.delivered.iter().any(|side| side.direction == *direction);
        if !known {
            let mut log = DeliveryLog::new(Instant::ZERO + flow.start);
            log.watch_until(stage.now());
            outcome.delivered.push(DirectionDelivery { direction: *direction, logs: vec![log] });
        }
    }
    outcome
}

fn attempt_flow(
    stage: &TrafficContext,
    index: usize,
    flow: &towpath_measure::scenario::Flow,
) -> FlowOutcome {
    if let Some(cast) = &stage.lab_programs {
        stage.pace.sleep_until(Instant::ZERO + flow.start);
        return cast.run_to_end(&stage.network);
    }
    let hosts = &stage.network.hosts;
    let own = |host: usize| hosts.get(host).is_some_and(|host| host.stack.is_some());
    if let Pattern::Run { command, duration } = &flow.pattern {
        if own(flow.from) || own(flow.to) {
            let text = "a command needs hosts with the kernel's stack";
            return FlowOutcome { failure: Some(text.to_owned()), ..FlowOutcome::default() };
        }
        return program::run_flow(stage, flow, command, *duration);
    }
    if let Pattern::Udping(plan) = &flow.pattern {
        let (probes, warning) = traffic::ping::run(stage, (index, flow), plan);
        return FlowOutcome { probes, warning, ..FlowOutcome::default() };
    }
    if let Pattern::Udp(plan) = &flow.pattern {
        return traffic::udp::run(stage, (index, flow), plan);
    }
    match traffic::listen(stage, index, flow) {
        Ok(listener) => traffic::run(stage, index, flow, &listener),
        Err(error) => {
            let hosts = &stage.network.scenario.hosts;
            let host = hosts.get(flow.to).map_or("?", |host| host.name.as_str());
            FlowOutcome {
                failure: Some(traffic::explain(&error, stage.transport_of(index as u32), host)),
                ..FlowOutcome::default()
            }
        }
    }
}

/// Applies the timeline to the hosts' kernels and emits its events; returns the failures.
pub(crate) fn play_timeline(
    stage: &TrafficContext,
    records: &Sender<Record>,
    done: &AtomicBool,
) -> Vec<String> {
    let scenario = &stage.network.scenario;
    let mut failures = Vec::new();
    for event in &scenario.timeline {
        let at = Instant::ZERO + event.at;
        while stage.now() < at {
            if done.load(Ordering::Acquire) {
                return failures;
            }
            let nap = at.saturating_since(stage.now()).min(POLL_INTERVAL);
            thread::sleep(nap);
        }
        let (target, text) = describe(scenario, event);
        let text = format!("{target} {text}");
        if let Err(error) = stage.network.apply_to_hosts(event) {
            failures.push(format!("`{text}` at {at} was not done in full: {error}"));
        }
        let path = match event.target {
            towpath_measure::scenario::TimelineTarget::Path(index) => {
                scenario.paths.get(index).map(|path| path.name.clone())
            }
            towpath_measure::scenario::TimelineTarget::Bottleneck(_) => None,
        };
        // The receiver may be gone.
        let _ = records.send(Record::Event(Event {
            t_ns: at.as_nanos(),
            kind: EventKind::Timeline,
            host: None,
            path,
            text,
            detail: BTreeMap::new(),
        }));
    }
    failures
}

/// Samples at every multiple of the period until the flows have ended, and once at their end.
fn sample(
    stage: &TrafficContext,
    records: Sender<Record>,
    (done, looked): (&AtomicBool, &AtomicBool),
) -> RunSeries {
    let mut series = RunSeries::new(records);
    let period = stage.network.scenario.run.sample;
    let mut next = Instant::ZERO + period;
    // After the planned end, connections are only closed.
    let flows = stage.network.scenario.flows.iter();
    let end = flows.map(|flow| Instant::ZERO + flow.start + flow.pattern.limit()).max();
    loop {
        while stage.now() < next && !done.load(Ordering::Acquire) {
            thread::sleep(next.saturating_since(stage.now()).min(POLL_INTERVAL));
        }
        if interrupt::is_interrupted() {
            stage.pace.interrupt();
        }
        let now = stage.now();
        if done.load(Ordering::Acquire) {
            for _ in 0..MAX_READY_POLLS {
                if looked.load(Ordering::Acquire) {
                    break;
                }
                thread::sleep(READY_POLL_INTERVAL);
            }
            // The last period may be shorter. Less than half a period would distort the curves,
            // unless it is the only one.
            let rest = now.saturating_since(next - period);
            let only = next == Instant::ZERO + period;
            if (rest * 2 >= period || only) && end.is_none_or(|end| next - period < end) {
                series.sample(stage, now.min(next));
            }
            return series;
        }
        if end.is_some_and(|end| next > end) {
            thread::sleep(POLL_INTERVAL);
            continue;
        }
        series.sample(stage, next);
        while next <= now {
            next += period;
        }
    }
}

/// Writes all records that are known only at the end.
fn conclude(
    job: &RunJob,
    stage: TrafficContext,
    before: &RunBaseline,
    played: RunOutput,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let scenario = &job.scenario;
    let interrupted = stage.pace.is_interrupted();
    let counters = before.changes(&stage.network);
    let interfaces = conditions::interfaces(&stage.network);
    let lost = conditions::lost_at_interfaces(&stage.network, &interfaces);
    let connections = quic::connections(&stage);
    let transport = match &stage.lab_programs {
        Some(_) => used_transport(&played.totals, &counters),
        None => job.transport,
    };
    let multipath = match transport {
        Transport::Mpquic => quic::proof(&stage, &connections),
        transport @ (Transport::Tcp | Transport::Mptcp | Transport::Quic) => {
            evidence::multipath_use(transport, &played.totals, &counters)
        }
    };
    let counters = [counters, quic::counters(&connections)].concat();
    let mut summarizer = Summarizer::new(scenario, transport);
    for flow in flow_inputs(&played) {
        summarizer = summarizer.flow(flow);
    }
    add_datagrams(&mut summarizer, &played.outcomes);
    let mut probes: Vec<_> = played.outcomes.iter().flat_map(|o| o.probes.clone()).collect();
    probes.sort_by_key(|probe| probe.due_ns);
    let of_flows = played.outcomes.iter().filter_map(|outcome| outcome.warning.as_ref());
    let notes = stage.network.warnings.iter().chain(&played.warnings).chain(of_flows).cloned();
    for text in notes.chain(interrupted.then(|| "the run was interrupted".to_owned())) {
        summarizer = summarizer.warning(Warning { text, hint: None });
    }
    for warning in quic::warnings(&stage, &connections) {
        summarizer = summarizer.warning(warning);
    }
    drop(connections);
    let report = stop_emulator(stage)?;
    let missed = played.capture_writer.map(CaptureWriter::finish).transpose()?.flatten();
    if let Some(text) = missed {
        let hint = Some("keep less of each packet: `--snap 128`".to_owned());
        summarizer = summarizer.warning(Warning { text, hint });
    }
    let noise = conditions::noise(&report, before, lost + report.lost_packets);
    summarizer = summarizer.interfaces(&interfaces);
    let (accounts, account) = played.account;
    let accounted = accounts.into_iter().map(|one| Record::Account(Box::new(one)));
    let records = final_records(&played.outcomes, &probes, &counters, interfaces);
    for record in accounted.chain(records).chain([Record::Timing(noise.clone())]) {
        write(&record).map_err(RunError::Write)?;
    }
    let summary = summarizer
        .subflows(played.totals.subflows)
        .probes(&probes)
        .multipath(multipath)
        .cpu(played.cpu)
        .account(account)
        .emulator_timing(&noise)
        .counters(&counters)
        .finish();
    write(&Record::Summary(Box::new(summary))).map_err(RunError::Write)
}

/// Adds the results of constant-rate UDP flows.
fn add_datagrams(summarizer: &mut Summarizer<'_>, outcomes: &[FlowOutcome]) {
    for (flow, outcome) in (0_u32..).zip(outcomes) {
        for one in &outcome.datagrams {
            summarizer.add_datagrams(flow, one.direction, one.stats.clone());
        }
    }
}

/// Stops the emulator and returns its report.
fn stop_emulator(stage: TrafficContext) -> Result<EmulatorReport, RunError> {
    let TrafficContext { network, streams, .. } = stage;
    drop(streams);
    let network = Arc::into_inner(network);
    let in_use = || RunError::Emulator(io::Error::other("the network is still in use"));
    network.ok_or_else(in_use)?.emulator.finish().map_err(RunError::Emulator)
}

/// Builds the records of the end, in their order.
fn final_records(
    outcomes: &[FlowOutcome],
    probes: &[Probe],
    counters: &[Counter],
    interfaces: Vec<Interface>,
) -> Vec<Record> {
    let mut messages: Vec<_> = outcomes.iter().flat_map(|o| &o.messages).copied().collect();
    messages.sort_by_key(|message| message.due_ns);
    let messages = messages.into_iter().map(Record::Message);
    let probes = probes.iter().cloned().map(Record::Probe);
    let counters = counters.iter().cloned().map(Record::Counter);
    let interfaces = interfaces.into_iter().map(Record::Interface);
    let rows = outcomes.iter().flat_map(|o| &o.datagrams).flat_map(|one| one.rows.clone());
    let rows = rows.map(Record::Datagrams);
    messages.chain(probes).chain(rows).chain(counters).chain(interfaces).collect()
}

/// Returns the transport that lab programs requested: Multipath TCP if at least one requested it.
fn used_transport(totals: &Totals, counters: &[Counter]) -> Transport {
    let asked = counters.iter().any(|counter| counter.name == "MPTcpExt.MPCapableSYNTX");
    if asked || totals.multipath > 0 { Transport::Mptcp } else { Transport::Tcp }
}

fn flow_inputs(played: &RunOutput) -> Vec<FlowInput> {
    let mut inputs = Vec::new();
    for (index, outcome) in played.outcomes.iter().enumerate() {
        for delivered in &outcome.delivered {
            let flow = index as u32;
            let own = |flow: u32, direction: DataDirection| {
                move |subflow: &&towpath_measure::result::SubflowSummary| {
                    subflow.flow == flow && subflow.direction == direction
                }
            };
            inputs.push(FlowInput {
                flow,
                direction: delivered.direction,
                delivery: DeliveryLog::merge(&delivered.logs)
                    .unwrap_or_else(|| DeliveryLog::new(Instant::ZERO)),
                connect: outcome.connect,
                failure: outcome.failure.clone(),
                congestion_control: played
                    .congestion_control
                    .get(&(flow, delivered.direction))
                    .cloned()
                    .unwrap_or_default(),
                retransmissions: played
                    .totals
                    .subflows
                    .iter()
                    .filter(own(flow, delivered.direction))
                    .map(|subflow| subflow.retransmissions)
                    .sum(),
                stack: played.totals.stack.stats(flow, delivered.direction),
                messages: outcome.messages.clone(),
            });
        }
    }
    inputs
}
