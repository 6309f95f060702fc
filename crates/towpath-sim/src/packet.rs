//! What travels over the simulated links: the stack's own packets.

use towpath_mptcp::wire;

/// A packet, or a super-segment on a path that carries them whole. Boxed: it is moved from queue to
/// queue, and most of it is header.
#[derive(Debug, Clone)]
pub(crate) struct Packet(pub(crate) Box<wire::Packet>);

impl towpath_net::Packet for Packet {
    fn len_bytes(&self) -> u32 {
        self.0.len_bytes()
    }

    fn packets(&self) -> u32 {
        self.0.packets()
    }

    fn corrupt(&mut self, random: u32) {
        self.0.corrupt(random);
    }
}
