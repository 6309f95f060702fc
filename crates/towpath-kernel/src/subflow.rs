//! Conversion of the kernel's subflow data to records of a result.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_net::Instant;
use towpath_netlink::{DiagSocket, SocketDiag, StateFilter, SubflowFlags};
use towpath_result::{Subflow, SubflowEnd};
use towpath_scenario::DataDirection;

use crate::sample::{TcpInfo, unmapped};

/// A subflow with its names in the result.
#[derive(Debug, Clone, Copy)]
pub struct SubflowLabel<'a> {
    /// Number of the flow.
    pub flow: u32,
    /// Stream within the flow.
    pub stream: u32,
    /// Number of the subflow within the connection.
    pub number: u32,
    /// Name of the path.
    pub path: &'a str,
    /// True for a backup subflow.
    pub backup: bool,
}

impl SubflowLabel<'_> {
    /// Returns the interval record of an end between two samples.
    ///
    /// The end `sends` data of `direction`, or receives it.
    pub fn record(
        self,
        direction: DataDirection,
        sends: bool,
        (before, now): (&TcpInfo, &TcpInfo),
        (time, span): (Instant, Duration),
    ) -> Subflow {
        let bytes = if sends {
            now.bytes_acked.saturating_sub(before.bytes_acked)
        } else {
            now.bytes_received.saturating_sub(before.bytes_received)
        };
        Subflow {
            t_ns: time.as_nanos(),
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

/// A TCP socket of this network namespace, with data that a Multipath TCP socket does not report
/// about it.
#[derive(Debug, Clone)]
pub struct KernelSubflow {
    /// Our address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Congestion control in use; the Multipath TCP socket reports only the configured one.
    pub congestion: Option<String>,
    /// Set when one of the ends requested the subflow as a backup.
    pub backup: bool,
}

/// Returns all TCP sockets of this network namespace that have a peer.
pub fn list_kernel_subflows() -> Vec<KernelSubflow> {
    let sockets = SocketDiag::open().and_then(|mut diag| diag.tcp(StateFilter::CONNECTED));
    let subflows = sockets.unwrap_or_default().into_iter().map(|socket| {
        let has_flag = |flag| socket.subflow.is_some_and(|subflow| subflow.flags.contains(flag));
        KernelSubflow {
            local: unmapped(socket.local),
            remote: unmapped(socket.remote),
            backup: has_flag(SubflowFlags::BACKUP_LOCAL) || has_flag(SubflowFlags::BACKUP_REMOTE),
            congestion: socket.congestion,
        }
    });
    subflows.collect()
}

/// Returns the congestion control of each connected TCP socket, with local and remote address.
pub fn congestion_controls() -> Vec<(SocketAddr, SocketAddr, String)> {
    let subflows = list_kernel_subflows().into_iter();
    subflows
        .filter_map(|subflow| Some((subflow.local, subflow.remote, subflow.congestion?)))
        .collect()
}

/// Returns both addresses of a socket, with IPv4-mapped ones as IPv4.
pub fn canonical_addresses(socket: &DiagSocket) -> (SocketAddr, SocketAddr) {
    (unmapped(socket.local), unmapped(socket.remote))
}
