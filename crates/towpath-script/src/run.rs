//! Runs a script against a host, step by step.
//!
//! Packets are compared in order, separately for each subflow. Every packet of the host must match
//! a later step; packets left at the end are an error.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use towpath_wire::{Flags, IcmpKind, Packet, Segment};

use crate::host::{CallResult, HostUnderTest};
use crate::peer::{Peer, handshake_packets, pattern};
use crate::script::{
    self, Call, CallOutcome, DssPattern, Icmp, IcmpError, JoinPattern, NumberRange, OptionPattern,
    PacketPattern, Role, Script, ScriptStep, StepAction, TimeWindow, Transport,
};

/// Interval between retries of a socket call that may still succeed.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Time of a handshake for which the script states none.
const DEFAULT_ROUND_TRIP: Duration = Duration::from_millis(50);

/// Time for which a host is observed after a failure.
const SETTLE_TIME: Duration = Duration::from_millis(400);

/// Reason for the failure of a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The host behaved differently.
    #[error("{0}")]
    Wrong(String),
    /// The machine was too slow for the script's times, so the result is unknown.
    #[error("the machine was late: {0}")]
    Late(String),
}

/// Runs a script to its end and returns the trace: packets and calls with their times.
pub fn run(script: &Script, host: &mut dyn HostUnderTest) -> Result<String, Failure> {
    let mut runner = ScriptRunner {
        script,
        peer: Peer::new(script),
        previous_step_at: Duration::ZERO,
        unmatched: VecDeque::new(),
        written: 0,
        read: 0,
        late: None,
        trace: String::new(),
        host,
    };
    for setting in &script.settings {
        if setting.name != "peer-isn" {
            runner.host.set(setting).map_err(|text| {
                Failure::Wrong(format!("line {}: `{}`: {text}", setting.line, setting.name))
            })?;
        }
    }
    let host_kind = runner.host.kind();
    let applies = |step: &&ScriptStep| {
        step.only.as_ref().is_none_or(|(required_kind, _)| *required_kind == host_kind)
    };
    for step in script.steps.iter().filter(applies) {
        runner.step(step).map_err(|text| {
            runner.failure(&format!("line {}: `{}`: {text}", step.line, step.text))
        })?;
    }
    runner.finish().map_err(|text| runner.failure(&format!("at the end: {text}")))?;
    Ok(runner.trace)
}

/// A packet of the host that no step has matched yet.
#[derive(Debug)]
struct UnmatchedPacket {
    sent_at: Duration,
    subflow: usize,
    segment: Segment,
}

struct ScriptRunner<'a> {
    script: &'a Script,
    host: &'a mut dyn HostUnderTest,
    peer: Peer,
    /// Time of the previous step, from which steps count their times.
    previous_step_at: Duration,
    /// Packets of the host that no step has matched yet, in order.
    unmatched: VecDeque<UnmatchedPacket>,
    /// Bytes written to and read from the host's socket so far.
    written: u64,
    read: u64,
    /// Set when the machine was late once.
    late: Option<String>,
    trace: String,
}

type StepResult = Result<(), String>;

impl ScriptRunner<'_> {
    fn failure(&mut self, text: &str) -> Failure {
        // Further packets of the host help to find the error.
        let settled_at = self.host.now() + SETTLE_TIME;
        let _ = self.collect(settled_at); // only completes the trace
        let report = format!("{}, {text}\n{}", self.script.name, self.trace);
        match &self.late {
            None => Failure::Wrong(report),
            Some(late) => Failure::Late(format!("{late}; {report}")),
        }
    }

    fn trace_line(&mut self, time: Duration, text: &str) {
        let _ = writeln!(self.trace, "  {:9.3} ms {text}", time.as_secs_f64() * 1e3);
    }

    fn step(&mut self, step: &ScriptStep) -> StepResult {
        let TimeWindow { from: earliest, to: latest } = step.when;
        match &step.action {
            StepAction::Expect { subflow, packet } => {
                self.expect(*subflow, packet, earliest, latest)
            }
            StepAction::Silence(time) => self.expect_silence(earliest + *time),
            StepAction::Ignore(time) => {
                self.wait(earliest + *time)?;
                self.unmatched.clear();
                Ok(())
            }
            // A path with some latency, unless the script states another time.
            StepAction::Handshake(packet) => {
                self.handshake(packet, or_default_round_trip(earliest))
            }
            StepAction::Join { subflow, backup } => {
                self.join(*subflow, *backup, or_default_round_trip(earliest))
            }
            StepAction::Inject { subflow, packet } => {
                self.wait(earliest)?;
                self.inject(*subflow, packet, &step.text)
            }
            StepAction::Icmp { subflow, message } => {
                self.wait(earliest)?;
                self.inject_icmp(*subflow, *message, &step.text)
            }
            StepAction::Call(call, outcome) => {
                self.wait(earliest)?;
                self.make_call(*call, *outcome, latest.saturating_sub(earliest), &step.text)
            }
        }
    }

    /// Fails if unmatched packets are left after all steps.
    fn finish(&mut self) -> StepResult {
        let now = self.host.now();
        self.collect(now)?;
        match self.unmatched.front() {
            None => Ok(()),
            Some(packet) => Err(format!(
                "unexpected packet `{}`",
                self.peer.describe(packet.subflow, &packet.segment)
            )),
        }
    }

    /// Waits until `time` after the previous step.
    fn wait(&mut self, delay: Duration) -> StepResult {
        let end = self.previous_step_at + delay;
        self.collect(end)?;
        let now = self.host.now();
        if !delay.is_zero() && now > end + self.host.tolerance().at_once {
            self.late = Some(format!("{:?} after {:?}", now.saturating_sub(end), end));
        }
        self.previous_step_at = now.max(end);
        Ok(())
    }

    /// Takes all packets that the host sends up to this time.
    fn collect(&mut self, until: Duration) -> StepResult {
        while self.take_packet(until)? {}
        Ok(())
    }

    /// Takes one packet; returns false when the time has come.
    fn take_packet(&mut self, until: Duration) -> Result<bool, String> {
        let Some((sent_at, bytes)) = self.host.next(until)? else { return Ok(false) };
        self.peer.set_now(sent_at);
        if let Some((subflow, segment)) = self.peer.observe(&bytes)? {
            let text = self.peer.describe(subflow, &segment);
            self.trace_line(sent_at, &text);
            self.unmatched.push_back(UnmatchedPacket { sent_at, subflow, segment });
        }
        Ok(true)
    }

    fn expect(
        &mut self,
        subflow: usize,
        packet: &PacketPattern,
        earliest: Duration,
        latest: Duration,
    ) -> StepResult {
        let tolerance = self.host.tolerance();
        let max_delay = if latest.is_zero() { tolerance.at_once } else { tolerance.late };
        let (not_before, not_after) =
            (self.previous_step_at + earliest, self.previous_step_at + latest + max_delay);
        let actual = loop {
            if let Some(index) = self.unmatched.iter().position(|actual| actual.subflow == subflow)
                && let Some(actual) = self.unmatched.remove(index)
            {
                break actual;
            }
            if !self.take_packet(not_after)? {
                return Err("the host sent nothing".to_owned());
            }
        };
        let text = self.peer.describe(subflow, &actual.segment);
        self.peer
            .compare(subflow, &actual.segment, packet)
            .map_err(|field| format!("{field} differs in `{text}`"))?;
        if actual.sent_at + tolerance.early < not_before {
            return Err(format!(
                "{:?} too early: `{text}`",
                not_before.saturating_sub(actual.sent_at)
            ));
        }
        if actual.sent_at > not_after {
            return Err(format!(
                "{:?} too late: `{text}`",
                actual.sent_at.saturating_sub(not_after)
            ));
        }
        self.previous_step_at = self.previous_step_at.max(actual.sent_at);
        Ok(())
    }

    fn expect_silence(&mut self, time: Duration) -> StepResult {
        self.wait(time)?;
        match self.unmatched.front() {
            None => Ok(()),
            Some(packet) => Err(format!(
                "the host sent `{}` at {:?}",
                self.peer.describe(packet.subflow, &packet.segment),
                packet.sent_at
            )),
        }
    }

    fn inject(&mut self, subflow: usize, packet: &PacketPattern, text: &str) -> StepResult {
        let now = self.host.now();
        self.collect(now)?;
        self.peer.set_now(self.host.now());
        let bytes = self.peer.send(subflow, packet)?;
        self.trace_line(self.host.now(), text);
        self.host.inject(&bytes)?;
        self.previous_step_at = self.host.now();
        Ok(())
    }

    fn inject_icmp(&mut self, subflow: usize, message: Icmp, text: &str) -> StepResult {
        let mut quoted = self.peer.quotable_packet(subflow)?.to_vec();
        if let Some(seq) = message.seq {
            let seq = self.peer.host_seq(subflow, seq)?.to_be_bytes();
            if let Some(field) = quoted.get_mut(24..28) {
                field.copy_from_slice(&seq);
            }
        }
        let kind = match message.kind {
            IcmpError::TooBig(mtu) => IcmpKind::TooBig { mtu },
            IcmpError::Unreachable => IcmpKind::Unreachable { hard: false },
            IcmpError::Refused => IcmpKind::Unreachable { hard: true },
        };
        let quoted_packet = Packet::from_bytes(&Bytes::from(quoted), true, 0);
        let quoted_packet = quoted_packet.map_err(|error| error.to_string())?;
        let router = script::peer_address(subflow as u8);
        let error = kind.emit(router, &quoted_packet).ok_or("no ICMP error about that")?;
        self.trace_line(self.host.now(), text);
        self.host.inject(&error.to_vec())?;
        self.previous_step_at = self.host.now();
        Ok(())
    }

    fn make_call(
        &mut self,
        call: Call,
        outcome: CallOutcome,
        timeout: Duration,
        text: &str,
    ) -> StepResult {
        let data: Vec<u8> = match call {
            Call::Write(len) => (self.written..).take(len).map(pattern).collect(),
            _ => Vec::new(),
        };
        let deadline = self.previous_step_at + timeout + self.host.tolerance().at_once;
        let mut transferred = 0;
        loop {
            let result = self.host.call(call, &data)?;
            let result = self.count_bytes(result, &mut transferred)?;
            let verdict = call_verdict(&result, call, outcome, transferred);
            let now = self.host.now();
            match verdict {
                CallVerdict::Expected => {
                    self.trace_line(now, text);
                    self.previous_step_at = now;
                    return Ok(());
                }
                CallVerdict::Unexpected => {
                    return Err(format!("it gave {result:?}, {transferred} bytes in all"));
                }
                CallVerdict::NotYet if now >= deadline => {
                    return Err(format!("it gave {result:?}, {transferred} bytes in all"));
                }
                CallVerdict::NotYet => self.collect(deadline.min(now + RETRY_INTERVAL))?,
            }
        }
    }

    /// Counts the bytes of both directions, and checks those that were read.
    fn count_bytes(
        &mut self,
        result: CallResult,
        transferred: &mut usize,
    ) -> Result<CallResult, String> {
        match &result {
            CallResult::Taken(len) => {
                self.written += *len as u64;
                *transferred += len;
            }
            CallResult::Data(bytes) => {
                if let Some(index) = bytes
                    .iter()
                    .zip(self.read..)
                    .position(|(byte, offset)| *byte != pattern(offset))
                {
                    return Err(format!(
                        "byte {} of the stream is damaged",
                        self.read + index as u64
                    ));
                }
                self.read += bytes.len() as u64;
                *transferred += bytes.len();
            }
            CallResult::Done | CallResult::End | CallResult::Nothing | CallResult::Failed(_) => {}
        }
        Ok(result)
    }

    fn handshake(&mut self, syn_changes: &PacketPattern, delay: Duration) -> StepResult {
        let packets = handshake_packets(self.script, syn_changes);
        let dss = PacketPattern {
            flags: Flags::ACK,
            options: vec![OptionPattern::Dss(DssPattern::default())],
            ..PacketPattern::default()
        };
        let [first, second, third] = packets;
        match self.script.role {
            Role::Server => {
                self.make_call(Call::Listen, CallOutcome::Done, Duration::ZERO, "listen")?;
                self.inject(0, &first, "< SYN")?;
                self.expect(0, &second, Duration::ZERO, Duration::ZERO)?;
                self.wait(delay)?;
                self.inject(0, &third, "< ACK")?;
                if self.script.transport == Transport::Mptcp {
                    self.inject(0, &dss, "< ACK <dss>")?;
                }
                self.make_call(Call::Accept, CallOutcome::Done, Duration::ZERO, "accept")
            }
            Role::Client => {
                self.make_call(Call::Connect, CallOutcome::Done, Duration::ZERO, "connect")?;
                self.expect(0, &first, Duration::ZERO, Duration::ZERO)?;
                self.wait(delay)?;
                self.inject(0, &second, "< SYN ACK")?;
                self.expect(0, &third, Duration::ZERO, Duration::ZERO)?;
                self.make_call(Call::Connected, CallOutcome::Done, Duration::ZERO, "connected")?;
                if self.script.transport == Transport::Mptcp {
                    self.inject(0, &dss, "< ACK <dss>")?;
                }
                Ok(())
            }
        }
    }

    fn join(&mut self, subflow: usize, backup: bool, delay: Duration) -> StepResult {
        let (by_peer, path) = self.peer.route(subflow)?;
        let peer_join =
            JoinPattern { address_id: Some(path + 1), backup: Some(backup), valid: true };
        let host_join = JoinPattern { address_id: None, backup: None, valid: true };
        let syn = |flags| PacketPattern {
            flags,
            options: vec![
                OptionPattern::Mss(Some(1_460)),
                OptionPattern::SackPermitted,
                OptionPattern::WindowScale(Some(0)),
                OptionPattern::Join(peer_join),
            ],
            ..PacketPattern::default()
        };
        let packet_with =
            |flags, options| PacketPattern { flags, options, ..PacketPattern::default() };
        let syn_ack = Flags::SYN.with(Flags::ACK);
        let join = |pattern| vec![OptionPattern::Join(pattern)];
        let at_once = Duration::ZERO;
        if by_peer {
            self.inject(subflow, &syn(Flags::SYN), "< SYN <mp_join>")?;
            self.expect(subflow, &packet_with(syn_ack, join(host_join)), at_once, at_once)?;
            self.wait(delay)?;
            self.inject(subflow, &packet_with(Flags::ACK, join(peer_join)), "< ACK <mp_join>")?;
            let ack = PacketPattern {
                len: NumberRange::exactly(0),
                ..packet_with(Flags::ACK, Vec::new())
            };
            self.expect(subflow, &ack, at_once, at_once)
        } else {
            self.expect(subflow, &packet_with(Flags::SYN, join(host_join)), at_once, at_once)?;
            self.wait(delay)?;
            self.inject(subflow, &syn(syn_ack), "< SYN ACK <mp_join>")?;
            self.expect(subflow, &packet_with(Flags::ACK, join(host_join)), at_once, at_once)?;
            let dss = vec![OptionPattern::Dss(DssPattern::default())];
            self.inject(subflow, &packet_with(Flags::ACK, dss), "< ACK <dss>")
        }
    }
}

fn or_default_round_trip(round_trip: Duration) -> Duration {
    if round_trip.is_zero() { DEFAULT_ROUND_TRIP } else { round_trip }
}

enum CallVerdict {
    Expected,
    Unexpected,
    /// The call may still succeed.
    NotYet,
}

fn call_verdict(
    result: &CallResult,
    call: Call,
    outcome: CallOutcome,
    transferred: usize,
) -> CallVerdict {
    let verdict_if = |is_expected: bool| {
        if is_expected { CallVerdict::Expected } else { CallVerdict::Unexpected }
    };
    match (result, outcome) {
        (CallResult::Done, CallOutcome::Done) => CallVerdict::Expected,
        (CallResult::Taken(_), CallOutcome::Done) => {
            verdict_if(matches!(call, Call::Write(len) if len == transferred))
        }
        (CallResult::Taken(_), CallOutcome::Bytes(expected)) => verdict_if(transferred == expected),
        (CallResult::Nothing, CallOutcome::Bytes(expected)) if matches!(call, Call::Write(_)) => {
            verdict_if(expected == 0)
        }
        (CallResult::Data(_), CallOutcome::Bytes(expected)) if transferred == expected => {
            CallVerdict::Expected
        }
        (CallResult::Data(_), CallOutcome::Bytes(expected)) if transferred < expected => {
            CallVerdict::NotYet
        }
        (CallResult::End, CallOutcome::End) => verdict_if(transferred == 0),
        (CallResult::Nothing, CallOutcome::Nothing) => CallVerdict::Expected,
        (
            CallResult::Nothing,
            CallOutcome::Done | CallOutcome::Bytes(_) | CallOutcome::End | CallOutcome::Error(_),
        ) => CallVerdict::NotYet,
        (CallResult::Failed(reason), CallOutcome::Error(expected)) => {
            verdict_if(expected.is_none_or(|expected| expected == *reason))
        }
        _ => CallVerdict::Unexpected,
    }
}
