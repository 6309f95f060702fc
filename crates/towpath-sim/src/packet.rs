//! Packets that travel over the simulated links: those of the stack.

use towpath_net::Instant;
use towpath_wire as wire;

/// A packet, or a super-segment on a path that carries them whole. Boxed, because it moves from
/// queue to queue and is mostly header.
#[derive(Debug, Clone)]
pub(crate) struct SimPacket {
    pub(crate) inner: Box<wire::Packet>,
    /// Hop of the packet's route whose capacity it uses.
    pub(crate) hop: usize,
    /// Time at which that hop's server released the packet; `None` before.
    pub(crate) served_at: Option<Instant>,
}

impl towpath_net::Packet for SimPacket {
    fn len_bytes(&self) -> u32 {
        self.inner.len_bytes()
    }

    fn packets(&self) -> u32 {
        self.inner.packets()
    }

    fn on_served(&mut self, hop: usize, at: Instant) {
        if hop == self.hop {
            self.served_at = Some(at);
        }
    }

    fn corrupt(&mut self, random: u32) {
        self.inner.corrupt(random);
    }
}
