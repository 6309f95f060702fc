//! Runner of all flows at one endpoint, client or server.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Not as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use socket2::Socket;
use towpath_kernel::send_limit;
use towpath_net::{Instant, Rate};
use towpath_result::metrics::DeliveryLog;
use towpath_result::{Probe, Record};
use towpath_run::traffic::session::ExchangeReport;
use towpath_run::traffic::{FlowRole, MessageSession, TransferSender};
use towpath_scenario::flow_plan::{directions, streams};
use towpath_scenario::{DataDirection, Flow, Pattern, Scenario, Transport, Udping};
use towpath_sockets::path_ping;
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::stream::app as stream_app;
use towpath_sockets::stream::app::StreamAppConfig;
use towpath_sockets::stream::kernel;
use towpath_sockets::stream::kernel::{TransferOptions, is_timeout};
use towpath_sockets::stream::messages;
use towpath_sockets::stream::messages::{KernelMessageEnd, SharedSession, lock};
use towpath_sockets::stream::{IO_POLL_INTERVAL, sends};

use super::data_stream::DataStream;
use super::host_info::HostBaseline;
use super::probe::ProbeTarget;
use super::sender_sampler::SAMPLE_INTERVAL;
use super::series::{EndSeries, ReceiverEnds};
use super::udp_flows::{self, UdpByteCounters, UdpServerContext};
use crate::protocol::{FlowReport, HostReport, TransferSettings};

/// Longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Connection or QUIC stream of a flow at this endpoint.
#[derive(Debug, Clone)]
pub(super) struct FlowStream {
    pub(super) flow: u32,
    /// Number within the flow.
    pub(super) number: u32,
    pub(super) stream: DataStream,
    /// Bytes read in each data direction; zero for the direction in which this endpoint sends.
    pub(super) received: Vec<(DataDirection, Arc<AtomicU64>)>,
}

impl FlowStream {
    pub(super) fn new(flow: u32, number: u32, config: &Flow, stream: DataStream) -> Self {
        let received =
            directions(&config.pattern).iter().map(|direction| (*direction, Arc::default()));
        Self { flow, number, stream, received: received.collect() }
    }
}

/// Endpoint of a test with its settings.
#[derive(Debug)]
pub(super) struct FlowRunner<'a> {
    pub(super) run_clock: &'a RunClock,
    pub(super) scenario: &'a Scenario,
    pub(super) transport: Transport,
    pub(super) settings: &'a TransferSettings,
    pub(super) is_client: bool,
    /// Target of probes over single paths; `None` on a server.
    pub(super) probe_target: Option<ProbeTarget>,
    /// Server's state of UDP flows; `None` on a client.
    pub(super) udp_server: Option<UdpServerContext<'a>>,
}

/// Returns flow index and stream number of all streams of a scenario.
pub(super) fn expected_streams(scenario: &Scenario) -> Vec<(u16, u16)> {
    let flows = scenario.flows.iter().enumerate();
    let each = |(flow, config): (usize, &Flow)| {
        (0..streams(&config.pattern)).map(move |stream| (flow as u16, stream as u16))
    };
    flows.flat_map(each).collect()
}

impl FlowRunner<'_> {
    /// Runs all flows to their ends; `on_record` receives every record when it is created. The
    /// report of a server lacks these records.
    pub(super) fn run(
        &self,
        streams: &[FlowStream],
        baseline: &HostBaseline,
        on_record: &mut (dyn FnMut(&Record) + Send),
    ) -> HostReport {
        let ends = OnceLock::new();
        // Probes that run with other flows end with them.
        let is_ping = |flow: &&Flow| matches!(flow.pattern, Pattern::Udping(_));
        let other_count = self.scenario.flows.iter().filter(|flow| !is_ping(flow)).count();
        let (only_probes, unfinished) = (other_count == 0, AtomicUsize::new(other_count));
        let probes = Mutex::new(Vec::new());
        let udp_counters = match self.udp_server {
            Some(context) => context.counters(),
            None => udp_flows::counters(self.scenario, self.is_client),
        };
        let (flows, series) = thread::scope(|scope| {
            let (unfinished, probes, udp_counters) = (&unfinished, &probes, &udp_counters);
            let flows = self.scenario.flows.iter().enumerate().map(|(index, flow)| {
                let flow_streams: Vec<_> =
                    streams.iter().filter(|stream| stream.flow as usize == index).collect();
                let body = move || {
                    if let Pattern::Udping(plan) = &flow.pattern {
                        let is_last = || !only_probes && unfinished.load(Ordering::Acquire) == 0;
                        let is_late =
                            || self.run_clock.end().is_some_and(|end| self.run_clock.now() >= end);
                        let is_done = || is_last() || is_late();
                        let replies = self.send_probes((index as u32, flow), plan, &is_done);
                        probes.lock().unwrap_or_else(PoisonError::into_inner).extend(replies);
                        return FlowReport { flow: index as u32, ..FlowReport::default() };
                    }
                    let report = match flow.pattern.udp() {
                        Some(plan) => self.run_udp((index as u32, flow), plan, udp_counters),
                        None => self.run_flow(index as u32, flow, &flow_streams),
                    };
                    unfinished.fetch_sub(1, Ordering::Release);
                    report
                };
                let spawned = thread::Builder::new().spawn_scoped(scope, body);
                spawned.map_err(|error| {
                    unfinished.fetch_sub(usize::from(is_ping(&flow).not()), Ordering::Release);
                    Box::new(thread_failure(index as u32, &error))
                })
            });
            let flows: Vec<_> = flows.collect();
            let known_ends = &ends;
            let body = move || self.sample((streams, udp_counters), known_ends, on_record);
            let series = thread::Builder::new().spawn_scoped(scope, body);
            let join = |flow: ScopedJoinHandle<'_, FlowReport>| flow.join().unwrap_or_default();
            let flows: Vec<_> =
                flows.into_iter().map(|flow| flow.map_or_else(|report| *report, join)).collect();
            let _ = ends.set(receiver_ends(&flows)); // set once
            (flows, series.ok().and_then(|series| series.join().ok()))
        });
        let series = series.unwrap_or_else(|| self.new_series());
        let (connections, subflows, mut records) = series.finish();
        let probes = probes.into_inner().unwrap_or_else(PoisonError::into_inner);
        records.extend(probes.into_iter().map(Record::Probe));
        records.extend(baseline.changes().into_iter().map(Record::Counter));
        let (mut flows, mut host) = (flows, baseline.host());
        udp_flows::move_notes(&mut flows, &mut host);
        HostReport { host, flows, connections, subflows, records }
    }

    fn new_series(&self) -> EndSeries {
        let multipath = matches!(self.transport, Transport::Mptcp | Transport::Mpquic);
        EndSeries::new(self.is_client, multipath, self.run_clock.start_time())
    }

    fn transfer_options(&self) -> TransferOptions {
        TransferOptions {
            block: self.settings.block_bytes.map(|bytes| bytes as usize),
            rate: self.settings.rate_bps.and_then(Rate::from_bps),
            discard: self.settings.discard,
        }
    }

    fn run_flow(&self, number: u32, flow: &Flow, streams: &[&FlowStream]) -> FlowReport {
        let start = Instant::ZERO + flow.start;
        let deadline = start + flow.pattern.limit();
        let role = if self.is_client { FlowRole::Client } else { FlowRole::Server };
        let session = MessageSession::new(&flow.pattern, role, start);
        let mut report = FlowReport { flow: number, ..FlowReport::default() };
        // Times before the start are not representable, so no request is made earlier.
        self.run_clock.wait_until(start);
        let session = session.map(|session| Arc::new(Mutex::new(session)));
        if let (Some(session), Some(budget)) = (&session, self.run_clock.budget()) {
            let session = Arc::clone(session);
            budget.add_gauge(move || lock(&session).memory_bytes());
        }
        let is_quic = |stream: &&FlowStream| matches!(stream.stream, DataStream::Quic(_));
        if streams.iter().any(is_quic) {
            report.delivered = self.run_quic(flow, streams, session.as_ref(), (start, deadline));
            report.exchange = session.map(|session| ExchangeReport::of(&lock(&session)));
        } else if let Some(session) = session {
            match self.message_end(&session, streams) {
                Ok(end) => report.delivered = end.run(self.run_clock, flow, deadline),
                Err(error) => report.failure = Some(error.to_string()),
            }
            report.exchange = Some(ExchangeReport::of(&lock(&session)));
        } else {
            let results = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for stream in streams {
                    let results = &results;
                    let body = move || {
                        let log = self.transfer(flow, stream, start, deadline);
                        let mut logs = results.lock().unwrap_or_else(PoisonError::into_inner);
                        logs.extend(log);
                    };
                    if let Err(error) = thread::Builder::new().spawn_scoped(scope, body) {
                        report.failure = thread_failure(number, &error).failure;
                    }
                }
            });
            report.delivered = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        report
    }

    /// Sends probes over single paths. On the server another thread replies while the test exists.
    fn send_probes(
        &self,
        (number, flow): (u32, &Flow),
        plan: &Udping,
        is_done: &dyn Fn() -> bool,
    ) -> Vec<Probe> {
        let start = Instant::ZERO + flow.start;
        let Some(target) = &self.probe_target else {
            while !self.run_clock.is_over(start + plan.duration) && !is_done() {
                self.run_clock
                    .sleep_until((self.run_clock.now() + POLL_INTERVAL).min(start + plan.duration));
            }
            return Vec::new();
        };
        self.run_clock.wait_until(start);
        let paths = target.paths(self.scenario, plan, start);
        path_ping::run(self.run_clock, number, paths, start + flow.pattern.limit(), is_done)
    }

    /// Attaches handlers to QUIC streams, whose data the driver thread moves, and waits for their
    /// ends.
    fn run_quic(
        &self,
        flow: &Flow,
        streams: &[&FlowStream],
        session_stream: Option<&SharedSession>,
        (start, deadline): (Instant, Instant),
    ) -> Vec<(DataDirection, DeliveryLog)> {
        let mut running = Vec::new();
        for stream in streams {
            let DataStream::Quic(quic_stream) = &stream.stream else { continue };
            let outgoing =
                stream.received.iter().any(|(direction, _)| sends(*direction, self.is_client));
            let incoming =
                stream.received.iter().find(|(direction, _)| !sends(*direction, self.is_client));
            let config = StreamAppConfig {
                sender: TransferSender::new(&flow.pattern, start).filter(|_| outgoing),
                receiver: incoming.map(|(_, received)| (start, Arc::clone(received))),
                session: session_stream.map(|session| (Arc::clone(session), stream.number)),
                options: self.transfer_options(),
                budget: self.run_clock.budget().cloned(),
            };
            let (app, events) = stream_app::create_app(self.run_clock.start_time(), config, false);
            quic_stream.attach(app);
            running.push((events, incoming.map(|(direction, _)| *direction), outgoing));
        }
        let end_early = || {
            if let (Some(session), Some(end)) = (session_stream, self.run_clock.end()) {
                lock(session).end_at(end);
            }
        };
        let deliveries = running.into_iter().filter_map(|(events, incoming, outgoing)| {
            let has_directions = (incoming.is_some(), outgoing);
            let log = events.receive(self.run_clock, (start, deadline), has_directions, &end_early);
            Some((incoming?, log))
        });
        deliveries.collect()
    }

    /// Creates this endpoint's part of a message exchange.
    fn message_end(
        &self,
        session_stream: &SharedSession,
        streams: &[&FlowStream],
    ) -> io::Result<KernelMessageEnd> {
        let incoming = if self.is_client { DataDirection::Down } else { DataDirection::Up };
        let mut kernel_streams = Vec::new();
        for stream in streams {
            let DataStream::Socket(socket_stream) = &stream.stream else { continue };
            socket_stream.socket().set_nonblocking(true)?;
            let received = stream.received.iter().find(|(direction, _)| *direction == incoming);
            kernel_streams.extend(received.map(|(_, received)| messages::KernelStream {
                number: stream.number,
                socket: socket_stream.clone(),
                received: Arc::clone(received),
            }));
        }
        Ok(KernelMessageEnd {
            session: Arc::clone(session_stream),
            streams: kernel_streams,
            incoming,
        })
    }

    /// Sends, receives or both on one stream; returns the deliveries of the receiving direction.
    fn transfer(
        &self,
        flow: &Flow,
        stream: &FlowStream,
        start: Instant,
        deadline: Instant,
    ) -> Option<(DataDirection, DeliveryLog)> {
        let DataStream::Socket(socket_stream) = &stream.stream else { return None };
        let (run_clock, socket, options) =
            (self.run_clock, &**socket_stream.socket(), self.transfer_options());
        // A socket that rejects options is closed; the following calls report that.
        let _ = socket
            .set_nonblocking(false)
            .and_then(|()| socket.set_read_timeout(Some(IO_POLL_INTERVAL)))
            .and_then(|()| socket.set_write_timeout(Some(IO_POLL_INTERVAL)));
        let outgoing =
            stream.received.iter().any(|(direction, _)| sends(*direction, self.is_client));
        let incoming =
            stream.received.iter().find(|(direction, _)| !sends(*direction, self.is_client));
        let sender = TransferSender::new(&flow.pattern, start).filter(|_| outgoing);
        thread::scope(|scope| {
            let sender_thread = sender.and_then(|sender| {
                let body = move || kernel::send(run_clock, socket_stream, sender, options);
                // Without a thread nothing is sent, which the peer notices.
                thread::Builder::new().spawn_scoped(scope, body).ok()
            });
            if let Some((direction, received)) = incoming {
                let log =
                    kernel::receive(run_clock, socket_stream, (start, deadline), received, options);
                socket_stream.close(run_clock.clock());
                return Some((*direction, log));
            }
            // Data may be in flight until the peer has closed its side.
            let _ = sender_thread.map(ScopedJoinHandle::join); // the peer counts what arrives
            drain(run_clock, socket, deadline);
            None
        })
    }

    /// Returns the streams on which this endpoint sends; true if the stream is never limited by the
    /// application.
    fn sending_streams<'b>(&self, streams: &'b [FlowStream]) -> Vec<(&'b FlowStream, bool)> {
        let senders = streams.iter().filter(|stream| {
            stream.received.iter().any(|(direction, _)| sends(*direction, self.is_client))
        });
        let marked_senders = senders.map(|stream| {
            let flow = self.scenario.flows.get(stream.flow as usize);
            let endless = flow.is_some_and(|flow| send_limit::is_endless(&flow.pattern));
            (stream, endless && self.settings.rate_bps.is_none())
        });
        marked_senders.collect()
    }

    /// Returns the senders whose flow is running at `now`.
    fn active_senders<'b>(
        &self,
        senders: &[(&'b FlowStream, bool)],
        now: Instant,
    ) -> Vec<(&'b FlowStream, bool)> {
        let is_active = |(stream, _): &&(&FlowStream, bool)| {
            self.scenario.flows.get(stream.flow as usize).is_some_and(|flow| {
                let begin = Instant::ZERO + flow.start;
                (begin..=begin + flow.pattern.limit()).contains(&now)
            })
        };
        senders.iter().filter(is_active).copied().collect()
    }

    /// Samples at each multiple of the period until all flows have ended, and once at their end.
    fn sample(
        &self,
        counters: (&[FlowStream], &UdpByteCounters),
        ends: &OnceLock<ReceiverEnds>,
        on_record: &mut (dyn FnMut(&Record) + Send),
    ) -> EndSeries {
        let mut series = self.new_series();
        let (streams, _) = counters;
        let period = self.scenario.run.sample;
        let mut next = Instant::ZERO + period;
        let mut emitted = 0;
        let senders = self.sending_streams(streams);
        let interval = if senders.is_empty() { POLL_INTERVAL } else { SAMPLE_INTERVAL };
        loop {
            while self.run_clock.now() < next && ends.get().is_none() {
                let now = self.run_clock.now();
                series.sample_senders(&self.active_senders(&senders, now), now, false);
                self.run_clock.sleep_until(next.min(now + interval));
            }
            let ends = ends.get().map(|ends| (ends, period));
            let now = self.run_clock.now();
            series.sample_senders(&self.active_senders(&senders, now), now, true);
            // A sample may be late, so it counts for the time at which it is taken.
            series.sample(counters, self.run_clock.now(), ends);
            series.records().iter().skip(emitted).for_each(&mut *on_record);
            if self.is_client {
                emitted = series.records().len();
            } else {
                // The server has written them to its report.
                series.discard_records();
            }
            if ends.is_some() {
                series.sample_final_paths(streams);
                return series;
            }
            if self.is_client && towpath_os::interrupt::is_interrupted() {
                self.run_clock.interrupt();
            }
            while next <= now {
                next += period;
            }
        }
    }
}

/// Returns the time until which each flow's receivers at this endpoint listened.
fn receiver_ends(flows: &[FlowReport]) -> ReceiverEnds {
    let mut ends = ReceiverEnds::new();
    for flow in flows {
        for (direction, log) in &flow.delivered {
            let listened_until = log.eof().unwrap_or_else(|| log.watched_until());
            // The last read may end slightly after the deadline.
            let end = log.last().map_or(listened_until, |last| last.max(listened_until));
            let latest = ends.entry((flow.flow, *direction)).or_default();
            *latest = end.max(*latest);
        }
    }
    ends
}

/// Returns the report of a flow that did not start for lack of a thread.
fn thread_failure(flow: u32, error: &io::Error) -> FlowReport {
    let failure = Some(format!("no thread for it: {error}"));
    FlowReport { flow, failure, ..FlowReport::default() }
}

/// Waits until the peer has closed a stream that it only receives on.
fn drain(run_clock: &RunClock, socket: &Socket, deadline: Instant) {
    let mut buffer = [MaybeUninit::uninit(); 64];
    while !run_clock.is_over(deadline) {
        match socket.recv(&mut buffer) {
            Ok(length) if length > 0 => {}
            Err(error) if is_timeout(&error) => {}
            Ok(_) | Err(_) => return,
        }
    }
}
