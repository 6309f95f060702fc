//! The emulator's thread.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use towpath_net::config::{Delay, Loss, Shaper};
use towpath_net::topology::{DirectionId, RouteError, RouteId};
use towpath_net::{DirectionCounters, Instant, Packet, Topology};
use towpath_os::clock::Clock;
use towpath_os::sandbox::{EMULATOR_PRIORITY, EmulatorThread};
use towpath_os::sys;
use towpath_result::format;
use towpath_result::metrics::Histogram;
use towpath_result::{Link, Record};
use towpath_sockets::frame::{GsoFrame, GsoSegment, VirtioHeader};
use towpath_sockets::port::{BufferPool, EmulatorPort, ReceivedFrame};
use towpath_wire::pcapng::PacketDirection as Crossing;

use super::capture::PacketRecorder;
use super::wakeup_timer::{WakeupStats, WakeupTimer};
use crate::router::{EmulatedRouter, ForwardDecision, RouterRule};

/// Maximum packets read from one port before due packets are written.
const READ_BATCH: usize = 32;
/// Minimum time slice of the kernel's scheduler.
const MIN_SLICE: Duration = Duration::from_micros(100);
/// Maximum busy wait with real-time priority.
const MAX_BUSY_WAIT: Duration = Duration::from_micros(500);
/// Maximum busy wait without real-time priority. A thread that uses up its time slice can lose the
/// processor for milliseconds.
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
    pub(crate) router: Option<EmulatedRouter>,
}

pub(crate) use towpath_scenario::network::ReportedDirection;

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
    /// Reports the links' state every `period`, with times relative to `start`.
    Report { start: Instant, period: Duration, sender: Sender<Record> },
    /// Sends a traffic snapshot every `period`, with times relative to `start`.
    Snapshots { start: Instant, period: Duration, sender: Sender<TrafficSnapshot> },
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
    pub(crate) cpu_time: Duration,
    /// Running time of the emulator.
    pub(crate) running_time: Duration,
    /// Statistics of sleeping and busy-waiting.
    pub(crate) wakeup_stats: WakeupStats,
    /// Packets that ports dropped before they were read.
    pub(crate) lost_packets: u64,
}

/// Handle of a running emulator; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Emulator {
    commands: Sender<EngineCommand>,
    wake_pipe: PipeWriter,
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
        let (wake_reader, wake_pipe) = io::pipe()?;
        let (priority_sender, priority_receiver) = mpsc::channel();
        let (report_sender, report) = mpsc::channel();
        thread.run(move || {
            let _ = priority_sender.send(raise_priority()); // the receiver may be gone
            sys::set_minimal_timer_slack();
            let result = build().map_err(io::Error::other).and_then(|topology| {
                Engine::new(clock, topology, paths, reported, inbox, wake_reader).run()
            });
            let _ = report_sender.send(result); // the receiver may be gone
        });
        let priority = priority_receiver.recv().unwrap_or_default();
        Ok(Self { commands, wake_pipe, report: Mutex::new(report), priority })
    }

    /// Returns the scheduling priority that the thread obtained.
    pub(crate) fn priority(&self) -> &str {
        &self.priority
    }

    /// Sends a command and wakes the thread.
    pub(crate) fn send(&self, command: EngineCommand) {
        // If the thread has ended, join reports its error.
        if self.commands.send(command).is_ok() {
            let _ = (&self.wake_pipe).write(&[0]); // a full pipe also wakes the thread
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
    if sys::has_real_time_priority() || sys::set_real_time_priority(EMULATOR_PRIORITY).is_ok() {
        return format!("real-time {EMULATOR_PRIORITY}");
    }
    let nice = if sys::set_nice(-20).is_ok() { "nice -20" } else { "normal" };
    match sys::set_slice(MIN_SLICE) {
        Ok(()) => format!("{nice}, in turns of {}", format::time(MIN_SLICE)),
        Err(_) => nice.to_owned(),
    }
}

struct ReportSchedule {
    start: Instant,
    period: Duration,
    next: Instant,
    sender: Sender<Record>,
}

struct SnapshotSchedule {
    start: Instant,
    period: Duration,
    next: Instant,
    sender: Sender<TrafficSnapshot>,
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
    report_schedule: Option<ReportSchedule>,
    recorder: Option<PacketRecorder>,
    snapshot_schedule: Option<SnapshotSchedule>,
    /// Arrival counters, one per route.
    route_counters: Vec<RouteCounters>,
    lateness: Histogram,
    pool: BufferPool,
    stopped: bool,
    /// Latest time passed to the link model, which must not go back.
    model_time: Instant,
    started: Instant,
    wakeup_timer: WakeupTimer,
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
            .flat_map(|(path, EmulatedPath { routes: [up, down], .. })| {
                [(*up, path, 1), (*down, path, 0)]
            })
            .collect();
        // Routes are numbered from 0, two for each path.
        let route_counters = vec![RouteCounters::default(); 2 * paths.len()];
        let started = clock.now();
        let real_time = sys::has_real_time_priority();
        let max_busy_wait = if real_time { MAX_BUSY_WAIT } else { MAX_BUSY_WAIT_SHARED };
        Self {
            clock,
            topology,
            paths,
            exits,
            reported,
            inbox,
            wake_pipe,
            changes: VecDeque::new(),
            report_schedule: None,
            recorder: None,
            snapshot_schedule: None,
            route_counters,
            lateness: Histogram::default(),
            pool: BufferPool::new(),
            stopped: false,
            model_time: started,
            started,
            wakeup_timer: WakeupTimer::new(started, max_busy_wait),
        }
    }

    fn run(mut self) -> io::Result<EmulatorReport> {
        let mut fds: Vec<libc::pollfd> = vec![sys::input_pollfd(&self.wake_pipe)];
        for path in &self.paths {
            fds.extend(path.ports.iter().map(sys::input_pollfd));
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
            self.paths.iter().flat_map(|path| &path.ports).map(EmulatorPort::lost_packets).sum();
        Ok(EmulatorReport {
            lateness: self.lateness,
            cpu_time: sys::thread_cpu_time(),
            running_time: self.clock.now().saturating_since(self.started),
            wakeup_stats: self.wakeup_timer.finish(),
            lost_packets,
        })
    }

    /// Waits for input or the next deadline: sleeps first, then busy-waits.
    fn wait(&mut self, fds: &mut [libc::pollfd]) -> io::Result<()> {
        let Some(deadline) = self.next_deadline() else { return sys::poll(fds, None).map(drop) };
        let now = self.clock.now();
        let remaining = deadline.saturating_since(now);
        let sleep = self.wakeup_timer.sleep_time(now, remaining);
        if !sleep.is_zero() || remaining.is_zero() {
            if sys::poll(fds, Some(sleep))? > 0 || remaining.is_zero() {
                return Ok(());
            }
            let latency = self.clock.now().saturating_since(now + sleep);
            self.wakeup_timer.on_wakeup(remaining, latency);
        }
        let busy_wait_start = self.clock.now();
        let mut now = busy_wait_start;
        while now < deadline && sys::poll(fds, Some(Duration::ZERO))? == 0 {
            now = self.clock.now();
        }
        if busy_wait_start < deadline {
            let now = self.clock.now();
            self.wakeup_timer.on_busy_wait(now, now.saturating_since(busy_wait_start));
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let report = self.report_schedule.as_ref().map(|schedule| schedule.next);
        let snapshot = self.snapshot_schedule.as_ref().map(|schedule| schedule.next);
        let change = self.changes.front().map(|(time, _, _)| *time);
        [self.topology.next_due(), report, snapshot, change].into_iter().flatten().min()
    }

    fn handle_commands(&mut self) -> io::Result<()> {
        let mut wake_bytes = [0; 64];
        // The number of wake-ups does not matter: the inbox holds the commands.
        let _ = self.wake_pipe.read(&mut wake_bytes)?;
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                EngineCommand::Schedule(changes) => {
                    self.changes.extend(changes);
                    self.changes.make_contiguous().sort_by_key(|(time, _, _)| *time);
                }
                EngineCommand::Report { start, period, sender } => {
                    self.report_schedule =
                        Some(ReportSchedule { start, period, next: start + period, sender });
                }
                EngineCommand::Snapshots { start, period, sender } => {
                    self.snapshot_schedule =
                        Some(SnapshotSchedule { start, period, next: start + period, sender });
                }
                EngineCommand::StopReports => {
                    self.report_schedule = None;
                    if let Some(last) = self.snapshot_schedule.take() {
                        self.send_snapshot(&last);
                    }
                }
                EngineCommand::Capture(recorder) => self.recorder = Some(recorder),
                EngineCommand::Rules(index, rules) => {
                    let path = self.paths.get_mut(index);
                    if let Some(router) = path.and_then(|path| path.router.as_mut()) {
                        router.set_rules(&rules);
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
            let Some(EmulatedPath { ports, routes, split, router }) = self.paths.get_mut(path)
            else {
                return;
            };
            let (Some(source), Some(&route)) = (ports.get_mut(port), routes.get(port)) else {
                return;
            };
            // A port whose interface is down returns errors; so does a closed one.
            let Ok(Some(ReceivedFrame { frame, unix_ns })) = source.read(&mut self.pool) else {
                return;
            };
            // A packet may have been sent before the thread woke up. The link model's time must
            // not go back behind `model_time`, even if the system clock is set.
            let read_at = self.clock.now();
            let sent_at = unix_ns.map_or(read_at, |ns| self.clock.at_unix_time(ns));
            let now = sent_at.min(read_at).max(self.model_time);
            self.model_time = now;
            if let Some(router) = router {
                router.set_time(now);
                for segment in GsoSegment::split(frame) {
                    let Some((decision, bytes)) = router.forward(port == 0, segment.to_bytes())
                    else {
                        continue;
                    };
                    let route = if decision == ForwardDecision::Forward {
                        Some(&route)
                    } else {
                        routes.get(1 - port)
                    };
                    let Some(&route) = route else { continue };
                    let segment = GsoSegment::whole(GsoFrame::new(VirtioHeader::default(), bytes));
                    let _ = self.topology.push(now, route, segment); // the topology counts drops
                }
            } else {
                let segment = GsoSegment::whole(frame);
                if let Some(recorder) = &self.recorder {
                    recorder.record((path, port), Crossing::Outbound, now, &segment);
                }
                if *split {
                    for packet in segment.single_packets() {
                        // The topology counts drops.
                        let _ = self.topology.push(now, route, packet);
                    }
                } else {
                    let _ = self.topology.push(now, route, segment); // the topology counts drops
                }
            }
            if self.topology.next_due().is_some_and(|due| due <= read_at) {
                self.deliver_due();
            }
        }
    }

    /// Writes all packets that the link model releases; joins adjacent ones.
    fn deliver_due(&mut self) {
        let now = self.clock.now();
        self.model_time = now;
        let mut write_time = now;
        let mut pending: Option<(RouteId, GsoSegment)> = None;
        while let Some((due, route, segment)) = self.topology.pop(now) {
            if let Some(recorder) = &self.recorder
                && let Some((_, path, port)) = self.exits.iter().find(|(id, _, _)| *id == route)
            {
                recorder.record((*path, *port), Crossing::Inbound, write_time, &segment);
            }
            self.count_arrival(route, &segment);
            let joined = pending.as_mut().is_some_and(|(pending_route, pending_segment)| {
                *pending_route == route && pending_segment.join(&segment)
            });
            if !joined && let Some((route, segment)) = pending.replace((route, segment)) {
                self.write(route, segment);
                write_time = self.clock.now();
            }
            // A packet that waits for the previous write is late by that.
            self.lateness.record(write_time.saturating_since(due).as_nanos() as u64);
        }
        if let Some((route, segment)) = pending {
            self.write(route, segment);
        }
    }

    fn count_arrival(&mut self, route: RouteId, segment: &GsoSegment) {
        let Some(counters) = self.route_counters.get_mut(route.index()) else { return };
        counters.packets += u64::from(segment.packets());
        counters.bytes += u64::from(segment.len_bytes());
        for (sum, bytes) in counters.payload_bytes.iter_mut().zip(segment.payload_bytes()) {
            *sum += bytes;
        }
    }

    fn write(&mut self, route: RouteId, segment: GsoSegment) {
        let exit = self.exits.iter().find(|(id, _, _)| *id == route);
        let port = exit.and_then(|(_, path, port)| self.paths.get(*path)?.ports.get(*port));
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
        while self.changes.front().is_some_and(|(time, _, _)| *time <= now) {
            let Some((time, id, change)) = self.changes.pop_front() else { return };
            self.model_time = self.model_time.max(time);
            match change {
                LinkChange::Up(up) => self.topology.set_up(time, id, up),
                LinkChange::Shaper(shaper) => self.topology.set_shaper(time, id, shaper),
                LinkChange::Delay(delay) => self.topology.set_delay(time, id, delay),
                LinkChange::Loss(loss) => self.topology.set_loss(time, id, loss),
            }
        }
    }

    fn send_due_snapshot(&mut self) {
        let now = self.clock.now();
        let Some(mut schedule) = self.snapshot_schedule.take_if(|schedule| schedule.next <= now)
        else {
            return;
        };
        while schedule.next <= now {
            schedule.next += schedule.period;
        }
        self.send_snapshot(&schedule);
        self.snapshot_schedule = Some(schedule);
    }

    fn send_snapshot(&mut self, schedule: &SnapshotSchedule) {
        // The receiver may be gone.
        let _ = schedule.sender.send(TrafficSnapshot {
            at: self.model_time.saturating_since(schedule.start),
            directions: self.topology.all_counters(self.model_time),
            routes: self.route_counters.clone(),
        });
    }

    fn report_links(&mut self) {
        let now = self.clock.now();
        let Some(schedule) = &mut self.report_schedule else { return };
        if schedule.next > now {
            return;
        }
        let report_time = schedule.next;
        while schedule.next <= now {
            schedule.next += schedule.period;
        }
        let t_ns = report_time.saturating_since(schedule.start).as_nanos() as u64;
        for link in self.reported.iter().filter_map(|link| Link::sample(link, t_ns, &self.topology))
        {
            let _ = schedule.sender.send(Record::Link(link)); // the receiver may be gone
        }
    }
}
