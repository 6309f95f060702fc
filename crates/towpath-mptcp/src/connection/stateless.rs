//! Stateless handshakes: no state is kept until the peer's third packet comes (RFC 4987 §3.6).
//! Builds SYN/ACKs without a subflow, and later restores a subflow as if it had sent them.

use towpath_net::Instant;
use towpath_wire::{Flags, MpJoin as JoinOption, MptcpOption, Payload, Segment};

use super::join::{self, JoinHandshake};
use super::{Connection, SubflowParams};
use crate::subflow::{Subflow, Transmit};

impl Connection {
    /// Returns the SYN/ACK of a connection that was just accepted, whose other state is dropped.
    pub(crate) fn into_syn_ack(mut self, now: Instant) -> Option<Segment> {
        self.update_windows();
        let option = self.syn_option(0);
        let flow = self.flows.first_mut()?;
        let transmit = flow.tcp.poll_transmit(now, 0)?;
        Some(build_syn_ack(flow.local, flow.remote, transmit, option))
    }

    /// Returns the SYN/ACK to a SYN with MP_JOIN, see [`Connection::accepts_join`]. `nonces`: ours,
    /// then the peer's.
    pub(crate) fn join_syn_ack(
        &self,
        params: &SubflowParams,
        syn: &Segment,
        isn: u32,
        nonces: (u32, u32),
        now: Instant,
    ) -> Option<Segment> {
        let join = JoinHandshake::responder(nonces.0, nonces.1);
        let hmac = join.local_hmac(self.local_key, self.remote_key?);
        let mut tcp = Subflow::accept(self.subflow_config(params), isn, syn, now);
        tcp.set_ipv6(params.local.is_ipv6());
        if let Some(flow) = self.flows.first() {
            tcp.set_receive_window(flow.tcp.receive_window_bytes(), true);
        }
        let option = JoinOption::SynAck {
            backup: params.backup,
            address_id: params.local_id,
            hmac: join::leftmost_64(&hmac),
            nonce: nonces.0,
        };
        let transmit = tcp.poll_transmit(now, 0)?;
        Some(build_syn_ack(params.local, params.remote, transmit, Some(MptcpOption::Join(option))))
    }

    /// Returns true if the third packet's HMAC is that of our peer. `nonces`: ours, then the
    /// peer's.
    pub(crate) fn proves_join(&self, nonces: (u32, u32), hmac: &[u8]) -> bool {
        let join = JoinHandshake::responder(nonces.0, nonces.1);
        self.remote_key.is_some_and(|key| join.verify_hmac(self.local_key, key, hmac))
    }

    /// Records that the last accepted subflow has already sent its SYN/ACK; `sent_at` is `None` if
    /// the time is not known.
    pub(crate) fn on_syn_ack_sent(&mut self, now: Instant, sent_at: Option<Instant>) {
        self.update_windows();
        if let Some(flow) = self.flows.last_mut() {
            flow.tcp.note_syn_ack_sent(now, sent_at);
        }
    }

    /// Limits SYN/ACK retransmissions of all subflows; see [`Subflow::limit_syn_acks`].
    pub(crate) fn limit_syn_acks(&mut self, retries: u32) {
        for flow in &mut self.flows {
            flow.tcp.limit_syn_acks(retries);
        }
    }
}

fn build_syn_ack(
    local: std::net::SocketAddr,
    remote: std::net::SocketAddr,
    transmit: Transmit,
    option: Option<MptcpOption>,
) -> Segment {
    let mut options = transmit.options;
    options.mptcp.extend(option);
    debug_assert!(transmit.flags.contains(Flags::SYN.with(Flags::ACK)), "a SYN/ACK comes first");
    Segment {
        source: local,
        destination: remote,
        seq: transmit.seq,
        ack: transmit.ack,
        flags: transmit.flags,
        window: transmit.window,
        ecn: transmit.ecn,
        options,
        payload: Payload::EMPTY,
        segment_bytes: 0,
    }
}
