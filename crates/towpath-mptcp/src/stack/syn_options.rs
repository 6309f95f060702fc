//! Options of a SYN that was accepted without connection state.

use towpath_wire::{Ecn, Flags, MptcpOption, Options, Payload, Segment, Timestamps};

/// Maximum window scale (RFC 7323 §2.3).
const MAX_WINDOW_SHIFT: u8 = 14;

/// Options of a SYN, without its addresses and sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SynOptions {
    pub(super) mss: Option<u16>,
    pub(super) window_scale: Option<u8>,
    pub(super) sack: bool,
    pub(super) ecn: bool,
    /// Timestamp value of the peer's clock.
    pub(super) timestamp: Option<u32>,
    pub(super) window: u16,
}

impl SynOptions {
    pub(super) fn of(syn: &Segment) -> Self {
        let Options { mss, window_scale, sack_permitted, timestamps, .. } = &syn.options;
        Self {
            mss: *mss,
            window_scale: window_scale.map(|shift| shift.min(MAX_WINDOW_SHIFT)),
            sack: *sack_permitted,
            ecn: syn.flags.contains(Flags::ECE) && syn.flags.contains(Flags::CWR),
            timestamp: timestamps.map(|stamps| stamps.value),
            window: syn.window,
        }
    }

    /// Returns the SYN that offered these options, between the addresses of `segment`.
    pub(super) fn syn(&self, segment: &Segment, seq: u32, option: Option<MptcpOption>) -> Segment {
        let ecn = if self.ecn { Flags::ECE.with(Flags::CWR) } else { Flags::default() };
        Segment {
            source: segment.source,
            destination: segment.destination,
            seq,
            ack: 0,
            flags: Flags::SYN.with(ecn),
            window: self.window,
            ecn: Ecn::NotCapable,
            options: Options {
                mss: self.mss,
                window_scale: self.window_scale,
                sack_permitted: self.sack,
                timestamps: self.timestamp.map(|value| Timestamps { value, echo: 0 }),
                mptcp: option.into_iter().collect(),
                ..Options::default()
            },
            payload: Payload::EMPTY,
            segment_bytes: 0,
        }
    }
}
