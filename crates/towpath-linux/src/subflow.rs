//! From what the kernel says of a subflow to what a result says of it.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::result::{Subflow, SubflowEnd};
use towpath_measure::scenario::DataDirection;
use towpath_net::Instant;

use crate::netlink::{DiagSocket, SocketDiag, StateFilter, SubflowFlags};
use crate::sample::TcpInfo;

/// A subflow as the result names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubflowLabel<'a> {
    pub(crate) flow: u32,
    pub(crate) stream: u32,
    pub(crate) number: u32,
    pub(crate) path: &'a str,
    pub(crate) backup: bool,
}

impl SubflowLabel<'_> {
    /// What an end that `sends` data of `direction`, or receives it, did between two samples.
    pub(crate) fn record(
        self,
        direction: DataDirection,
        sends: bool,
        (before, now): (&TcpInfo, &TcpInfo),
        (at, span): (Instant, Duration),
    ) -> Subflow {
        let bytes = if sends {
            now.bytes_acked.saturating_sub(before.bytes_acked)
        } else {
            now.bytes_received.saturating_sub(before.bytes_received)
        };
        Subflow {
            t_ns: at.as_nanos(),
            span_ns: span.as_nanos() as u64,
            flow: self.flow,
            stream: self.stream,
            direction,
            side: if sends { SubflowEnd::Sender } else { SubflowEnd::Receiver },
            subflow: self.number,
            path: self.path.to_owned(),
            state: now.state_name().to_owned(),
            backup: self.backup,
            bytes,
            bytes_sent: now.bytes_sent,
            bytes_acked: now.bytes_acked,
            bytes_received: now.bytes_received,
            srtt_us: now.srtt_us,
            rttvar_us: now.rttvar_us,
            rto_us: now.rto_us,
            backoff: u32::from(now.backoff),
            cwnd_packets: now.cwnd,
            ssthresh_packets: now.ssthresh,
            in_flight_packets: now.in_flight(),
            retransmissions: now.total_retrans,
            mss_bytes: now.mss_bytes,
            sender_activity: None,
        }
    }
}

/// A TCP socket of this network namespace, as far as its own connection does not tell it.
#[derive(Debug, Clone)]
pub(crate) struct KernelSubflow {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The congestion control that it really uses; what a Multipath TCP connection says of itself is
    /// only what it was told.
    pub(crate) congestion: Option<String>,
    /// A subflow that one of the ends asked to use as a backup.
    pub(crate) backup: bool,
}

/// All TCP sockets of this network namespace that have a peer.
pub(crate) fn list_kernel_subflows() -> Vec<KernelSubflow> {
    let listed = SocketDiag::open().and_then(|mut diag| diag.tcp(StateFilter::CONNECTED));
    let all = listed.unwrap_or_default().into_iter().map(|socket| {
        let asked = |flag| socket.subflow.is_some_and(|subflow| subflow.flags.contains(flag));
        KernelSubflow {
            local: unmapped(socket.local),
            remote: unmapped(socket.remote),
            backup: asked(SubflowFlags::BACKUP_LOCAL) || asked(SubflowFlags::BACKUP_REMOTE),
            congestion: socket.congestion,
        }
    });
    all.collect()
}

/// The congestion controls of those sockets, by their own and the other end's address.
pub(crate) fn congestion_controls() -> Vec<(SocketAddr, SocketAddr, String)> {
    let named = list_kernel_subflows().into_iter();
    named.filter_map(|one| Some((one.local, one.remote, one.congestion?))).collect()
}

/// Both ends of a socket, with IPv4 as IPv4.
pub(crate) fn canonical_addresses(socket: &DiagSocket) -> (SocketAddr, SocketAddr) {
    (unmapped(socket.local), unmapped(socket.remote))
}

/// An IPv4 address that a dual-stack socket shows as IPv6, as IPv4.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
