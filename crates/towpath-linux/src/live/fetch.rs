//! How the server's half of a result comes back: over the control connection while it lives, else
//! over any other way that there is. The server keeps it meanwhile.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::live::limits::length;
use towpath_measure::live::message::sanitize;
use towpath_measure::live::{ClientMessage, HostReport, ServerMessage, TestToken};
use towpath_measure::scenario::{Scenario, Transport};
use towpath_net::Instant;

use super::dial::Dialer;
use super::end::expected_streams;
use super::host::interfaces;
use super::socket::LocalBind;
use super::speaker::ControlChannel;
use crate::clock::Clock;
use crate::interrupt;

/// A connection that says nothing for so long is given up: another one may be faster. The server
/// answers within half a second, result or not.
const READ_TIMEOUT: Duration = Duration::from_millis(1_500);
/// So long for each attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// From one attempt to the next, at least.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// No result of a short test is larger: read, it takes several times as much memory.
const SHORT_BYTES: u64 = 16 << 20;
/// Each sample of each stream adds so much: a line for the stream and each of its subflows.
const SAMPLE_BYTES: u64 = 9 * 600;
/// No result is larger.
const MAX_RESULT_BYTES: u64 = 256 << 20;
/// So many new bytes of the result are progress, for which it is waited longer; less is not, or one
/// byte now and then would keep us for ever.
const PROGRESS_BYTES: usize = 16 * 1024;
/// So much longer at most, however much comes.
const MAX_FETCH_TIME: Duration = Duration::from_secs(600);
/// Answers to earlier questions that may still come.
const MAX_LATE_REPLIES: u32 = 32;
/// So often the server may say what nobody says; then it is none of ours.
const MAX_PROTOCOL_ERRORS: u32 = 3;
/// How often it is looked whether anybody waits.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// After an interrupt. All of it together ends within a second.
const INTERRUPT_GRACE: Duration = Duration::from_millis(500);

/// The largest half of a result that a server may give, by what it was asked to do.
pub(super) fn max_result_bytes(scenario: &Scenario) -> u64 {
    let sample_ns = scenario.run.sample.as_nanos().max(1);
    let samples = length(scenario).as_nanos().div_euclid(sample_ns).saturating_add(1);
    let lines = samples.saturating_mul(expected_streams(scenario).len() as u128);
    let bytes = u64::try_from(lines).unwrap_or(u64::MAX).saturating_mul(SAMPLE_BYTES);
    bytes.saturating_add(SHORT_BYTES).min(MAX_RESULT_BYTES)
}

/// What is needed to come back to a server.
#[derive(Debug)]
pub(super) struct Reconnector {
    pub(super) token: TestToken,
    pub(super) transport: Transport,
    /// Where the client was told to start.
    pub(super) source: LocalBind,
    /// Addresses of the server, as far as they are known.
    pub(super) targets: Vec<SocketAddr>,
    pub(super) clock: Clock,
    pub(super) dialer: Dialer,
}

impl Reconnector {
    /// A connection with a preamble.
    pub(super) fn connect(
        &self,
        transport: Transport,
        source: &LocalBind,
        target: SocketAddr,
        patience: Duration,
    ) -> io::Result<ControlChannel> {
        self.dialer.control(transport, (source, target), self.token, patience)
    }

    /// All ways to the server, the usual one first: every transport from every interface to every
    /// address.
    fn attempts(&self) -> Vec<(Transport, LocalBind, SocketAddr)> {
        let mut transports = vec![self.transport];
        transports.extend([Transport::Tcp].iter().filter(|other| **other != self.transport));
        let mut sources = vec![self.source.clone()];
        for one in interfaces().unwrap_or_default() {
            sources.push(LocalBind { address: Some(one.address), interface: Some(one.name) });
        }
        let mut all = Vec::new();
        for source in sources {
            for target in &self.targets {
                let family = |address: std::net::IpAddr| address.is_ipv4() == target.is_ipv4();
                // From the loopback interface nobody gets out; QUIC would wait to find it out.
                let stays =
                    |address: std::net::IpAddr| address.is_loopback() && !target.ip().is_loopback();
                if source.address.is_some_and(|address| !family(address) || stays(address)) {
                    continue;
                }
                all.extend(transports.iter().map(|one| (*one, source.clone(), *target)));
            }
        }
        all
    }
}

/// Fetches one result.
#[derive(Debug)]
pub(super) struct ResultFetch<'a> {
    reconnector: &'a Reconnector,
    speaker: Option<ControlChannel>,
    text: String,
    total: Option<u64>,
    largest_bytes: u64,
    /// When the server last said anything that it should say.
    last_message: Instant,
    /// How much was there when the last progress was made.
    counted: usize,
    /// How often it said something wrong.
    wrong: u32,
    /// When the interrupt was noticed.
    interrupted: Option<Instant>,
    /// How often the connection was lost.
    lost: u32,
}

/// Until when is waited.
#[derive(Debug, Clone, Copy)]
struct FetchDeadlines {
    /// For a server that says nothing.
    timeout: Duration,
    /// Without progress.
    until: Instant,
    /// With all of it.
    last: Instant,
}

impl<'a> ResultFetch<'a> {
    /// No result with more than `largest_bytes` is taken.
    pub(super) fn new(
        reconnector: &'a Reconnector,
        speaker: Option<ControlChannel>,
        largest_bytes: u64,
    ) -> Self {
        let (last_message, text, total, interrupted) =
            (reconnector.clock.now(), String::new(), None, None);
        let (counted, wrong, lost) = (0, 0, 0);
        Self {
            reconnector,
            speaker,
            text,
            total,
            largest_bytes,
            last_message,
            counted,
            wrong,
            interrupted,
            lost,
        }
    }

    /// Fetches until all is there. Gives up when the server was silent for `patience`, and when it is
    /// later than `deadline` and nothing new came for as long.
    pub(super) fn run(
        mut self,
        patience: Duration,
        deadline: Instant,
    ) -> Result<(HostReport, u32), String> {
        let mut turn = 0;
        let mut why = "the connection was lost".to_owned();
        let mut wait =
            FetchDeadlines { timeout: patience, until: deadline, last: deadline + MAX_FETCH_TIME };
        loop {
            if let Some(half) = self.finished() {
                return half.map(|half| (half, self.lost));
            }
            if let Some(given_up) = self.give_up_reason(wait) {
                return Err(format!("{given_up} ({})", sanitize(&why)));
            }
            match self.speaker.take() {
                Some(mut speaker) => match self.request(&mut speaker, &mut wait) {
                    Ok(()) => self.speaker = Some(speaker),
                    Err(error) => {
                        self.lost = self.lost.saturating_add(1);
                        self.wrong += u32::from(error.kind() == io::ErrorKind::InvalidData);
                        why = error.to_string();
                    }
                },
                None => self.reconnect(&mut turn, &mut why),
            }
        }
    }

    /// Why it is not waited any longer, if it is not.
    fn give_up_reason(&mut self, wait: FetchDeadlines) -> Option<String> {
        let now = self.reconnector.clock.now();
        if interrupt::is_interrupted() {
            let since = *self.interrupted.get_or_insert(now);
            let over = now.saturating_since(since) >= INTERRUPT_GRACE;
            return over.then(|| "it was interrupted".to_owned());
        }
        let silent = now.saturating_since(self.last_message);
        if self.wrong >= MAX_PROTOCOL_ERRORS {
            Some("the server does not keep to the protocol".to_owned())
        } else if silent > wait.timeout {
            Some(format!("the server was silent for {} s", silent.as_secs()))
        } else if now > wait.until {
            Some("the server kept it back".to_owned())
        } else {
            None
        }
    }

    fn finished(&mut self) -> Option<Result<HostReport, String>> {
        self.total.filter(|total| self.text.len() as u64 >= *total)?;
        if let Some(speaker) = self.speaker.take() {
            // It forgets the result by itself, too.
            speaker.send_last(&ClientMessage::Bye);
        }
        let half = HostReport::from_text(&self.text);
        Some(half.map_err(|error| format!("what it sent is not understood: {}", sanitize(&error))))
    }

    /// Asks for what is missing and takes what comes; an error means that this connection is of no
    /// use any more.
    fn request(
        &mut self,
        speaker: &mut ControlChannel,
        wait: &mut FetchDeadlines,
    ) -> io::Result<()> {
        speaker.send(&ClientMessage::Fetch { offset: self.text.len() as u64 })?;
        let mut asked = self.reconnector.clock.now();
        let mut late = 0_u32;
        loop {
            if self.give_up_reason(*wait).is_some() {
                return Ok(());
            }
            let Some(said) = speaker.recv::<ServerMessage>(POLL_INTERVAL)? else {
                if self.reconnector.clock.now().saturating_since(asked) >= READ_TIMEOUT {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
                }
                continue;
            };
            let now = self.reconnector.clock.now();
            match said {
                ServerMessage::Pending => {
                    self.last_message = now;
                    return Ok(());
                }
                ServerMessage::Part { offset, total, text } => {
                    self.take((offset, total), &text)?;
                    (self.last_message, asked) = (now, now);
                    self.record_progress(wait, now);
                    if self.text.len() as u64 >= total {
                        return Ok(());
                    }
                }
                // Answers to questions that were asked before the traffic.
                ServerMessage::Clock { .. } | ServerMessage::Ready if late < MAX_LATE_REPLIES => {
                    late += 1
                }
                ServerMessage::Welcome { .. }
                | ServerMessage::Proved { .. }
                | ServerMessage::Accepted { .. }
                | ServerMessage::Snapshot(_)
                | ServerMessage::Clock { .. }
                | ServerMessage::Ready
                | ServerMessage::Refused { .. } => {
                    let word = format!("it said `{}` in place of the result", said.name());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, word));
                }
            }
        }
    }

    /// Takes a part that goes on where the last one ended.
    fn take(&mut self, (offset, total): (u64, u64), text: &str) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let there = self.text.len() as u64;
        let end = there.saturating_add(text.len() as u64);
        if offset != there || end > total || self.total.is_some_and(|known| known != total) {
            return wrong("a part of the result that does not fit to the others");
        }
        if text.is_empty() {
            return wrong("an empty part of the result");
        }
        let largest = self.largest_bytes;
        if total > largest {
            let what = format!("a result of {total} bytes; none is larger than {largest}");
            return wrong(&what);
        }
        self.text.push_str(text);
        self.total = Some(total);
        Ok(())
    }

    /// Progress is waited for again.
    fn record_progress(&mut self, wait: &mut FetchDeadlines, now: Instant) {
        if self.text.len().saturating_sub(self.counted) >= PROGRESS_BYTES {
            self.counted = self.text.len();
            wait.until = wait.until.max(now + wait.timeout).min(wait.last);
        }
    }

    /// Tries the next way.
    fn reconnect(&mut self, turn: &mut usize, why: &mut String) {
        let ways = self.reconnector.attempts();
        let Some((transport, source, target)) = ways.get(*turn % ways.len().max(1)) else {
            "no way leads to it".clone_into(why);
            return self
                .reconnector
                .clock
                .sleep_until(self.reconnector.clock.now() + RETRY_INTERVAL);
        };
        *turn += 1;
        let began = self.reconnector.clock.now();
        match self.reconnector.connect(*transport, source, *target, CONNECT_TIMEOUT) {
            Ok(speaker) => self.speaker = Some(speaker),
            Err(error) => *why = error.to_string(),
        }
        self.reconnector.clock.sleep_until(began + RETRY_INTERVAL);
    }
}
