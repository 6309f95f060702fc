//! The emulator's thread.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use towpath_measure::format;
use towpath_measure::metrics::Histogram;
use towpath_measure::pcapng::PacketDirection as Crossing;
use towpath_measure::result::Record;
use towpath_net::config::{Delay, Loss, Shaper};
use towpath_net::topology::{DirectionId, RouteError, RouteId};
use towpath_net::{DirectionCounters, Instant, Packet, Topology};

use super::capture::PacketRecorder;
use super::frame::{GsoFrame, GsoSegment, VirtioHeader};
use super::port::{BufferPool, EmulatorPort, ReceivedFrame};
use super::wakeup_timer::{WakeupStats, WakeupTimer};
use crate::clock::Clock;
use crate::router::{EmulatedRouter, ForwardDecision, RouterRule};
use crate::sandbox::{EMULATOR_PRIORITY, EmulatorThread};
use crate::sys;

/// Maximum packets read from one port before due packets are written.
const READ_BATCH: usize = 32;
/// Minimum time slice of the kernel's scheduler.
const MIN_SLICE: Duration = Duration::from_micros(100);
/// Maximum busy wait with real-time priority, and without it: then, the end of the time slice can
/// cost the processor for milliseconds.
const MAX_BUSY_WAIT: Duration = Duration::from_micros(500);
const MAX_BUSY_WAIT_SHARED: Duration = Duration::from_micros(60);

/// One emulated path: two ports and the routes between them.
#[derive(Debug)]
pub(crate) struct EmulatedPath {
    /// Port of the first host, then port of the second.
    pub(crate) ports: [EmulatorPort; 2],
    /// Route from the first port to the second, then the route back.
    pub(crate) routes: [RouteId; 2],
    /// True if super-segments are split into packets.
    pub(crate) split: bool,
    /// Router on the path, if there is one; it processes single packets.
    pub(crate) hop: Option<EmulatedRouter>,
}

pub(crate) use towpath_measure::network::ReportedDirection;

/// Change of one direction of a path.
#[derive(Debug, Clone)]
pub(crate) enum LinkChange {
    Up(bool),
    Shaper(Shaper),
    Delay(Delay),
    Loss(Loss),
}

/// Command to the emulator's thread.
#[derive(Debug)]
pub(crate) enum EngineCommand {
    /// Applies each change exactly at its time.
    Schedule(Vec<(Instant, DirectionId, LinkChange)>),
    /// Reports the links' state every `period`, with times relative to `zero`.
    Report { zero: Instant, period: Duration, to: Sender<Record> },
    /// Sends a traffic snapshot every `period`, with times relative to `zero`.
    Snapshots { zero: Instant, period: Duration, to: Sender<TrafficSnapshot> },
    /// Stops reports, after a last snapshot.
    StopReports,
    /// Records every packet from now on.
    Capture(PacketRecorder),
    /// Replaces the rules of a path's router.
    Rules(usize, Vec<RouterRule>),
    /// Ends the emulator's thread.
    Stop,
}

/// Traffic that links have carried since the start.
#[derive(Debug, Clone)]
pub(crate) struct TrafficSnapshot {
    /// Time of the snapshot, since the start of the traffic.
    pub(crate) at: Duration,
    /// Counters of each direction, in the order of creation, and the bytes that it has served.
    pub(crate) directions: Vec<(DirectionCounters, u64)>,
    /// Arrivals at the end of each route, in the order of creation.
    pub(crate) routes: Vec<RouteCounters>,
}

/// Packets that arrived at the end of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RouteCounters {
    pub(crate) packets: u64,
    /// Bytes of IP packets, with their headers.
    pub(crate) bytes: u64,
    /// Payload bytes of TCP and of UDP within `bytes`.
    pub(crate) payload_bytes: [u64; 2],
}

/// Final report of the emulator.
#[derive(Debug)]
pub(crate) struct EmulatorReport {
    /// Lateness of every packet delivered, in nanoseconds.
    pub(crate) lateness: Histogram,
    /// Processor time of the thread.
    pub(crate) cpu: Duration,
    /// Running time of the emulator.
    pub(crate) ran: Duration,
    /// Statistics of sleeping and busy-waiting.
    pub(crate) waiting: WakeupStats,
    /// Packets that ports dropped before they were read.
    pub(crate) lost_packets: u64,
}

/// Handle of a running emulator; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Emulator {
    commands: Sender<EngineCommand>,
    wake: PipeWriter,
    report: Mutex<Receiver<io::Result<EmulatorReport>>>,
    priority: String,
}

impl Emulator {
    /// Starts the emulator on its thread.
    pub(crate) fn start(
        thread: EmulatorThread,
        clock: Clock,
        build: impl FnOnce() -> Result<Topology<GsoSegment>, RouteError> + Send + 'static,
        paths: Vec<EmulatedPath>,
        reported: Vec<ReportedDirection>,
    ) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let (wake_pipe, wake) = io::pipe()?;
        let (told, hears) = mpsc::channel();
        let (done, report) = mpsc::channel();
        thread.run(move || {
            let _ = told.send(raise_priority()); // the receiver may be gone
            sys::minimal_timer_slack();
            let ended = build().map_err(io::Error::other).and_then(|topology| {
                Engine::new(clock, topology, paths, reported, inbox, wake_pipe).run()
            });
            let _ = done.send(ended); // the receiver may be gone
        });
        let priority = hears.recv().unwrap_or_default();
        Ok(Self { commands, wake, report: Mutex::new(report), priority })
    }

    /// Returns the scheduling priority that the thread obtained.
    pub(crate) fn priority(&self) -> &str {
        &self.priority
    }

    /// Sends a command and wakes the thread.
    pub(crate) fn send(&self, command: EngineCommand) {
        // If the thread has ended, join reports its error.
        if self.commands.send(command).is_ok() {
            let _ = (&self.wake).write(&[0]); // a full pipe also wakes the thread
        }
    }

    /// Stops the thread and returns its report.
    pub(crate) fn finish(self) -> io::Result<EmulatorReport> {
        self.send(EngineCommand::Stop);
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).recv();
        report.unwrap_or_else(|_| Err(io::Error::other("the emulator panicked")))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.send(EngineCommand::Stop);
    }
}

/// Sets real-time priority if the limits allow it.
///
/// Otherwise sets the best nice value and the shortest time slices, so that the scheduler preempts
/// longer ones.
fn raise_priority() -> String {
    if sys::has_real_time_priority() || sys::real_time_priority(EMULATOR_PRIORITY).is_ok() {
        return format!("real-time {EMULATOR_PRIORITY}");
    }
    let nice = if sys::nice(-20).is_ok() { "nice -20" } else { "normal" };
    match sys::set_slice(MIN_SLICE) {
        Ok(()) => format!("{nice}, in turns of {}", format::time(MIN_SLICE)),
        Err(_) => nice.to_owned(),
    }
}

struct ReportSchedule {
    zero: Instant,
    period: Duration,
    next: Instant,
    to: Sender<Record>,
}

struct SnapshotSchedule {
    zero: Instant,
    period: Duration,
    next: Instant,
    to: Sender<TrafficSnapshot>,
}

struct Engine {
    clock: Clock,
    topology: Topology<GsoSegment>,
    paths: Vec<EmulatedPath>,
    /// Exit of each route: the path and the port.
    exits: Vec<(RouteId, usize, usize)>,
    reported: Vec<ReportedDirection>,
    inbox: Receiver<EngineCommand>,
    wake_pipe: PipeReader,
    changes: VecDeque<(Instant, DirectionId, LinkChange)>,
    reporting: Option<ReportSchedule>,
    recorder: Option<PacketRecorder>,
    snapshot_schedule: Option<SnapshotSchedule>,
    /// Arrival counters, one per route.
    route_counters: Vec<RouteCounters>,
    lateness: Histogram,
    pool: BufferPool,
    stopped: bool,
    /// Last time that the link model has seen.
    modelled: Instant,
    started: Instant,
    alarm: WakeupTimer,
}

impl Engine {
    fn new(
        clock: Clock,
        topology: Topology<GsoSegment>,
        paths: Vec<EmulatedPath>,
        reported: Vec<ReportedDirection>,
        inbox: Receiver<EngineCommand>,
        wake_pipe: PipeReader,
    ) -> Self {
        let exits = paths
            .iter()
            .enumerate()
            .flat_map(|(lane, EmulatedPath { routes: [up, down], .. })| {
                [(*up, lane, 1), (*down, lane, 0)]
            })
            .collect();
        // Routes are numbered from 0, two for each path.
        let route_counters = vec![RouteCounters::default(); 2 * paths.len()];
        let started = clock.now();
        let real_time = sys::has_real_time_priority();
        let longest_awake = if real_time { MAX_BUSY_WAIT } else { MAX_BUSY_WAIT_SHARED };
        Self {
            clock,
            topology,
            paths,
            exits,
            reported,
            inbox,
            wake_pipe,
            changes: VecDeque::new(),
            reporting: None,
            recorder: None,
            snapshot_schedule: None,
            route_counters,
            lateness: Histogram::default(),
            pool: BufferPool::new(),
            stopped: false,
            modelled: started,
            started,
            alarm: WakeupTimer::new(started, longest_awake),
        }
    }

    fn run(mut self) -> io::Result<EmulatorReport> {
        let mut fds: Vec<libc::pollfd> = vec![sys::wait_for_input(&self.wake_pipe)];
        for path in &self.paths {
            fds.extend(path.ports.iter().map(sys::wait_for_input));
        }
        while !self.stopped {
            self.apply_changes();
            self.deliver_due();
            self.report_links();
            self.send_due_snapshot();
            self.wait(&mut fds)?;
            let ready: Vec<usize> = fds
                .iter()
                .enumerate()
                .filter(|(_, fd)| fd.revents != 0)
                .map(|(index, _)| index)
                .collect();
            for index in ready {
                match index.checked_sub(1) {
                    None => self.handle_commands()?,
                    Some(port) => self.drain(port / 2, port % 2),
                }
            }
        }
        let lost_packets =
            self.paths.iter().flat_map(|lane| &lane.ports).map(EmulatorPort::lost).sum();
        Ok(EmulatorReport {
            lateness: self.lateness,
            cpu: sys::thread_cpu_time(),
            ran: self.clock.now().saturating_since(self.started),
            waiting: self.alarm.finish(),
            lost_packets,
        })
    }

    /// Waits for input or the next deadline: sleeps first, then busy-waits.
    fn wait(&mut self, fds: &mut [libc::pollfd]) -> io::Result<()> {
        let Some(at) = self.next_deadline() else { return sys::poll(fds, None).map(drop) };
        let now = self.clock.now();
        let left = at.saturating_since(now);
        let sleep = self.alarm.sleep_time(now, left);
        if !sleep.is_zero() || left.is_zero() {
            if sys::poll(fds, Some(sleep))? > 0 || left.is_zero() {
                return Ok(());
            }
            let late = self.clock.now().saturating_since(now + sleep);
            self.alarm.on_wakeup(left, late);
        }
        let begun = self.clock.now();
        let mut now = begun;
        while now < at && sys::poll(fds, Some(Duration::ZERO))? == 0 {
            now = self.clock.now();
        }
        if begun < at {
            let now = self.clock.now();
            self.alarm.on_busy_wait(now, now.saturating_since(begun));
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let report = self.reporting.as_ref().map(|reporting| reporting.next);
        let watch = self.snapshot_schedule.as_ref().map(|watching| watching.next);
        let change = self.changes.front().map(|(at, _, _)| *at);
        [self.topology.next_due(), report, watch, change].into_iter().flatten().min()
    }

    fn handle_commands(&mut self) -> io::Result<()> {
        let mut rings = [0; 64];
        // The number of wake-ups does not matter: the inbox holds the commands.
        let _ = self.wake_pipe.read(&mut rings)?;
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                EngineCommand::Schedule(changes) => {
                    self.changes.extend(changes);
                    self.changes.make_contiguous().sort_by_key(|(at, _, _)| *at);
                }
                EngineCommand::Report { zero, period, to } => {
                    self.reporting = Some(ReportSchedule { zero, period, next: zero + period, to });
                }
                EngineCommand::Snapshots { zero, period, to } => {
                    self.snapshot_schedule =
                        Some(SnapshotSchedule { zero, period, next: zero + period, to });
                }
                EngineCommand::StopReports => {
                    self.reporting = None;
                    if let Some(last) = self.snapshot_schedule.take() {
                        self.send_snapshot(&last);
                    }
                }
                EngineCommand::Capture(tape) => self.recorder = Some(tape),
                EngineCommand::Rules(lane, rules) => {
                    let path = self.paths.get_mut(lane);
                    if let Some(hop) = path.and_then(|lane| lane.hop.as_mut()) {
                        hop.set_rules(&rules);
                    }
                }
                EngineCommand::Stop => self.stopped = true,
            }
        }
        Ok(())
    }

    /// Reads the pending packets of one port and pushes them into the link model.
    fn drain(&mut self, path: usize, port: usize) {
        for _ in 0..READ_BATCH {
            let Some(EmulatedPath { ports, routes, split, hop }) = self.paths.get_mut(path) else {
                return;
            };
            let (Some(from), Some(&route)) = (ports.get_mut(port), routes.get(port)) else {
                return;
            };
            // A port whose interface is down returns errors; so does a closed one.
            let Ok(Some(ReceivedFrame { frame, unix_ns })) = from.read(&mut self.pool) else {
                return;
            };
            // A packet may have been sent before the thread woke up. The link model's time must
            // not go back behind `modelled`, even if the system clock is set.
            let read = self.clock.now();
            let sent = unix_ns.map_or(read, |ns| self.clock.at_unix_time(ns));
            let now = sent.min(read).max(self.modelled);
            self.modelled = now;
            if let Some(hop) = hop {
                hop.set_time(now);
                for segment in GsoSegment::split(frame) {
                    let Some((way, bytes)) = hop.forward(port == 0, segment.to_bytes()) else {
                        continue;
                    };
                    let route = if way == ForwardDecision::Forward {
                        Some(&route)
                    } else {
                        routes.get(1 - port)
                    };
                    let Some(&route) = route else { continue };
                    let segment = GsoSegment::whole(GsoFrame::new(VirtioHeader::default(), bytes));
                    let _ = self.topology.push(now, route, segment); // the topology counts drops
                }
            } else {
                let whole = GsoSegment::whole(frame);
                if let Some(tape) = &self.recorder {
                    tape.record((path, port), Crossing::Outbound, now, &whole);
                }
                if *split {
                    for segment in whole.single_packets() {
                        // The topology counts drops.
                        let _ = self.topology.push(now, route, segment);
                    }
                } else {
                    let _ = self.topology.push(now, route, whole); // the topology counts drops
                }
            }
            if self.topology.next_due().is_some_and(|due| due <= read) {
                self.deliver_due();
            }
        }
    }

    /// Writes all packets that the link model releases; joins adjacent ones.
    fn deliver_due(&mut self) {
        let now = self.clock.now();
        self.modelled = now;
        let mut written = now;
        let mut waiting: Option<(RouteId, GsoSegment)> = None;
        while let Some((due, route, segment)) = self.topology.pop(now) {
            if let Some(tape) = &self.recorder
                && let Some((_, lane, port)) = self.exits.iter().find(|(id, _, _)| *id == route)
            {
                tape.record((*lane, *port), Crossing::Inbound, written, &segment);
            }
            self.count_arrival(route, &segment);
            let joined =
                waiting.as_mut().is_some_and(|(same, head)| *same == route && head.join(&segment));
            if !joined && let Some((route, head)) = waiting.replace((route, segment)) {
                self.write(route, head);
                written = self.clock.now();
            }
            // A packet that waits for the previous write is late by that.
            self.lateness.record(written.saturating_since(due).as_nanos() as u64);
        }
        if let Some((route, head)) = waiting {
            self.write(route, head);
        }
    }

    fn count_arrival(&mut self, route: RouteId, segment: &GsoSegment) {
        let Some(arrived) = self.route_counters.get_mut(route.index()) else { return };
        arrived.packets += u64::from(segment.packets());
        arrived.bytes += u64::from(segment.len_bytes());
        for (sum, bytes) in arrived.payload_bytes.iter_mut().zip(segment.payload_bytes()) {
            *sum += bytes;
        }
    }

    fn write(&mut self, route: RouteId, segment: GsoSegment) {
        let exit = self.exits.iter().find(|(id, _, _)| *id == route);
        let port = exit.and_then(|(_, lane, port)| self.paths.get(*lane)?.ports.get(*port));
        if let Some(port) = port {
            // Fails if the receiving interface is down: the packet is lost, as on a real wire.
            let _ = port.write(&segment);
        }
        if let Some(buffer) = segment.reclaim() {
            self.pool.recycle(buffer);
        }
    }

    fn apply_changes(&mut self) {
        let now = self.clock.now();
        while self.changes.front().is_some_and(|(at, _, _)| *at <= now) {
            let Some((at, id, change)) = self.changes.pop_front() else { return };
            self.modelled = self.modelled.max(at);
            match change {
                LinkChange::Up(up) => self.topology.set_up(at, id, up),
                LinkChange::Shaper(shaper) => self.topology.set_shaper(at, id, shaper),
                LinkChange::Delay(delay) => self.topology.set_delay(at, id, delay),
                LinkChange::Loss(loss) => self.topology.set_loss(at, id, loss),
            }
        }
    }

    fn send_due_snapshot(&mut self) {
        let now = self.clock.now();
        let Some(mut watching) = self.snapshot_schedule.take_if(|watching| watching.next <= now)
        else {
            return;
        };
        while watching.next <= now {
            watching.next += watching.period;
        }
        self.send_snapshot(&watching);
        self.snapshot_schedule = Some(watching);
    }

    fn send_snapshot(&mut self, watching: &SnapshotSchedule) {
        // The receiver may be gone.
        let _ = watching.to.send(TrafficSnapshot {
            at: self.modelled.saturating_since(watching.zero),
            directions: self.topology.all_counters(self.modelled),
            routes: self.route_counters.clone(),
        });
    }

    fn report_links(&mut self) {
        let now = self.clock.now();
        let Some(reporting) = &mut self.reporting else { return };
        if reporting.next > now {
            return;
        }
        let at = reporting.next;
        while reporting.next <= now {
            reporting.next += reporting.period;
        }
        let t_ns = at.saturating_since(reporting.zero).as_nanos() as u64;
        for link in self.reported.iter().filter_map(|link| link.record(t_ns, &self.topology)) {
            let _ = reporting.to.send(Record::Link(link)); // the receiver may be gone
        }
    }
}
