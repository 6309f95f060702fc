//! What travels over the simulated links: the stack's own packets.

use towpath_mptcp::wire;

/// A packet, or a super-segment on a path that carries them whole. Boxed: it is moved from queue to
/// queue, and most of it is header.
#[derive(Debug, Clone)]
pub(crate) struct Packet(pub(crate) Box<wire::Packet>);

impl towpath_net::Packet for Packet {
    fn len_bytes(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn corrupt(&mut self, random: u32) {
        // A checksum that is not there yet cannot tell that the packet was damaged.
        self.0.complete_checksum();
        let bits = self.0.len().saturating_mul(8).max(1);
        let bit = usize::try_from(random).unwrap_or(0) % bits;
        let (byte, mask) = (bit / 8, 1_u8 << (bit % 8));
        let header = self.0.header.len();
        if let Some(found) = self.0.header.get_mut(byte) {
            *found ^= mask;
            return;
        }
        let mut data = self.0.payload.to_bytes().to_vec();
        if let Some(found) = data.get_mut(byte.saturating_sub(header)) {
            *found ^= mask;
        }
        self.0.payload = bytes::Bytes::from(data).into();
    }
}
