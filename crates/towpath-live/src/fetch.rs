//! Fetches the server's report over the control connection or, when that is lost, over any other
//! path. The server keeps the report meanwhile.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::interrupt;
use towpath_run::token::TestToken;
use towpath_scenario::{Scenario, Transport};

use super::control_channel::ControlChannel;
use super::dial::Dialer;
use super::flow_runner::expected_streams;
use super::host_info::interfaces;
use super::socket::LocalBind;
use crate::protocol::limits::max_duration;
use crate::protocol::message::sanitize;
use crate::protocol::{ClientMessage, HostReport, ServerMessage};

/// Silence after which a connection is replaced, as another may be faster. The server replies
/// within half a second, with or without a result.
const READ_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Timeout of each connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum size of a short test's result; parsed, it takes several times as much memory.
const SHORT_RESULT_BYTES: u64 = 16 << 20;
/// Bytes for each sample of a stream: a line for the stream and for each of its subflows.
const SAMPLE_BYTES: u64 = 9 * 600;
/// Upper limit of any result in bytes.
const MAX_RESULT_BYTES: u64 = 256 << 20;
/// New bytes that count as progress and extend the deadline. Without a minimum, single bytes could
/// extend it forever.
const PROGRESS_BYTES: usize = 16 * 1024;
/// Maximum extension of the deadline by progress.
const MAX_FETCH_TIME: Duration = Duration::from_secs(600);
/// Late replies to earlier requests that are tolerated.
const MAX_LATE_REPLIES: u32 = 32;
/// Protocol errors after which the server is given up.
const MAX_PROTOCOL_ERRORS: u32 = 3;
/// Interval at which interrupts are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Remaining time after an interrupt; the whole command ends within a second.
const INTERRUPT_GRACE: Duration = Duration::from_millis(500);

/// Returns the maximum size of the server's report for a scenario.
pub(super) fn max_result_bytes(scenario: &Scenario) -> u64 {
    let sample_ns = scenario.run.sample.as_nanos().max(1);
    let samples = max_duration(scenario).as_nanos().div_euclid(sample_ns).saturating_add(1);
    let lines = samples.saturating_mul(expected_streams(scenario).len() as u128);
    let bytes = u64::try_from(lines).unwrap_or(u64::MAX).saturating_mul(SAMPLE_BYTES);
    bytes.saturating_add(SHORT_RESULT_BYTES).min(MAX_RESULT_BYTES)
}

/// Parameters for reconnecting to a server.
#[derive(Debug)]
pub(super) struct Reconnector {
    pub(super) token: TestToken,
    pub(super) transport: Transport,
    /// Local address and interface that the user requested.
    pub(super) source: LocalBind,
    /// Known addresses of the server, the preferred one first.
    pub(super) targets: Vec<SocketAddr>,
    pub(super) clock: Clock,
    pub(super) dialer: Dialer,
}

impl Reconnector {
    /// Opens a control connection and sends its preamble.
    pub(super) fn connect(
        &self,
        transport: Transport,
        source: &LocalBind,
        target: SocketAddr,
        timeout: Duration,
    ) -> io::Result<ControlChannel> {
        self.dialer.connect_control(transport, (source, target), self.token, timeout)
    }

    /// Returns all combinations of transport, interface and address, the usual one first.
    fn attempts(&self) -> Vec<(Transport, LocalBind, SocketAddr)> {
        let mut transports = vec![self.transport];
        transports
            .extend([Transport::Tcp].iter().filter(|transport| **transport != self.transport));
        let mut sources = vec![self.source.clone()];
        for interface in interfaces().unwrap_or_default() {
            sources.push(LocalBind {
                address: Some(interface.address),
                interface: Some(interface.name),
            });
        }
        let mut attempts = Vec::new();
        for source in sources {
            for target in &self.targets {
                let is_same_family =
                    |address: std::net::IpAddr| address.is_ipv4() == target.is_ipv4();
                // Loopback cannot reach another host, and QUIC would only notice by timeout.
                let is_loopback_only =
                    |address: std::net::IpAddr| address.is_loopback() && !target.ip().is_loopback();
                if source
                    .address
                    .is_some_and(|address| !is_same_family(address) || is_loopback_only(address))
                {
                    continue;
                }
                attempts.extend(
                    transports.iter().map(|transport| (*transport, source.clone(), *target)),
                );
            }
        }
        attempts
    }
}

/// Retrieval of one result.
#[derive(Debug)]
pub(super) struct ResultFetch<'a> {
    reconnector: &'a Reconnector,
    channel: Option<ControlChannel>,
    text: String,
    total: Option<u64>,
    max_bytes: u64,
    /// Time of the last valid message.
    last_message: Instant,
    /// Bytes of the result at the last progress.
    progress_bytes: usize,
    /// Number of protocol errors of the server.
    protocol_errors: u32,
    /// Time when the interrupt was noticed.
    interrupted_at: Option<Instant>,
    lost_connections: u32,
}

/// Deadlines and timeout of a retrieval.
#[derive(Debug, Clone, Copy)]
struct FetchDeadlines {
    /// Longest silence of the server.
    timeout: Duration,
    /// Deadline while no progress is made.
    progress_deadline: Instant,
    /// Deadline even if progress continues.
    final_deadline: Instant,
}

impl<'a> ResultFetch<'a> {
    /// Creates a retrieval; a result larger than `max_bytes` is an error.
    pub(super) fn new(
        reconnector: &'a Reconnector,
        channel: Option<ControlChannel>,
        max_bytes: u64,
    ) -> Self {
        let (last_message, text, total, interrupted_at) =
            (reconnector.clock.now(), String::new(), None, None);
        let (progress_bytes, protocol_errors, lost_connections) = (0, 0, 0);
        Self {
            reconnector,
            channel,
            text,
            total,
            max_bytes,
            last_message,
            progress_bytes,
            protocol_errors,
            interrupted_at,
            lost_connections,
        }
    }

    /// Fetches the complete result. Gives up when the server was silent for `reply_timeout`, or
    /// when `deadline` has passed and no progress was made for as long.
    pub(super) fn run(
        mut self,
        reply_timeout: Duration,
        deadline: Instant,
    ) -> Result<(HostReport, u32), String> {
        let mut attempt = 0;
        let mut last_error = "the connection was lost".to_owned();
        let mut deadlines = FetchDeadlines {
            timeout: reply_timeout,
            progress_deadline: deadline,
            final_deadline: deadline + MAX_FETCH_TIME,
        };
        loop {
            if let Some(report) = self.finished() {
                return report.map(|report| (report, self.lost_connections));
            }
            if let Some(reason) = self.give_up_reason(deadlines) {
                return Err(format!("{reason} ({})", sanitize(&last_error)));
            }
            match self.channel.take() {
                Some(mut channel) => match self.request(&mut channel, &mut deadlines) {
                    Ok(()) => self.channel = Some(channel),
                    Err(error) => {
                        self.lost_connections = self.lost_connections.saturating_add(1);
                        self.protocol_errors +=
                            u32::from(error.kind() == io::ErrorKind::InvalidData);
                        last_error = error.to_string();
                    }
                },
                None => self.reconnect(&mut attempt, &mut last_error),
            }
        }
    }

    /// Returns the reason to stop waiting, if any.
    fn give_up_reason(&mut self, deadlines: FetchDeadlines) -> Option<String> {
        let now = self.reconnector.clock.now();
        if interrupt::is_interrupted() {
            let since = *self.interrupted_at.get_or_insert(now);
            let is_over = now.saturating_since(since) >= INTERRUPT_GRACE;
            return is_over.then(|| "it was interrupted".to_owned());
        }
        let silence = now.saturating_since(self.last_message);
        if self.protocol_errors >= MAX_PROTOCOL_ERRORS {
            Some("the server violates the protocol".to_owned())
        } else if silence > deadlines.timeout {
            Some(format!("the server was silent for {} s", silence.as_secs()))
        } else if now > deadlines.progress_deadline {
            Some("the server withheld it".to_owned())
        } else {
            None
        }
    }

    fn finished(&mut self) -> Option<Result<HostReport, String>> {
        self.total.filter(|total| self.text.len() as u64 >= *total)?;
        if let Some(channel) = self.channel.take() {
            // The message is a courtesy; the server also expires results.
            channel.send_last(&ClientMessage::Bye);
        }
        let report = HostReport::from_text(&self.text);
        Some(report.map_err(|error| format!("its data is invalid: {}", sanitize(&error))))
    }

    /// Requests the missing part and receives it. An error means that the connection is unusable.
    fn request(
        &mut self,
        channel: &mut ControlChannel,
        deadlines: &mut FetchDeadlines,
    ) -> io::Result<()> {
        channel.send(&ClientMessage::Fetch { offset: self.text.len() as u64 })?;
        let mut requested_at = self.reconnector.clock.now();
        let mut late_replies = 0_u32;
        loop {
            if self.give_up_reason(*deadlines).is_some() {
                return Ok(());
            }
            let Some(message) = channel.recv::<ServerMessage>(POLL_INTERVAL)? else {
                if self.reconnector.clock.now().saturating_since(requested_at) >= READ_TIMEOUT {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
                }
                continue;
            };
            let now = self.reconnector.clock.now();
            match message {
                ServerMessage::Pending => {
                    self.last_message = now;
                    return Ok(());
                }
                ServerMessage::Part { offset, total, text } => {
                    self.take((offset, total), &text)?;
                    (self.last_message, requested_at) = (now, now);
                    self.record_progress(deadlines, now);
                    if self.text.len() as u64 >= total {
                        return Ok(());
                    }
                }
                // Late replies to requests before the traffic.
                ServerMessage::Clock { .. } | ServerMessage::Ready
                    if late_replies < MAX_LATE_REPLIES =>
                {
                    late_replies += 1;
                }
                ServerMessage::Welcome { .. }
                | ServerMessage::Proved { .. }
                | ServerMessage::Accepted { .. }
                | ServerMessage::Snapshot(_)
                | ServerMessage::Clock { .. }
                | ServerMessage::Ready
                | ServerMessage::Refused { .. } => {
                    let text = format!("it sent `{}` instead of the result", message.name());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
            }
        }
    }

    /// Appends a part, which must continue where the last one ended.
    fn take(&mut self, (offset, total): (u64, u64), text: &str) -> io::Result<()> {
        let invalid = |problem: &str| Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        let length = self.text.len() as u64;
        let end = length.saturating_add(text.len() as u64);
        if offset != length || end > total || self.total.is_some_and(|previous| previous != total) {
            return invalid("a part of the result is inconsistent with the others");
        }
        if text.is_empty() {
            return invalid("an empty part of the result");
        }
        let max_bytes = self.max_bytes;
        if total > max_bytes {
            let problem = format!("a result of {total} bytes exceeds the limit of {max_bytes}");
            return invalid(&problem);
        }
        self.text.push_str(text);
        self.total = Some(total);
        Ok(())
    }

    /// Extends the deadline after sufficient progress.
    fn record_progress(&mut self, deadlines: &mut FetchDeadlines, now: Instant) {
        if self.text.len().saturating_sub(self.progress_bytes) >= PROGRESS_BYTES {
            self.progress_bytes = self.text.len();
            deadlines.progress_deadline = deadlines
                .progress_deadline
                .max(now + deadlines.timeout)
                .min(deadlines.final_deadline);
        }
    }

    /// Tries the next path to the server.
    fn reconnect(&mut self, attempt: &mut usize, last_error: &mut String) {
        let attempts = self.reconnector.attempts();
        let Some((transport, source, target)) = attempts.get(*attempt % attempts.len().max(1))
        else {
            "no route to it".clone_into(last_error);
            return self
                .reconnector
                .clock
                .sleep_until(self.reconnector.clock.now() + RETRY_INTERVAL);
        };
        *attempt += 1;
        let started = self.reconnector.clock.now();
        match self.reconnector.connect(*transport, source, *target, CONNECT_TIMEOUT) {
            Ok(channel) => self.channel = Some(channel),
            Err(error) => *last_error = error.to_string(),
        }
        self.reconnector.clock.sleep_until(started + RETRY_INTERVAL);
    }
}
