//! One run: one scenario, one transport, from empty namespaces to the last record.
//!
//! Runs in the inner process of the [`sandbox`](towpath_os::sandbox). Threads: one for each flow, one
//! for the timeline, one for the series, one for events, one for the emulator. The calling thread
//! writes the records in order of arrival.

mod account;
mod conditions;
mod kernel_events;
mod quic;
pub(crate) mod series;

pub use crate::emulator::capture::{PcapError, PcapOptions};

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use towpath_mptcp::stack::StackNotice;
use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::interrupt;
use towpath_os::sandbox::EmulatorThread;
use towpath_result::metrics::disruption::describe;
use towpath_result::metrics::{DeliveryLog, FlowInput, Summarizer};
use towpath_result::{
    Counter, CpuTime, Event, EventKind, INTERRUPTED_WARNING, Interface, MultipathUse, Probe,
    Record, RunOrder, Warning,
};
use towpath_run::evidence::{self, Totals};
use towpath_scenario::flow_plan::summary_directions;
use towpath_scenario::{DataDirection, Pattern, Scenario, Transport};
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::stack::status::notice_text;
use towpath_sockets::stream;

use crate::cpu_time::{CpuMeters, StackCpuStart};
use crate::emulator::capture;
use crate::emulator::capture::CaptureWriter;
use crate::emulator::engine::{EmulatorReport, EngineCommand};
use crate::lab::LabPrograms;
use crate::network;
use crate::network::{Backend, EmulatedNetwork, NetworkError};
use crate::program;
use crate::program_connections::ProgramTracker;
use crate::traffic;
use crate::traffic::{DirectionDelivery, FlowOutcome, TrafficContext};

use conditions::RunBaseline;
use kernel_events::{FinalTcpInfo, KernelEventWatcher};
use series::RunSeries;

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
    let scenario = network::adapt_to_transport(&job.scenario, job.transport);
    let seed = scenario.run.seed.wrapping_add(u64::from(job.repeat.saturating_sub(1)));
    let mut network = network::build(thread, &scenario, Clock::start(), seed, job.backend)?;
    network.start_quic(job.transport, seed)?;
    run_in_network(job, network, None, write)
}

/// Runs `job` in an existing network; with lab programs, the last one is the only flow.
pub(crate) fn run_in_network(
    job: &RunJob,
    network: EmulatedNetwork,
    lab_programs: Option<Arc<LabPrograms>>,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let capture_writer = match &job.pcap {
        Some(pcap) => {
            let (recorder, capture_writer) =
                capture::begin(pcap, &network.scenario, network.clock)?;
            network.emulator.send(EngineCommand::Capture(recorder));
            Some(capture_writer)
        }
        None => None,
    };
    let network = Arc::new(network);
    let baseline = RunBaseline::read(&network);
    let watcher = KernelEventWatcher::open(&network.hosts)?;
    let context = TrafficContext {
        run_clock: RunClock::new(network.clock, network.clock.now() + START_LEAD),
        network,
        transport: job.transport,
        streams: Mutex::default(),
        udp_bytes: Mutex::default(),
        meters: CpuMeters::default(),
        lab_programs,
    };
    let mut meta = conditions::meta(job, &context.network, context.network.seed);
    if capture_writer.is_some() {
        let start =
            context.run_clock.start_time().saturating_since(Instant::ZERO).as_nanos() as u64;
        let start_ns = context.network.clock.epoch_ns() + start;
        let text = format!("{start_ns} ns since 1970");
        meta.conditions.insert("time 0 of captures".to_owned(), text);
    }
    write(&Record::Meta(Box::new(meta))).map_err(RunError::Write)?;
    let output = run_traffic(&context, watcher, write)?;
    write_summary(job, context, &baseline, RunOutput { capture_writer, ..output }, write)
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
    context: &TrafficContext,
    watcher: KernelEventWatcher,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<RunOutput, RunError> {
    let (records, inbox) = mpsc::channel();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let coordinator = {
            let done = &done;
            scope.spawn(move || run_threads(context, watcher, &records, done))
        };
        let mut result = Ok(());
        for record in inbox {
            if result.is_ok() {
                result = write(&record);
                if result.is_err() {
                    context.run_clock.interrupt();
                }
            }
        }
        result.map_err(RunError::Write)?;
        coordinator.join().map_err(|_| RunError::Emulator(io::Error::other("a thread panicked")))
    })
}

/// Starts all threads and waits for the flows.
fn run_threads(
    context: &TrafficContext,
    watcher: KernelEventWatcher,
    records: &Sender<Record>,
    done: &AtomicBool,
) -> RunOutput {
    let scenario = &context.network.scenario;
    let emulator = &context.network.emulator;
    context.network.schedule_link_changes(context.run_clock.start_time());
    emulator.send(EngineCommand::Report {
        start: context.run_clock.start_time(),
        period: scenario.run.sample,
        sender: records.clone(),
    });
    let (snapshot_sender, snapshots) = mpsc::channel();
    emulator.send(EngineCommand::Snapshots {
        start: context.run_clock.start_time(),
        period: account::SAMPLE_INTERVAL,
        sender: snapshot_sender,
    });
    forward_stack_notices(context, records);
    let programs = ProgramTracker::open(&context.network);
    let programs_sampled = &AtomicBool::new(programs.is_none());
    let cpu_baseline = StackCpuStart::now(&context.network);
    thread::scope(|scope| {
        let flows: Vec<_> = scenario
            .flows
            .iter()
            .enumerate()
            .map(|(index, flow)| scope.spawn(move || run_flow(context, index, flow)))
            .collect();
        let timeline = scope.spawn(|| play_timeline(context, records, done));
        let tracker_thread = programs.map(|mut programs| {
            scope.spawn(move || {
                programs.run(context, done);
                programs_sampled.store(true, Ordering::Release);
                programs
            })
        });
        let final_tcp_info = scope.spawn(|| watcher.run(context, records, done));
        let series = scope.spawn(|| sample(context, records.clone(), (done, programs_sampled)));
        let account = scope.spawn(move || account::collect(context, &snapshots));
        let mut outcomes: Vec<_> =
            flows.into_iter().map(|flow| flow.join().unwrap_or_default()).collect();
        let cpu = cpu_baseline.until_now(&context.network, &context.meters);
        done.store(true, Ordering::Release);
        emulator.send(EngineCommand::StopReports);
        // The receiver ends when the last sender is gone, and the stacks hold senders.
        for stack in context.network.hosts.iter().filter_map(|host| host.stack.as_ref()) {
            let _ = stack.call(|driver| driver.on_notice(|_, _, _| {})); // fails if the stack has ended
        }
        let mut warnings = timeline.join().unwrap_or_default();
        let programs = tracker_thread.and_then(|tracker_thread| tracker_thread.join().ok());
        let closed_tcp_info: Vec<FinalTcpInfo> = final_tcp_info.join().unwrap_or_default();
        let series = series.join().unwrap_or_else(|_| RunSeries::new(records.clone()));
        if let Some(programs) = &programs {
            attribute_program_traffic(programs, &context.network.scenario, &mut outcomes);
            warnings.extend(programs.warning());
        }
        let account = account.join().unwrap_or_default();
        let output = RunOutput { outcomes, warnings, cpu, account, ..RunOutput::default() };
        finish_series(context, series, closed_tcp_info, output)
    })
}

/// Adds the final samples and the sums of the series.
fn finish_series(
    context: &TrafficContext,
    mut series: RunSeries,
    final_tcp_info: Vec<FinalTcpInfo>,
    output: RunOutput,
) -> RunOutput {
    series.sample_final_paths(context);
    for (local, remote, info) in final_tcp_info {
        series.on_final_tcp_info(local, remote, info);
    }
    let streams = context.streams();
    let congestion_control = series.congestion_control(&context.network, &streams);
    RunOutput { totals: series.totals(&streams), congestion_control, ..output }
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
        let deliveries: Vec<_> = programs
            .logs(index)
            .into_iter()
            .map(|(direction, log)| DirectionDelivery { direction, logs: vec![log.clone()] })
            .collect();
        if !deliveries.is_empty() {
            outcome.delivered = deliveries;
        }
    }
}

/// Emits an event for each notice of the hosts' own stacks, like those of kernels.
fn forward_stack_notices(context: &TrafficContext, records: &Sender<Record>) {
    for host in &context.network.hosts {
        let Some(stack) = &host.stack else { continue };
        let (name, records, start) =
            (host.name.clone(), records.clone(), context.run_clock.start_time());
        // Fails if the stack has ended.
        let _ = stack.call(move |driver| {
            driver.on_notice(move |now, _, notice| {
                let fallback = matches!(notice, StackNotice::Fallback(_));
                let kind = if fallback { EventKind::Fallback } else { EventKind::PathManager };
                let (text, subflow) = notice_text(notice);
                let detail = subflow.map(|number| ("subflow".to_owned(), number.to_string()));
                // The receiver may be gone.
                let _ = records.send(Record::Event(Event {
                    t_ns: now.saturating_since(start).as_nanos() as u64,
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
fn run_flow(context: &TrafficContext, index: usize, flow: &towpath_scenario::Flow) -> FlowOutcome {
    let mut outcome = attempt_flow(context, index, flow);
    for direction in summary_directions(&flow.pattern) {
        let has_delivery =
            outcome.delivered.iter().any(|delivery| delivery.direction == *direction);
        if !has_delivery {
            let mut log = DeliveryLog::new(Instant::ZERO + flow.start);
            log.watch_until(context.now());
            outcome.delivered.push(DirectionDelivery { direction: *direction, logs: vec![log] });
        }
    }
    outcome
}

fn attempt_flow(
    context: &TrafficContext,
    index: usize,
    flow: &towpath_scenario::Flow,
) -> FlowOutcome {
    if let Some(lab_programs) = &context.lab_programs {
        context.run_clock.sleep_until(Instant::ZERO + flow.start);
        return lab_programs.run_to_end(&context.network);
    }
    let hosts = &context.network.hosts;
    let has_own_stack = |host: usize| hosts.get(host).is_some_and(|host| host.stack.is_some());
    if let Pattern::Run { command, duration } = &flow.pattern {
        if has_own_stack(flow.from) || has_own_stack(flow.to) {
            let text = "a command needs hosts with the kernel's stack";
            return FlowOutcome { failure: Some(text.to_owned()), ..FlowOutcome::default() };
        }
        return program::run_flow(context, flow, command, *duration);
    }
    if let Pattern::Udping(plan) = &flow.pattern {
        let (probes, warning) = traffic::ping::run(context, (index, flow), plan);
        return FlowOutcome { probes, warning, ..FlowOutcome::default() };
    }
    if let Pattern::Udp(plan) = &flow.pattern {
        return traffic::udp::run(context, (index, flow), plan);
    }
    match traffic::listen(context, index, flow) {
        Ok(listener) => traffic::run(context, index, flow, &listener),
        Err(error) => {
            let hosts = &context.network.scenario.hosts;
            let host = hosts.get(flow.to).map_or("?", |host| host.name.as_str());
            FlowOutcome {
                failure: Some(stream::explain(&error, context.transport_of(index as u32), host)),
                ..FlowOutcome::default()
            }
        }
    }
}

/// Applies the timeline to the hosts' kernels and emits its events; returns the failures.
pub(crate) fn play_timeline(
    context: &TrafficContext,
    records: &Sender<Record>,
    done: &AtomicBool,
) -> Vec<String> {
    let scenario = &context.network.scenario;
    let mut failures = Vec::new();
    for event in &scenario.timeline {
        let time = Instant::ZERO + event.at;
        while context.now() < time {
            if done.load(Ordering::Acquire) {
                return failures;
            }
            let sleep_time = time.saturating_since(context.now()).min(POLL_INTERVAL);
            thread::sleep(sleep_time);
        }
        let (target, text) = describe(scenario, event);
        let text = format!("{target} {text}");
        if let Err(error) = context.network.apply_to_hosts(event) {
            failures.push(format!("`{text}` at {time} was not done in full: {error}"));
        }
        let path = match event.target {
            towpath_scenario::TimelineTarget::Path(index) => {
                scenario.paths.get(index).map(|path| path.name.clone())
            }
            towpath_scenario::TimelineTarget::Bottleneck(_) => None,
        };
        // The receiver may be gone.
        let _ = records.send(Record::Event(Event {
            t_ns: time.as_nanos(),
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
    context: &TrafficContext,
    records: Sender<Record>,
    (done, programs_sampled): (&AtomicBool, &AtomicBool),
) -> RunSeries {
    let mut series = RunSeries::new(records);
    let period = context.network.scenario.run.sample;
    let mut next = Instant::ZERO + period;
    // After the planned end, connections are only closed.
    let flows = context.network.scenario.flows.iter();
    let end = flows.map(|flow| Instant::ZERO + flow.start + flow.pattern.limit()).max();
    loop {
        while context.now() < next && !done.load(Ordering::Acquire) {
            thread::sleep(next.saturating_since(context.now()).min(POLL_INTERVAL));
        }
        if interrupt::is_interrupted() {
            context.run_clock.interrupt();
        }
        let now = context.now();
        if done.load(Ordering::Acquire) {
            for _ in 0..MAX_READY_POLLS {
                if programs_sampled.load(Ordering::Acquire) {
                    break;
                }
                thread::sleep(READY_POLL_INTERVAL);
            }
            // The last period may be shorter. Less than half a period would distort the curves,
            // unless it is the only one.
            let last_span = now.saturating_since(next - period);
            let is_only_period = next == Instant::ZERO + period;
            if (last_span * 2 >= period || is_only_period)
                && end.is_none_or(|end| next - period < end)
            {
                series.sample(context, now.min(next));
            }
            return series;
        }
        if end.is_some_and(|end| next > end) {
            thread::sleep(POLL_INTERVAL);
            continue;
        }
        series.sample(context, next);
        while next <= now {
            next += period;
        }
    }
}

/// Writes all records that are known only at the end.
fn write_summary(
    job: &RunJob,
    context: TrafficContext,
    baseline: &RunBaseline,
    output: RunOutput,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let scenario = &job.scenario;
    let interrupted = context.run_clock.is_interrupted();
    let counters = baseline.changes(&context.network);
    let interfaces = conditions::interfaces(&context.network);
    let lost_packets = conditions::lost_at_interfaces(&context.network, &interfaces);
    let connections = quic::connections(&context);
    let transport = match &context.lab_programs {
        Some(_) => used_transport(&output.totals, &counters),
        None => job.transport,
    };
    let multipath = multipath_proof(&context, transport, &output.totals, &counters, &connections);
    let counters = [counters, quic::counters(&connections)].concat();
    let mut summarizer = Summarizer::new(scenario, transport);
    for flow in flow_inputs(&output) {
        summarizer = summarizer.flow(flow);
    }
    add_datagrams(&mut summarizer, &output.outcomes);
    let mut probes: Vec<_> = output.outcomes.iter().flat_map(|o| o.probes.clone()).collect();
    probes.sort_by_key(|probe| probe.due_ns);
    let flow_warnings = output.outcomes.iter().filter_map(|outcome| outcome.warning.as_ref());
    let texts =
        context.network.warnings.iter().chain(&output.warnings).chain(flow_warnings).cloned();
    for text in texts.chain(interrupted.then(|| INTERRUPTED_WARNING.to_owned())) {
        summarizer = summarizer.warning(Warning { text, hint: None });
    }
    for warning in quic::warnings(&context, &connections) {
        summarizer = summarizer.warning(warning);
    }
    drop(connections);
    let report = stop_emulator(context)?;
    let capture_warning = output.capture_writer.map(CaptureWriter::finish).transpose()?.flatten();
    if let Some(text) = capture_warning {
        let hint = Some("capture less of each packet: `--snap 128`".to_owned());
        summarizer = summarizer.warning(Warning { text, hint });
    }
    let timing = conditions::emulator_timing(&report, baseline, lost_packets + report.lost_packets);
    summarizer = summarizer.interfaces(&interfaces);
    let (accounts, account) = output.account;
    let account_records = accounts.into_iter().map(|link| Record::Account(Box::new(link)));
    let records = final_records(&output.outcomes, &probes, &counters, interfaces);
    for record in account_records.chain(records).chain([Record::Timing(timing.clone())]) {
        write(&record).map_err(RunError::Write)?;
    }
    let summary = summarizer
        .subflows(output.totals.subflows)
        .probes(&probes)
        .multipath(multipath)
        .cpu(output.cpu)
        .account(account)
        .emulator_timing(&timing)
        .counters(&counters)
        .finish();
    write(&Record::Summary(Box::new(summary))).map_err(RunError::Write)
}

/// Adds the results of constant-rate UDP flows.
fn add_datagrams(summarizer: &mut Summarizer<'_>, outcomes: &[FlowOutcome]) {
    for (flow, outcome) in (0_u32..).zip(outcomes) {
        for received in &outcome.datagrams {
            summarizer.add_datagrams(flow, received.direction, received.stats.clone());
        }
    }
}

/// Stops the emulator and returns its report.
fn stop_emulator(context: TrafficContext) -> Result<EmulatorReport, RunError> {
    let TrafficContext { network, streams, .. } = context;
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
    let rows =
        outcomes.iter().flat_map(|o| &o.datagrams).flat_map(|datagrams| datagrams.rows.clone());
    let rows = rows.map(Record::Datagrams);
    messages.chain(probes).chain(rows).chain(counters).chain(interfaces).collect()
}

/// Returns the evidence that the multipath transport was used, for the run and for each flow.
fn multipath_proof(
    context: &TrafficContext,
    transport: Transport,
    totals: &Totals,
    counters: &[Counter],
    connections: &[quic::ConnectionEnd],
) -> MultipathUse {
    let proof = match transport {
        Transport::Mpquic => quic::multipath_use(context, connections),
        transport @ (Transport::Tcp | Transport::Mptcp | Transport::Quic) => {
            evidence::multipath_use(transport, totals, counters)
        }
    };
    match &context.lab_programs {
        // The flows of a lab are connections of its programs, of which none is planned.
        Some(_) => proof,
        None => proof.set_flows(&context.network.scenario, transport, &totals.connections),
    }
}

/// Returns the transport that lab programs requested: Multipath TCP if at least one requested it.
fn used_transport(totals: &Totals, counters: &[Counter]) -> Transport {
    let requested_mptcp = counters.iter().any(|counter| counter.name == "MPTcpExt.MPCapableSYNTX");
    if requested_mptcp || totals.multipath > 0 { Transport::Mptcp } else { Transport::Tcp }
}

fn flow_inputs(output: &RunOutput) -> Vec<FlowInput> {
    let mut inputs = Vec::new();
    for (index, outcome) in output.outcomes.iter().enumerate() {
        for delivered in &outcome.delivered {
            let flow = index as u32;
            let of_direction = |flow: u32, direction: DataDirection| {
                move |subflow: &&towpath_result::SubflowSummary| {
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
                congestion_control: output
                    .congestion_control
                    .get(&(flow, delivered.direction))
                    .cloned()
                    .unwrap_or_default(),
                retransmissions: output
                    .totals
                    .subflows
                    .iter()
                    .filter(of_direction(flow, delivered.direction))
                    .map(|subflow| subflow.retransmissions)
                    .sum(),
                stack: output.totals.stack.stats(flow, delivered.direction),
                messages: outcome.messages.clone(),
            });
        }
    }
    inputs
}
