//! Runner of all flows at one endpoint, client or server.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Not as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::{FlowReport, HostReport, TransferSettings};
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::result::{Probe, Record};
use towpath_measure::scenario::{DataDirection, Flow, Pattern, Scenario, Transport, Udping};
use towpath_measure::traffic::session::ExchangeReport;
use towpath_measure::traffic::{FlowRole, MessageSession, TransferSender, directions, streams};
use towpath_net::{Instant, Rate};

use super::data_stream::DataStream;
use super::host_info::HostBaseline;
use super::probe::ProbeTarget;
use super::sender_sampler::SAMPLE_INTERVAL;
use super::series::EndSeries;
use super::udp_flows::{self, UdpByteCounters, UdpServerContext};
use crate::path_ping;
use crate::run_clock::RunClock;
use crate::send_limit;
use crate::traffic::kernel::{self, TransferOptions, is_timeout};
use crate::traffic::messages::{self, KernelMessageEnd, SharedSession, lock};
use crate::traffic::stream_app::{self, StreamAppConfig};
use crate::traffic::{IO_POLL_INTERVAL, sends};

/// Longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Memory of a record and of its text, in bytes.
const RECORD_BYTES: u64 = 768;

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
    pub(super) fn new(flow: u32, number: u32, described: &Flow, stream: DataStream) -> Self {
        let received =
            directions(&described.pattern).iter().map(|direction| (*direction, Arc::default()));
        Self { flow, number, stream, received: received.collect() }
    }
}

/// Endpoint of a test with its settings.
#[derive(Debug)]
pub(super) struct FlowRunner<'a> {
    pub(super) pace: &'a RunClock,
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
    let each = |(flow, described): (usize, &Flow)| {
        (0..streams(&described.pattern)).map(move |stream| (flow as u16, stream as u16))
    };
    flows.flat_map(each).collect()
}

impl FlowRunner<'_> {
    /// Runs all flows to their ends; `tell` receives every record when it is created.
    pub(super) fn run(
        &self,
        streams: &[FlowStream],
        before: &HostBaseline,
        tell: &mut (dyn FnMut(&Record) + Send),
    ) -> HostReport {
        let done = AtomicBool::new(false);
        // Probes that run with other flows end with them.
        let is_ping = |flow: &&Flow| matches!(flow.pattern, Pattern::Udping(_));
        let others = self.scenario.flows.iter().filter(|flow| !is_ping(flow)).count();
        let (alone, left) = (others == 0, AtomicUsize::new(others));
        let probes = Mutex::new(Vec::new());
        let counted = match self.udp_server {
            Some(served) => served.counters(),
            None => udp_flows::counters(self.scenario, self.is_client),
        };
        let (flows, series) = thread::scope(|scope| {
            let (left, probes, counted) = (&left, &probes, &counted);
            let flows = self.scenario.flows.iter().enumerate().map(|(index, flow)| {
                let own: Vec<_> =
                    streams.iter().filter(|stream| stream.flow as usize == index).collect();
                let body = move || {
                    if let Pattern::Udping(plan) = &flow.pattern {
                        let is_last = || !alone && left.load(Ordering::Acquire) == 0;
                        let is_late = || self.pace.end().is_some_and(|end| self.pace.now() >= end);
                        let is_enough = || is_last() || is_late();
                        let own = self.datagrams((index as u32, flow), plan, &is_enough);
                        probes.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
                        return FlowReport { flow: index as u32, ..FlowReport::default() };
                    }
                    let report = match flow.pattern.udp() {
                        Some(plan) => self.run_udp((index as u32, flow), plan, counted),
                        None => self.flow(index as u32, flow, &own),
                    };
                    left.fetch_sub(1, Ordering::Release);
                    report
                };
                let spawned = thread::Builder::new().spawn_scoped(scope, body);
                spawned.map_err(|error| {
                    left.fetch_sub(usize::from(is_ping(&flow).not()), Ordering::Release);
                    Box::new(without_thread(index as u32, &error))
                })
            });
            let flows: Vec<_> = flows.collect();
            let done = &done;
            let body = move || self.sample((streams, counted), done, tell);
            let series = thread::Builder::new().spawn_scoped(scope, body);
            let join = |flow: ScopedJoinHandle<'_, FlowReport>| flow.join().unwrap_or_default();
            let flows: Vec<_> =
                flows.into_iter().map(|flow| flow.map_or_else(|half| *half, join)).collect();
            done.store(true, Ordering::Release);
            (flows, series.ok().and_then(|series| series.join().ok()))
        });
        let series = series.unwrap_or_else(|| self.series());
        let (connections, subflows, mut records) = series.finish();
        let probes = probes.into_inner().unwrap_or_else(PoisonError::into_inner);
        records.extend(probes.into_iter().map(Record::Probe));
        records.extend(before.changes().into_iter().map(Record::Counter));
        let (mut flows, mut host) = (flows, before.host());
        udp_flows::move_notes(&mut flows, &mut host);
        HostReport { host, flows, connections, subflows, records }
    }

    fn series(&self) -> EndSeries {
        let multipath = matches!(self.transport, Transport::Mptcp | Transport::Mpquic);
        EndSeries::new(self.is_client, multipath, self.pace.zero())
    }

    fn transfer_options(&self) -> TransferOptions {
        TransferOptions {
            block: self.settings.block_bytes.map(|bytes| bytes as usize),
            rate: self.settings.rate_bps.and_then(Rate::from_bps),
            discard: self.settings.discard,
        }
    }

    fn flow(&self, number: u32, flow: &Flow, streams: &[&FlowStream]) -> FlowReport {
        let start = Instant::ZERO + flow.start;
        let deadline = start + flow.pattern.limit();
        let role = if self.is_client { FlowRole::Client } else { FlowRole::Server };
        let session = MessageSession::new(&flow.pattern, role, start);
        let mut report = FlowReport { flow: number, ..FlowReport::default() };
        // Times before the start are not representable, so no request is made earlier.
        self.pace.wait_until(start);
        let talk = session.map(|talk| Arc::new(Mutex::new(talk)));
        if let (Some(talk), Some(purse)) = (&talk, self.pace.budget()) {
            let talk = Arc::clone(talk);
            purse.add_gauge(move || lock(&talk).memory_bytes());
        }
        let of_quic = |stream: &&FlowStream| matches!(stream.stream, DataStream::Quic(_));
        if streams.iter().any(of_quic) {
            report.delivered = self.run_quic(flow, streams, talk.as_ref(), (start, deadline));
            report.exchange = talk.map(|talk| ExchangeReport::of(&lock(&talk)));
        } else if let Some(talk) = talk {
            match self.message_end(&talk, streams) {
                Ok(part) => report.delivered = part.run(self.pace, flow, deadline),
                Err(error) => report.failure = Some(error.to_string()),
            }
            report.exchange = Some(ExchangeReport::of(&lock(&talk)));
        } else {
            let results = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for stream in streams {
                    let results = &results;
                    let body = move || {
                        let log = self.transfer(flow, stream, start, deadline);
                        let mut all = results.lock().unwrap_or_else(PoisonError::into_inner);
                        all.extend(log);
                    };
                    if let Err(error) = thread::Builder::new().spawn_scoped(scope, body) {
                        report.failure = without_thread(number, &error).failure;
                    }
                }
            });
            report.delivered = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        report
    }

    /// Sends probes over single paths. On the server another thread replies while the test exists.
    fn datagrams(
        &self,
        (number, flow): (u32, &Flow),
        plan: &Udping,
        is_enough: &dyn Fn() -> bool,
    ) -> Vec<Probe> {
        let start = Instant::ZERO + flow.start;
        let Some(aim) = &self.probe_target else {
            while !self.pace.is_over(start + plan.duration) && !is_enough() {
                self.pace.sleep_until((self.pace.now() + POLL_INTERVAL).min(start + plan.duration));
            }
            return Vec::new();
        };
        self.pace.wait_until(start);
        let ways = aim.paths(self.scenario, plan, start);
        path_ping::run(self.pace, number, ways, start + flow.pattern.limit(), is_enough)
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
        let mut all = Vec::new();
        for stream in streams {
            let DataStream::Quic(strand) = &stream.stream else { continue };
            let outgoing =
                stream.received.iter().any(|(direction, _)| sends(*direction, self.is_client));
            let incoming = stream.received.iter().find(|(way, _)| !sends(*way, self.is_client));
            let halves = StreamAppConfig {
                sender: TransferSender::new(&flow.pattern, start).filter(|_| outgoing),
                receiver: incoming.map(|(_, received)| (start, Arc::clone(received))),
                session: session_stream.map(|talk| (Arc::clone(talk), stream.number)),
                options: self.transfer_options(),
                budget: self.pace.budget().cloned(),
            };
            let (end, events) = stream_app::make(self.pace.zero(), halves, false);
            strand.attach(end);
            all.push((events, incoming.map(|(way, _)| *way), outgoing));
        }
        let end_early = || {
            if let (Some(talk), Some(end)) = (session_stream, self.pace.end()) {
                lock(talk).end_at(end);
            }
        };
        let ended = all.into_iter().filter_map(|(ears, incoming, outgoing)| {
            let both = (incoming.is_some(), outgoing);
            let log = ears.receive(self.pace, (start, deadline), both, &end_early);
            Some((incoming?, log))
        });
        ended.collect()
    }

    /// Creates this endpoint's part of a message exchange.
    fn message_end(
        &self,
        session_stream: &SharedSession,
        streams: &[&FlowStream],
    ) -> io::Result<KernelMessageEnd> {
        let incoming = if self.is_client { DataDirection::Down } else { DataDirection::Up };
        let mut lines = Vec::new();
        for stream in streams {
            let DataStream::Socket(wire) = &stream.stream else { continue };
            wire.socket().set_nonblocking(true)?;
            let received = stream.received.iter().find(|(direction, _)| *direction == incoming);
            lines.extend(received.map(|(_, received)| messages::KernelStream {
                number: stream.number,
                socket: wire.clone(),
                received: Arc::clone(received),
            }));
        }
        Ok(KernelMessageEnd { session: Arc::clone(session_stream), streams: lines, incoming })
    }

    /// Sends, receives or both on one stream; returns the deliveries of the receiving direction.
    fn transfer(
        &self,
        flow: &Flow,
        stream: &FlowStream,
        start: Instant,
        deadline: Instant,
    ) -> Option<(DataDirection, DeliveryLog)> {
        let DataStream::Socket(wire) = &stream.stream else { return None };
        let (pace, socket, manner) = (self.pace, &**wire.socket(), self.transfer_options());
        // A socket that rejects options is closed; the following calls report that.
        let _ = socket
            .set_nonblocking(false)
            .and_then(|()| socket.set_read_timeout(Some(IO_POLL_INTERVAL)))
            .and_then(|()| socket.set_write_timeout(Some(IO_POLL_INTERVAL)));
        let outgoing =
            stream.received.iter().any(|(direction, _)| sends(*direction, self.is_client));
        let incoming = stream.received.iter().find(|(way, _)| !sends(*way, self.is_client));
        let sender = TransferSender::new(&flow.pattern, start).filter(|_| outgoing);
        thread::scope(|scope| {
            let sending = sender.and_then(|sender| {
                let body = move || kernel::send(pace, wire, sender, manner);
                // Without a thread nothing is sent, which the peer notices.
                thread::Builder::new().spawn_scoped(scope, body).ok()
            });
            if let Some((way, received)) = incoming {
                let log = kernel::receive(pace, wire, (start, deadline), received, manner);
                wire.close(pace.clock());
                return Some((*way, log));
            }
            // Data may be in flight until the peer has closed its side.
            let _ = sending.map(ScopedJoinHandle::join); // the peer counts what arrives
            drain(pace, socket, deadline);
            None
        })
    }

    /// Returns the streams on which this endpoint sends; true if the stream is never limited by the
    /// application.
    fn sending_streams<'b>(&self, streams: &'b [FlowStream]) -> Vec<(&'b FlowStream, bool)> {
        let sending = streams.iter().filter(|stream| {
            stream.received.iter().any(|(direction, _)| sends(*direction, self.is_client))
        });
        let each = sending.map(|stream| {
            let flow = self.scenario.flows.get(stream.flow as usize);
            let endless = flow.is_some_and(|flow| send_limit::is_endless(&flow.pattern));
            (stream, endless && self.settings.rate_bps.is_none())
        });
        each.collect()
    }

    /// Returns the senders whose flow is running at `now`.
    fn active_senders<'b>(
        &self,
        all: &[(&'b FlowStream, bool)],
        now: Instant,
    ) -> Vec<(&'b FlowStream, bool)> {
        let runs = |(stream, _): &&(&FlowStream, bool)| {
            self.scenario.flows.get(stream.flow as usize).is_some_and(|flow| {
                let begin = Instant::ZERO + flow.start;
                (begin..=begin + flow.pattern.limit()).contains(&now)
            })
        };
        all.iter().filter(runs).copied().collect()
    }

    /// Samples at each multiple of the period until all flows have ended, and once at their end.
    fn sample(
        &self,
        (streams, counted): (&[FlowStream], &UdpByteCounters),
        done: &AtomicBool,
        tell: &mut (dyn FnMut(&Record) + Send),
    ) -> EndSeries {
        let mut series = self.series();
        let period = self.scenario.run.sample;
        let mut next = Instant::ZERO + period;
        let mut told = 0;
        let senders = self.sending_streams(streams);
        let nap = if senders.is_empty() { POLL_INTERVAL } else { SAMPLE_INTERVAL };
        loop {
            while self.pace.now() < next && !done.load(Ordering::Acquire) {
                let now = self.pace.now();
                series.sample_senders(&self.active_senders(&senders, now), now, false);
                self.pace.sleep_until(next.min(now + nap));
            }
            let now = self.pace.now();
            series.sample_senders(&self.active_senders(&senders, now), now, true);
            let last = done.load(Ordering::Acquire);
            if last {
                // A last sample over a small part of a period would only add noise.
                let rest = now.saturating_since(next - period);
                // A run within its first period has this sample only.
                if rest * 2 >= period || told == 0 {
                    series.sample((streams, counted), now.min(next), true);
                }
            } else {
                series.sample((streams, counted), next, false);
            }
            series.records().iter().skip(told).for_each(&mut *tell);
            self.pace.add_memory((series.records().len() - told) as u64 * RECORD_BYTES);
            told = series.records().len();
            if last {
                series.sample_final_paths(streams);
                return series;
            }
            if self.is_client && crate::interrupt::is_interrupted() {
                self.pace.interrupt();
            }
            while next <= now {
                next += period;
            }
        }
    }
}

/// Returns the report of a flow that did not start for lack of a thread.
fn without_thread(flow: u32, error: &io::Error) -> FlowReport {
    let failure = Some(format!("no thread for it: {error}"));
    FlowReport { flow, failure, ..FlowReport::default() }
}

/// Waits until the peer has closed a stream that it only receives on.
fn drain(pace: &RunClock, socket: &Socket, deadline: Instant) {
    let mut room = [MaybeUninit::uninit(); 64];
    while !pace.is_over(deadline) {
        match socket.recv(&mut room) {
            Ok(length) if length > 0 => {}
            Err(error) if is_timeout(&error) => {}
            Ok(_) | Err(_) => return,
        }
    }
}
