//! Packet size: the peer's limit, the path's limit and options (RFC 9293 §3.7.1, RFC 1191, RFC
//! 8201). Searches for a smaller limit when full packets vanish (RFC 4821 §7.7).

/// Minimum payload of a packet, regardless of the peer or ICMP (Linux `tcp_min_snd_mss` is 48).
const MIN_SND_MSS: u32 = 48;
/// Lower limit of the search for black holes.
const MIN_PROBED_MSS: u32 = 512;
/// Minimum MTU of every IPv4 link (RFC 1191 §3).
const MIN_IPV4_MTU: u32 = 68;
/// Common MTUs of links (RFC 1191 §7.1).
const PLATEAUS: [u32; 9] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296];
/// Bytes of the timestamps option with padding (RFC 7323 appendix A).
pub(super) const TIMESTAMP_BYTES: u32 = 12;

/// Packet size limits of the path, the peer and the interface.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathMtu {
    /// Current path MTU.
    mtu_bytes: u32,
    interface_mtu_bytes: u32,
    pub(super) ipv6: bool,
    peer_mss: Option<u16>,
    mss_cap: Option<u32>,
    /// Bytes of the owner's options on data packets.
    data_option_bytes: u16,
    timestamps: bool,
}

impl PathMtu {
    pub(super) fn new(mtu_bytes: u32) -> Self {
        Self {
            mtu_bytes,
            interface_mtu_bytes: mtu_bytes,
            ipv6: false,
            peer_mss: None,
            mss_cap: None,
            data_option_bytes: 0,
            timestamps: false,
        }
    }

    fn header_bytes(&self) -> u32 {
        if self.ipv6 { 60 } else { 40 }
    }

    fn min_mtu(&self) -> u32 {
        if self.ipv6 { 1280 } else { MIN_IPV4_MTU }
    }

    /// Returns the MSS to advertise, without options (RFC 6691 §2). The path MTU to the peer does
    /// not reduce it, since the return path may differ (RFC 8201 §5.4).
    pub(super) fn advertised(&self) -> u16 {
        u16::try_from(self.interface_mtu_bytes.saturating_sub(self.header_bytes()))
            .unwrap_or(u16::MAX)
    }

    /// Applies the peer's MSS option, or its default (RFC 9293 §3.7.1).
    pub(super) fn negotiate(&mut self, peer_mss: Option<u16>, timestamps: bool) {
        self.peer_mss = Some(peer_mss.unwrap_or(if self.ipv6 { 1220 } else { 536 }));
        self.timestamps = timestamps;
    }

    pub(super) fn set_mss_cap(&mut self, bytes: Option<u32>) {
        self.mss_cap = bytes;
    }

    pub(super) fn set_data_option_bytes(&mut self, bytes: u16) {
        self.data_option_bytes = bytes;
    }

    pub(super) fn data_option_bytes(&self) -> u16 {
        self.data_option_bytes
    }

    /// Returns the payload of a full packet without options, as the peer and the link allow it.
    pub(super) fn segment_bytes(&self) -> u32 {
        let path_mss = self.mtu_bytes.saturating_sub(self.header_bytes());
        path_mss.min(self.peer_mss.map_or(u32::MAX, u32::from))
    }

    /// Returns the payload bytes of a full packet.
    pub(super) fn packet_bytes(&self) -> u32 {
        let segment = self.segment_bytes();
        let timestamps = if self.timestamps { TIMESTAMP_BYTES } else { 0 };
        let options = timestamps + u32::from(self.data_option_bytes);
        let payload = segment.saturating_sub(options).min(self.mss_cap.unwrap_or(u32::MAX));
        payload.clamp(MIN_SND_MSS, u32::from(u16::MAX))
    }

    /// Applies a router's MTU (RFC 1191 §5); returns true if packets get smaller. Routers older
    /// than RFC 1191 report 0.
    pub(super) fn reduce(&mut self, mtu_bytes: u32) -> bool {
        let mtu_bytes = match mtu_bytes {
            // RFC 8201 §4: every IPv6 link carries 1280, so a smaller value is false.
            0..1280 if self.ipv6 => return false,
            // RFC 1191 §5: the next smaller common MTU.
            0 => PLATEAUS.into_iter().find(|size| *size < self.mtu_bytes).unwrap_or(MIN_IPV4_MTU),
            reported => reported.max(MIN_IPV4_MTU),
        };
        let gets_smaller = mtu_bytes < self.mtu_bytes;
        self.mtu_bytes = self.mtu_bytes.min(mtu_bytes);
        gets_smaller
    }

    /// Halves the packet size because full packets vanish; returns true if packets get smaller.
    pub(super) fn halve(&mut self) -> bool {
        let halved = self.packet_bytes() / 2;
        let overhead = self.mtu_bytes.min(self.header_bytes() + 40);
        self.packet_bytes() > MIN_PROBED_MSS
            && self.reduce((halved.max(MIN_PROBED_MSS) + overhead).max(self.min_mtu()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reduce_what_a_packet_carries() {
        let mut mtu = PathMtu::new(1500);
        assert_eq!(mtu.advertised(), 1460);
        mtu.negotiate(Some(1400), true);
        assert_eq!(mtu.packet_bytes(), 1388);
        mtu.set_data_option_bytes(20);
        assert_eq!(mtu.packet_bytes(), 1368);
        mtu.set_mss_cap(Some(1000));
        assert_eq!(mtu.packet_bytes(), 1000);
        assert!(!mtu.reduce(1500));
        assert!(mtu.reduce(576));
        assert_eq!(mtu.packet_bytes(), 576 - 40 - 12 - 20);
    }

    #[test]
    fn without_an_option_the_peer_takes_536_bytes() {
        let mut mtu = PathMtu::new(1500);
        mtu.negotiate(None, false);
        assert_eq!(mtu.packet_bytes(), 536);
    }

    #[test]
    fn a_router_that_names_no_size_gets_the_next_usual_one() {
        let mut mtu = PathMtu::new(1500);
        let mut sizes = Vec::new();
        while mtu.reduce(0) {
            sizes.push(mtu.mtu_bytes);
        }
        assert_eq!(sizes, [1492, 1006, 508, 296, 68]);
    }

    #[test]
    fn no_message_raises_the_pmtu_or_lowers_it_below_the_minimum() {
        for (ipv6, min_mtu) in [(false, 68), (true, 1280)] {
            let mut mtu = PathMtu { ipv6, ..PathMtu::new(1500) };
            assert!(mtu.reduce(1400) && !mtu.reduce(1400) && !mtu.reduce(1500));
            assert_eq!(mtu.mtu_bytes, 1400);
            assert_eq!(mtu.reduce(1), !ipv6, "over IPv6 such a message is discarded");
            assert_eq!(mtu.reduce(1280), ipv6);
            while mtu.halve() {}
            assert!(mtu.mtu_bytes >= min_mtu);
        }
        let mut mtu = PathMtu { ipv6: true, ..PathMtu::new(1500) };
        assert!(!mtu.reduce(1279));
        assert_eq!(mtu.mtu_bytes, 1500);
    }

    #[test]
    fn the_advertised_mss_is_our_limit_and_not_the_path_mtu() {
        let mut mtu = PathMtu { ipv6: true, ..PathMtu::new(1500) };
        assert_eq!(mtu.advertised(), 1440);
        mtu.reduce(1300);
        assert_eq!(mtu.advertised(), 1440);
        mtu.negotiate(None, false);
        assert_eq!(mtu.packet_bytes(), 1220, "RFC 9293 §3.7.1 without the option");
    }
}
