//! `towpath measure`: a measurement from the first connection to the summary.

mod setup;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towpath_measure::live::limits::max_duration;
use towpath_measure::live::{
    ClientMessage, ClockOffset, HOSTS, HostReport, MergedRun, Secret, TestPlan, account, merge,
};
use towpath_measure::metrics::Summarizer;
use towpath_measure::result::{
    CpuAccounting, CpuTime, Event, EventKind, Meta, Record, RunOrder, Summary, Warning,
};
use towpath_measure::scenario::{Scenario, Transport, World};
use towpath_net::Instant;
use towpath_quic::Fingerprint;

use super::LiveError;
use super::dial::Dialer;
use super::evidence::{self, multipath_use};
use super::fetch::{ResultFetch, max_result_bytes};
use super::flow_runner::FlowRunner;
use super::host_info::{HostBaseline, path_name, system_congestion_control};
use super::mobile::{self, MobileSession, SharedDetector};
use super::network_watch::{NetworkChange, NetworkWatch};
use super::probe::ProbeTarget;
use super::socket::LocalBind;
use crate::clock::Clock;
use crate::run_clock::RunClock;
use crate::traffic::is_quic;
use setup::{PreparedTest, open, probe};

pub(super) use setup::quic_error;

/// Time from the last control message to the start of the traffic, not counting the message's
/// delay.
const START_LEAD: Duration = Duration::from_millis(20);
/// Largest start delay that every server accepts, even with a large clock error.
const MAX_START_LEAD: Duration = Duration::from_secs(2);
/// Clock error above which one-way delays are questionable.
const MAX_CLOCK_ERROR: Duration = Duration::from_millis(5);

/// Request for one measurement.
#[derive(Debug)]
pub struct MeasureRequest {
    /// Server name as given by the user.
    pub name: String,
    /// Addresses of the server, tried in this order.
    pub targets: Vec<SocketAddr>,
    /// Reason why this server was chosen among several; `None` without a choice.
    pub choice: Option<String>,
    /// Local address and interface of connections.
    pub source: LocalBind,
    /// Test plan that is sent to the server.
    pub plan: TestPlan,
    /// Scenario of the plan, parsed.
    pub scenario: Scenario,
    /// Secret shared with the server; `None` without authentication.
    pub secret: Option<Secret>,
    /// Expected certificate of the server. `None` accepts any certificate and records it.
    pub server: Option<Fingerprint>,
    /// Folder for a log of each flow's connection of QUIC.
    pub qlog: Option<PathBuf>,
    /// Number of the repetition, from 1.
    pub repeat: u32,
    /// Position among the runs of one invocation.
    pub run_order: Option<RunOrder>,
    /// Seed, recorded in the result only.
    pub seed: u64,
    /// Longest silence of the server after the traffic before its report is given up.
    pub result_timeout: Duration,
    /// Mobile session, if the run lasts until this host loses a network.
    pub session: Option<MobileSession>,
    /// Set when the host moves: network changes are part of the measurement and do not invalidate
    /// it.
    pub mobile: bool,
}

/// Runs the measurement. `tell` receives the conditions first, then live records of this host.
/// Returns all records of the result in their order.
pub fn measure(
    order: &MeasureRequest,
    tell: &mut (dyn FnMut(&Record) + Send),
) -> Result<Vec<Record>, LiveError> {
    let clock = order.session.as_ref().map_or_else(Clock::start, MobileSession::clock);
    let before = HostBaseline::read();
    let mut opened = open(order, clock)?;
    let offset = probe(&mut opened.session, clock)?;
    let begin = clock.now() + START_LEAD + (offset.error * 4).min(MAX_START_LEAD);
    let at_ns = offset.to_server_time(begin).as_nanos();
    let said = opened.session.channel.send(&ClientMessage::Begin { at_ns });
    said.map_err(LiveError::system("start the test"))?;
    let mut meta = meta(order, offset, &opened.reconnector.dialer);
    tell(&Record::Meta(Box::new(meta.clone())));
    let pace = RunClock::new(clock, begin);
    let LocalObservations { mut own, changes, network_lost: departed } =
        run_traffic((order, offset), &pace, &mut opened, &before, tell);
    let interrupted = pace.is_interrupted();
    let other = finish(order, &mut own, opened, interrupted, &pace);
    let mut records = Vec::new();
    let warnings = conditions(&mut meta, &own, &other, offset, interrupted);
    if let Some(end) = pace.end() {
        meta.duration_ns = end.as_nanos().min(meta.duration_ns);
    }
    records.push(Record::Meta(Box::new(meta)));
    let ended = pace.end().map(|end| EarlyEnd { end, network_lost: departed });
    conclude(
        order,
        (&own, other.as_ref().map(|(report, _)| report)),
        warnings,
        ended.as_ref(),
        &mut records,
    );
    if let Some(Record::Summary(summary)) = records.last_mut().filter(|_| !order.mobile) {
        invalidate(summary, &changes);
    }
    Ok(records)
}

/// Local observations of the traffic.
struct LocalObservations {
    own: HostReport,
    changes: Vec<(Instant, NetworkChange)>,
    /// Time and reason of a network loss; `None` if none was lost.
    network_lost: Option<(Instant, String)>,
}

/// Runs this host's traffic and watches its networks meanwhile.
fn run_traffic(
    (order, offset): (&MeasureRequest, ClockOffset),
    pace: &RunClock,
    opened: &mut PreparedTest,
    before: &HostBaseline,
    tell: &mut (dyn FnMut(&Record) + Send),
) -> LocalObservations {
    // Without permission to watch the network, the measurement still runs.
    let watch = NetworkWatch::open().ok();
    let departure = order
        .session
        .as_ref()
        .map(|_| Arc::new(Mutex::new(mobile::loss_detector(&order.scenario, watch.as_ref()))));
    let end = FlowRunner {
        pace,
        scenario: &order.scenario,
        transport: order.plan.transport,
        settings: &order.plan.settings,
        is_client: true,
        probe_target: opened.reconnector.targets.first().map(|target| ProbeTarget {
            target: *target,
            token: opened.reconnector.token.public_id(),
            source: order.source.clone(),
            loss_detector: departure.clone(),
        }),
        udp_server: None,
    };
    let PreparedTest { session: talk, streams, .. } = opened;
    let speaker = &mut talk.channel;
    let followed = order.session.as_ref().zip(departure.as_ref());
    let follow = |done: &AtomicBool| {
        if let Some((session, departure)) = followed {
            session.follow(pace, departure, done, |at| mobile::send_end(speaker, offset, at));
        }
    };
    let traffic = || end.run(streams, before, tell);
    let (mut own, changes) = watched((pace, watch, departure.as_ref()), traffic, follow);
    let events = changes.iter().map(|(at, change)| Record::Event(as_event(*at, change)));
    own.records.extend(events);
    let departed = order.session.as_ref().and_then(|session| session.network_lost(pace));
    own.records
        .extend(departed.iter().map(|(since, why)| Record::Event(network_lost_event(*since, why))));
    LocalObservations { own, changes, network_lost: departed }
}

/// Runs `what` while watching for network changes; returns its result and the changes. `follow`
/// runs concurrently.
fn watched<T>(
    (pace, watch, departure): (&RunClock, Option<NetworkWatch>, Option<&SharedDetector>),
    what: impl FnOnce() -> T,
    follow: impl FnOnce(&AtomicBool) + Send,
) -> (T, Vec<(Instant, NetworkChange)>) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        let watching = watch.map(|mut watch| {
            scope.spawn(move || {
                let mut changes = Vec::new();
                watch.run(done, &mut |change| {
                    let now = pace.now();
                    if let Some(departure) = departure {
                        mobile::lock(departure).on_change(now, &change);
                    }
                    changes.push((now, change));
                });
                changes
            })
        });
        scope.spawn(move || follow(done));
        let result = what();
        done.store(true, Ordering::Release);
        let changes = watching.and_then(|watching| watching.join().ok());
        (result, changes.unwrap_or_default())
    })
}

/// Returns the event of a lost network.
fn network_lost_event(since: Instant, why: &str) -> Event {
    Event {
        t_ns: since.as_nanos(),
        kind: EventKind::Link,
        host: HOSTS.first().map(|name| (*name).to_owned()),
        path: None,
        text: format!("the first network is gone: {why}"),
        detail: BTreeMap::new(),
    }
}

fn as_event(at: Instant, change: &NetworkChange) -> Event {
    let kind = match change {
        NetworkChange::Link { .. }
        | NetworkChange::Removed { .. }
        | NetworkChange::DefaultRoute { .. } => EventKind::Link,
        NetworkChange::Address { .. } => EventKind::Address,
    };
    Event {
        t_ns: at.as_nanos(),
        kind,
        host: HOSTS.first().map(|name| (*name).to_owned()),
        path: change.interface().map(path_name),
        text: change.to_string(),
        detail: BTreeMap::new(),
    }
}

/// Marks the summary as invalid if a network changed, as its metrics would mix two networks.
fn invalidate(summary: &mut Summary, changes: &[(Instant, NetworkChange)]) {
    let Some((at, first)) = changes.first() else { return };
    let seconds = Duration::from_nanos(at.as_nanos()).as_secs_f64();
    let more = match changes.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more changes)"),
    };
    let text = format!("invalid: at {seconds:.1} s, {first}{more}");
    summary.ok = false;
    summary.verdict = format!("{text}; {}", summary.verdict);
    summary.warnings.push(Warning {
        text,
        hint: Some("repeat it, or measure with --mobile if the host moves".to_owned()),
    });
}

/// Fetches the server's report, even after connections were lost.
fn finish(
    order: &MeasureRequest,
    own: &mut HostReport,
    opened: PreparedTest,
    interrupted: bool,
    pace: &RunClock,
) -> Result<(HostReport, u32), String> {
    let PreparedTest { session: talk, streams, reconnector: mut way, connect } = opened;
    let mut speaker = talk.channel;
    for (flow, span) in connect {
        if let Some(report) = own.flows.iter_mut().find(|half| half.flow == flow) {
            report.connect_ns = Some(span.as_nanos() as u64);
        }
    }
    // Addresses announced by the server may be reachable when the first one is not.
    for remote in own.subflows.iter().filter_map(|subflow| subflow.remote.parse().ok()) {
        if !way.targets.contains(&remote) {
            way.targets.push(remote);
        }
    }
    drop(streams);
    if interrupted {
        let _ = speaker.send(&ClientMessage::Stop); // the server may be gone
    }
    let now = way.clock.now();
    let left = if interrupted {
        Duration::ZERO
    } else {
        max_duration(&order.scenario).saturating_sub(pace.now().saturating_since(Instant::ZERO))
    };
    let deadline = now + left + order.result_timeout * 2;
    let most = max_result_bytes(&order.scenario);
    ResultFetch::new(&way, Some(speaker), most).run(order.result_timeout, deadline)
}

fn meta(order: &MeasureRequest, offset: ClockOffset, dialer: &Dialer) -> Meta {
    let run = (order.plan.transport, order.repeat);
    let mut conditions = BTreeMap::from([
        ("server".to_owned(), order.name.clone()),
        ("clock offset error".to_owned(), format!("{:?}", offset.error)),
    ]);
    conditions.extend(order.scenario.remarks.clone());
    let settings = &order.plan.settings;
    let mut note = |name: &str, value: Option<String>| {
        conditions.extend(value.map(|value| (name.to_owned(), value)));
    };
    note("why this server", order.choice.clone());
    note("block", settings.block_bytes.map(|bytes| format!("{bytes} bytes")));
    note("socket buffers asked for", settings.window_bytes.map(|bytes| format!("{bytes} bytes")));
    note("rate limit of each stream", settings.rate_bps.map(|bps| format!("{bps} bit/s")));
    let quic = is_quic(order.plan.transport);
    note("quic", quic.then(|| towpath_quic::QUIC_LIBRARY.to_owned()));
    let bytes = "UDP payload, with everything that QUIC adds to the data";
    note("bytes of paths", quic.then(|| bytes.to_owned()));
    let multipath = order.plan.transport == Transport::Mpquic;
    let policy = order.scenario.hosts.first().map(|host| host.stack.path_policy.to_string());
    note("path policy", policy.filter(|_| multipath));
    note("multipath quic", multipath.then(|| towpath_quic::MULTIPATH_DRAFT.to_owned()));
    let checked = match (order.server, &order.secret) {
        (Some(_), _) => "as expected",
        (None, Some(_)) => "whoever has it knows the secret",
        (None, None) => "not checked",
    };
    let shown = dialer.server_fingerprint().map(|shown| format!("sha256:{shown} ({checked})"));
    note("server certificate", shown);
    note("tls", (settings.tls && !quic).then(|| "1.3, around the data".to_owned()));
    let around_control = dialer.is_secure() && !quic;
    note("tls of control", around_control.then(|| "1.3".to_owned()));
    note("received data", settings.discard.then(|| "counted, not copied".to_owned()));
    let mut meta = Meta::of(&order.scenario, World::Live, run, order.seed);
    for path in &mut meta.paths {
        // Link settings of the scenario apply to emulated links only.
        "as it is".clone_into(&mut path.text);
    }
    Meta {
        stack: "kernel".to_owned(),
        kernel: HostBaseline::read().host().kernel,
        congestion_control: settings
            .congestion_control
            .clone()
            .unwrap_or_else(system_congestion_control),
        order: order.run_order,
        conditions,
        ..meta
    }
}

/// Adds the conditions of both hosts to `meta`; returns warnings about the result.
fn conditions(
    meta: &mut Meta,
    own: &HostReport,
    other: &Result<(HostReport, u32), String>,
    offset: ClockOffset,
    interrupted: bool,
) -> Vec<Warning> {
    let plain = |text: String| Warning { text, hint: None };
    let mut warnings = Vec::new();
    let other_half = other.as_ref().ok().map(|(report, _)| report);
    for (name, half) in HOSTS.iter().zip([Some(own), other_half]) {
        let Some(host) = half.map(|half| &half.host) else { continue };
        for (key, value) in &host.conditions {
            meta.conditions.insert(format!("{key} on {name}"), value.clone());
        }
        meta.conditions.insert(format!("kernel on {name}"), host.kernel.clone());
        meta.conditions.insert(format!("towpath on {name}"), host.towpath.clone());
        meta.conditions.insert(format!("processor time on {name}"), format!("{:.3} s", host.cpu_s));
        warnings.extend(host.warnings.iter().cloned().map(plain));
    }
    match other {
        Ok((_, 0)) => {}
        Ok((_, lost)) => {
            let lost = if *lost == 1 { "once".to_owned() } else { format!("{lost} times") };
            let text = format!("the control connection was lost {lost}; nothing is missing");
            meta.conditions.insert("control".to_owned(), text);
        }
        Err(why) => warnings.push(Warning {
            text: format!("the server's half of the result is missing: {why}"),
            hint: Some(
                "what this host saw is here; repeat it when the server can be \
                reached"
                    .to_owned(),
            ),
        }),
    }
    if interrupted {
        warnings.push(plain("the run was interrupted".to_owned()));
    }
    if offset.error > MAX_CLOCK_ERROR {
        let text = format!(
            "the hosts' clocks are compared to ± {:.1} ms only: so vague are times from one host to \
             the other",
            offset.error.as_secs_f64() * 1e3
        );
        warnings.push(plain(text));
    }
    warnings
}

/// End before the planned one.
#[derive(Debug)]
struct EarlyEnd {
    end: Instant,
    /// Time and reason of a network loss; `None` if none was lost.
    network_lost: Option<(Instant, String)>,
}

/// Merges both reports and appends the records of the result, ending with the summary.
fn conclude(
    order: &MeasureRequest,
    (own, other): (&HostReport, Result<&HostReport, &String>),
    warnings: Vec<Warning>,
    ended: Option<&EarlyEnd>,
    records: &mut Vec<Record>,
) {
    let other = other.map_err(String::as_str);
    let mut merged = merge(&order.scenario, own, other);
    if let Some(EarlyEnd { end, .. }) = ended {
        merged.drop_from(*end);
    }
    let transport = order.plan.transport;
    let proved = multipath_use(transport, &merged, (own, other.ok()));
    let (accounts, account) = account(&order.scenario, transport, &merged);
    let MergedRun { records: series, messages, probes, counters, inputs, subflows, .. } = merged;
    let mut summarizer = Summarizer::new(&order.scenario, transport);
    for input in inputs {
        summarizer = summarizer.flow(input);
    }
    for (flow, direction, figures) in merged.datagrams {
        summarizer.add_datagrams(flow, direction, figures);
    }
    let mut warnings = warnings;
    if !probes.is_empty() && probes.iter().all(|probe| probe.answered_ns.is_none()) {
        warnings.push(Warning {
            text: "no datagram came back over any path".to_owned(),
            hint: Some("`towpath check` says whether UDP passes to the server's port".to_owned()),
        });
    }
    for warning in warnings.into_iter().chain(evidence::warnings(&order.scenario, transport, own)) {
        summarizer = summarizer.warning(warning);
    }
    let nanos = |report: &HostReport| {
        Duration::try_from_secs_f64(report.host.cpu_s).ok().map(|t| t.as_nanos() as u64)
    };
    let cpu = CpuTime {
        client_cpu_ns: nanos(own),
        server_cpu_ns: other.ok().and_then(nanos),
        accounting: CpuAccounting::Process,
    };
    let summarizer = summarizer
        .subflows(subflows)
        .probes(&probes)
        .multipath(proved)
        .counters(&counters)
        .account(account)
        .cpu(Some(cpu));
    records.extend(series);
    records.extend(accounts.into_iter().map(|one| Record::Account(Box::new(one))));
    records.extend(messages.into_iter().map(Record::Message));
    records.extend(probes.into_iter().map(Record::Probe));
    records.extend(merged.datagram_rows.into_iter().map(Record::Datagrams));
    records.extend(counters.into_iter().map(Record::Counter));
    let mut summary = summarizer.finish();
    if let Some(EarlyEnd { network_lost: Some((since, why)), .. }) = ended {
        let seconds = since.saturating_since(Instant::ZERO).as_secs_f64();
        summary.verdict = format!("{why} at {seconds:.1} s; {}", summary.verdict);
    }
    records.push(Record::Summary(Box::new(summary)));
}
