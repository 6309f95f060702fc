//! Effects of ICMP messages on a connection (RFC 9293 §3.9.2.2, RFC 5461, RFC 5927).

use towpath_net::Instant;

use super::{CloseReason, IcmpError, Subflow, TcpState};

impl Subflow {
    /// Processes an ICMP message about a packet of ours. A message about no packet in flight is
    /// forged or too late, and is ignored (RFC 5927 §4.1).
    pub fn on_icmp(&mut self, now: Instant, error: IcmpError) {
        match error {
            IcmpError::TooBig { mtu_bytes, seq } if self.is_in_flight(seq) => {
                if self.path_mtu.reduce(mtu_bytes) {
                    self.apply_packet_size();
                    self.resend_too_big(now);
                }
            }
            IcmpError::Unreachable { seq, hard } if self.is_in_flight(seq) => {
                self.unreachable = true;
                // In all other states a route may return (RFC 5461 §2.1, RFC 9293 §3.9.2.2).
                if hard && self.state == TcpState::SynSent {
                    self.finish(CloseReason::Unreachable);
                }
            }
            IcmpError::TooBig { .. } | IcmpError::Unreachable { .. } => {}
        }
    }

    fn is_in_flight(&self, seq: u32) -> bool {
        if matches!(self.state, TcpState::SynSent | TcpState::SynReceived) {
            return seq == self.isn;
        }
        let distance = seq.wrapping_sub(self.wire_seq(self.send.acked_until()));
        u64::from(distance) < self.send.outstanding()
    }
}
