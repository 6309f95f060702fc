//! `towpath monitor`: shows the host's Multipath TCP connections as they change.

mod json;
mod lines;
mod metrics;
mod screen;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use towpath_host::monitor::{
    ConnectionHistory, DerivedConnection, EndedSubflow, EventSource, EventTimeline, MetricsServer,
    Monitor, MonitorEvent, MonitorRound,
};
use towpath_netlink::{MptcpEvent, MptcpEvents, NetlinkError};
use towpath_os::{Clock, interrupt};
use towpath_result::Warning;

use crate::error::CliError;
use crate::options::interval;
use crate::ui::Ui;

/// Show the Multipath TCP connections of this machine, with their subflows and processes
///
/// Shows a live view on a terminal, otherwise lines of text. Values that are inferred, not reported
/// by the kernel, are marked with ~.
#[derive(Debug, Args)]
pub(crate) struct MonitorArguments {
    /// Print one JSON object per line: each connection in each sample, and events
    #[arg(short = 'J', long)]
    json: bool,
    /// Print only path manager events, in the format of `ip mptcp monitor`
    #[arg(long, conflicts_with_all = ["json", "prometheus"])]
    classic: bool,
    /// Serve Prometheus metrics at `/metrics` on ADDR, such as 127.0.0.1:9262 or just a port
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    prometheus: Option<SocketAddr>,
    /// Time between two samples, such as `0.5` (seconds) or `200ms` [default: 1; on a terminal 0.2]
    #[arg(short, long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// Number of samples; the first is taken immediately [default: until interrupted]
    #[arg(long, value_name = "N")]
    count: Option<u32>,
}

/// Hint for ordinary users, who do not see everything.
const NO_ROOT_HINT: &str = "without root (CAP_NET_ADMIN), path manager events are missing, and programs of other users are shown as `user` and a number";
/// Interval at which `--classic` polls for events.
const CLASSIC_POLL_INTERVAL: Duration = Duration::from_millis(20);

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| "expected an address and a port, such as 127.0.0.1:9262".to_owned())
}

pub(crate) fn monitor(arguments: &MonitorArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.classic {
        return classic(arguments, ui);
    }
    let mut poller = MonitorPoller::open()?;
    let responder = match arguments.prometheus {
        Some(address) => {
            Some(MetricsServer::start(address).map_err(|error| CliError::Unavailable {
                what: format!("cannot listen at {address}: {error}"),
                hint: "use a free port: --prometheus 127.0.0.1:0".to_owned(),
            })?)
        }
        None => None,
    };
    if let Some(responder) = &responder {
        ui.progress(&format!("listening at http://{}/metrics", responder.address()));
    }
    interrupt::catch();
    if !arguments.json && responder.is_none() && ui.out.is_terminal() {
        return screen::show(&mut poller, arguments.interval, arguments.count);
    }
    // The Prometheus metrics have neither events nor processes.
    if !poller.monitor.has_events() && responder.is_none() {
        ui.warn(&Warning {
            text: NO_ROOT_HINT.to_owned(),
            hint: Some("run it with sudo; a `towpath lab` needs no root".to_owned()),
        });
    }
    if arguments.json && responder.is_none() {
        writeln!(ui.out, "{}", json::start_line(poller.monitor.has_events()))?;
        ui.out.flush()?;
    }
    let interval = arguments.interval.unwrap_or(Duration::from_secs(1));
    let mut rounds = 0;
    while !interrupt::is_interrupted() && arguments.count.is_none_or(|count| rounds < count) {
        poller.clock.sleep_until(towpath_net::Instant::ZERO + interval * rounds);
        rounds += 1;
        let snapshot = poller.poll()?;
        match &responder {
            Some(responder) => responder.set_page(metrics::page(&snapshot.connections)),
            None if arguments.json => print_json(&snapshot, ui)?,
            None => lines::print(&snapshot, &mut ui.out)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
fn netlink_error(error: NetlinkError) -> CliError {
    CliError::Unavailable {
        what: error.to_string(),
        hint: "the kernel must have socket listings (CONFIG_INET_DIAG)".to_owned(),
    }
}

/// Kernel interfaces of the monitor, polled in rounds.
#[derive(Debug)]
struct MonitorPoller {
    clock: Clock,
    monitor: Monitor,
    timeline: EventTimeline,
    watch: ConnectionHistory,
}

/// Results of one poll.
#[derive(Debug)]
struct MonitorSample {
    /// Time since the monitor's start.
    at: Duration,
    connections: Vec<DerivedConnection>,
    /// Everything that happened since the last poll, including events of the path manager.
    timeline: Vec<MonitorEvent>,
    events: Vec<MptcpEvent>,
    /// Subflows that have ended since the last poll.
    ended: Vec<EndedSubflow>,
}

impl MonitorPoller {
    fn open() -> Result<Self, CliError> {
        Ok(Self {
            monitor: Monitor::open().map_err(netlink_error)?,
            timeline: EventTimeline::open().map_err(netlink_error)?,
            watch: ConnectionHistory::default(),
            clock: Clock::start(),
        })
    }

    fn poll(&mut self) -> Result<MonitorSample, CliError> {
        let (mut timeline_events, events) =
            self.timeline.read(&mut self.monitor).map_err(netlink_error)?;
        let connections = self.monitor.connections().map_err(netlink_error)?;
        // Read after the listing, so that it covers every subflow that is missing there.
        let final_stats = self.monitor.final_stats().map_err(netlink_error)?;
        let at = Duration::from_nanos(self.clock.now().as_nanos());
        let timeline = &self.timeline;
        let interface = |address| timeline.interface(address);
        let MonitorRound { connections, events: inferred, ended } =
            self.watch.update(at, connections, final_stats.as_deref(), &interface);
        let inferred = inferred.into_iter();
        timeline_events
            .extend(inferred.map(|text| MonitorEvent { source: EventSource::Inferred, text }));
        Ok(MonitorSample { at, connections, timeline: timeline_events, events, ended })
    }
}

fn print_json(sample: &MonitorSample, ui: &mut Ui) -> Result<(), CliError> {
    let t_ns = sample.at.as_nanos() as u64;
    for event in &sample.events {
        writeln!(ui.out, "{}", json::event_line(t_ns, event))?;
    }
    for event in sample.timeline.iter().filter(|event| event.source != EventSource::PathManager) {
        writeln!(ui.out, "{}", json::event_text_line(t_ns, event))?;
    }
    for ended in &sample.ended {
        writeln!(ui.out, "{}", json::ended_line(t_ns, ended))?;
    }
    for derived in &sample.connections {
        writeln!(ui.out, "{}", json::connection_line(t_ns, derived))?;
    }
    ui.out.flush()?;
    Ok(())
}

fn classic(arguments: &MonitorArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let mut events = MptcpEvents::open().map_err(|error| CliError::Unavailable {
        what: error.to_string(),
        hint: "the path manager's events need root (CAP_NET_ADMIN)".to_owned(),
    })?;
    interrupt::catch();
    let clock = Clock::start();
    let pause = arguments.interval.unwrap_or(CLASSIC_POLL_INTERVAL);
    let mut rounds = 0;
    while !interrupt::is_interrupted() && arguments.count.is_none_or(|count| rounds < count) {
        rounds += 1;
        clock.sleep_until(clock.now() + pause);
        let received = events.drain().map_err(netlink_error)?;
        for event in &received.events {
            writeln!(ui.out, "{event}")?;
        }
        if received.lost {
            ui.progress("towpath: events arrived too fast; some are missing here");
        }
        ui.out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_port_means_the_loopback_interface() {
        let parsed = |text| listen_address(text).map(|address| address.to_string());
        assert_eq!(parsed("9262").as_deref(), Ok("127.0.0.1:9262"));
        assert_eq!(parsed("[::]:1").as_deref(), Ok("[::]:1"));
        assert!(parsed("host:1").is_err());
    }
}
