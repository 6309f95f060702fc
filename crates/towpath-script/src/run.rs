//! Runs a script against a host, step by step.
//!
//! Packets are compared in order, separately for each subflow. Every packet of the host must match
//! a later step; packets left at the end are an error.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use towpath_mptcp::wire::{Flags, IcmpKind, Packet, Segment};

use crate::host::{CallResult, HostUnderTest};
use crate::peer::{Peer, opening, pattern};
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
    let mut run = ScriptRunner {
        script,
        peer: Peer::new(script),
        base: Duration::ZERO,
        queue: VecDeque::new(),
        written: 0,
        read: 0,
        late: None,
        trace: String::new(),
        host,
    };
    for setting in &script.settings {
        if setting.name != "peer-isn" {
            run.host.set(setting).map_err(|text| {
                Failure::Wrong(format!("line {}: `{}`: {text}", setting.line, setting.name))
            })?;
        }
    }
    let world = run.host.kind();
    let applies = |step: &&ScriptStep| step.only.as_ref().is_none_or(|(only, _)| *only == world);
    for step in script.steps.iter().filter(applies) {
        run.step(step)
            .map_err(|text| run.failure(&format!("line {}: `{}`: {text}", step.line, step.text)))?;
    }
    run.finish().map_err(|text| run.failure(&format!("at the end: {text}")))?;
    Ok(run.trace)
}

/// A packet of the host that no step has matched yet.
#[derive(Debug)]
struct UnmatchedPacket {
    at: Duration,
    line: usize,
    segment: Segment,
}

struct ScriptRunner<'a> {
    script: &'a Script,
    host: &'a mut dyn HostUnderTest,
    peer: Peer,
    /// Time of the previous step.
    base: Duration,
    queue: VecDeque<UnmatchedPacket>,
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
        let until = self.host.now() + SETTLE_TIME;
        let _ = self.collect(until); // only completes the trace
        let whole = format!("{}, {text}\n{}", self.script.name, self.trace);
        match &self.late {
            None => Failure::Wrong(whole),
            Some(late) => Failure::Late(format!("{late}; {whole}")),
        }
    }

    fn trace_line(&mut self, at: Duration, text: &str) {
        let _ = writeln!(self.trace, "  {:9.3} ms {text}", at.as_secs_f64() * 1e3);
    }

    fn step(&mut self, step: &ScriptStep) -> StepResult {
        let TimeWindow { from, to } = step.when;
        match &step.action {
            StepAction::Expect { subflow: line, packet } => self.expect(*line, packet, from, to),
            StepAction::Silence(time) => self.expect_silence(from + *time),
            StepAction::Ignore(time) => {
                self.wait(from + *time)?;
                self.queue.clear();
                Ok(())
            }
            // A path with some latency, unless the script states another time.
            StepAction::Handshake(packet) => self.handshake(packet, or_default(from)),
            StepAction::Join { subflow: line, backup } => {
                self.join(*line, *backup, or_default(from))
            }
            StepAction::Inject { subflow: line, packet } => {
                self.wait(from)?;
                self.inject(*line, packet, &step.text)
            }
            StepAction::Icmp { subflow: line, message } => {
                self.wait(from)?;
                self.icmp(*line, *message, &step.text)
            }
            StepAction::Call(call, outcome) => {
                self.wait(from)?;
                self.call(*call, *outcome, to.saturating_sub(from), &step.text)
            }
        }
    }

    /// Fails if unmatched packets are left after all steps.
    fn finish(&mut self) -> StepResult {
        let until = self.host.now();
        self.collect(until)?;
        match self.queue.front() {
            None => Ok(()),
            Some(sent) => {
                Err(format!("nobody expected `{}`", self.peer.describe(sent.line, &sent.segment)))
            }
        }
    }

    /// Waits until `time` after the previous step.
    fn wait(&mut self, time: Duration) -> StepResult {
        let until = self.base + time;
        self.collect(until)?;
        let now = self.host.now();
        if !time.is_zero() && now > until + self.host.tolerance().at_once {
            self.late = Some(format!("{:?} after {:?}", now.saturating_sub(until), until));
        }
        self.base = now.max(until);
        Ok(())
    }

    /// Takes all packets that the host sends up to this time.
    fn collect(&mut self, until: Duration) -> StepResult {
        while self.take(until)? {}
        Ok(())
    }

    /// Takes one packet; returns false when the time has come.
    fn take(&mut self, until: Duration) -> Result<bool, String> {
        let Some((at, bytes)) = self.host.next(until)? else { return Ok(false) };
        self.peer.at(at);
        if let Some((subflow, segment)) = self.peer.observe(&bytes)? {
            let text = self.peer.describe(subflow, &segment);
            self.trace_line(at, &text);
            self.queue.push_back(UnmatchedPacket { at, line: subflow, segment });
        }
        Ok(true)
    }

    fn expect(
        &mut self,
        subflow: usize,
        packet: &PacketPattern,
        from: Duration,
        to: Duration,
    ) -> StepResult {
        let tolerance = self.host.tolerance();
        let late = if to.is_zero() { tolerance.at_once } else { tolerance.late };
        let (first, last) = (self.base + from, self.base + to + late);
        let sent = loop {
            if let Some(index) = self.queue.iter().position(|sent| sent.line == subflow)
                && let Some(sent) = self.queue.remove(index)
            {
                break sent;
            }
            if !self.take(last)? {
                return Err("the host sent nothing".to_owned());
            }
        };
        let text = self.peer.describe(subflow, &sent.segment);
        self.peer
            .compare(subflow, &sent.segment, packet)
            .map_err(|what| format!("{what} differs in `{text}`"))?;
        if sent.at + tolerance.early < first {
            return Err(format!("{:?} too early: `{text}`", first.saturating_sub(sent.at)));
        }
        if sent.at > last {
            return Err(format!("{:?} too late: `{text}`", sent.at.saturating_sub(last)));
        }
        self.base = self.base.max(sent.at);
        Ok(())
    }

    fn expect_silence(&mut self, time: Duration) -> StepResult {
        self.wait(time)?;
        match self.queue.front() {
            None => Ok(()),
            Some(sent) => Err(format!(
                "the host sent `{}` at {:?}",
                self.peer.describe(sent.line, &sent.segment),
                sent.at
            )),
        }
    }

    fn inject(&mut self, line: usize, packet: &PacketPattern, text: &str) -> StepResult {
        let now = self.host.now();
        self.collect(now)?;
        self.peer.at(self.host.now());
        let bytes = self.peer.send(line, packet)?;
        self.trace_line(self.host.now(), text);
        self.host.inject(&bytes)?;
        self.base = self.host.now();
        Ok(())
    }

    fn icmp(&mut self, line: usize, message: Icmp, text: &str) -> StepResult {
        let mut quoted = self.peer.quotable(line)?.to_vec();
        if let Some(seq) = message.seq {
            let seq = self.peer.host_seq(line, seq)?.to_be_bytes();
            if let Some(field) = quoted.get_mut(24..28) {
                field.copy_from_slice(&seq);
            }
        }
        let kind = match message.kind {
            IcmpError::TooBig(mtu) => IcmpKind::TooBig { mtu },
            IcmpError::Unreachable => IcmpKind::Unreachable { hard: false },
            IcmpError::Refused => IcmpKind::Unreachable { hard: true },
        };
        let about = Packet::from_bytes(&Bytes::from(quoted), true, 0);
        let about = about.map_err(|error| error.to_string())?;
        let router = script::peer_address(line as u8);
        let error = kind.emit(router, &about).ok_or("no ICMP error about that")?;
        self.trace_line(self.host.now(), text);
        self.host.inject(&error.to_vec())?;
        self.base = self.host.now();
        Ok(())
    }

    fn call(
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
        let deadline = self.base + timeout + self.host.tolerance().at_once;
        let mut got = 0;
        loop {
            let result = self.host.call(call, &data)?;
            let answer = self.count_bytes(result, &mut got)?;
            let verdict = call_verdict(&answer, call, outcome, got);
            let now = self.host.now();
            match verdict {
                CallVerdict::Expected => {
                    self.trace_line(now, text);
                    self.base = now;
                    return Ok(());
                }
                CallVerdict::Unexpected => {
                    return Err(format!("it gave {answer:?}, {got} bytes in all"));
                }
                CallVerdict::NotYet if now >= deadline => {
                    return Err(format!("it gave {answer:?}, {got} bytes in all"));
                }
                CallVerdict::NotYet => self.collect(deadline.min(now + RETRY_INTERVAL))?,
            }
        }
    }

    /// Counts the bytes of both directions, and checks those that were read.
    fn count_bytes(&mut self, answer: CallResult, got: &mut usize) -> Result<CallResult, String> {
        match &answer {
            CallResult::Taken(count) => {
                self.written += *count as u64;
                *got += count;
            }
            CallResult::Data(bytes) => {
                if let Some(at) =
                    bytes.iter().zip(self.read..).position(|(b, at)| *b != pattern(at))
                {
                    return Err(format!("byte {} of the stream is damaged", self.read + at as u64));
                }
                self.read += bytes.len() as u64;
                *got += bytes.len();
            }
            CallResult::Done | CallResult::End | CallResult::Nothing | CallResult::Failed(_) => {}
        }
        Ok(answer)
    }

    fn handshake(&mut self, changed: &PacketPattern, delay: Duration) -> StepResult {
        let packets = opening(self.script, changed);
        let dss = PacketPattern {
            flags: Flags::ACK,
            options: vec![OptionPattern::Dss(DssPattern::default())],
            ..PacketPattern::default()
        };
        let [first, second, third] = packets;
        match self.script.role {
            Role::Server => {
                self.call(Call::Listen, CallOutcome::Done, Duration::ZERO, "listen")?;
                self.inject(0, &first, "< SYN")?;
                self.expect(0, &second, Duration::ZERO, Duration::ZERO)?;
                self.wait(delay)?;
                self.inject(0, &third, "< ACK")?;
                if self.script.transport == Transport::Mptcp {
                    self.inject(0, &dss, "< ACK <dss>")?;
                }
                self.call(Call::Accept, CallOutcome::Done, Duration::ZERO, "accept")
            }
            Role::Client => {
                self.call(Call::Connect, CallOutcome::Done, Duration::ZERO, "connect")?;
                self.expect(0, &first, Duration::ZERO, Duration::ZERO)?;
                self.wait(delay)?;
                self.inject(0, &second, "< SYN ACK")?;
                self.expect(0, &third, Duration::ZERO, Duration::ZERO)?;
                self.call(Call::Connected, CallOutcome::Done, Duration::ZERO, "connected")?;
                if self.script.transport == Transport::Mptcp {
                    self.inject(0, &dss, "< ACK <dss>")?;
                }
                Ok(())
            }
        }
    }

    fn join(&mut self, line: usize, backup: bool, delay: Duration) -> StepResult {
        let (by_peer, path) = self.peer.route(line)?;
        let own = JoinPattern { address_id: Some(path + 1), backup: Some(backup), valid: true };
        let theirs = JoinPattern { address_id: None, backup: None, valid: true };
        let syn = |flags| PacketPattern {
            flags,
            options: vec![
                OptionPattern::Mss(Some(1_460)),
                OptionPattern::SackPermitted,
                OptionPattern::WindowScale(Some(0)),
                OptionPattern::Join(own),
            ],
            ..PacketPattern::default()
        };
        let hosts = |flags, options| PacketPattern { flags, options, ..PacketPattern::default() };
        let syn_ack = Flags::SYN.with(Flags::ACK);
        let join = |pattern| vec![OptionPattern::Join(pattern)];
        let none = Duration::ZERO;
        if by_peer {
            self.inject(line, &syn(Flags::SYN), "< SYN <mp_join>")?;
            self.expect(line, &hosts(syn_ack, join(theirs)), none, none)?;
            self.wait(delay)?;
            self.inject(line, &hosts(Flags::ACK, join(own)), "< ACK <mp_join>")?;
            let ack =
                PacketPattern { len: NumberRange::exactly(0), ..hosts(Flags::ACK, Vec::new()) };
            self.expect(line, &ack, none, none)
        } else {
            self.expect(line, &hosts(Flags::SYN, join(theirs)), none, none)?;
            self.wait(delay)?;
            self.inject(line, &syn(syn_ack), "< SYN ACK <mp_join>")?;
            self.expect(line, &hosts(Flags::ACK, join(theirs)), none, none)?;
            let dss = vec![OptionPattern::Dss(DssPattern::default())];
            self.inject(line, &hosts(Flags::ACK, dss), "< ACK <dss>")
        }
    }
}

fn or_default(round_trip: Duration) -> Duration {
    if round_trip.is_zero() { DEFAULT_ROUND_TRIP } else { round_trip }
}

enum CallVerdict {
    Expected,
    Unexpected,
    /// The call may still succeed.
    NotYet,
}

fn call_verdict(answer: &CallResult, call: Call, outcome: CallOutcome, got: usize) -> CallVerdict {
    let when = |right: bool| if right { CallVerdict::Expected } else { CallVerdict::Unexpected };
    match (answer, outcome) {
        (CallResult::Done, CallOutcome::Done) => CallVerdict::Expected,
        (CallResult::Taken(_), CallOutcome::Done) => {
            when(matches!(call, Call::Write(len) if len == got))
        }
        (CallResult::Taken(_), CallOutcome::Bytes(wanted)) => when(got == wanted),
        (CallResult::Nothing, CallOutcome::Bytes(wanted)) if matches!(call, Call::Write(_)) => {
            when(wanted == 0)
        }
        (CallResult::Data(_), CallOutcome::Bytes(wanted)) if got == wanted => CallVerdict::Expected,
        (CallResult::Data(_), CallOutcome::Bytes(wanted)) if got < wanted => CallVerdict::NotYet,
        (CallResult::End, CallOutcome::End) => when(got == 0),
        (CallResult::Nothing, CallOutcome::Nothing) => CallVerdict::Expected,
        (
            CallResult::Nothing,
            CallOutcome::Done | CallOutcome::Bytes(_) | CallOutcome::End | CallOutcome::Error(_),
        ) => CallVerdict::NotYet,
        (CallResult::Failed(reason), CallOutcome::Error(wanted)) => {
            when(wanted.is_none_or(|wanted| wanted == *reason))
        }
        _ => CallVerdict::Unexpected,
    }
}
