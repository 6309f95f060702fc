//! `towpath measure`: a measurement from the first connection to the summary.

mod setup;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_quic::Fingerprint;
use towpath_result::metrics::Summarizer;
use towpath_result::{
    CpuAccounting, CpuTime, Event, EventKind, INTERRUPTED_WARNING, INVALID_PREFIX, Meta,
    NETWORK_LOSS_PREFIX, Record, RunOrder, Summary, Warning,
};
use towpath_scenario::{Scenario, Transport, World};
use towpath_sockets::run_clock::RunClock;

use super::LiveError;
use super::dial::Dialer;
use super::evidence::{self, multipath_use};
use super::fetch::{ResultFetch, max_result_bytes};
use super::flow_runner::FlowRunner;
use super::host_info::{HostBaseline, add_network_kinds, path_name, system_congestion_control};
use super::mobile::{self, MobileSession, SharedDetector};
use super::network_watch::{NetworkChange, NetworkWatch};
use super::probe::ProbeTarget;
use super::socket::LocalBind;
use crate::protocol::limits::max_duration;
use crate::protocol::{
    ClientMessage, ClockOffset, HOSTS, HostReport, MergedRun, Secret, TestPlan, account, merge,
};

use setup::{PreparedTest, estimate_clock_offset, prepare_test};

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
    /// Text of the access grant whose secret is `secret`; `None` for the secret of a `--secret-file`.
    pub grant: Option<String>,
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

/// Runs the measurement. `on_record` receives the conditions first, then live records of this host.
/// Returns all records of the result in their order.
pub fn measure(
    request: &MeasureRequest,
    on_record: &mut (dyn FnMut(&Record) + Send),
) -> Result<Vec<Record>, LiveError> {
    let clock = request.session.as_ref().map_or_else(Clock::start, MobileSession::clock);
    let baseline = HostBaseline::read();
    let mut prepared = prepare_test(request, clock)?;
    let offset = estimate_clock_offset(&mut prepared.session, clock)?;
    let begin = clock.now() + START_LEAD + (offset.error * 4).min(MAX_START_LEAD);
    let at_ns = offset.to_server_time(begin).as_nanos();
    let sent = prepared.session.channel.send(&ClientMessage::Begin { at_ns });
    sent.map_err(LiveError::system("start the test"))?;
    let mut meta = meta(request, offset, &prepared.reconnector.dialer);
    on_record(&Record::Meta(Box::new(meta.clone())));
    let run_clock = RunClock::new(clock, begin);
    let LocalObservations { mut client_report, changes, network_lost } =
        run_traffic((request, offset), &run_clock, &mut prepared, &baseline, on_record);
    let interrupted = run_clock.is_interrupted();
    let server_report =
        fetch_report(request, &mut client_report, prepared, interrupted, &run_clock);
    let mut records = Vec::new();
    let warnings = conditions(&mut meta, &client_report, &server_report, offset, interrupted);
    add_network_kinds(&mut meta.conditions, seen_paths(&client_report, &changes));
    if let Some(end) = run_clock.end() {
        meta.duration_ns = end.as_nanos().min(meta.duration_ns);
    }
    records.push(Record::Meta(Box::new(meta)));
    let early_end = run_clock.end().map(|end| EarlyEnd { end, network_lost });
    append_result(
        request,
        (&client_report, server_report.as_ref().map(|(report, _)| report)),
        warnings,
        early_end.as_ref(),
        &mut records,
    );
    if let Some(Record::Summary(summary)) = records.last_mut().filter(|_| !request.mobile) {
        invalidate(summary, &changes);
    }
    Ok(records)
}

/// Local observations of the traffic.
struct LocalObservations {
    client_report: HostReport,
    changes: Vec<(Instant, NetworkChange)>,
    /// Time and reason of a network loss; `None` if none was lost.
    network_lost: Option<(Instant, String)>,
}

/// Runs this host's traffic and watches its networks meanwhile.
fn run_traffic(
    (request, offset): (&MeasureRequest, ClockOffset),
    run_clock: &RunClock,
    prepared: &mut PreparedTest,
    baseline: &HostBaseline,
    on_record: &mut (dyn FnMut(&Record) + Send),
) -> LocalObservations {
    // Without permission to watch the network, the measurement still runs.
    let watch = NetworkWatch::open().ok();
    let loss_detector = request
        .session
        .as_ref()
        .map(|_| Arc::new(Mutex::new(mobile::loss_detector(&request.scenario, watch.as_ref()))));
    let runner = FlowRunner {
        run_clock,
        scenario: &request.scenario,
        transport: request.plan.transport,
        settings: &request.plan.settings,
        is_client: true,
        probe_target: prepared.reconnector.targets.first().map(|target| ProbeTarget {
            target: *target,
            token: prepared.reconnector.token.public_id(),
            source: request.source.clone(),
            loss_detector: loss_detector.clone(),
        }),
        udp_server: None,
    };
    let PreparedTest { session, streams, .. } = prepared;
    let channel = &mut session.channel;
    let session_and_detector = request.session.as_ref().zip(loss_detector.as_ref());
    let follow = |done: &AtomicBool| {
        if let Some((session, loss_detector)) = session_and_detector {
            session
                .follow(run_clock, loss_detector, done, |at| mobile::send_end(channel, offset, at));
        }
    };
    let traffic = || runner.run(streams, baseline, on_record);
    let (mut client_report, changes) =
        run_watched((run_clock, watch, loss_detector.as_ref()), traffic, follow);
    let events =
        changes.iter().map(|(at, change)| Record::Event(network_change_event(*at, change)));
    client_report.records.extend(events);
    let network_lost = request.session.as_ref().and_then(|session| session.network_lost(run_clock));
    client_report.records.extend(
        network_lost
            .iter()
            .map(|(since, reason)| Record::Event(network_lost_event(*since, reason))),
    );
    LocalObservations { client_report, changes, network_lost }
}

/// Runs `traffic` while watching for network changes; returns its result and the changes. `follow`
/// runs concurrently.
fn run_watched<T>(
    (run_clock, watch, loss_detector): (&RunClock, Option<NetworkWatch>, Option<&SharedDetector>),
    traffic: impl FnOnce() -> T,
    follow: impl FnOnce(&AtomicBool) + Send,
) -> (T, Vec<(Instant, NetworkChange)>) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        let watcher = watch.map(|mut watch| {
            scope.spawn(move || {
                let mut changes = Vec::new();
                watch.run(done, &mut |change| {
                    let now = run_clock.now();
                    if let Some(loss_detector) = loss_detector {
                        mobile::lock(loss_detector).on_change(now, &change);
                    }
                    changes.push((now, change));
                });
                changes
            })
        });
        scope.spawn(move || follow(done));
        let result = traffic();
        done.store(true, Ordering::Release);
        let changes = watcher.and_then(|watcher| watcher.join().ok());
        (result, changes.unwrap_or_default())
    })
}

/// Returns the event of a lost network.
fn network_lost_event(since: Instant, reason: &str) -> Event {
    Event {
        t_ns: since.as_nanos(),
        kind: EventKind::Link,
        host: HOSTS.first().map(|name| (*name).to_owned()),
        path: None,
        text: format!("{NETWORK_LOSS_PREFIX}{reason}"),
        detail: BTreeMap::new(),
    }
}

fn network_change_event(at: Instant, change: &NetworkChange) -> Event {
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
    let Some((at, change)) = changes.first() else { return };
    let seconds = Duration::from_nanos(at.as_nanos()).as_secs_f64();
    let more = match changes.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more changes)"),
    };
    let text = format!("{INVALID_PREFIX}at {seconds:.1} s, {change}{more}");
    summary.ok = false;
    summary.verdict = format!("{text}; {}", summary.verdict);
    summary.warnings.push(Warning {
        text,
        hint: Some("repeat it, or measure with --mobile if the host moves".to_owned()),
    });
}

/// Fetches the server's report, even after connections were lost.
fn fetch_report(
    request: &MeasureRequest,
    client_report: &mut HostReport,
    prepared: PreparedTest,
    interrupted: bool,
    run_clock: &RunClock,
) -> Result<(HostReport, u32), String> {
    let PreparedTest { session, streams, mut reconnector, connect } = prepared;
    let mut channel = session.channel;
    for (flow, connect_time) in connect {
        if let Some(report) =
            client_report.flows.iter_mut().find(|flow_report| flow_report.flow == flow)
        {
            report.connect_ns = Some(connect_time.as_nanos() as u64);
        }
    }
    // Addresses announced by the server may be reachable when the first one is not.
    for remote in client_report.subflows.iter().filter_map(|subflow| subflow.remote.parse().ok()) {
        if !reconnector.targets.contains(&remote) {
            reconnector.targets.push(remote);
        }
    }
    drop(streams);
    if interrupted {
        let _ = channel.send(&ClientMessage::Stop); // the server may be gone
    }
    let now = reconnector.clock.now();
    let remaining = if interrupted {
        Duration::ZERO
    } else {
        max_duration(&request.scenario)
            .saturating_sub(run_clock.now().saturating_since(Instant::ZERO))
    };
    let deadline = now + remaining + request.result_timeout * 2;
    let max_bytes = max_result_bytes(&request.scenario);
    ResultFetch::new(&reconnector, Some(channel), max_bytes).run(request.result_timeout, deadline)
}

fn meta(request: &MeasureRequest, offset: ClockOffset, dialer: &Dialer) -> Meta {
    let run = (request.plan.transport, request.repeat);
    let mut conditions = BTreeMap::from([
        ("server".to_owned(), request.name.clone()),
        ("clock offset error".to_owned(), format!("{:?}", offset.error)),
    ]);
    conditions.extend(request.scenario.remarks.clone());
    let paths = request.scenario.paths.iter().map(|path| path.name.clone());
    add_network_kinds(&mut conditions, paths);
    let settings = &request.plan.settings;
    let mut add_condition = |name: &str, value: Option<String>| {
        conditions.extend(value.map(|value| (name.to_owned(), value)));
    };
    add_condition("mode", request.mobile.then(|| "mobile".to_owned()));
    add_condition("reason for this server", request.choice.clone());
    add_condition("block", settings.block_bytes.map(|bytes| format!("{bytes} bytes")));
    add_condition(
        "requested socket buffers",
        settings.window_bytes.map(|bytes| format!("{bytes} bytes")),
    );
    add_condition("rate limit of each stream", settings.rate_bps.map(|bps| format!("{bps} bit/s")));
    let quic = request.plan.transport.is_quic();
    add_condition("quic", quic.then(|| towpath_quic::QUIC_LIBRARY.to_owned()));
    let bytes = "UDP payload, including QUIC's overhead";
    add_condition("bytes of paths", quic.then(|| bytes.to_owned()));
    let multipath = request.plan.transport == Transport::Mpquic;
    let policy = request.scenario.hosts.first().map(|host| host.stack.path_policy.to_string());
    add_condition("path policy", policy.filter(|_| multipath));
    add_condition("multipath quic", multipath.then(|| towpath_quic::MULTIPATH_DRAFT.to_owned()));
    let trust = match (request.server, &request.secret) {
        (Some(_), _) => "as expected",
        (None, Some(_)) => "verified with the secret",
        (None, None) => "not checked",
    };
    let fingerprint =
        dialer.server_fingerprint().map(|fingerprint| format!("sha256:{fingerprint} ({trust})"));
    add_condition("server certificate", fingerprint);
    add_condition("tls", (settings.tls && !quic).then(|| "1.3, for the data".to_owned()));
    let around_control = dialer.is_secure() && !quic;
    add_condition("tls of control", around_control.then(|| "1.3".to_owned()));
    add_condition("received data", settings.discard.then(|| "counted, not copied".to_owned()));
    let mut meta = Meta::of(&request.scenario, World::Live, run, request.seed);
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
        started_us: Some(towpath_os::clock::unix_us()),
        order: request.run_order,
        conditions,
        ..meta
    }
}

/// Returns the paths of the client's subflows and of its changed interfaces.
fn seen_paths<'a>(
    client_report: &'a HostReport,
    changes: &'a [(Instant, NetworkChange)],
) -> impl Iterator<Item = String> + 'a {
    let used = client_report.subflows.iter().filter_map(|subflow| subflow.path.clone());
    used.chain(changes.iter().filter_map(|(_, change)| change.interface().map(path_name)))
}

/// Adds the conditions of both hosts to `meta`; returns warnings about the result.
fn conditions(
    meta: &mut Meta,
    client_report: &HostReport,
    server_report: &Result<(HostReport, u32), String>,
    offset: ClockOffset,
    interrupted: bool,
) -> Vec<Warning> {
    let warning = |text: String| Warning { text, hint: None };
    let mut warnings = Vec::new();
    let received_report = server_report.as_ref().ok().map(|(report, _)| report);
    for (name, report) in HOSTS.iter().zip([Some(client_report), received_report]) {
        let Some(host) = report.map(|report| &report.host) else { continue };
        for (key, value) in &host.conditions {
            meta.conditions.insert(format!("{key} on {name}"), value.clone());
        }
        meta.conditions.insert(format!("kernel on {name}"), host.kernel.clone());
        meta.conditions.insert(format!("towpath on {name}"), host.towpath.clone());
        meta.conditions.insert(format!("processor time on {name}"), format!("{:.3} s", host.cpu_s));
        warnings.extend(host.warnings.iter().cloned().map(warning));
    }
    match server_report {
        Ok((_, 0)) => {}
        Ok((_, losses)) => {
            let losses = if *losses == 1 { "once".to_owned() } else { format!("{losses} times") };
            let text = format!("the control connection was lost {losses}; the result is complete");
            meta.conditions.insert("control".to_owned(), text);
        }
        Err(reason) => warnings.push(Warning {
            text: format!("the server's results are missing: {reason}"),
            hint: Some(
                "this host's results are kept; repeat the test when the server is reachable"
                    .to_owned(),
            ),
        }),
    }
    if interrupted {
        warnings.push(warning(INTERRUPTED_WARNING.to_owned()));
    }
    if offset.error > MAX_CLOCK_ERROR {
        let text = format!(
            "the hosts' clocks agree only to ± {:.1} ms: one-way times have this uncertainty",
            offset.error.as_secs_f64() * 1e3
        );
        warnings.push(warning(text));
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
fn append_result(
    request: &MeasureRequest,
    (client_report, server_report): (&HostReport, Result<&HostReport, &String>),
    warnings: Vec<Warning>,
    early_end: Option<&EarlyEnd>,
    records: &mut Vec<Record>,
) {
    let server_report = server_report.map_err(String::as_str);
    let mut merged = merge(&request.scenario, client_report, server_report);
    if let Some(EarlyEnd { end, .. }) = early_end {
        merged.drop_from(*end);
    }
    let transport = request.plan.transport;
    let reports = (client_report, server_report.ok());
    let multipath = multipath_use(&request.scenario, transport, &merged, reports);
    let (accounts, account) = account(&request.scenario, transport, &merged);
    let MergedRun { records: series, messages, probes, counters, inputs, subflows, .. } = merged;
    let mut summarizer = Summarizer::new(&request.scenario, transport);
    for input in inputs {
        summarizer = summarizer.flow(input);
    }
    for (flow, direction, summary) in merged.datagrams {
        summarizer.add_datagrams(flow, direction, summary);
    }
    let mut warnings = warnings;
    if !probes.is_empty() && probes.iter().all(|probe| probe.answered_ns.is_none()) {
        warnings.push(Warning {
            text: "no datagram returned over any path".to_owned(),
            hint: Some("`towpath check` tests whether UDP reaches the server's port".to_owned()),
        });
    }
    for warning in
        warnings.into_iter().chain(evidence::warnings(&request.scenario, transport, client_report))
    {
        summarizer = summarizer.warning(warning);
    }
    let cpu_ns = |report: &HostReport| {
        Duration::try_from_secs_f64(report.host.cpu_s).ok().map(|t| t.as_nanos() as u64)
    };
    let cpu = CpuTime {
        client_cpu_ns: cpu_ns(client_report),
        server_cpu_ns: server_report.ok().and_then(cpu_ns),
        accounting: CpuAccounting::Process,
    };
    let summarizer = summarizer
        .subflows(subflows)
        .probes(&probes)
        .multipath(multipath)
        .counters(&counters)
        .account(account)
        .cpu(Some(cpu));
    records.extend(series);
    records.extend(accounts.into_iter().map(|account| Record::Account(Box::new(account))));
    records.extend(messages.into_iter().map(Record::Message));
    records.extend(probes.into_iter().map(Record::Probe));
    records.extend(merged.datagram_rows.into_iter().map(Record::Datagrams));
    records.extend(counters.into_iter().map(Record::Counter));
    let mut summary = summarizer.finish();
    if let Some(EarlyEnd { network_lost: Some((lost_at, reason)), .. }) = early_end {
        let seconds = lost_at.saturating_since(Instant::ZERO).as_secs_f64();
        summary.verdict = format!("{reason} at {seconds:.1} s; {}", summary.verdict);
    }
    records.push(Record::Summary(Box::new(summary)));
}
