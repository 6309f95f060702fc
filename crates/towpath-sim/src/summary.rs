//! Summary, account and other records that are known only at the end of a run.

use towpath_mptcp::stack::ConnectionStatus;
use towpath_net::Instant;
use towpath_result::accounting::BufferSizes;
use towpath_result::format;
use towpath_result::metrics::{DeliveryLog, FlowInput, Summarizer};
use towpath_result::{
    Basis, ConnectionUse, Counter, DatagramRow, EmulatorTiming, Message, MultipathUse, Probe,
    Record, SubflowSummary, Warning,
};
use towpath_run::traffic::messages;
use towpath_scenario::flow_plan::summary_directions;
use towpath_scenario::{DataDirection, Transport};

use crate::account::ReadTotals;
use crate::error::SimError;
use crate::quic_record::{quic_connections, quic_proof, quic_warnings};
use crate::simulation::Simulation;
use crate::socket::StreamSocket;
use crate::traffic::SimStream;

/// Writes the records at the end of the result.
pub(crate) fn conclude(
    mut simulation: Simulation<'_>,
    transport: Transport,
) -> Result<(), SimError> {
    simulation.poll_quic();
    let Simulation { recorder, network, hosts, streams, now, .. } = &mut simulation;
    recorder.sample_final(*now, network, hosts, streams);
    let subflows = simulation.recorder.totals(&simulation.streams);
    let counters = counters(&simulation);
    let multipath = multipath_use(&simulation, transport, &counters);
    let timing = EmulatorTiming {
        packets: simulation.network.delivered_packets,
        ..EmulatorTiming::default()
    };
    let mut summarizer = Summarizer::new(simulation.scenario, transport);
    let mut messages = Vec::new();
    for input in flow_inputs(&simulation, &subflows) {
        // Each direction's entry has the messages of both directions.
        if messages.last().is_none_or(|last: &Message| last.flow != input.flow) {
            messages.extend(input.messages.iter().copied());
        }
        summarizer = summarizer.flow(input);
    }
    messages.sort_by_key(|message| message.due_ns);
    let (probes, rows) = finish_datagrams(&mut simulation, &mut summarizer);
    for warning in warnings(&simulation) {
        summarizer = summarizer.warning(warning);
    }
    simulation.network.close_accounts(simulation.now);
    let (read, sizes) = (read_totals(&simulation), buffer_sizes(&simulation));
    let basis = basis(&simulation);
    let Simulation { scenario, network, mut recorder, now, .. } = simulation;
    let (interfaces, accounts) = network.finish(now, scenario)?;
    let (accounts, account) = accounts.finish(&read).finish(basis, &sizes);
    for account in accounts {
        recorder.add(&Record::Account(Box::new(account)));
    }
    for message in messages {
        recorder.add(&Record::Message(message));
    }
    for probe in &probes {
        recorder.add(&Record::Probe(probe.clone()));
    }
    for row in rows {
        recorder.add(&Record::Datagrams(row));
    }
    for counter in &counters {
        recorder.add(&Record::Counter(counter.clone()));
    }
    for interface in interfaces {
        recorder.add(&Record::Interface(interface));
    }
    recorder.add(&Record::Timing(timing.clone()));
    let summary = summarizer
        .subflows(subflows)
        .probes(&probes)
        .multipath(multipath)
        .account(account)
        .emulator_timing(&timing)
        .counters(&counters)
        .finish();
    recorder.add(&Record::Summary(Box::new(summary)));
    recorder.check()
}

/// Returns how the accounts were made: QUIC's send state is sampled, the own stack's is exact.
fn basis(simulation: &Simulation<'_>) -> Basis {
    let quic = simulation.streams.iter().any(|stream| stream.transport.is_quic());
    if quic { Basis::Sampled } else { Basis::Model }
}

/// Returns probes and rows of all datagram flows; adds those at a constant rate to the summary.
fn finish_datagrams(
    simulation: &mut Simulation<'_>,
    summarizer: &mut Summarizer<'_>,
) -> (Vec<Probe>, Vec<DatagramRow>) {
    let mut rows = Vec::new();
    for (index, flow) in simulation.flows.iter_mut().enumerate() {
        let Some(constant_rate) = flow.constant_rate.take() else { continue };
        for (direction, stats, periods) in constant_rate.finish(index, simulation.scenario) {
            summarizer.add_datagrams(index as u32, direction, stats);
            rows.extend(periods);
        }
    }
    let mut probes: Vec<_> = { simulation.flows.iter().enumerate() }
        .filter_map(|(index, flow)| Some((index, flow.pings.as_ref()?)))
        .flat_map(|(index, pings)| pings.finish(simulation.now, index, simulation.scenario))
        .collect();
    probes.sort_by_key(|probe| probe.due_ns);
    (probes, rows)
}

fn flow_inputs(simulation: &Simulation<'_>, subflows: &[SubflowSummary]) -> Vec<FlowInput> {
    let mut inputs = Vec::new();
    for (index, (flow, run)) in simulation.scenario.flows.iter().zip(&simulation.flows).enumerate()
    {
        let sessions = run.sessions.as_ref();
        let messages = sessions.map_or_else(Vec::new, |[c, s]| messages(index as u32, c, s));
        for direction in summary_directions(&flow.pattern) {
            let until = simulation.now.min(run.deadline);
            let flow_streams = simulation.streams.iter().filter(|stream| stream.flow == index);
            let mut logs: Vec<_> =
                flow_streams.clone().filter_map(|s| s.log(*direction, until)).collect();
            logs.extend(
                run.constant_rate
                    .as_ref()
                    .and_then(|constant_rate| constant_rate.log(*direction, until)),
            );
            let delivery = DeliveryLog::merge(&logs).unwrap_or_else(|| {
                let mut log = DeliveryLog::new(Instant::ZERO + flow.start);
                log.watch_until(until);
                log
            });
            let sender = if *direction == DataDirection::Down { flow.to } else { flow.from };
            let quic = flow.transport_in(simulation.transport).is_quic();
            let control = simulation.hosts.get(sender).map(|host| {
                let tcp = &host.settings.connection.subflow.congestion_control;
                if quic { &host.quic.config.congestion_control } else { tcp }
            });
            let is_this_direction =
                |s: &&SubflowSummary| s.flow == index as u32 && s.direction == *direction;
            inputs.push(FlowInput {
                flow: index as u32,
                direction: *direction,
                delivery,
                connect: run.connect,
                failure: run.failure.clone(),
                congestion_control: control
                    .filter(|_| flow_streams.clone().next().is_some())
                    .cloned()
                    .into_iter()
                    .collect(),
                retransmissions: subflows
                    .iter()
                    .filter(is_this_direction)
                    .map(|s| s.retransmissions)
                    .sum(),
                stack: simulation.recorder.stack_totals.stats(index as u32, *direction),
                messages: messages.clone(),
            });
        }
    }
    inputs
}

/// Returns the bytes that applications have read.
fn read_totals(simulation: &Simulation<'_>) -> ReadTotals {
    let mut totals = ReadTotals::default();
    for stream in &simulation.streams {
        let via = simulation.scenario.flows.get(stream.flow).map_or(0, |flow| flow.via);
        let first_host = simulation.scenario.paths.get(via).map(|path| path.between[0]);
        let [opener, acceptor] = &stream.ends;
        for (sender, receiver) in [(opener, acceptor), (acceptor, opener)] {
            let side = usize::from(first_host != Some(sender.host));
            if let Some(connection) = sender.socket.and_then(StreamSocket::tcp) {
                totals.stream_bytes.insert((sender.host, connection), receiver.received_bytes);
            } else if let Some(sum) = totals.quic_bytes.get_mut(side) {
                *sum += receiver.received_bytes;
            }
        }
    }
    totals
}

/// Returns the buffer sizes that explain a full window or buffer.
fn buffer_sizes(simulation: &Simulation<'_>) -> BufferSizes {
    let ends = || simulation.streams.iter().flat_map(|stream| &stream.ends);
    let windows = ends().filter_map(|end| {
        let host = simulation.hosts.get(end.host)?;
        Some(host.stack.max_peer_window_bytes(end.socket?.tcp()?))
    });
    let sending_hosts =
        simulation.streams.iter().flat_map(|stream| &stream.ends).map(|end| end.host);
    let buffers = sending_hosts.filter_map(|host| simulation.hosts.get(host));
    let buffers = buffers.map(|host| host.settings.connection.send_buffer_bytes);
    BufferSizes {
        receive_window_bytes: windows.max().filter(|bytes| *bytes > 0),
        send_buffer_bytes: buffers.min(),
        sufficient_bytes: Some(
            simulation.network.accounts.sufficient_window_bytes(simulation.recorder.longest_srtt),
        ),
        ..BufferSizes::default()
    }
}

/// Returns the status of both ends of every stream.
fn statuses<'w>(
    simulation: &'w Simulation<'_>,
) -> impl Iterator<Item = (usize, ConnectionStatus)> + 'w {
    let ends = simulation.streams.iter().flat_map(|stream| &stream.ends);
    ends.filter_map(|end| {
        let status = simulation.hosts.get(end.host)?.status(end.socket?)?;
        Some((end.host, status))
    })
}

/// Returns the stack's counters by host, without those that stayed at zero (as for the kernel's).
fn counters(simulation: &Simulation<'_>) -> Vec<Counter> {
    let mut counters = Vec::new();
    let mut add = |host: &str, name: &str, after: u64| {
        if after > 0 {
            let (host, name) = (host.to_owned(), format!("Towpath.{name}"));
            counters.push(Counter { host, name, before: 0, after });
        }
    };
    for (index, host) in simulation.hosts.iter().enumerate() {
        for ((_, name), count) in
            simulation.recorder.notices.iter().filter(|((name, _), _)| *name == host.name)
        {
            add(&host.name, name, *count);
        }
        let host_statuses: Vec<_> = statuses(simulation)
            .filter(|(host_index, _)| *host_index == index)
            .map(|(_, status)| status)
            .collect();
        let sum = |value: &dyn Fn(&ConnectionStatus) -> u64| host_statuses.iter().map(value).sum();
        let causes = ["Timeout", "Closed", "Connection", "Opportunistic", "Scheduler"];
        for (cause, name) in causes.iter().enumerate() {
            let bytes = |status: &ConnectionStatus| {
                status.reinjected_bytes.get(cause).copied().unwrap_or(0)
            };
            add(&host.name, &format!("Reinjected{name}Bytes"), sum(&bytes));
        }
        add(&host.name, "BusyMicroseconds", host.busy_time.as_micros() as u64);
        add(&host.name, "Penalisations", sum(&|status| status.penalisations));
        add(&host.name, "DiscardedBytes", sum(&|status| status.discarded_bytes));
        add(&host.name, "WindowBlockedMs", sum(&|s| s.window_blocked.as_millis() as u64));
        let tcp = |value: fn(&towpath_mptcp::subflow::SubflowStats) -> u64| {
            host_statuses
                .iter()
                .flat_map(|status| &status.subflows)
                .map(|s| value(&s.tcp))
                .sum::<u64>()
        };
        add(&host.name, "Retransmissions", tcp(|tcp| tcp.retransmissions));
        add(&host.name, "Timeouts", tcp(|tcp| tcp.timeouts_total));
        add(&host.name, "UndoneReductions", tcp(|tcp| tcp.undone));
        add(&host.name, "DuplicateBytes", tcp(|tcp| tcp.duplicate_bytes));
    }
    counters
}

/// Returns the evidence that Multipath TCP was used, or the reason why not.
fn multipath_use(
    simulation: &Simulation<'_>,
    transport: Transport,
    counters: &[Counter],
) -> MultipathUse {
    let scenario = simulation.scenario;
    match transport {
        Transport::Tcp | Transport::Quic => return MultipathUse::default(),
        Transport::Mpquic => {
            let connections = quic_connections(simulation);
            return quic_proof(simulation, transport).set_flows(scenario, transport, &connections);
        }
        Transport::Mptcp => {}
    }
    // A flow that was not configured for Multipath TCP is not evidence. Neither is a connection that
    // was never established: its flow has failed.
    let streams = simulation.streams.iter().filter(|stream| {
        let flow = scenario.flows.get(stream.flow);
        let should_use_mptcp = flow.is_some_and(|flow| flow.transport_in(transport) == transport);
        should_use_mptcp && stream.ends.iter().any(|end| end.open)
    });
    let connections: Vec<_> = streams.map(|stream| connection_use(simulation, stream)).collect();
    let (opened, multipath) =
        (connections.len(), connections.iter().filter(|connection| connection.multipath).count());
    let mut evidence = vec![format!(
        "{multipath} of {} used Multipath TCP without fallback on both hosts",
        format::count(opened as u64, "connection")
    )];
    evidence.extend(
        counters.iter().filter(|counter| counter.name == "Towpath.SubflowsEstablished").map(
            |counter| {
                let subflows = format::count(counter.after, "subflow");
                format!("{subflows} established on {}", counter.host)
            },
        ),
    );
    let reinjected_bytes: u64 =
        statuses(simulation).map(|(_, status)| status.reinjected_bytes.iter().sum::<u64>()).sum();
    evidence.push(format!("{reinjected_bytes} bytes were reinjected on another subflow"));
    let used = opened > 0 && multipath == opened;
    let reason = || {
        if opened == 0 {
            return "no connection was opened".to_owned();
        }
        let noticed = simulation.recorder.fallbacks.first();
        let noticed = noticed.map(|(host, reason)| format!("{reason} (seen by {host})"));
        let last = || connections.iter().find_map(|connection| connection.reason.clone());
        let unknown = || "a connection was too short for Multipath TCP".to_owned();
        noticed.or_else(last).unwrap_or_else(unknown)
    };
    let fallback = (!used).then(reason);
    MultipathUse { requested: true, used, fallback, evidence, ..MultipathUse::default() }.set_flows(
        scenario,
        transport,
        &connections,
    )
}

/// Returns the state of a stream's connection. One end that has fallen back is enough: the proof
/// needs both.
fn connection_use(simulation: &Simulation<'_>, stream: &SimStream) -> ConnectionUse {
    let statuses: Vec<_> = { stream.ends.iter() }
        .filter_map(|end| {
            let host = simulation.hosts.get(end.host)?;
            Some((host, host.status(end.socket?)?))
        })
        .collect();
    let uses_mptcp = |status: &ConnectionStatus| status.multipath && status.fallback.is_none();
    let multipath = statuses.len() == stream.ends.len()
        && statuses.iter().all(|(_, status)| uses_mptcp(status));
    let reason = statuses
        .iter()
        .find_map(|(host, status)| Some(format!("{} (seen by {})", status.fallback?, host.name)));
    let short = || "the connection was too short for Multipath TCP".to_owned();
    let reason = (!multipath).then(|| reason.unwrap_or_else(short));
    ConnectionUse { flow: stream.flow as u32, multipath, reason }
}

fn warnings(simulation: &Simulation<'_>) -> Vec<Warning> {
    let mut warnings = quic_warnings(simulation);
    for stream in &simulation.streams {
        for end in &stream.ends {
            let Some(offset) = end.damaged_at else { continue };
            let name = simulation.hosts.get(end.host).map_or("?", |host| host.name.as_str());
            warnings.push(Warning {
                text: format!(
                    "flow {}: `{name}` received data that differs from the sent data, from byte {offset} on",
                    stream.flow
                ),
                hint: Some(
                    "a middlebox changed the payload; with Multipath TCP, `checksum = true` detects it"
                        .to_owned(),
                ),
            });
        }
    }
    for host in &simulation.scenario.hosts {
        if let Some((name, _)) = host.sysctls.first() {
            warnings.push(Warning {
                text: format!(
                    "`{name}` of host `{}` has no effect in the simulated world",
                    host.name
                ),
                hint: Some(
                    "its own keys are in docs/reference/scenario.md, such as `profile-switches`"
                        .to_owned(),
                ),
            });
        }
    }
    warnings
}
