//! One direction of a link: impairments → queue and server → delay (or delay → queue and server). A
//! gate follows for links that go down.
//!
//! A direction has no timer: work that is due is done when a call passes a time, but at the
//! *logical* time of the event. Everything due at a call's time happens before the call's own
//! effect. Results therefore do not depend on when or how often a direction is polled.

use std::collections::VecDeque;

use crate::Instant;
use crate::config::{Delay, DirectionConfig, Loss, PipelineOrder, QueuePosition, Shaper, WhenDown};
use crate::delay::DelayLine;
use crate::loss::Impairments;
use crate::packet::{DirectionCounters, DropReason, EnqueueOutcome, Packet};
use crate::queue::{Qdisc, QdiscEvent};

/// One direction of one link.
#[derive(Debug, Clone)]
pub struct Direction<P> {
    /// Latest time that a call has passed.
    now: Instant,
    is_up: bool,
    order: PipelineOrder,
    position: QueuePosition,
    when_down: WhenDown,
    limit_packets: Option<usize>,
    mtu_bytes: u32,
    overhead_bytes: u32,
    impairments: Impairments,
    qdisc: Qdisc<P>,
    delay_line: DelayLine<P>,
    /// Packets that have left and wait for [`Self::pop`], with their departure times.
    departed: VecDeque<(Instant, P)>,
    counters: DirectionCounters,
    /// Bytes that have passed the server, overhead included.
    served_bytes: u64,
}

impl<P: Packet> Direction<P> {
    /// Creates a direction that is up and empty at [`Instant::ZERO`].
    pub fn new(config: DirectionConfig, seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            is_up: true,
            order: config.order,
            position: config.position,
            when_down: config.when_down,
            limit_packets: config.limit_packets,
            mtu_bytes: config.mtu_bytes,
            overhead_bytes: config.overhead_bytes,
            impairments: Impairments::new(&config, seed),
            qdisc: Qdisc::new(config.shaper, config.queue, seed),
            delay_line: DelayLine::new(config.delay, seed),
            departed: VecDeque::new(),
            counters: DirectionCounters::default(),
            served_bytes: 0,
        }
    }

    /// Offers a packet. Times must not run backwards; an earlier time counts as the latest so far.
    pub fn push(&mut self, now: Instant, packet: P) -> EnqueueOutcome {
        let bytes = packet.len_bytes();
        self.counters.offered.add(bytes);
        self.advance(now);
        if !self.is_up && self.when_down == WhenDown::Drop {
            return self.drop_packet(DropReason::Down, bytes);
        }
        if bytes > self.mtu_bytes || self.qdisc.never_passes(self.charged_bytes(&packet)) {
            return self.drop_packet(DropReason::Mtu, bytes);
        }
        if !self.impairments.is_transparent() {
            return self.push_impaired(packet, bytes);
        }
        if self.is_over_limit() {
            return self.drop_packet(DropReason::QueueFull, bytes);
        }
        self.enter(packet, bytes)
    }

    /// Returns the time at which a packet may leave next, or, at [`QueuePosition::Host`], room may
    /// appear. The event never occurs earlier. Call [`Self::pop`] at that time.
    pub fn next_due(&self) -> Option<Instant> {
        self.upcoming().map(|(time, _)| time)
    }

    /// Returns the next packet that has left by `now`, with its departure time.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, P)> {
        self.advance(now);
        let has_departed = self.departed.front().is_some_and(|(departure, _)| *departure <= now);
        let departed_packet = match self.order {
            _ if has_departed => self.departed.pop_front(),
            PipelineOrder::ServerThenDelay => self.delay_line.pop(now),
            PipelineOrder::DelayThenServer => None,
        };
        if let Some((_, packet)) = &departed_packet {
            self.counters.delivered.add(packet.len_bytes());
        }
        departed_packet
    }

    /// Does everything that is due by `now`, so that counters and queue length are current. Every
    /// other call with a time does the same.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        match self.order {
            PipelineOrder::ServerThenDelay => self.serve_until(self.now),
            PipelineOrder::DelayThenServer => self.advance_delay_first(),
        }
    }

    /// Returns true if an IP packet of `bytes` would find room in the queue now. Used for
    /// back-pressure at [`QueuePosition::Host`]. Exact after [`Self::pop`] has returned `None` for
    /// the same time.
    pub fn has_room(&self, bytes: u32) -> bool {
        let within_limit = self.limit_packets.is_none_or(|limit| self.in_flight() < limit);
        match self.order {
            PipelineOrder::ServerThenDelay => {
                within_limit && self.qdisc.has_room(bytes.saturating_add(self.overhead_bytes))
            }
            PipelineOrder::DelayThenServer => within_limit,
        }
    }

    /// Takes the link down or up. [`WhenDown`] decides about the packets inside.
    pub fn set_up(&mut self, now: Instant, up: bool) {
        self.advance(now);
        if up == self.is_up {
            return;
        }
        self.is_up = up;
        match (self.when_down, up) {
            (WhenDown::Drop, true) => {}
            (WhenDown::Drop, false) => self.drop_all(),
            (WhenDown::Hold, true) => self.qdisc.resume(self.now),
            (WhenDown::Hold, false) => self.qdisc.pause(self.now),
        }
        self.advance(now);
    }

    /// Returns true if the link is up.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Changes the shaper. A packet being sent continues at the new line rate, and a token bucket
    /// keeps its tokens or debt. `tc` would instead fill the bucket, so that each step of a fade
    /// caused a burst. A trace starts at its beginning.
    pub fn set_shaper(&mut self, now: Instant, shaper: Shaper) {
        self.advance(now);
        self.qdisc.set_shaper(self.now, shaper);
        self.advance(now);
    }

    /// Changes the delay of packets that enter the delay line from now on.
    pub fn set_delay(&mut self, now: Instant, delay: Delay) {
        self.advance(now);
        self.delay_line.set(delay);
    }

    /// Changes the loss of packets that enter from now on.
    pub fn set_loss(&mut self, loss: Loss) {
        self.impairments.set_loss(loss);
    }

    /// Returns the counters of all packets so far.
    pub fn counters(&self) -> &DirectionCounters {
        &self.counters
    }

    /// Returns the bytes (overhead included) that have passed the server by `now`, and the bytes
    /// already sent of the packet in service. Neither counts unsent packets or losses before the
    /// server.
    pub fn served_bytes(&mut self, now: Instant) -> (u64, u64) {
        self.advance(now);
        (self.served_bytes, self.qdisc.partial_packet_bytes(self.now))
    }

    /// Returns true if the server is certainly busy until `until`, regardless of arrivals.
    #[inline]
    pub fn is_busy_until(&self, until: Instant) -> bool {
        self.qdisc.is_busy_until(until)
    }

    /// Returns the number of packets that wait for the shaper, without the one being sent.
    pub fn queue_packets(&self) -> u64 {
        self.qdisc.waiting_packets() as u64
    }

    /// Returns the bytes of [`Self::queue_packets`] as the queue limit counts them, overhead
    /// included.
    pub fn queue_bytes(&self) -> u64 {
        self.qdisc.waiting_bytes()
    }

    /// Returns [`Self::next_due`] and the packet concerned.
    pub(crate) fn upcoming(&self) -> Option<(Instant, &P)> {
        if let Some((departure, packet)) = self.departed.front() {
            return Some((*departure, packet));
        }
        let (leaves_server, leaves_delay) = (self.qdisc.upcoming(), self.delay_line.upcoming());
        match (self.position, self.order) {
            (QueuePosition::Host, _) => earliest(leaves_server, leaves_delay),
            (QueuePosition::Network, PipelineOrder::ServerThenDelay) => {
                let min_delay_nanos = self.delay_line.min_nanos();
                let leaves_server =
                    leaves_server.map(|(time, packet)| (time.plus_nanos(min_delay_nanos), packet));
                earliest(leaves_server, leaves_delay)
            }
            // Arrivals from the wire queue up behind the packet in service.
            (QueuePosition::Network, PipelineOrder::DelayThenServer) => {
                leaves_server.or(leaves_delay)
            }
        }
    }

    /// Returns the bytes that the server and the queue count.
    fn charged_bytes(&self, packet: &P) -> u32 {
        let overhead = self.overhead_bytes.saturating_mul(packet.packets());
        packet.len_bytes().saturating_add(overhead)
    }

    fn drop_packet(&mut self, reason: DropReason, bytes: u32) -> EnqueueOutcome {
        self.counters.count_drop(reason, bytes);
        EnqueueOutcome::Dropped(reason)
    }

    /// Enqueues as netem does: loss takes one copy away and duplication adds one. The copy is taken
    /// before corruption. It enters before the original and is not duplicated a second time.
    fn push_impaired(&mut self, mut packet: P, bytes: u32) -> EnqueueOutcome {
        let (duplicated, lost) = (self.impairments.duplicates(), self.impairments.loses());
        if duplicated {
            self.counters.duplicated.add(bytes);
        }
        if lost {
            self.counters.count_drop(DropReason::Loss, bytes);
        }
        if lost && !duplicated {
            return EnqueueOutcome::Dropped(DropReason::Loss);
        }
        let copy = (duplicated && !lost).then(|| packet.clone());
        self.corrupt_by_chance(&mut packet, bytes);
        if self.is_over_limit() {
            if copy.is_some() {
                self.counters.count_drop(DropReason::QueueFull, bytes);
            }
            return self.drop_packet(DropReason::QueueFull, bytes);
        }
        if let Some(copy) = copy {
            self.push_copy(copy, bytes);
        }
        self.enter(packet, bytes)
    }

    fn push_copy(&mut self, mut copy: P, bytes: u32) {
        if self.impairments.loses() {
            self.counters.count_drop(DropReason::Loss, bytes);
            return;
        }
        self.corrupt_by_chance(&mut copy, bytes);
        if self.is_over_limit() {
            self.counters.count_drop(DropReason::QueueFull, bytes);
        } else {
            // The outcome is that of the original; the copy only shows in the counters.
            let _ = self.enter(copy, bytes);
        }
    }

    fn corrupt_by_chance(&mut self, packet: &mut P, bytes: u32) {
        if let Some(random) = self.impairments.corrupts() {
            packet.corrupt(random);
            self.counters.corrupted.add(bytes);
        }
    }

    /// Returns the number of packets that netem's `limit` counts: in the delay line and waiting,
    /// not the one being sent.
    fn in_flight(&self) -> usize {
        self.delay_line.len() + self.qdisc.waiting_packets()
    }

    fn is_over_limit(&mut self) -> bool {
        let Some(limit) = self.limit_packets else {
            return false;
        };
        if self.in_flight() >= limit && self.order == PipelineOrder::ServerThenDelay {
            // For the limit, packets that have arrived but are not fetched yet have left.
            while let Some(departed_packet) = self.delay_line.pop(self.now) {
                self.departed.push_back(departed_packet);
            }
        }
        self.in_flight() >= limit
    }

    /// Passes a packet to the first part of the pipeline.
    fn enter(&mut self, packet: P, bytes: u32) -> EnqueueOutcome {
        match self.order {
            PipelineOrder::ServerThenDelay => self.enqueue(self.now, packet, bytes),
            PipelineOrder::DelayThenServer => {
                let charged_bytes = self.charged_bytes(&packet);
                self.delay_line.push(self.now, packet, charged_bytes);
                self.advance_delay_first();
                EnqueueOutcome::Queued
            }
        }
    }

    /// Passes a packet to the queue at its logical time `time`.
    fn enqueue(&mut self, time: Instant, packet: P, bytes: u32) -> EnqueueOutcome {
        if self.qdisc.is_passthrough() {
            self.leave_server(time, packet);
            return EnqueueOutcome::Queued;
        }
        let charged_bytes = self.charged_bytes(&packet);
        if let Err(reason) = self.qdisc.enqueue(time, packet, charged_bytes) {
            return self.drop_packet(reason, bytes);
        }
        self.serve_until(time);
        EnqueueOutcome::Queued
    }

    fn serve_until(&mut self, until: Instant) {
        while let Some(time) = self.qdisc.next().filter(|time| *time <= until) {
            self.serve(time);
        }
    }

    /// Serves the queue and moves packets from the delay line to it, in order of time. At equal
    /// times the server makes room first.
    fn advance_delay_first(&mut self) {
        loop {
            let server_due = self.qdisc.next().filter(|time| *time <= self.now);
            let delay_due = self.delay_line.next().filter(|time| *time <= self.now);
            match (server_due, delay_due) {
                (Some(time), delay_due) if delay_due.is_none_or(|delay_due| time <= delay_due) => {
                    self.serve(time);
                }
                (_, Some(time)) => {
                    if let Some((time, packet)) = self.delay_line.pop(time) {
                        let bytes = packet.len_bytes();
                        // A drop by the queue shows in the counters.
                        let _ = self.enqueue(time, packet, bytes);
                    }
                }
                (_, None) => return,
            }
        }
    }

    /// Processes the server's event that is due at `time`.
    fn serve(&mut self, time: Instant) {
        match self.qdisc.step() {
            Some(QdiscEvent::Sent(packet)) => self.leave_server(time, packet),
            Some(QdiscEvent::Dropped(packet)) => {
                self.counters.count_drop(DropReason::Aqm, packet.len_bytes());
            }
            Some(QdiscEvent::Started) | None => {}
        }
    }

    fn leave_server(&mut self, time: Instant, mut packet: P) {
        let charged_bytes = self.charged_bytes(&packet);
        self.served_bytes = self.served_bytes.wrapping_add(u64::from(charged_bytes));
        packet.on_served(0, time);
        match self.order {
            PipelineOrder::ServerThenDelay => {
                self.delay_line.push(time, packet, charged_bytes);
            }
            PipelineOrder::DelayThenServer => self.departed.push_back((time, packet)),
        }
    }

    /// Drops everything except packets that have already arrived.
    fn drop_all(&mut self) {
        let counters = &mut self.counters;
        self.qdisc.clear(|packet| counters.count_drop(DropReason::Down, packet.len_bytes()));
        self.delay_line.drop_after(self.now, |packet| {
            counters.count_drop(DropReason::Down, packet.len_bytes());
        });
    }
}

/// Returns the earlier event; at equal times the one further along the pipeline.
fn earliest<'a, P>(
    server_event: Option<(Instant, &'a P)>,
    delay_event: Option<(Instant, &'a P)>,
) -> Option<(Instant, &'a P)> {
    match (server_event, delay_event) {
        (Some(server), Some(delay)) if server.0 < delay.0 => Some(server),
        (server_event, delay_event) => delay_event.or(server_event),
    }
}
