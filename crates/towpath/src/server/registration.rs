//! Registration of `towpath server` with a collector, whose devices may then measure here.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use towpath_campaign::Heartbeat;
use towpath_live as live;
use towpath_live::protocol::ServerAccess;
use towpath_live::{DeviceAccess, Server, ServerEvent};
use towpath_net::Instant;
use towpath_os::Clock;
use towpath_result::Warning;
use towpath_scenario::Transport;

use crate::error::CliError;
use crate::ui::{SafeTerminal, Ui};
use crate::upload::{
    CollectorUrl, HeartbeatClient, HeartbeatError, Refusal, ServerRegistration, warn_if_exposed,
};

/// Minimum time between two heartbeats when tests begin and end.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Time until the first repetition of a heartbeat that failed; it doubles with each failure.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
/// Upper limit of that time.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Time between two heartbeats until the collector says another.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of announced hosts.
const MAX_HOSTS: usize = 16;

/// Options of a server that devices of a collector may use.
#[derive(Debug, Args)]
pub(crate) struct RegisterArguments {
    /// Register with the collector at this address: its devices may measure here
    ///
    /// Other clients are refused, unless they know the secret, or `--open` is given.
    #[arg(long, value_name = "URL")]
    pub(crate) register: Option<String>,
    /// File with the server's token on the collector [default: the environment variable
    /// `TOWPATH_TOKEN`]
    ///
    /// `towpath collect token create --role server` creates it.
    #[arg(long, value_name = "FILE", requires = "register")]
    pub(crate) token_file: Option<PathBuf>,
    /// Place of this host for people, such as `Brussels`
    #[arg(long, value_name = "TEXT", requires = "register")]
    pub(crate) place: Option<String>,
    /// Names or addresses by which devices reach this host [default: its addresses]
    #[arg(long, value_name = "HOST", value_delimiter = ',', requires = "register")]
    pub(crate) announce: Vec<String>,
    /// File with the certificate authority of the collector, in PEM [default: public authorities]
    #[arg(long, value_name = "FILE", requires = "register")]
    pub(crate) ca: Option<PathBuf>,
    /// Also admit clients that are no devices of the collector
    #[arg(long, requires = "register", conflicts_with = "secret_file")]
    pub(crate) open: bool,
}

impl RegisterArguments {
    /// Returns the access for devices; `None` without a collector.
    pub(super) fn access(&self) -> Option<DeviceAccess> {
        self.register.as_ref().map(|_| DeviceAccess::new(!self.open))
    }
}

/// Content of all heartbeats, apart from the load.
#[derive(Debug)]
struct Announcement {
    /// Hosts that the user named; empty for the addresses of this host.
    hosts: Vec<String>,
    listen: SocketAddr,
    place: String,
    ports: Vec<u16>,
    transports: Vec<Transport>,
    certificate: Option<String>,
    max_tests: u32,
}

impl Announcement {
    /// Describes a server. `None` if it has no address.
    fn new(arguments: &RegisterArguments, server: &Server, max_tests: u32) -> Option<Self> {
        let ports: Vec<u16> = server.addresses().iter().map(SocketAddr::port).collect();
        let has_quic = ports.iter().all(|port| server.has_quic(*port));
        let available = [
            (Transport::Tcp, true),
            (Transport::Mptcp, server.has_mptcp()),
            (Transport::Quic, has_quic),
            (Transport::Mpquic, has_quic),
        ];
        let transports =
            available.into_iter().filter_map(|(transport, has)| has.then_some(transport));
        Some(Self {
            hosts: arguments.announce.iter().map(|host| host.trim().to_owned()).collect(),
            listen: *server.addresses().first()?,
            place: arguments.place.clone().unwrap_or_default().trim().to_owned(),
            ports,
            transports: transports.collect(),
            certificate: server.fingerprint().map(|fingerprint| fingerprint.to_string()),
            max_tests,
        })
    }

    /// Returns the heartbeat with the present addresses of this host.
    fn heartbeat(&self, tests: u32) -> Heartbeat {
        let hosts = if self.hosts.is_empty() {
            let addresses = reachable_addresses(self.listen);
            addresses.iter().take(MAX_HOSTS).map(IpAddr::to_string).collect()
        } else {
            self.hosts.clone()
        };
        Heartbeat {
            place: self.place.clone(),
            hosts,
            ports: self.ports.clone(),
            transports: self.transports.clone(),
            certificate: self.certificate.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tests,
            max_tests: self.max_tests,
        }
    }
}

/// Returns the addresses by which others reach a server, or that of loopback if there are none.
pub(super) fn reachable_addresses(listen: SocketAddr) -> Vec<IpAddr> {
    if !listen.ip().is_unspecified() {
        return vec![listen.ip().to_canonical()];
    }
    let mut addresses = live::addresses_towards_others().unwrap_or_default();
    if addresses.is_empty() {
        let loopback = if listen.is_ipv4() { [127, 0, 0, 1].into() } else { loopback_v6() };
        addresses.push(loopback);
    }
    addresses
}

fn loopback_v6() -> IpAddr {
    std::net::Ipv6Addr::LOCALHOST.into()
}

/// Times of the heartbeats. The time is an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeartbeatSchedule {
    interval: Duration,
    last_sent: Instant,
    /// Failures since the last success.
    failures: u32,
    /// Set if the load has changed since the last heartbeat.
    has_changed: bool,
}

impl HeartbeatSchedule {
    fn new(now: Instant) -> Self {
        Self { interval: DEFAULT_INTERVAL, last_sent: now, failures: 0, has_changed: false }
    }

    /// Records the outcome of a heartbeat; `None` for a failure.
    fn on_sent(self, now: Instant, interval: Option<Duration>) -> Self {
        let failures = if interval.is_some() { 0 } else { self.failures.saturating_add(1) };
        let interval = interval.unwrap_or(self.interval);
        Self { interval, last_sent: now, failures, has_changed: false }
    }

    fn on_change(self) -> Self {
        Self { has_changed: true, ..self }
    }

    /// Returns the time until the next heartbeat.
    fn wait(self, now: Instant) -> Duration {
        let span = match (self.failures, self.has_changed) {
            (0, true) => MIN_HEARTBEAT_INTERVAL,
            (0, false) => self.interval,
            (failures, _) => INITIAL_BACKOFF
                .saturating_mul(1 << failures.saturating_sub(1).min(16))
                .min(MAX_BACKOFF),
        };
        (self.last_sent + span).saturating_since(now)
    }
}

/// Load of the server, shared with the thread that sends heartbeats.
#[derive(Debug, Clone)]
pub(super) struct LoadMonitor {
    tests: Arc<AtomicU32>,
    changes: SyncSender<()>,
}

impl LoadMonitor {
    /// Counts running tests.
    pub(super) fn on_event(&self, event: &ServerEvent) {
        match event {
            ServerEvent::Begun { .. } => self.tests.fetch_add(1, Ordering::Relaxed),
            ServerEvent::Ended { .. } => self.tests.fetch_sub(1, Ordering::Relaxed),
            ServerEvent::WrongSecret { .. } => return,
        };
        let _ = self.changes.try_send(()); // a change may wait already
    }
}

/// Registration of a running server.
#[derive(Debug)]
struct Registrar {
    client: HeartbeatClient,
    announcement: Announcement,
    access: DeviceAccess,
    tests: Arc<AtomicU32>,
    url: String,
    /// True after a heartbeat that failed, which is reported once.
    has_failed: bool,
}

/// Registers a server, and keeps it registered in a thread until the process ends.
///
/// Fails if the collector refuses the server. If the collector cannot be reached, the thread tries
/// it again.
pub(super) fn register(
    arguments: &RegisterArguments,
    (server, max_tests): (&Server, u32),
    (access, as_json): (DeviceAccess, bool),
    ui: &mut Ui,
) -> Result<Option<LoadMonitor>, CliError> {
    let (Some(url), Some(announcement)) =
        (&arguments.register, Announcement::new(arguments, server, max_tests))
    else {
        return Ok(None);
    };
    let url = CollectorUrl::parse(url)?;
    let text = url.as_str().to_owned();
    warn_if_exposed(&url, ui);
    let client =
        HeartbeatClient::new(url, arguments.token_file.as_deref(), arguments.ca.as_deref())?;
    let tests = Arc::new(AtomicU32::new(0));
    let (changes, received) = mpsc::sync_channel(1);
    let monitor = LoadMonitor { tests: Arc::clone(&tests), changes };
    let mut registrar =
        Registrar { client, announcement, access, tests, url: text, has_failed: false };
    let clock = Clock::start();
    let schedule = HeartbeatSchedule::new(clock.now());
    let schedule = match registrar.send() {
        Ok(registration) => {
            let name = &registration.name;
            if as_json {
                let event = json!({ "event": "registered", "url": registrar.url, "name": name });
                writeln!(ui.out, "{event}")?;
                ui.out.flush()?;
            } else {
                ui.progress(&format!("registered with {} as `{name}`", registrar.url));
            }
            schedule.on_sent(clock.now(), Some(registration.interval))
        }
        Err(HeartbeatError::Refused(refusal)) => return Err(refusal.into()),
        Err(HeartbeatError::Unreachable(refusal)) => {
            registrar.has_failed = true;
            ui.warn(&unreachable(&refusal));
            schedule.on_sent(clock.now(), None)
        }
    };
    let run = move || registrar.run(clock, schedule, &received);
    thread::Builder::new().name("heartbeat".to_owned()).spawn(run).map_err(CliError::Spawn)?;
    Ok(Some(monitor))
}

fn unreachable(refusal: &Refusal) -> Warning {
    let hint = refusal.hint.clone();
    let hint = hint.unwrap_or_else(|| "the server repeats the registration".to_owned());
    Warning { text: format!("not registered: {}", refusal.text), hint: Some(hint) }
}

impl Registrar {
    /// Sends a heartbeat, and passes the key of the reply to the server.
    fn send(&self) -> Result<ServerRegistration, HeartbeatError> {
        let heartbeat = self.announcement.heartbeat(self.tests.load(Ordering::Relaxed));
        let registration = self.client.send(&heartbeat)?;
        let ServerRegistration { name, key, interval: _ } = registration.clone();
        self.access.set(ServerAccess { name, key });
        Ok(registration)
    }

    /// Sends heartbeats until the server ends.
    fn run(mut self, clock: Clock, mut schedule: HeartbeatSchedule, changes: &Receiver<()>) {
        loop {
            match changes.recv_timeout(schedule.wait(clock.now())) {
                Ok(()) => {
                    schedule = schedule.on_change();
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let sent = self.send();
            self.report(&sent);
            let interval = sent.ok().map(|registration| registration.interval);
            schedule = schedule.on_sent(clock.now(), interval);
        }
    }

    /// Prints the first failure after a success, and the first success after a failure.
    fn report(&mut self, sent: &Result<ServerRegistration, HeartbeatError>) {
        if sent.is_err() == self.has_failed {
            return;
        }
        self.has_failed = sent.is_err();
        let mut terminal = SafeTerminal::new(io::stderr());
        // Writing fails if the reader has closed the output, which is not an error.
        let _ = match sent {
            Ok(registration) => {
                writeln!(terminal, "registered with {} as `{}`", self.url, registration.name)
            }
            Err(error) => {
                let Warning { text, hint } = unreachable(error.refusal());
                writeln!(terminal, "warning: {text}\nhint: {}", hint.unwrap_or_default())
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_s(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_change_of_the_load_is_sent_soon_and_not_too_often() {
        let schedule = HeartbeatSchedule::new(at_s(0)).on_sent(at_s(100), Some(s(40)));
        assert_eq!(schedule.wait(at_s(110)), s(30));
        assert_eq!(schedule.on_change().wait(at_s(101)), s(1));
        assert_eq!(schedule.on_change().wait(at_s(110)), Duration::ZERO);
        let sent = schedule.on_change().on_sent(at_s(110), Some(s(40)));
        assert_eq!(sent.wait(at_s(110)), s(40));
    }

    #[test]
    fn failed_heartbeats_are_repeated_ever_more_slowly() {
        let mut schedule = HeartbeatSchedule::new(at_s(0)).on_sent(at_s(0), Some(s(30)));
        let waits = (0..7).map(|_| {
            schedule = schedule.on_sent(at_s(0), None).on_change();
            schedule.wait(at_s(0)).as_secs()
        });
        assert_eq!(waits.collect::<Vec<_>>(), [5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(schedule.on_sent(at_s(0), Some(s(30))).wait(at_s(0)), s(30));
    }

    #[test]
    fn a_bound_address_is_announced_as_it_is() {
        let announced = |listen: &str| reachable_addresses(listen.parse().unwrap());
        assert_eq!(announced("192.0.2.1:5210"), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(announced("[::ffff:192.0.2.1]:1"), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(!announced("[::]:5210").is_empty());
    }
}
