//! Send window and receive window (RFC 9293 §3.8.6).

/// Send window: the limit that the peer sets for our data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SendWindow {
    /// Window in bytes, as last advertised.
    pub(super) bytes: u64,
    /// Largest window so far: an estimate of the peer's buffer.
    pub(super) largest: u64,
    /// SND.UNA, SEG.SEQ and SEG.ACK when it was advertised.
    base: u64,
    seq: u64,
    ack: u64,
    /// Window scale of the peer's window fields.
    pub(super) shift: u8,
    /// Ignore a smaller window in a repeated acknowledgement, as Linux does
    /// (`tcp_may_update_window`).
    pub(super) keeps_larger: bool,
}

impl SendWindow {
    /// Creates an unknown window; see [`Self::keeps_larger`].
    pub(super) fn new(keeps_larger: bool) -> Self {
        Self { keeps_larger, ..Self::default() }
    }

    /// Applies a window field if the segment is not older than the last used (RFC 9293 §3.10.7.4,
    /// SND.WL1 and SND.WL2). Returns true if the window changed.
    pub(super) fn update(&mut self, field: u16, seq: u64, ack: u64) -> bool {
        if (self.seq, self.ack) > (seq, ack) {
            return false;
        }
        let bytes = u64::from(field) << self.shift;
        let is_duplicate = ack == self.ack && seq == self.seq;
        if self.keeps_larger && is_duplicate && bytes < self.bytes && bytes > 0 {
            return false;
        }
        let changed = bytes != self.bytes;
        (self.seq, self.ack, self.base, self.bytes) = (seq, ack, self.base.max(ack), bytes);
        self.largest = self.largest.max(bytes);
        changed
    }

    /// Applies the window field of a SYN, which is never scaled (RFC 7323 §2.2).
    pub(super) fn apply_syn(&mut self, field: u16) {
        self.bytes = u64::from(field);
        self.largest = self.bytes;
        self.base = 1;
    }

    /// Raises the window to `bytes` from the first unacknowledged byte on. The connection's window
    /// may exceed the last window field received here (RFC 8684 §3.3.4).
    pub(super) fn raise(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
        self.largest = self.largest.max(bytes);
    }

    /// Ends the window at `offset`, where the connection's window ends, even if the last window
    /// field here was larger.
    pub(super) fn end_at(&mut self, offset: u64) {
        self.bytes = self.bytes.min(offset.saturating_sub(self.base));
    }

    /// Returns the right edge of the window as an offset.
    pub(super) fn edge(&self) -> u64 {
        self.base + self.bytes
    }

    /// Returns the bytes that may be sent from `offset` on.
    pub(super) fn usable(&self, offset: u64) -> u64 {
        self.edge().saturating_sub(offset)
    }
}

/// Receive window: the limit that we set for the peer's data.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveWindow {
    /// Window in bytes that we offer now.
    bytes: u64,
    /// Set when several subflows share the window.
    pub(super) shared: bool,
    /// Largest window so far.
    largest: u64,
    /// Right edge as the peer knows it.
    edge: u64,
    /// Window in bytes, as last advertised.
    advertised: u64,
    /// Our window scale, if both sides scale.
    pub(super) shift: u8,
    /// Maximum out-of-order bytes held, regardless of the offered window: at most 4 GiB.
    pub(super) max_out_of_order_bytes: u32,
}

impl ReceiveWindow {
    pub(super) fn new() -> Self {
        let bytes = u64::from(u16::MAX);
        let max_out_of_order_bytes = u32::MAX;
        Self {
            bytes,
            shared: false,
            largest: 0,
            edge: 1,
            advertised: 0,
            shift: 0,
            max_out_of_order_bytes,
        }
    }

    pub(super) fn set(&mut self, bytes: u64, shared: bool) {
        (self.bytes, self.shared) = (bytes, shared);
        self.largest = self.largest.max(bytes);
    }

    /// Returns the window that we offer now.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the advertised window that the peer has not used.
    pub(super) fn remaining(&self, next: u64) -> u64 {
        self.edge.saturating_sub(next)
    }

    /// Returns the window in bytes, as last advertised here.
    pub(super) fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Returns the end of the acceptable offsets.
    pub(super) fn limit(&self, next: u64) -> u64 {
        self.edge.max(next + self.bytes)
    }

    /// Returns the window field of a SYN, which is never scaled.
    pub(super) fn advertise_in_syn(&mut self) -> u16 {
        let field = u16::try_from(self.bytes).unwrap_or(u16::MAX);
        (self.advertised, self.edge) = (u64::from(field), 1 + u64::from(field));
        field
    }

    /// Returns the window field of a packet that acknowledges `next`, and records it as advertised.
    pub(super) fn advertise(&mut self, next: u64, mss: u64) -> u16 {
        let remaining = self.edge.saturating_sub(next);
        let unit = 1 << self.shift;
        let growth = self.bytes.saturating_sub(remaining);
        let units = if self.shared {
            // The owner's right edge must not move back either (RFC 8684 §3.3.4).
            self.bytes.div_ceil(unit)
        } else if self.bytes > remaining && (growth >= self.min_step(mss) || remaining == 0) {
            // Receiver's silly window avoidance (RFC 9293 §3.8.6.2.2): the edge moves in steps.
            (self.bytes / unit).max(remaining.div_ceil(unit))
        } else {
            remaining.div_ceil(unit)
        };
        let field = u16::try_from(units).unwrap_or(u16::MAX);
        self.advertised = u64::from(field) << self.shift;
        self.edge = self.edge.max(next + self.advertised);
        field
    }

    /// Returns the smallest increase that is advertised (RFC 9293 §3.8.6.2.2).
    fn min_step(&self, mss: u64) -> u64 {
        mss.min(self.largest / 2)
    }

    /// Returns true if the peer should receive a window update.
    pub(super) fn update_due(&self, next: u64, mss: u64) -> bool {
        let advertised = if self.shared { self.advertised } else { self.edge.saturating_sub(next) };
        // An increase that the window field cannot express needs no update.
        let representable = self.bytes.min(u64::from(u16::MAX) << self.shift);
        let growth = representable.saturating_sub(advertised);
        let is_nonzero = self.bytes >> self.shift > 0;
        is_nonzero && growth > 0 && (advertised == 0 || growth >= (2 * mss).min(self.largest / 2))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_older_segment_does_not_change_the_window() {
        let mut window = SendWindow { shift: 2, ..SendWindow::default() };
        assert!(window.update(100, 5, 10));
        assert!(!window.update(200, 4, 11));
        assert!(!window.update(200, 5, 9));
        assert_eq!((window.bytes, window.usable(10), window.usable(500)), (400, 400, 0));
        assert!(window.update(50, 6, 10));
        assert_eq!((window.bytes, window.largest), (200, 400));
    }

    proptest! {
        #[test]
        fn the_right_edge_never_moves_back(
            shift in 0u8..=14,
            steps in prop::collection::vec((0u64..200_000, 0u64..70_000), 1..50),
        ) {
            let mut window = ReceiveWindow { shift, ..ReceiveWindow::new() };
            let (mut next, mut edge) = (1u64, 1u64);
            for (bytes, received) in steps {
                window.set(bytes, false);
                let field = window.advertise(next, 1460);
                let new_edge = next + (u64::from(field) << shift);
                prop_assert!(new_edge >= edge, "edge {} after {}", new_edge, edge);
                edge = new_edge;
                next += received.min(edge - next);
            }
        }
    }

    #[test]
    fn a_shared_window_may_shrink() {
        let mut window = ReceiveWindow::new();
        window.set(60_000, true);
        assert_eq!(window.advertise(1, 1460), 60_000);
        window.set(10_000, true);
        assert_eq!(window.advertise(1, 1460), 10_000);
        assert_eq!(window.limit(1), 60_001, "what was promised is still accepted");
    }

    #[test]
    fn an_update_is_due_after_zero_and_in_steps() {
        let mut window = ReceiveWindow::new();
        window.set(10_000, false);
        assert_eq!(window.advertise(1, 1000), 10_000);
        window.set(0, false);
        assert_eq!(window.advertise(10_001, 1000), 0);
        assert!(!window.update_due(10_001, 1000));
        window.set(100, false);
        assert!(window.update_due(10_001, 1000));
        assert_eq!(window.advertise(10_001, 1000), 100);
        window.set(2_099, false);
        assert!(!window.update_due(10_001, 1000));
        window.set(2_100, false);
        assert!(window.update_due(10_001, 1000));
    }
}
