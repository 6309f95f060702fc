//! Pushing data into a subflow's queue, mapping by mapping.

use towpath_multipath::scheduler::SchedulerEvent;
use towpath_multipath::{DataRange, PathId, PathSet};
use towpath_wire::keys;

use super::{Connection, ConnectionMode, HostContext};
use crate::stack::{ReinjectionCause, StackDecision};
use crate::subflow::DataMapping;

/// Maximum length of a mapping: 16 bits, minus one for DATA_FIN.
pub(super) const MAX_MAPPING_BYTES: u64 = 65_534;

impl Connection {
    /// Returns true if data goes into the subflows' queues in the pieces in which it was written.
    pub(super) fn fills_queues(&self) -> bool {
        self.config.subflow.counts_memory
            && self.is_multipath()
            && self.scheduler.fills_subflow_queues()
    }

    /// Pushes the next bytes of the store to these paths.
    pub(super) fn push_new(&mut self, host: &HostContext<'_>, paths: PathSet, bytes: u64) {
        let start = self.send.next();
        let psh = bytes == self.send.unsent_bytes();
        for path in paths.iter() {
            if self.fills_queues() {
                self.push_packets(host, path, DataRange { start, bytes });
            } else {
                self.push(host, path, DataRange { start, bytes }, psh);
            }
        }
        self.send.on_sent_new(bytes, paths, host.now);
    }

    /// Pushes a range in packets, as Linux fills a subflow's queue. The last packet of the queue is
    /// filled first, so that boundaries of writes do not show on the wire.
    fn push_packets(&mut self, host: &HostContext<'_>, path: PathId, range: DataRange) {
        let mut range = range;
        while let Some(flow) = self.flows.iter().find(|flow| flow.path == path)
            && range.bytes > 0
        {
            let packet_bytes = u64::from(flow.tcp.queued_packet_bytes());
            let tail_bytes =
                self.open_tail(path, range.start).map_or(0, |mapping| u64::from(mapping.len));
            let room = packet_bytes
                .checked_sub(tail_bytes)
                .filter(|room| *room > 0)
                .unwrap_or(packet_bytes);
            let bytes = room.min(range.bytes);
            self.push(host, path, DataRange { bytes, ..range }, true);
            range = DataRange { start: range.start + bytes, bytes: range.bytes - bytes };
        }
    }

    /// Pushes bytes of the store to a path, as one mapping.
    fn push(&mut self, host: &HostContext<'_>, path: PathId, range: DataRange, psh: bool) {
        let joined = self.joined_mapping(path, range);
        let shares_window = self.config.shares_peer_window && self.is_multipath();
        let window = self.send.edge().saturating_sub(range.start);
        let Some(flow) = self.flows.iter_mut().find(|flow| flow.path == path) else { return };
        let len = range.bytes as u32;
        if shares_window {
            flow.tcp.raise_peer_window(window);
        }
        if let Some(joined_range) = joined {
            flow.lengthen(len, self.send.slice(joined_range.start, joined_range.bytes), psh);
        } else {
            let payload = self.send.slice(range.start, range.bytes);
            let ssn = flow.tcp.pushed_until();
            let checksum = (self.checksum && matches!(self.mode, ConnectionMode::Multipath { .. }))
                .then(|| {
                    let dsn = self.local_idsn.wrapping_add(range.start);
                    keys::dss_checksum(dsn, ssn as u32, len as u16, &payload)
                });
            flow.push(host.now, DataMapping { dsn: range.start, len, checksum }, payload, psh);
        }
        if self.flows.len() > 1 {
            self.scheduler.on_event(SchedulerEvent::Sent { path, bytes: range.bytes });
        }
    }

    /// Returns the mapping that joins `range` to the last mapping in a path's queue, or `None`. As
    /// in Linux, the result either fills a packet there or stays a single packet. A mapping of one
    /// packet is lost with the options of that packet.
    fn joined_mapping(&self, path: PathId, range: DataRange) -> Option<DataRange> {
        let tail = self.open_tail(path, range.start)?;
        let flow = self.flows.iter().find(|flow| flow.path == path)?;
        let tail_bytes = u64::from(tail.len);
        let bytes = tail_bytes + range.bytes;
        let stays_single_packet =
            range.bytes.min(tail_bytes) < 2 * u64::from(flow.tcp.statistics().mss_bytes);
        let fills_packet =
            self.fills_queues() && bytes <= u64::from(flow.tcp.queued_packet_bytes());
        let may_join = (stays_single_packet || fills_packet) && bytes <= MAX_MAPPING_BYTES;
        may_join.then_some(DataRange { start: tail.dsn, bytes })
    }

    /// Returns the last mapping in a path's queue, if none of it was sent and data from `start` on
    /// would continue it.
    fn open_tail(&self, path: PathId, start: u64) -> Option<DataMapping> {
        let flow = self.flows.iter().find(|flow| flow.path == path)?;
        let tail = flow.tcp.unsent_tail().filter(|tail| tail.checksum.is_none())?;
        let follows = tail.dsn + u64::from(tail.len) == start && tail.dsn >= self.send.acked();
        (follows && self.is_multipath() && !self.checksum).then_some(tail)
    }

    /// Reinjects data on a path, as far as it has room; returns false if nothing was sent.
    pub(super) fn reinject(
        &mut self,
        host: &HostContext<'_>,
        path: PathId,
        range: DataRange,
        cause: ReinjectionCause,
    ) -> bool {
        let Some(flow) = self.flows.iter().find(|flow| flow.path == path) else { return false };
        let number = flow.number;
        let quantum = u64::from(flow.tcp.quantum_bytes());
        let room = self.views.iter().find(|view| view.id == path);
        let room = room.map_or(0, |view| view.room_bytes);
        let is_new = range.start >= self.send.next();
        let limit = if is_new { self.send.end().min(self.send.edge()) } else { self.send.next() };
        let start = range.start.max(self.send.acked());
        let end = range.end().min(limit);
        let bytes = end.saturating_sub(start).min(room).min(quantum).min(MAX_MAPPING_BYTES);
        if bytes == 0 {
            return false;
        }
        let range = DataRange { start, bytes };
        self.push(host, path, range, true);
        if is_new {
            self.send.on_sent_new(bytes, PathSet::only(path), host.now);
            if self.retransmit_at.is_none() {
                self.arm_retransmission(host.now);
            }
            return true;
        }
        self.fallback_state.retransmitted = true;
        self.send.on_reinjected(range, path, host.now);
        if let Some(count) = self.counters.reinjected_bytes.get_mut(cause as usize) {
            *count += bytes;
        }
        self.trace(host, StackDecision::Reinjected { number, bytes, cause });
        true
    }
}
