//! Owners of both subflows, and the link between them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_multipath::path::PathId;
use towpath_net::Instant;
use towpath_wire::{Ecn, Flags, Payload, Segment};

use crate::subflow::{
    CloseReason, DataMapping, SegmentOutcome, Subflow, SubflowConfig, TcpState, Transmit,
};

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn at_ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// Small random number generator (`SplitMix64`).
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    pub(super) fn happens(&mut self, percent: u64) -> bool {
        percent > 0 && self.below(100) < percent
    }
}

/// Returns the byte at a subflow offset, different for both directions.
pub(super) fn byte(salt: u8, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ salt
}

pub(super) fn payload(salt: u8, start: u64, len: u32) -> Payload {
    let bytes: Vec<u8> = (start..start + u64::from(len)).map(|o| byte(salt, o)).collect();
    Payload::from(Bytes::from(bytes))
}

pub(super) fn address(host: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, host), 4000 + u16::from(host)).into()
}

/// Composes the packet for a transmission of the subflow, as its owner would.
pub(super) fn compose(transmit: &Transmit, host: u8) -> Segment {
    let payload = transmit.data.map_or(Payload::EMPTY, |sent| payload(host, sent.ssn, sent.len));
    Segment {
        source: address(host),
        destination: address(3 - host),
        seq: transmit.seq,
        ack: transmit.ack,
        flags: transmit.flags,
        window: transmit.window,
        ecn: transmit.ecn,
        options: transmit.options.clone(),
        payload,
        segment_bytes: transmit.segment_bytes,
    }
}

/// Splits a super-segment into packets.
pub(super) fn split(segment: &Segment) -> Vec<Segment> {
    let size = usize::from(segment.segment_bytes);
    if size == 0 {
        return vec![segment.clone()];
    }
    let starts = (0..segment.payload.len()).step_by(size);
    let last_start = (segment.payload.len() - 1) / size * size;
    let packet = |start: usize| Segment {
        seq: segment.seq.wrapping_add(start as u32),
        payload: segment.payload.slice(start, start + size),
        segment_bytes: 0,
        flags: if start == last_start { segment.flags } else { segment.flags.without(Flags::PSH) },
        ..segment.clone()
    };
    starts.map(packet).collect()
}

/// One end of the link with its application.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: u8,
    pub(super) subflow: Option<Subflow>,
    pub(super) config: SubflowConfig,
    pub(super) isn: u32,
    /// Bytes that the application has yet to send.
    pub(super) to_send: u64,
    pub(super) close_when_sent: bool,
    pub(super) received: u64,
    pub(super) fin: bool,
    pub(super) closed: Option<CloseReason>,
    /// Free bytes of the receive buffer; `None`: always 4 MiB.
    pub(super) buffer: Option<u64>,
    pub(super) log: Vec<(Instant, Transmit)>,
    /// RSTs in reply to segments that arrive after the connection is closed.
    pending_resets: Vec<Segment>,
}

impl End {
    pub(super) fn new(host: u8, config: SubflowConfig) -> Self {
        Self {
            host,
            subflow: None,
            config,
            isn: 0xffff_f000_u32.wrapping_add(u32::from(host) * 7919),
            to_send: 0,
            close_when_sent: false,
            received: 0,
            fin: false,
            closed: None,
            buffer: None,
            log: Vec::new(),
            pending_resets: Vec::new(),
        }
    }

    pub(super) fn subflow(&mut self) -> &mut Subflow {
        self.subflow.as_mut().expect("the end is open")
    }

    pub(super) fn state(&self) -> TcpState {
        self.subflow.as_ref().map_or(TcpState::Closed, Subflow::state)
    }

    fn on_outcome(&mut self, outcome: &SegmentOutcome) {
        for (start, payload) in &outcome.data {
            assert_eq!(*start, 1 + self.received, "data is in order");
            for (offset, actual) in (*start..).zip(payload.chunks().flat_map(|chunk| chunk.iter()))
            {
                assert_eq!(*actual, byte(3 - self.host, offset), "at offset {offset}");
            }
            self.received += payload.len() as u64;
            if let Some(buffer) = self.buffer.as_mut() {
                *buffer = buffer.saturating_sub(payload.len() as u64);
            }
        }
        assert!(!(outcome.fin && self.fin), "the FIN comes once");
        self.fin |= outcome.fin;
        self.closed = self.closed.or(outcome.closed);
    }

    fn recv(&mut self, now: Instant, mut segment: Segment) {
        if self.subflow.is_none() {
            if segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::ACK) {
                let accepted = Subflow::accept(self.config.clone(), self.isn, &segment, now);
                self.subflow = Some(accepted);
            }
            return;
        }
        if self.state() == TcpState::Closed && !segment.flags.contains(Flags::RST) {
            let (source, destination) = (segment.destination, segment.source);
            let options = towpath_wire::Options::default();
            let (seq, flags, payload) = (segment.ack, Flags::RST, Payload::EMPTY);
            let reset = Segment { source, destination, seq, flags, options, payload, ..segment };
            return self.pending_resets.push(reset);
        }
        let outcome = self.subflow().on_segment(now, &mut segment, PathId(0), &[]);
        self.on_outcome(&outcome);
    }

    fn run(&mut self, now: Instant) -> Vec<Segment> {
        let (host, buffer) = (self.host, self.buffer.unwrap_or(4 << 20));
        let mut sent = std::mem::take(&mut self.pending_resets);
        let Some(subflow) = self.subflow.as_mut() else { return sent };
        if subflow.poll_timeout().is_some_and(|(at, _)| at <= now) {
            let outcome = subflow.on_timeout(now);
            self.closed = self.closed.or(outcome.closed);
        }
        subflow.set_receive_window(buffer, false);
        if subflow.window_update_due() {
            subflow.set_ack_due();
        }
        loop {
            let allowed = subflow.room_bytes(now).min(self.to_send);
            let len = u32::try_from(allowed).unwrap_or(u32::MAX).min(subflow.quantum_bytes());
            if len > 0 {
                let mapping = DataMapping { dsn: 7 + subflow.pushed_until(), len, checksum: None };
                self.to_send -= u64::from(len);
                subflow.push(now, mapping, self.to_send == 0);
            }
            if self.to_send == 0 && self.close_when_sent && !subflow.fin_queued() {
                subflow.close(now);
            }
            let Some(transmit) = subflow.poll_transmit(now, 0) else { break };
            sent.push(compose(&transmit, host));
            self.log.push((now, transmit));
        }
        sent
    }
}

/// Faults of the link, in percent of the packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) loss: u64,
    pub(super) reorder: u64,
    pub(super) duplicate: u64,
    pub(super) ce_mark: u64,
}

/// Pair of endpoints with a link.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) a: End,
    pub(super) b: End,
    pub(super) delay: Duration,
    pub(super) faults: Faults,
    pub(super) random: Random,
    /// Rate in bytes per second; packets wait for earlier ones.
    pub(super) rate: u64,
    busy_until: [Instant; 2],
    in_flight: BTreeMap<(Instant, u64), Segment>,
    next_packet_id: u64,
    pub(super) packets: u64,
    /// Limit of packets, which detects an endless exchange.
    pub(super) max_packets: u64,
}

impl Pair {
    pub(super) fn new(a: SubflowConfig, b: SubflowConfig, seed: u64) -> Self {
        Self {
            now: at_ms(1000),
            a: End::new(1, a),
            b: End::new(2, b),
            delay: 10 * MS,
            faults: Faults::default(),
            random: Random(seed),
            rate: 10_000_000,
            busy_until: [Instant::ZERO; 2],
            in_flight: BTreeMap::new(),
            next_packet_id: 0,
            packets: 0,
            max_packets: u64::MAX / 2,
        }
    }

    pub(super) fn connect(&mut self) {
        self.a.subflow = Some(Subflow::connect(self.a.config.clone(), self.a.isn, self.now));
    }

    fn send(&mut self, segment: &Segment) {
        let direction = usize::from(segment.source != address(1));
        for mut packet in split(segment) {
            self.packets += 1;
            let nanos = (packet.payload.len() as u64 + 40) * 1_000_000_000 / self.rate;
            let start = self.busy_until[direction].max(self.now);
            self.busy_until[direction] = start + Duration::from_nanos(nanos);
            if self.random.happens(self.faults.loss) {
                continue;
            }
            if packet.ecn != Ecn::NotCapable && self.random.happens(self.faults.ce_mark) {
                packet.ecn = Ecn::Marked;
            }
            let copies = 1 + u64::from(self.random.happens(self.faults.duplicate));
            for _ in 0..copies {
                let extra_delay = if self.random.happens(self.faults.reorder) {
                    Duration::from_micros(self.random.below(30_000))
                } else {
                    Duration::ZERO
                };
                self.next_packet_id += 1;
                let arrival = self.busy_until[direction] + self.delay + extra_delay;
                self.in_flight.insert((arrival, self.next_packet_id), packet.clone());
            }
        }
    }

    /// Handles all events of the next time; returns false without any event.
    pub(super) fn step(&mut self, limit: Instant) -> bool {
        for segment in self.a.run(self.now) {
            self.send(&segment);
        }
        for segment in self.b.run(self.now) {
            self.send(&segment);
        }
        let next_timer = |end: &End| end.subflow.as_ref().and_then(Subflow::poll_timeout);
        let timers = [next_timer(&self.a), next_timer(&self.b)];
        let timers = timers.into_iter().flatten().map(|(at, _)| at);
        let next_arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        let Some(next) = timers.chain(next_arrival).min() else { return false };
        self.now = self.now.max(next.min(limit));
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let segment = entry.remove();
            let end = if segment.destination == address(1) { &mut self.a } else { &mut self.b };
            end.recv(self.now, segment);
        }
        for end in [&self.a, &self.b] {
            if let Some(subflow) = end.subflow.as_ref() {
                subflow.send.verify_counters();
            }
        }
        true
    }

    /// Runs until `done` holds; fails after `limit`.
    pub(super) fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        let deadline = self.now + limit;
        let mut steps = 0u64;
        while !done(self) {
            steps += 1;
            assert!(steps < 60_000 + self.packets * 4, "the ends never rest: {}", self.describe());
            if !self.step(Instant::MAX) {
                assert!(done(self), "nothing will happen any more: {}", self.describe());
                return;
            }
            assert!(
                self.packets < 1000 + self.max_packets,
                "too much is sent: {}",
                self.describe()
            );
            assert!(self.now <= deadline, "takes too long: {}", self.describe());
        }
    }

    pub(super) fn run_for(&mut self, duration: Duration) {
        let deadline = self.now + duration;
        while self.now < deadline && self.step(deadline) {}
    }

    pub(super) fn describe(&self) -> String {
        let describe_end = |end: &End| {
            let subflow = end.subflow.as_ref();
            format!(
                "{:?} got {} left {} {:?} {:?}",
                end.state(),
                end.received,
                end.to_send,
                subflow.map(Subflow::statistics),
                subflow.and_then(Subflow::poll_timeout),
            )
        };
        format!("at {}\n  a: {}\n  b: {}", self.now, describe_end(&self.a), describe_end(&self.b))
    }
}
