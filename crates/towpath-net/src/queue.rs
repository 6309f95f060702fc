//! The queue and the server that empties it.
//!
//! A [`QueueLimit`] counts the packets that wait. A packet stops waiting when its transmission
//! starts, as in the kernel, where the shaper then takes it out of the queue. The packet being sent
//! is not counted. A token bucket, HTB and a trace check every arrival against the limit, even when
//! it could leave at once. This is the order of the kernel and of Mahimahi: first enqueue, then
//! dequeue. An idle line takes the packet without checking the limit.

use std::collections::VecDeque;

use crate::aqm::{Codel, Pie};
use crate::config::{Queue, QueueLimit, Shaper};
use crate::packet::DropReason;
use crate::shaper::{ShaperState, WORK_PER_BYTE};
use crate::{Instant, Rate};

/// A queue and its server.
#[derive(Debug, Clone)]
pub(crate) struct Qdisc<P> {
    /// The packet in service, if there is one, then those that wait.
    packets: VecDeque<QueuedPacket<P>>,
    in_service: bool,
    /// Charged bytes of the packets that wait.
    waiting_bytes: u64,
    /// Set while the link is down.
    paused: bool,
    /// Remaining work of the packet in service when the server was paused, in bits · 10⁹.
    unsent_work: u128,
    /// Time at which the packet in service has left or the first waiting packet may start.
    next_at: Option<Instant>,
    server: ShaperState,
    limit: QueueLimit,
    effective_limit: EffectiveLimit,
    aqm: Aqm,
}

#[derive(Debug, Clone)]
struct QueuedPacket<P> {
    packet: P,
    charged_bytes: u32,
    enqueued_at: Instant,
}

/// A [`QueueLimit`] for the current rate.
#[derive(Debug, Clone, Copy)]
enum EffectiveLimit {
    None,
    Bytes(u64),
    Packets(u64),
}

#[derive(Debug, Clone)]
enum Aqm {
    None,
    CoDel(Codel),
    Pie(Pie),
}

/// Event that happens at [`Qdisc::next`].
pub(crate) enum QdiscEvent<P> {
    /// A packet is sent.
    Sent(P),
    /// Active queue management dropped a packet.
    Dropped(P),
    /// The server took a packet and is busy with it.
    Started,
}

impl<P> Qdisc<P> {
    pub(crate) fn new(shaper: Shaper, queue: Queue, seed: u64) -> Self {
        let (aqm, limit) = match queue {
            Queue::DropTail(limit) => (Aqm::None, limit),
            Queue::CoDel { target, interval, limit } => {
                (Aqm::CoDel(Codel::new(target, interval)), limit)
            }
            Queue::Pie { target, update, limit } => {
                (Aqm::Pie(Pie::new(target, update, seed)), limit)
            }
        };
        Self {
            packets: VecDeque::new(),
            in_service: false,
            waiting_bytes: 0,
            paused: false,
            unsent_work: 0,
            next_at: None,
            limit,
            effective_limit: EffectiveLimit::new(limit, &shaper),
            server: ShaperState::new(shaper, Instant::ZERO),
            aqm,
        }
    }

    /// Returns the time at which [`Self::step`] must be called next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next_at
    }

    /// Returns [`Self::next`] and the packet concerned.
    pub(crate) fn upcoming(&self) -> Option<(Instant, &P)> {
        let head = self.packets.front()?;
        self.next_at.map(|time| (time, &head.packet))
    }

    pub(crate) fn waiting_packets(&self) -> usize {
        self.packets.len() - usize::from(self.in_service)
    }

    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Returns true if a line is certainly busy until `until` with its present packets. False for
    /// other servers and for queues with AQM, which drop waiting packets.
    #[inline]
    pub(crate) fn is_busy_until(&self, until: Instant) -> bool {
        let Some(sent_at) = self.next_at.filter(|_| self.in_service) else { return false };
        sent_at >= until
            || matches!(self.aqm, Aqm::None)
                && self.server.is_busy_until(sent_at, self.waiting_bytes, until)
    }

    /// Returns the bytes that a line has already sent of the packet in service.
    pub(crate) fn partial_packet_bytes(&self, now: Instant) -> u64 {
        let Some(head) = self.packets.front().filter(|_| self.in_service) else { return 0 };
        let unsent_work =
            if self.paused { Some(self.unsent_work) } else { self.server.unsent_work(now) };
        let Some(unsent_work) = unsent_work else { return 0 };
        let unsent_bytes =
            u64::try_from(unsent_work.div_ceil(WORK_PER_BYTE.into())).unwrap_or(u64::MAX);
        u64::from(head.charged_bytes).saturating_sub(unsent_bytes)
    }

    /// Returns true if a packet passes without being held at all.
    pub(crate) fn is_passthrough(&self) -> bool {
        matches!(self.server, ShaperState::Unlimited) && !self.paused && self.packets.is_empty()
    }

    /// Returns true if a packet of this size can never pass.
    pub(crate) fn never_passes(&self, charged_bytes: u32) -> bool {
        self.server.never_passes(charged_bytes)
    }

    /// Returns true if the limit admits a packet of this size.
    pub(crate) fn has_room(&self, charged_bytes: u32) -> bool {
        let starts_at_once =
            self.packets.is_empty() && !self.paused && self.server.is_work_conserving();
        starts_at_once
            || match self.effective_limit {
                EffectiveLimit::None => true,
                EffectiveLimit::Bytes(limit) => {
                    self.waiting_bytes.saturating_add(u64::from(charged_bytes)) <= limit
                }
                EffectiveLimit::Packets(limit) => (self.waiting_packets() as u64) < limit,
            }
    }

    /// Appends a packet to the queue, or returns the reason for the drop.
    pub(crate) fn enqueue(
        &mut self,
        now: Instant,
        packet: P,
        charged_bytes: u32,
    ) -> Result<(), DropReason> {
        if !self.has_room(charged_bytes) {
            return Err(DropReason::QueueFull);
        }
        match &mut self.aqm {
            Aqm::None => {}
            Aqm::CoDel(codel) => codel.on_enqueue(charged_bytes),
            Aqm::Pie(pie) => {
                if pie.drops(now, self.waiting_bytes) {
                    return Err(DropReason::Aqm);
                }
            }
        }
        let was_empty = self.packets.is_empty();
        self.packets.push_back(QueuedPacket { packet, charged_bytes, enqueued_at: now });
        // Fast path for the most common case: an idle line takes the packet at once.
        if let (true, ShaperState::Line(line), Aqm::None, false) =
            (was_empty, &mut self.server, &self.aqm, self.paused)
        {
            self.in_service = true;
            self.next_at = Some(line.begin(now, charged_bytes));
            return Ok(());
        }
        self.waiting_bytes += u64::from(charged_bytes);
        if was_empty {
            self.server.on_backlogged(now);
            self.schedule_head(now);
        }
        Ok(())
    }

    /// Processes the event that is due at [`Self::next`]; returns `None` when nothing is scheduled.
    pub(crate) fn step(&mut self) -> Option<QdiscEvent<P>> {
        let now = self.next_at?;
        let head = self.packets.front()?;
        let (charged_bytes, enqueued_at) = (head.charged_bytes, head.enqueued_at);
        if self.in_service {
            self.in_service = false;
            return self.take_head(now).map(QdiscEvent::Sent);
        }
        self.waiting_bytes -= u64::from(charged_bytes);
        if self.aqm_drops(now, enqueued_at) {
            return self.take_head(now).map(QdiscEvent::Dropped);
        }
        let sent_at = self.server.begin(now, charged_bytes);
        if sent_at <= now {
            return self.take_head(now).map(QdiscEvent::Sent);
        }
        self.in_service = true;
        self.next_at = Some(sent_at);
        Some(QdiscEvent::Started)
    }

    /// Removes the head and schedules the next packet.
    fn take_head(&mut self, now: Instant) -> Option<P> {
        let head = self.packets.pop_front();
        self.schedule_head(now);
        if self.packets.is_empty()
            && let Aqm::CoDel(codel) = &mut self.aqm
        {
            codel.on_empty();
        }
        head.map(|queued| queued.packet)
    }

    fn aqm_drops(&mut self, now: Instant, enqueued_at: Instant) -> bool {
        match &mut self.aqm {
            Aqm::None => false,
            Aqm::CoDel(codel) => codel.drops(now, now.nanos_since(enqueued_at), self.waiting_bytes),
            Aqm::Pie(pie) => {
                pie.on_dequeue(now, now.nanos_since(enqueued_at), self.waiting_bytes);
                false
            }
        }
    }

    /// Sets the time at which the first waiting packet may start. Nothing must be in service.
    fn schedule_head(&mut self, now: Instant) {
        let head = self.packets.front().filter(|_| !self.paused);
        self.next_at = head.and_then(|queued| self.server.ready(now, queued.charged_bytes));
    }

    /// Stops the server. A line remembers its progress; other servers restart a partly sent packet.
    pub(crate) fn pause(&mut self, now: Instant) {
        if self.in_service {
            match self.server.unsent_work(now) {
                Some(unsent_work) => self.unsent_work = unsent_work,
                None => self.return_head(),
            }
        }
        self.paused = true;
        self.next_at = None;
    }

    /// Restarts the server; a trace has advanced in the meantime.
    pub(crate) fn resume(&mut self, now: Instant) {
        self.paused = false;
        if self.in_service {
            self.continue_head(now, self.unsent_work);
        } else {
            self.server.on_backlogged(now);
            self.schedule_head(now);
        }
    }

    /// Replaces the server. Between two lines, the rest of the packet in service continues at the
    /// new rate. Between two buckets of one kind, tokens and debt are kept. Otherwise the new
    /// server starts fresh (a trace at its beginning) and with the whole head.
    pub(crate) fn set_shaper(&mut self, now: Instant, shaper: Shaper) {
        let unsent_work = match (self.in_service, self.paused) {
            (false, _) => None,
            (true, true) => Some(self.unsent_work),
            (true, false) => self.server.unsent_work(now),
        };
        self.effective_limit = EffectiveLimit::new(self.limit, &shaper);
        let mut server = ShaperState::new(shaper, now);
        server.inherit(&self.server, now);
        self.server = server;
        if let Some(unsent_work) = unsent_work {
            self.continue_head(now, unsent_work);
            return;
        }
        if self.in_service {
            self.return_head();
        }
        self.server.on_backlogged(now);
        self.schedule_head(now);
    }

    /// Continues the packet in service with `unsent_work` left, or returns it to the queue.
    fn continue_head(&mut self, now: Instant, unsent_work: u128) {
        self.unsent_work = unsent_work;
        match self.server.resume(now, unsent_work) {
            Some(_) if self.paused => self.next_at = None,
            Some(sent_at) => self.next_at = Some(sent_at),
            None => {
                self.return_head();
                self.server.on_backlogged(now);
                self.schedule_head(now);
            }
        }
    }

    /// Puts the packet in service back into the queue.
    fn return_head(&mut self) {
        self.in_service = false;
        let charged_bytes = self.packets.front().map_or(0, |queued| queued.charged_bytes);
        self.waiting_bytes += u64::from(charged_bytes);
    }

    /// Drops all packets, passing each to `on_drop`.
    pub(crate) fn clear(&mut self, on_drop: impl FnMut(P)) {
        self.packets.drain(..).map(|queued| queued.packet).for_each(on_drop);
        self.in_service = false;
        self.waiting_bytes = 0;
        self.next_at = None;
        if let Aqm::CoDel(codel) = &mut self.aqm {
            codel.on_empty();
        }
    }
}

impl EffectiveLimit {
    /// Converts a time limit into the bytes of that time at the shaper's rate. A token bucket adds
    /// the burst, as `tc tbf latency` computes it; a trace uses its mean rate. Without a rate the
    /// queue is unlimited.
    fn new(limit: QueueLimit, shaper: &Shaper) -> Self {
        let limit_time = match limit {
            QueueLimit::Unlimited => return Self::None,
            QueueLimit::Bytes(bytes) => return Self::Bytes(bytes),
            QueueLimit::Packets(packets) => return Self::Packets(packets),
            QueueLimit::Time(limit_time) => limit_time,
        };
        let bytes_at = |rate: Rate| rate.bytes_in(limit_time);
        match shaper {
            Shaper::Unlimited => Self::None,
            Shaper::Line(rate) | Shaper::Htb { rate, burst_bytes: _, cburst_bytes: _ } => {
                Self::Bytes(bytes_at(*rate))
            }
            Shaper::TokenBucket { rate, burst_bytes } => {
                Self::Bytes(bytes_at(*rate).saturating_add(*burst_bytes))
            }
            Shaper::Trace(trace) => {
                trace.mean_rate().map_or(Self::None, |rate| Self::Bytes(bytes_at(rate)))
            }
        }
    }
}
