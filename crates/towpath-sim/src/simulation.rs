//! Event loop: virtual time jumps from one event to the next.
//!
//! Events at the same nanosecond are processed in this order:
//!
//! 1. the timeline's events, in the scenario's order;
//! 2. packets that leave the network, in the order in which the links release them;
//! 3. the hosts' timers (and packets that waited for a processor), host by host;
//! 4. flows that begin or whose time is over, in the scenario's order;
//! 5. until nothing changes: room in the hosts' own queues; then, host by host, the stack's events,
//!    the applications' reads and writes, and the stack's packets;
//! 6. the sample, if a period ends.

use std::net::SocketAddr;

use towpath_mptcp::stack;
use towpath_mptcp::stack::ListenerId;
use towpath_net::Instant;
use towpath_result::metrics::disruption::describe;
use towpath_result::{Event, EventKind, Record};
use towpath_scenario::flow_plan::FlowGoal;
use towpath_scenario::{
    DownMode, Scenario, TimelineChange, TimelineEvent, TimelineTarget, Transport,
};
use towpath_wire::ConnectionId;

use crate::error::SimError;
use crate::host::SimHost;
use crate::idle_cause::SimView;
use crate::job::SimJob;
use crate::network::{DeliveredPacket, SimNetwork};
use crate::pcap::PcapWriter;
use crate::record::{RecordSink, SimRecorder, event};
use crate::socket::StreamSocket;
use crate::test_pattern::TestPattern;
use crate::traffic::{FlowRun, SimStream, port, refusal};

/// Complete state of a run in progress.
#[derive(Debug)]
pub(crate) struct Simulation<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) transport: Transport,
    pub(crate) network: SimNetwork<'a>,
    pub(crate) hosts: Vec<SimHost>,
    /// By host: true if TCP small queues limit its packets in each interface's queue.
    small_queues: Vec<bool>,
    pub(crate) flows: Vec<FlowRun>,
    /// Set when a flow sends datagrams without a stack; otherwise packets need no inspection.
    has_datagram_flows: bool,
    pub(crate) streams: Vec<SimStream>,
    pattern: TestPattern,
    /// Listening host, listener and flow.
    listeners: Vec<(usize, ListenerId, usize)>,
    /// Next timer of a flow or a sender, computed before the last jump in time.
    next_timer: Option<Instant>,
    /// Number of timeline events that have happened.
    timeline_index: usize,
    pub(crate) now: Instant,
    pub(crate) recorder: SimRecorder<'a>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        job: &'a SimJob,
        seed: u64,
        captures: Vec<PcapWriter<'a>>,
        write: RecordSink<'a>,
    ) -> Result<Self, SimError> {
        let (scenario, transport) = (&*job.scenario, job.transport);
        let network = SimNetwork::new(scenario, transport, seed, captures)?;
        let mut hosts = Vec::new();
        for index in 0..scenario.hosts.len() {
            hosts.push(SimHost::new(job, index, seed)?);
        }
        let mut listeners = Vec::new();
        for (index, flow) in scenario.flows.iter().enumerate() {
            let Some(host) = hosts.get_mut(flow.to) else { continue };
            let id = host.listen((index, flow), transport)?;
            listeners.extend(id.map(|id| (flow.to, id, index)));
        }
        Ok(Self {
            scenario,
            transport,
            network,
            // Small queues belong to TCP: a UDP socket fills the host's queue.
            small_queues: hosts
                .iter()
                .map(|host| host.settings.small_queues && !transport.is_quic())
                .collect(),
            hosts,
            has_datagram_flows: scenario.flows.iter().any(|flow| {
                let goal = FlowGoal::from(&flow.pattern);
                matches!(goal, FlowGoal::Probes(_) | FlowGoal::ConstantRate(_))
            }),
            flows: { scenario.flows.iter().enumerate() }
                .map(|flow| FlowRun::new(scenario, flow, &job.components))
                .collect(),
            streams: Vec::new(),
            pattern: TestPattern::new(),
            listeners,
            next_timer: None,
            timeline_index: 0,
            now: Instant::ZERO,
            recorder: SimRecorder::new(scenario, write),
        })
    }

    /// Runs until every flow is over.
    pub(crate) fn run(&mut self) -> Result<(), SimError> {
        let period = self.scenario.run.sample;
        let mut sample_due = Instant::ZERO + period;
        while self.flows.iter().any(|flow| !flow.over) {
            let Some(next) = self.next_due().map(|due| due.min(sample_due)) else { break };
            self.update_causes(next);
            self.now = next;
            self.play_timeline();
            self.deliver();
            for host in &mut self.hosts {
                if host.next_due().is_some_and(|due| due <= next) {
                    host.wake(next);
                }
            }
            self.begin_and_end_flows();
            self.run_to_quiescence();
            if next >= sample_due {
                self.sample(sample_due, period);
                sample_due += period;
            }
            self.recorder.check()?;
        }
        // Record a partial last period only if at least half is complete; less would blur the
        // curves.
        let last_period = self.now.saturating_since(sample_due - period);
        if last_period * 2 >= period {
            self.sample(self.now, last_period);
        }
        self.recorder.check()
    }

    fn next_due(&mut self) -> Option<Instant> {
        let timeline = self.scenario.timeline.get(self.timeline_index);
        let timeline = timeline.map(|event| Instant::ZERO + event.at);
        let hosts = self.hosts.iter().filter_map(SimHost::next_due);
        let flows = self.flows.iter().filter_map(FlowRun::next_due);
        let senders = self.streams.iter().filter_map(|stream| stream.next_due(&self.flows));
        // A sender's deadline can lie in the past; it is due now.
        let senders = senders.map(|due| due.max(self.now));
        self.next_timer = flows.chain(senders).min();
        let timers = hosts.chain(self.next_timer).chain(timeline);
        timers.chain(self.network.next_due()).min()
    }

    fn play_timeline(&mut self) {
        while let Some(event) = self.scenario.timeline.get(self.timeline_index) {
            if Instant::ZERO + event.at > self.now {
                return;
            }
            self.timeline_index += 1;
            self.network.apply(self.now, event);
            self.apply_to_hosts(event);
        }
    }

    /// Applies a timeline event to the hosts and records it.
    fn apply_to_hosts(&mut self, timeline_event: &TimelineEvent) {
        let (target, text) = describe(self.scenario, timeline_event);
        let path = match timeline_event.target {
            TimelineTarget::Path(path) => Some(path),
            TimelineTarget::Bottleneck(_) => None,
        };
        let text = format!("{target} {text}");
        self.recorder.add_event(self.now, path, event(EventKind::Timeline, text));
        let Some(path) = path else { return };
        let ends = self.scenario.paths.get(path).map(|path| path.between);
        for host in ends.into_iter().flatten() {
            match &timeline_event.change {
                TimelineChange::Down(DownMode::Carrier) => self.set_interface_up(path, host, false),
                TimelineChange::Down(DownMode::Interface { host: affected })
                    if *affected == host =>
                {
                    self.set_interface_up(path, host, false);
                }
                TimelineChange::Up => self.set_interface_up(path, host, true),
                TimelineChange::Address { host: changed } if *changed == host => {
                    self.change_address(path, host);
                }
                TimelineChange::Down(_)
                | TimelineChange::Rate(..)
                | TimelineChange::Delay(..)
                | TimelineChange::Loss(..)
                | TimelineChange::Address { .. } => {}
            }
        }
    }

    fn set_interface_up(&mut self, path: usize, host: usize, up: bool) {
        self.network.set_interface(path, host, up);
        if let Some(sim_host) = self.hosts.get_mut(host) {
            sim_host.set_up(self.now, path, up);
        }
    }

    fn change_address(&mut self, path: usize, host: usize) {
        let Some(sim_host) = self.hosts.get_mut(host) else { return };
        let texts = sim_host.change_address(self.now, self.scenario, host, path);
        let name = sim_host.name.clone();
        for text in texts {
            let event = Event { host: Some(name.clone()), ..event(EventKind::Address, text) };
            self.recorder.add_event(self.now, Some(path), event);
        }
    }

    /// Delivers packets that leave the network to their hosts.
    fn deliver(&mut self) {
        while let Some(arrival) = self.network.arrival(self.now) {
            if self.has_datagram_flows && self.take_datagram(&arrival) {
                self.network.recycle(arrival.packet);
                continue;
            }
            if let Some(host) = self.hosts.get_mut(arrival.host) {
                let packet = host.receive(self.now, arrival.path, arrival.packet);
                if let Some(packet) = packet {
                    self.network.recycle(packet);
                }
            }
        }
    }

    /// Returns true if a packet belonged to a datagram flow, which has taken it.
    fn take_datagram(&mut self, arrival: &DeliveredPacket) -> bool {
        let Self { flows, network, now, .. } = self;
        let host_and_path = (arrival.host, arrival.path);
        flows.iter_mut().any(|flow| {
            let packet = &arrival.packet;
            flow.pings
                .as_mut()
                .is_some_and(|pings| pings.on_packet(*now, host_and_path, packet, network))
                || flow.constant_rate.as_mut().is_some_and(|constant_rate| {
                    constant_rate.on_packet(*now, host_and_path, packet)
                })
        })
    }

    fn begin_and_end_flows(&mut self) {
        if self.next_timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        for index in 0..self.flows.len() {
            let Some(flow) = self.flows.get_mut(index).filter(|flow| !flow.over) else { continue };
            if self.now >= flow.deadline {
                flow.over = true;
                self.network.accounts.dirty = true;
                if flow.opening && flow.failure.is_none() {
                    let failure = self.refusal(index, None);
                    if let Some(flow) = self.flows.get_mut(index) {
                        flow.failure = Some(failure);
                    }
                }
                self.wake_senders(index);
            } else if let Some(pings) = &mut flow.pings {
                pings.send_due(self.now, &self.hosts, &mut self.network);
            } else if let Some(constant_rate) = &mut flow.constant_rate {
                constant_rate.send(self.now, &self.hosts, &mut self.network);
                flow.failure.clone_from(&constant_rate.failure);
            } else if self.now >= flow.start && !flow.opening && flow.streams_opened == 0 {
                self.open_connection(index);
            }
        }
        // A sender whose time is over must be served even if nothing arrives.
        for stream in &self.streams {
            if stream.next_due(&self.flows).is_some_and(|due| due <= self.now) {
                for end in &stream.ends {
                    if let Some(host) = self.hosts.get_mut(end.host) {
                        host.may_have_output = true;
                    }
                }
            }
        }
    }

    /// Lets the senders of a flow that is over close their streams.
    fn wake_senders(&mut self, flow: usize) {
        for stream in self.streams.iter().filter(|stream| stream.flow == flow) {
            for end in &stream.ends {
                if let Some(host) = self.hosts.get_mut(end.host) {
                    host.may_have_output = true;
                }
            }
        }
    }

    /// Returns the text for a connection of the flow that could not be opened.
    pub(crate) fn refusal(&self, flow: usize, error: Option<String>) -> String {
        let flow = self.scenario.flows.get(flow);
        let name = |host: Option<usize>| {
            host.and_then(|host| self.hosts.get(host)).map_or("?", |host| host.name.as_str())
        };
        refusal(name(flow.map(|flow| flow.from)), name(flow.map(|flow| flow.to)), error)
    }

    /// Opens the next connection of a flow.
    fn open_connection(&mut self, index: usize) {
        let (Some(flow), Some(run)) = (self.scenario.flows.get(index), self.flows.get_mut(index))
        else {
            return;
        };
        if matches!(FlowGoal::from(&flow.pattern), FlowGoal::Command(_)) {
            run.failure = Some("commands are run in the emulated world only".to_owned());
            run.over = true;
            return;
        }
        let number = run.streams_opened;
        run.streams_opened += 1;
        run.opening = true;
        let transport = flow.transport_in(self.transport);
        let mut stream = SimStream::new((index, flow), number, transport);
        let address = |hosts: &[SimHost], host: usize| {
            hosts.get(host).and_then(|sim_host| sim_host.address_on(flow.via, flow.family))
        };
        let local = address(&self.hosts, flow.from);
        let remote = address(&self.hosts, flow.to).map(|ip| SocketAddr::new(ip, port(index)));
        let (Some(host), Some(remote)) = (self.hosts.get_mut(flow.from), remote) else {
            run.failure = Some("the flow's path is unknown".to_owned());
            run.over = true;
            return;
        };
        if transport.is_quic() {
            return self.open_quic((index, flow), local, remote);
        }
        host.may_have_output = true;
        self.network.accounts.dirty = true;
        let config = host.connection(flow, self.transport);
        match host.stack.connect(self.now, local, remote, config) {
            Ok(connection) => {
                let [opener, _] = &mut stream.ends;
                opener.socket = Some(StreamSocket::Tcp(connection));
                stream.opener = host.stack.status(connection).map(|status| status.local);
                host.ends.insert(StreamSocket::Tcp(connection), (self.streams.len(), 0));
                self.streams.push(stream);
            }
            Err(error) => {
                run.failure = Some(format!("`{}` cannot connect: {error}", host.name));
                run.opening = false;
                run.over = self.streams.iter().all(|stream| stream.flow != index);
            }
        }
    }

    /// Processes everything that is possible without advancing time.
    fn run_to_quiescence(&mut self) {
        loop {
            self.update_backpressure();
            let mut active = false;
            for index in 0..self.hosts.len() {
                if self.hosts.get(index).is_some_and(|host| host.may_have_output) {
                    active = true;
                    self.run_host_until_idle(index);
                }
            }
            if !active {
                break;
            }
        }
        for index in 0..self.flows.len() {
            self.conclude_flow(index);
        }
    }

    fn update_backpressure(&mut self) {
        let (hosts, now) = (&mut self.hosts, self.now);
        self.network.tx_ready_changes(&self.small_queues, |host, path, ready| {
            if let Some(host) = hosts.get_mut(host) {
                host.set_tx_ready(now, path, ready);
            }
        });
    }

    /// Processes a host's events, writes and packets until it has none left.
    fn run_host_until_idle(&mut self, index: usize) {
        loop {
            let mut active = false;
            while let Some(event) = self.hosts.get_mut(index).and_then(|h| h.stack.poll_event()) {
                active = true;
                self.on_event(index, &event);
            }
            while let Some(event) = self.hosts.get_mut(index).and_then(|h| h.quic.host.poll_event())
            {
                active = true;
                self.on_quic_event(index, event);
            }
            active |= self.write_at_deadlines(index);
            let (now, mut packet) = (self.now, self.network.empty_packet());
            if self.hosts.get_mut(index).is_some_and(|host| host.transmit(now, &mut packet)) {
                self.network.send(self.now, index, packet);
                self.update_backpressure();
                active = true;
            } else {
                self.network.recycle(packet);
            }
            if !active {
                break;
            }
        }
        if let Some(host) = self.hosts.get_mut(index) {
            host.schedule_next(self.now);
        }
    }

    /// Ends the data of senders whose time is over.
    fn write_at_deadlines(&mut self, index: usize) -> bool {
        let mut active = false;
        if self.next_timer.is_none_or(|timer| timer > self.now) {
            return false;
        }
        for stream in &mut self.streams {
            if stream.next_due(&self.flows).is_none_or(|due| due > self.now) {
                continue;
            }
            let ends = stream.ends.iter_mut().enumerate();
            for (side, end) in ends.filter(|(_, end)| end.host == index) {
                let flow = self.flows.get_mut(stream.flow);
                let session = flow.and_then(|flow| flow.session_stream(side, stream.number));
                if let Some(host) = self.hosts.get_mut(index) {
                    active |= end.write(self.now, host, &self.pattern, session);
                }
            }
        }
        active
    }

    fn on_event(&mut self, index: usize, event: &stack::StackEvent) {
        match *event {
            stack::StackEvent::Accepted { listener, connection } => {
                self.on_accepted(index, listener, connection);
                self.serve_application(index, StreamSocket::Tcp(connection));
            }
            stack::StackEvent::Connected(connection) => {
                self.on_connected(index, connection);
                self.serve_application(index, StreamSocket::Tcp(connection));
            }
            stack::StackEvent::Readable(connection) | stack::StackEvent::Writable(connection) => {
                self.serve_application(index, StreamSocket::Tcp(connection));
            }
            stack::StackEvent::Closed { connection, error } => {
                self.on_closed(index, connection, error);
            }
            stack::StackEvent::Notice { connection, notice } => {
                let status = self.hosts.get(index).and_then(|h| h.stack.status(connection));
                let name = self.hosts.get(index).map_or("", |host| host.name.as_str());
                self.recorder.notice(self.now, name, status.as_ref(), notice);
            }
            stack::StackEvent::Trace { connection, decision: trace } => {
                let name = self.hosts.get(index).map_or("", |host| host.name.as_str());
                self.recorder.trace(self.now, (index, name), connection, trace);
            }
        }
    }

    fn on_accepted(&mut self, index: usize, listener: ListenerId, connection: ConnectionId) {
        let flow = self.listeners.iter().find(|(host, id, _)| (*host, *id) == (index, listener));
        let Some((_, _, flow)) = flow.copied() else { return };
        let Some(host) = self.hosts.get_mut(index) else { return };
        let Some(status) = host.stack.status(connection) else { return };
        let via = self.scenario.flows.get(flow).map_or(0, |flow| flow.via);
        let opener = self.network.untranslated_address(via, status.remote);
        let is_accepted_stream =
            |stream: &SimStream| stream.flow == flow && stream.opener == Some(opener);
        let Some(number) = self.streams.iter().position(is_accepted_stream) else { return };
        host.ends.insert(StreamSocket::Tcp(connection), (number, 1));
        if let Some([_, acceptor]) = self.streams.get_mut(number).map(|stream| &mut stream.ends) {
            acceptor.socket = Some(StreamSocket::Tcp(connection));
            acceptor.open = true;
            self.network.accounts.dirty = true;
            self.notify_open(number, 1);
        }
    }

    fn on_connected(&mut self, index: usize, connection: ConnectionId) {
        let stream_and_side = self
            .hosts
            .get(index)
            .and_then(|host| host.ends.get(&StreamSocket::Tcp(connection)))
            .copied();
        let Some(stream) = stream_and_side.and_then(|(stream, _)| self.streams.get_mut(stream))
        else {
            return;
        };
        let [opener, _] = &mut stream.ends;
        opener.open = true;
        self.network.accounts.dirty = true;
        let flow = stream.flow;
        if let Some((number, _)) = stream_and_side {
            self.notify_open(number, 0);
        }
        let Some(run) = self.flows.get_mut(flow) else { return };
        run.opening = false;
        run.connect.get_or_insert(self.now.saturating_since(run.start));
        if run.streams_opened < run.streams_wanted {
            self.open_connection(flow);
        }
    }

    /// Notifies a message session that its stream is open.
    pub(crate) fn notify_open(&mut self, stream: usize, side: usize) {
        let Some((flow, number)) = self.streams.get(stream).map(|s| (s.flow, s.number)) else {
            return;
        };
        if let Some(session_stream) =
            self.flows.get_mut(flow).and_then(|flow| flow.session_stream(side, number))
        {
            session_stream.session.on_open(self.now, number);
        }
    }

    fn on_closed(
        &mut self,
        index: usize,
        connection: ConnectionId,
        error: Option<stack::ConnectionError>,
    ) {
        self.serve_application(index, StreamSocket::Tcp(connection));
        let stream_and_side = self
            .hosts
            .get(index)
            .and_then(|host| host.ends.get(&StreamSocket::Tcp(connection)))
            .copied();
        let Some((number, side)) = stream_and_side else { return };
        let Some(stream) = self.streams.get_mut(number) else { return };
        let flow = stream.flow;
        let Some(end) = stream.ends.get_mut(side) else { return };
        let was_open = end.open;
        end.end(self.now);
        let number_in_flow = stream.number;
        if let Some(session_stream) =
            self.flows.get_mut(flow).and_then(|flow| flow.session_stream(side, number_in_flow))
        {
            session_stream.session.on_end(number_in_flow);
        }
        if !was_open {
            let failure = self.refusal(flow, error.map(|error| error.to_string()));
            // The other end will never be notified.
            for end in self.streams.get_mut(number).into_iter().flat_map(|s| &mut s.ends) {
                end.end(self.now);
            }
            if let Some(run) = self.flows.get_mut(flow) {
                run.failure = Some(failure);
                run.opening = false;
            }
            return;
        }
        if let Some(error) = error {
            let name = self.hosts.get(index).map_or("", |host| host.name.as_str());
            let text = format!("connection of flow {flow} ended on {name}: {error}");
            self.recorder.add_event(self.now, None, event(EventKind::Flow, text));
        }
    }

    /// Lets the application at this end read and write.
    pub(crate) fn serve_application(&mut self, index: usize, socket: StreamSocket) {
        let Some(host) = self.hosts.get_mut(index) else { return };
        let Some((number, side)) = host.ends.get(&socket).copied() else { return };
        let Some(stream) = self.streams.get_mut(number) else { return };
        let Some(flow) = self.flows.get_mut(stream.flow) else { return };
        let Some(end) = stream.ends.get_mut(side) else { return };
        // After a flow's end, its receiver no longer counts data.
        if !flow.over {
            let session = flow.session_stream(side, stream.number);
            end.read(self.now, host, &self.pattern, session);
        }
        let session = flow.session_stream(side, stream.number);
        end.write(self.now, host, &self.pattern, session);
    }

    /// Marks a flow as over when no end waits for data.
    fn conclude_flow(&mut self, index: usize) {
        let Some(run) = self.flows.get_mut(index).filter(|run| !run.over && !run.opening) else {
            return;
        };
        if let Some(pings) = &run.pings {
            run.over = pings.is_over(self.now);
            return;
        }
        if let Some(constant_rate) = &run.constant_rate {
            run.over = constant_rate.is_over();
            return;
        }
        let all_opened = run.streams_opened > 0 && run.streams_opened == run.streams_wanted;
        let failed = run.failure.is_some();
        let mut flow_streams = self.streams.iter().filter(|stream| stream.flow == index);
        run.over = (all_opened || failed) && !flow_streams.any(SimStream::is_busy);
        self.network.accounts.dirty |= run.over;
    }

    /// Updates the idle causes for the time until `next`, the next event.
    fn update_causes(&mut self, next: Instant) {
        let Self { scenario, network, hosts, streams, flows, now, .. } = self;
        network.update_causes(&SimView { now: *now, scenario, hosts, streams, flows }, next);
    }

    fn sample(&mut self, at: Instant, span: std::time::Duration) {
        self.poll_quic();
        self.network.close_accounts(at);
        // QUIC paths are polled only at the end of a sample.
        self.network.accounts.dirty |= self.transport.is_quic();
        let Self { recorder, network, hosts, streams, flows, .. } = self;
        recorder.sample((at, span), network, hosts, streams);
        let constant_rate = flows.iter_mut().filter_map(|flow| flow.constant_rate.as_mut());
        for interval in constant_rate.flat_map(|constant_rate| constant_rate.intervals((at, span)))
        {
            recorder.add(&Record::Interval(interval));
        }
    }
}
