//! One run: one scenario, one transport, from empty namespaces to the last record.
//!
//! Runs in the inner process of the [`sandbox`](crate::sandbox). Threads: one for each flow, one for
//! the timeline, one for the series, one for events, one for the emulator; the calling thread
//! writes the records in the order in which they come.

mod account;
mod conditions;
pub(crate) mod proof;
mod quic;
pub(crate) mod series;
mod watch;

pub(crate) use proof::FALLBACKS;

pub use crate::emulator::capture::{Pcap, PcapError};

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
use crate::cost::{Began, Meters};
use crate::emulator::capture::{self, Writing};
use crate::emulator::engine::{Command, EmulatorReport};
use crate::lab::Cast;
use crate::network::{self, Backend, Network, NetworkError};
use crate::pace::Pace;
use crate::programs::Programs;
use crate::sandbox::EmulatorThread;
use crate::stack::status::notice_text;
use crate::traffic::{self, Delivered, Outcome, Stage};
use crate::{interrupt, program};

use conditions::Before;
use series::{Series, Totals};
use watch::{LastWords, Watcher};

/// Time between the network being ready and the start of the traffic.
const LEAD: Duration = Duration::from_millis(250);
/// The longest sleep of a thread that must notice an interrupt.
const NAP: Duration = Duration::from_millis(50);
/// How often somebody is asked who is about to be ready.
const BREATH: Duration = Duration::from_millis(1);
/// It is not waited for for ever.
const MOST_BREATHS: u32 = 5_000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Job {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// Transport of the flows that do not name one.
    pub transport: Transport,
    /// Number of the repetition, from 1.
    pub repeat: u32,
    /// Back-end; the best that works when `None`.
    pub backend: Option<Backend>,
    /// Its place among other runs.
    pub order: Option<RunOrder>,
    /// Whether the packets are captured.
    pub pcap: Option<Pcap>,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum RunError {
    /// The network could not be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The emulator failed during the run.
    #[error("the emulator failed: {0}")]
    Emulator(io::Error),
    /// The packets cannot be kept.
    #[error(transparent)]
    Capture(#[from] PcapError),
    /// The reader of the records is gone.
    #[error("cannot write the result: {0}")]
    Write(io::Error),
}

/// Runs `job` and hands every record to `write`.
pub fn run(
    job: &Job,
    thread: EmulatorThread,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let scenario = network::for_transport(&job.scenario, job.transport);
    let seed = scenario.run.seed.wrapping_add(u64::from(job.repeat.saturating_sub(1)));
    let mut network = network::build(thread, &scenario, Clock::start(), seed, job.backend)?;
    network.speak_quic(job.transport, seed)?;
    perform(job, network, None, write)
}

/// The same in a network that is there already; a cast has the only flow.
pub(crate) fn perform(
    job: &Job,
    network: Network,
    cast: Option<Arc<Cast>>,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let writing = match &job.pcap {
        Some(pcap) => {
            let (tape, writing) = capture::begin(pcap, &network.scenario, network.clock)?;
            network.emulator.tell(Command::Capture(tape));
            Some(writing)
        }
        None => None,
    };
    let network = Arc::new(network);
    let before = Before::read(&network);
    let watcher = Watcher::open(&network.hosts)?;
    let stage = Stage {
        pace: Pace::new(network.clock, network.clock.now() + LEAD),
        network,
        transport: job.transport,
        streams: Mutex::default(),
        steady: Mutex::default(),
        meters: Meters::default(),
        cast,
    };
    let mut meta = conditions::meta(job, &stage.network, stage.network.seed);
    if writing.is_some() {
        let zero = stage.pace.zero().saturating_since(Instant::ZERO).as_nanos() as u64;
        let zero_ns = stage.network.clock.epoch_ns() + zero;
        let text = format!("{zero_ns} ns since 1970");
        meta.conditions.insert("time 0 of captures".to_owned(), text);
    }
    write(&Record::Meta(Box::new(meta))).map_err(RunError::Write)?;
    let played = play(&stage, watcher, write)?;
    conclude(job, stage, &before, Played { writing, ..played }, write)
}

/// What the threads leave.
#[derive(Default)]
struct Played {
    outcomes: Vec<Outcome>,
    totals: Totals,
    /// Read back from the senders' subflows.
    congestion_control: BTreeMap<(u32, DataDirection), Vec<String>>,
    warnings: Vec<String>,
    cpu: Option<CpuTime>,
    /// Of captures.
    writing: Option<Writing>,
    account: account::Closed,
}

/// Runs the traffic and everything beside it; writes records until all threads have ended.
fn play(
    stage: &Stage,
    watcher: Watcher,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<Played, RunError> {
    let (records, inbox) = mpsc::channel();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let director = {
            let done = &done;
            scope.spawn(move || direct(stage, watcher, &records, done))
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

/// Starts everything at its time and waits for the flows.
fn direct(stage: &Stage, watcher: Watcher, records: &Sender<Record>, done: &AtomicBool) -> Played {
    let scenario = &stage.network.scenario;
    let emulator = &stage.network.emulator;
    stage.network.schedule_link_changes(stage.pace.zero());
    emulator.tell(Command::Report {
        zero: stage.pace.zero(),
        period: scenario.run.sample,
        to: records.clone(),
    });
    let (counts, counted) = mpsc::channel();
    emulator.tell(Command::Watch { zero: stage.pace.zero(), period: account::LOOK, to: counts });
    listen_to_stacks(stage, records);
    let programs = Programs::open(&stage.network);
    let looked = &AtomicBool::new(programs.is_none());
    let began = Began::now(&stage.network);
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
                programs.follow(stage, done);
                looked.store(true, Ordering::Release);
                programs
            })
        });
        let words = scope.spawn(|| watcher.run(stage, records, done));
        let series = scope.spawn(|| sample(stage, records.clone(), (done, looked)));
        let account = scope.spawn(move || account::keep(stage, &counted));
        let mut outcomes: Vec<_> =
            flows.into_iter().map(|flow| flow.join().unwrap_or_default()).collect();
        let cpu = began.until_now(&stage.network, &stage.meters);
        done.store(true, Ordering::Release);
        emulator.tell(Command::Quiet);
        // The records end when nobody can send any more.
        for stack in stage.network.hosts.iter().filter_map(|host| host.stack.as_ref()) {
            let _ = stack.call(|turn| turn.on_notice(|_, _, _| {})); // fails if the stack has ended
        }
        let mut warnings = timeline.join().unwrap_or_default();
        let programs = follower.and_then(|follower| follower.join().ok());
        let words: Vec<LastWords> = words.join().unwrap_or_default();
        let series = series.join().unwrap_or_else(|_| Series::new(records.clone()));
        if let Some(programs) = &programs {
            attribute(programs, &stage.network.scenario, &mut outcomes);
            warnings.extend(programs.warning());
        }
        let account = account.join().unwrap_or_default();
        let played = Played { outcomes, warnings, cpu, account, ..Played::default() };
        add_up(stage, series, words, played)
    })
}

/// Adds what the series has seen, and what was said at the end of it.
fn add_up(stage: &Stage, mut series: Series, words: Vec<LastWords>, played: Played) -> Played {
    series.look_last(stage);
    for (local, remote, info) in words {
        series.last_words(local, remote, info);
    }
    let streams = stage.streams();
    let congestion_control = series.congestion_control(&stage.network, &streams);
    Played { totals: series.totals(&streams), congestion_control, ..played }
}

/// What commands moved is theirs.
fn attribute(programs: &Programs, scenario: &Scenario, outcomes: &mut [Outcome]) {
    for ((index, flow), outcome) in (0_u32..).zip(&scenario.flows).zip(outcomes) {
        if !matches!(flow.pattern, Pattern::Run { .. }) {
            continue;
        }
        let moved: Vec<_> = programs
            .logs(index)
            .into_iter()
            .map(|(direction, log)| Delivered { direction, logs: vec![log.clone()] })
            .collect();
        if !moved.is_empty() {
            outcome.delivered = moved;
        }
    }
}

/// What the hosts' own stacks notice becomes events, as what kernels notice does.
fn listen_to_stacks(stage: &Stage, records: &Sender<Record>) {
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

/// Runs a flow; one that opened no connection leaves an empty log, with the reason.
fn run_flow(stage: &Stage, index: usize, flow: &towpath_measure::scenario::Flow) -> Outcome {
    let mut outcome = attempt_flow(stage, index, flow);
    for direction in summary_directions(&flow.pattern) {
        let known = outcome.delivered.iter().any(|side| side.direction == *direction);
        if !known {
            let mut log = DeliveryLog::new(Instant::ZERO + flow.start);
            log.watch_until(stage.now());
            outcome.delivered.push(Delivered { direction: *direction, logs: vec![log] });
        }
    }
    outcome
}

fn attempt_flow(stage: &Stage, index: usize, flow: &towpath_measure::scenario::Flow) -> Outcome {
    if let Some(cast) = &stage.cast {
        stage.pace.sleep_until(Instant::ZERO + flow.start);
        return cast.lead(&stage.network);
    }
    let hosts = &stage.network.hosts;
    let own = |host: usize| hosts.get(host).is_some_and(|host| host.stack.is_some());
    if let Pattern::Run { command, duration } = &flow.pattern {
        if own(flow.from) || own(flow.to) {
            let text = "a command needs hosts with the kernel's stack";
            return Outcome { failure: Some(text.to_owned()), ..Outcome::default() };
        }
        return program::run_flow(stage, flow, command, *duration);
    }
    if let Pattern::Udping(plan) = &flow.pattern {
        let (probes, warning) = traffic::ping::run(stage, (index, flow), plan);
        return Outcome { probes, warning, ..Outcome::default() };
    }
    if let Pattern::Udp(plan) = &flow.pattern {
        return traffic::udp::run(stage, (index, flow), plan);
    }
    match traffic::listen(stage, index, flow) {
        Ok(listener) => traffic::run(stage, index, flow, &listener),
        Err(error) => {
            let hosts = &stage.network.scenario.hosts;
            let host = hosts.get(flow.to).map_or("?", |host| host.name.as_str());
            Outcome {
                failure: Some(traffic::explain(&error, stage.transport_of(index as u32), host)),
                ..Outcome::default()
            }
        }
    }
}

/// Applies the timeline to the hosts' kernels and reports it; returns what failed.
pub(crate) fn play_timeline(
    stage: &Stage,
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
            let nap = at.saturating_since(stage.now()).min(NAP);
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
    stage: &Stage,
    records: Sender<Record>,
    (done, looked): (&AtomicBool, &AtomicBool),
) -> Series {
    let mut series = Series::new(records);
    let period = stage.network.scenario.run.sample;
    let mut next = Instant::ZERO + period;
    // Behind the planned end there is only the tearing down.
    let flows = stage.network.scenario.flows.iter();
    let end = flows.map(|flow| Instant::ZERO + flow.start + flow.pattern.limit()).max();
    loop {
        while stage.now() < next && !done.load(Ordering::Acquire) {
            thread::sleep(next.saturating_since(stage.now()).min(NAP));
        }
        if interrupt::seen() {
            stage.pace.interrupt();
        }
        let now = stage.now();
        if done.load(Ordering::Acquire) {
            for _ in 0..MOST_BREATHS {
                if looked.load(Ordering::Acquire) {
                    break;
                }
                thread::sleep(BREATH);
            }
            // The last period may be cut short; a sliver of one would only blur the curves, unless it
            // is all there is.
            let rest = now.saturating_since(next - period);
            let only = next == Instant::ZERO + period;
            if (rest * 2 >= period || only) && end.is_none_or(|end| next - period < end) {
                series.sample(stage, now.min(next));
            }
            return series;
        }
        if end.is_some_and(|end| next > end) {
            thread::sleep(NAP);
            continue;
        }
        series.sample(stage, next);
        while next <= now {
            next += period;
        }
    }
}

/// Everything that is known only at the end.
fn conclude(
    job: &Job,
    stage: Stage,
    before: &Before,
    played: Played,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<(), RunError> {
    let scenario = &job.scenario;
    let interrupted = stage.pace.is_interrupted();
    let counters = before.changes(&stage.network);
    let interfaces = conditions::interfaces(&stage.network);
    let lost = conditions::lost_at_interfaces(&stage.network, &interfaces);
    let connections = quic::connections(&stage);
    let transport = match &stage.cast {
        Some(_) => spoken(&played.totals, &counters),
        None => job.transport,
    };
    let multipath = match transport {
        Transport::Mpquic => quic::proof(&stage, &connections),
        transport @ (Transport::Tcp | Transport::Mptcp | Transport::Quic) => {
            proof::proof(transport, &played.totals, &counters)
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
    let report = stop(stage)?;
    let missed = played.writing.map(Writing::finish).transpose()?.flatten();
    if let Some(text) = missed {
        let hint = Some("keep less of each packet: `--snap 128`".to_owned());
        summarizer = summarizer.warning(Warning { text, hint });
    }
    let noise = conditions::noise(&report, before, lost + report.lost_packets);
    summarizer = summarizer.interfaces(&interfaces);
    let (accounts, account) = played.account;
    let accounted = accounts.into_iter().map(|one| Record::Account(Box::new(one)));
    let records = last_records(&played.outcomes, &probes, &counters, interfaces);
    for record in accounted.chain(records).chain([Record::Timing(noise.clone())]) {
        write(&record).map_err(RunError::Write)?;
    }
    let summary = summarizer
        .subflows(played.totals.subflows)
        .probes(&probes)
        .multipath(multipath)
        .cpu(played.cpu)
        .account(account)
        .noise(&noise)
        .counters(&counters)
        .finish();
    write(&Record::Summary(Box::new(summary))).map_err(RunError::Write)
}

/// Adds what became of datagrams at a constant rate.
fn add_datagrams(summarizer: &mut Summarizer<'_>, outcomes: &[Outcome]) {
    for (flow, outcome) in (0_u32..).zip(outcomes) {
        for one in &outcome.datagrams {
            summarizer.add_datagrams(flow, one.direction, one.figures.clone());
        }
    }
}

/// Ends the emulator.
fn stop(stage: Stage) -> Result<EmulatorReport, RunError> {
    let Stage { network, streams, .. } = stage;
    drop(streams);
    let network = Arc::into_inner(network);
    let in_use = || RunError::Emulator(io::Error::other("the network is still in use"));
    network.ok_or_else(in_use)?.emulator.finish().map_err(RunError::Emulator)
}

/// What is told when all has ended, in its order.
fn last_records(
    outcomes: &[Outcome],
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

/// What the programs of a lab meant to speak: Multipath TCP if one of them asked for it.
fn spoken(totals: &Totals, counters: &[Counter]) -> Transport {
    let asked = counters.iter().any(|counter| counter.name == "MPTcpExt.MPCapableSYNTX");
    if asked || totals.multipath > 0 { Transport::Mptcp } else { Transport::Tcp }
}

fn flow_inputs(played: &Played) -> Vec<FlowInput> {
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
                stack: played.totals.stack.figures(flow, delivered.direction),
                messages: outcome.messages.clone(),
            });
        }
    }
    inputs
}
