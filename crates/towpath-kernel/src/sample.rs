//! Kernel reports about a socket: `TCP_INFO`, and for Multipath TCP `MPTCP_FULL_INFO`.
//!
//! Layouts are those of `linux/tcp.h` and `linux/mptcp.h`; they only ever grow at the end, so a
//! field that an older kernel does not fill reads as zero.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use towpath_netlink::u32_at;
use towpath_os::sys;

/// Buffer for `struct tcp_info` of this and later kernels.
const TCP_INFO_BYTES: usize = 320;
/// `struct mptcp_subflow_info`: an id and two socket addresses of 128 bytes.
const SUBFLOW_INFO_BYTES: usize = 264;
/// `struct mptcp_subflow_addrs`: two socket addresses of 128 bytes.
const SUBFLOW_ADDRESSES_BYTES: usize = 256;
/// `struct mptcp_subflow_data`, the header of an array of these structures.
const SUBFLOW_DATA_BYTES: usize = 16;
/// Upper bound of subflows: the kernel's path managers make at most 8 additional ones.
const MAX_SUBFLOWS: usize = 32;
/// `SO_MEMINFO` of `asm-generic/socket.h`, which the `libc` crate lacks on some targets.
const SO_MEMINFO: i32 = 55;

/// Fields of `struct tcp_info` that a result shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpInfo {
    /// `tcpi_state`: the kernel's number of the state.
    pub state: u8,
    /// 0 open, 1 disorder, 2 reduced, 3 recovery, 4 loss (`enum tcp_ca_state`).
    pub ca_state: u8,
    /// `tcpi_backoff`: doublings of the retransmission timeout.
    pub backoff: u8,
    /// `tcpi_rto`.
    pub rto_us: u32,
    /// `tcpi_snd_mss`.
    pub mss_bytes: u32,
    /// `tcpi_unacked`, in packets.
    pub unacked: u32,
    /// `tcpi_sacked`, in packets.
    pub sacked: u32,
    /// `tcpi_lost`, in packets.
    pub lost: u32,
    /// `tcpi_retrans`: retransmitted packets in flight.
    pub retrans_now: u32,
    /// Milliseconds since payload was last sent.
    pub last_data_sent_ms: u32,
    /// Milliseconds since the last acknowledgement arrived.
    pub last_ack_received_ms: u32,
    /// `tcpi_rtt`: smoothed round-trip time.
    pub srtt_us: u32,
    /// `tcpi_rttvar`: variation of the round-trip time.
    pub rttvar_us: u32,
    /// `tcpi_snd_ssthresh`, in packets.
    pub ssthresh: u32,
    /// `tcpi_snd_cwnd`, in packets.
    pub cwnd: u32,
    /// `tcpi_total_retrans`: packets retransmitted so far.
    pub total_retrans: u32,
    /// `tcpi_bytes_acked`.
    pub bytes_acked: u64,
    /// `tcpi_bytes_received`.
    pub bytes_received: u64,
    /// `tcpi_bytes_sent`.
    pub bytes_sent: u64,
    /// Bytes among `bytes_sent` that were retransmitted.
    pub bytes_retrans: u64,
    /// `tcpi_pacing_rate`, in bytes per second.
    pub pacing_bytes_per_s: u64,
    /// Bytes taken from the application and not sent yet.
    pub notsent_bytes: u32,
    /// `tcpi_min_rtt`.
    pub min_rtt_us: u32,
    /// Delivery rate according to the last acknowledgements.
    pub delivery_bytes_per_s: u64,
    /// Set when the application, rather than the path, limited that rate.
    pub delivery_app_limited: bool,
    /// Time with data to send or unacknowledged data, in whole jiffies.
    pub busy_us: u64,
    /// Part of `busy_us` in which the peer's receive window was full.
    pub rwnd_limited_us: u64,
    /// Part of `busy_us` with a send buffer too small for the congestion window.
    pub sndbuf_limited_us: u64,
    /// Receive window that the peer has offered (since Linux 6.2).
    pub snd_wnd_bytes: Option<u32>,
    /// Packets sent with payload, retransmissions included.
    pub data_segs_out: u32,
    /// Packets that the peer reported as duplicates (DSACK).
    pub dsack_dups: u32,
    /// Set when packets carry timestamps.
    pub timestamps: bool,
}

impl TcpInfo {
    /// Kernel's number of the established state.
    pub const ESTABLISHED: u8 = 1;
    /// Kernel's number of the closed state.
    pub const CLOSED: u8 = 7;
    /// State of a QUIC path whose peer has not replied yet; the kernel has no such number.
    pub const QUIC_VALIDATING: u8 = 101;
    /// State of an abandoned QUIC path.
    pub const QUIC_ABANDONED: u8 = 102;

    /// Parses the kernel's structure.
    pub fn parse(bytes: &[u8]) -> Self {
        let byte = |offset: usize| bytes.get(offset).copied().unwrap_or(0);
        let u32_at = |offset: usize| u32_at(bytes, offset);
        let u64_at = |offset: usize| u64_at(bytes, offset);
        Self {
            state: byte(0),
            ca_state: byte(1),
            backoff: byte(4),
            rto_us: u32_at(8),
            mss_bytes: u32_at(16),
            unacked: u32_at(24),
            sacked: u32_at(28),
            lost: u32_at(32),
            retrans_now: u32_at(36),
            last_data_sent_ms: u32_at(44),
            last_ack_received_ms: u32_at(56),
            srtt_us: u32_at(68),
            rttvar_us: u32_at(72),
            ssthresh: u32_at(76),
            cwnd: u32_at(80),
            total_retrans: u32_at(100),
            bytes_acked: u64_at(120),
            bytes_received: u64_at(128),
            bytes_sent: u64_at(200),
            bytes_retrans: u64_at(208),
            pacing_bytes_per_s: u64_at(104),
            notsent_bytes: u32_at(144),
            min_rtt_us: u32_at(148),
            delivery_bytes_per_s: u64_at(160),
            delivery_app_limited: byte(7) & 1 != 0,
            busy_us: u64_at(168),
            rwnd_limited_us: u64_at(176),
            sndbuf_limited_us: u64_at(184),
            snd_wnd_bytes: (bytes.len() >= 232).then(|| u32_at(228)),
            data_segs_out: u32_at(156),
            dsack_dups: u32_at(216),
            timestamps: byte(5) & 1 != 0,
        }
    }

    /// Packets in flight, as Linux's `tcp_packets_in_flight` counts them.
    pub(crate) fn in_flight(&self) -> u32 {
        self.unacked
            .saturating_add(self.retrans_now)
            .saturating_sub(self.sacked.saturating_add(self.lost))
    }

    /// Name of the state (`include/net/tcp_states.h`).
    pub fn state_name(&self) -> &'static str {
        match self.state {
            Self::ESTABLISHED => "established",
            2 => "syn-sent",
            3 => "syn-recv",
            4 => "fin-wait-1",
            5 => "fin-wait-2",
            6 => "time-wait",
            7 => "close",
            8 => "close-wait",
            9 => "last-ack",
            10 => "listen",
            11 => "closing",
            Self::QUIC_VALIDATING => "validating",
            Self::QUIC_ABANDONED => "abandoned",
            _ => "unknown",
        }
    }
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
}

/// Sample of one subflow, at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowSample {
    /// Number of a QUIC path, as paths may succeed each other between the same addresses; else 0.
    pub number: u32,
    /// Our address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Set for a backup; `None` where the sample does not include that.
    pub backup: Option<bool>,
    /// STREAM frames received on a QUIC path; `None` for TCP.
    pub stream_frames: Option<u64>,
    /// Congestion control, where reading it needs no other socket.
    pub congestion_control: Option<&'static str>,
    /// `TCP_INFO` of the subflow.
    pub info: TcpInfo,
}

/// Fields of `struct mptcp_info` that a result shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MptcpInfo {
    /// Set when the connection has fallen back to TCP.
    pub fallback: bool,
    /// Set when the peer has sent its key, that is, supports Multipath TCP.
    pub remote_key: bool,
    /// Local token, which identifies the connection on this host.
    pub token: u32,
    /// Payload bytes reinjected on another subflow.
    pub bytes_retrans: u64,
    /// Payload bytes received, each once (since Linux 6.5).
    pub bytes_received: u64,
    /// Payload bytes acknowledged, each once (since Linux 6.5).
    pub bytes_acked: u64,
    /// Payload bytes given to subflows, each once (since Linux 6.5).
    pub bytes_sent: u64,
    /// Sequence number after the last byte that the application wrote.
    pub write_seq: u64,
    /// Sequence number of the first unacknowledged byte.
    pub snd_una: u64,
}

impl MptcpInfo {
    /// Parses `struct tcp_info`; fields behind the end of `bytes` are 0.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            fallback: u32_at(bytes, 8) & 1 != 0,
            remote_key: u32_at(bytes, 8) & 2 != 0,
            token: u32_at(bytes, 12),
            bytes_retrans: u64_at(bytes, 48),
            bytes_received: u64_at(bytes, 64),
            bytes_acked: u64_at(bytes, 72),
            bytes_sent: u64_at(bytes, 56),
            write_seq: u64_at(bytes, 16),
            snd_una: u64_at(bytes, 24),
        }
    }
}

/// Sample of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a sample is on the stack for one period")]
pub enum ConnectionSample {
    /// Multipath TCP, with its subflows.
    Multipath(MptcpInfo, Vec<SubflowSample>),
    /// Plain TCP, possibly after a fallback, with its reason if this end knows it.
    Single(SubflowSample, Option<String>),
}

/// Samples a socket of the kernel; `Err` when the socket is not connected.
pub fn connection(socket: &socket2::Socket, multipath: bool) -> io::Result<ConnectionSample> {
    if multipath {
        // `MPTCP_FULL_INFO` came with Linux 6.5, the others with 5.16. All fail after a fallback to
        // TCP.
        let multipath_info = full_info(socket.as_fd()).or_else(|_| separate_info(socket.as_fd()));
        if let Ok((info, subflows)) = multipath_info {
            return Ok(ConnectionSample::Multipath(info, subflows));
        }
    }
    let mut bytes = [0; TCP_INFO_BYTES];
    let length = sys::get_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    let address = |address: io::Result<socket2::SockAddr>| {
        // A socket of a dual-stack listener has IPv4-mapped addresses.
        let address = address?.as_socket().map(unmapped);
        address.ok_or_else(|| io::Error::other("not an IP socket"))
    };
    let sample = SubflowSample {
        number: 0,
        backup: None,
        stream_frames: None,
        local: address(socket.local_addr())?,
        remote: address(socket.peer_addr())?,
        congestion_control: None,
        info: TcpInfo::parse(bytes.get(..length).unwrap_or(&[])),
    };
    Ok(ConnectionSample::Single(sample, None))
}

fn full_info(socket: BorrowedFd<'_>) -> io::Result<(MptcpInfo, Vec<SubflowSample>)> {
    let mut request = [0; sys::FULL_INFO_BYTES];
    let mut tcp_infos = [0; TCP_INFO_BYTES * MAX_SUBFLOWS];
    let mut addresses = [0; SUBFLOW_INFO_BYTES * MAX_SUBFLOWS];
    // size_tcpinfo_user, size_sfinfo_user, size_arrays_user; the rest must be zero.
    for (offset, value) in [(4, TCP_INFO_BYTES), (12, SUBFLOW_INFO_BYTES), (20, MAX_SUBFLOWS)] {
        if let Some(slot) = request.get_mut(offset..offset + 4) {
            slot.copy_from_slice(&(value as u32).to_ne_bytes());
        }
    }
    sys::mptcp_full_info(socket, &mut request, &mut tcp_infos, &mut addresses)?;
    Ok(parse_full_info(&request, &tcp_infos, &addresses))
}

/// Queries in three calls, for older kernels.
///
/// A subflow that starts or ends in between appears in the next sample.
fn separate_info(socket: BorrowedFd<'_>) -> io::Result<(MptcpInfo, Vec<SubflowSample>)> {
    let mut bytes = [0; 128];
    let length = sys::get_option(socket, sys::SOL_MPTCP, sys::MPTCP_INFO, &mut bytes)?;
    let info = MptcpInfo::parse(bytes.get(..length).unwrap_or(&[]));
    let tcp_infos = subflow_array(socket, sys::MPTCP_TCPINFO, TCP_INFO_BYTES)?;
    let addresses = subflow_array(socket, sys::MPTCP_SUBFLOW_ADDRS, SUBFLOW_ADDRESSES_BYTES)?;
    let pairs = tcp_infos.iter().zip(&addresses);
    let subflows = pairs.filter_map(|(info, pair)| {
        Some(SubflowSample {
            number: 0,
            backup: None,
            stream_frames: None,
            local: socket_address(pair.get(..128)?)?,
            remote: socket_address(pair.get(128..256)?)?,
            congestion_control: None,
            info: TcpInfo::parse(info),
        })
    });
    Ok((info, subflows.collect()))
}

/// Returns one element per subflow, of at most `size` bytes.
///
/// The kernel lowers the size to what it fills.
fn subflow_array(socket: BorrowedFd<'_>, option: i32, size: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut bytes = vec![0; SUBFLOW_DATA_BYTES + size * MAX_SUBFLOWS];
    for (offset, value) in [(0, SUBFLOW_DATA_BYTES), (12, size)] {
        if let Some(slot) = bytes.get_mut(offset..offset + 4) {
            slot.copy_from_slice(&(value as u32).to_ne_bytes());
        }
    }
    sys::get_option(socket, sys::SOL_MPTCP, option, &mut bytes)?;
    let count = (u32_at(&bytes, 4) as usize).min(MAX_SUBFLOWS);
    let stride = (u32_at(&bytes, 12) as usize).max(1);
    let elements = bytes.get(SUBFLOW_DATA_BYTES..).unwrap_or(&[]).chunks(stride);
    Ok(elements.take(count).map(<[u8]>::to_vec).collect())
}

/// The kernel lowers the two sizes to what it filled and uses *those* as strides.
fn parse_full_info(
    request: &[u8],
    tcp_infos: &[u8],
    addresses: &[u8],
) -> (MptcpInfo, Vec<SubflowSample>) {
    let tcp_stride = (u32_at(request, 4) as usize).max(1);
    let address_stride = (u32_at(request, 12) as usize).max(1);
    let count = (u32_at(request, 16) as usize).min(MAX_SUBFLOWS);
    let subflows = tcp_infos
        .chunks(tcp_stride)
        .zip(addresses.chunks(address_stride))
        .take(count)
        .filter_map(|(info, pair)| {
            Some(SubflowSample {
                number: 0,
                backup: None,
                stream_frames: None,
                local: socket_address(pair.get(8..136)?)?,
                remote: socket_address(pair.get(136..264)?)?,
                congestion_control: None,
                info: TcpInfo::parse(info),
            })
        })
        .collect();
    (MptcpInfo::parse(request.get(40..).unwrap_or(&[])), subflows)
}

/// Converts an IPv4-mapped address to IPv4.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    let ip: IpAddr = match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
        libc::AF_INET6 => {
            let v6 = Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?);
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns the occupied and the maximum bytes of a socket's send buffer, with overhead
/// (`SO_MEMINFO`).
pub fn send_buffer(socket: &socket2::Socket) -> io::Result<(u64, u64)> {
    let mut bytes = [0; 36];
    sys::get_option(socket.as_fd(), libc::SOL_SOCKET, SO_MEMINFO, &mut bytes)?;
    // SK_MEMINFO_WMEM_QUEUED and SK_MEMINFO_SNDBUF (linux/sock_diag.h).
    Ok((u32_at(&bytes, 5 * 4).into(), u32_at(&bytes, 3 * 4).into()))
}

/// Requests a congestion control for a socket.
pub fn set_congestion_control(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes())
}

/// Returns true if the connection uses Multipath TCP at this endpoint. The kernel has no
/// `MPTCP_INFO` for plain TCP or after a fallback.
pub fn is_multipath(socket: &socket2::Socket) -> bool {
    let mut info = [0; 128];
    sys::get_option(socket.as_fd(), sys::SOL_MPTCP, sys::MPTCP_INFO, &mut info).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_second_subflow_is_found_at_the_strides_that_the_kernel_returns() {
        let mut request = [0; sys::FULL_INFO_BYTES];
        request[4..8].copy_from_slice(&280u32.to_ne_bytes());
        request[12..16].copy_from_slice(&264u32.to_ne_bytes());
        request[16..20].copy_from_slice(&2u32.to_ne_bytes());
        request[52..56].copy_from_slice(&0xabcd_u32.to_ne_bytes());
        let mut infos = [0; 640];
        infos[280] = 1;
        infos[280 + 68..280 + 72].copy_from_slice(&15_000u32.to_ne_bytes());
        let mut addresses = [0; 640];
        for (offset, last_octet) in [(8, 1), (136, 2), (264 + 8, 3), (264 + 136, 4)] {
            addresses[offset..offset + 2].copy_from_slice(&2u16.to_ne_bytes());
            addresses[offset + 2..offset + 8].copy_from_slice(&[0x14, 0x51, 10, 64, 0, last_octet]);
        }
        let (info, subflows) = parse_full_info(&request, &infos, &addresses);
        assert_eq!((info.token, info.fallback), (0xabcd, false));
        assert_eq!(subflows.len(), 2);
        assert_eq!(subflows[1].local, "10.64.0.3:5201".parse().unwrap());
        assert_eq!(subflows[1].remote, "10.64.0.4:5201".parse().unwrap());
        assert_eq!(subflows[1].info.srtt_us, 15_000);
        assert_eq!(subflows[1].info.state_name(), "established");
    }

    proptest! {
        #[test]
        fn no_reply_of_the_kernel_causes_a_panic(
            request in proptest::collection::vec(any::<u8>(), 0..140),
            infos in proptest::collection::vec(any::<u8>(), 0..700),
        ) {
            let _ = parse_full_info(&request, &infos, &infos);
            let _ = TcpInfo::parse(&infos).in_flight();
        }
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn old_and_new_socket_options_give_the_same_result() {
        use socket2::{Domain, Protocol, SockAddr, Socket, Type};
        let address = SockAddr::from("127.0.0.1:0".parse::<SocketAddr>().unwrap());
        let create_socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
        let listener = match create_socket() {
            Ok(listener) => listener,
            Err(error) => {
                eprintln!("skipped: this kernel does not support Multipath TCP: {error}");
                assert!(std::env::var_os("CI").is_none(), "nothing is skipped in CI: {error}");
                return;
            }
        };
        listener.bind(&address).unwrap();
        listener.listen(1).unwrap();
        let client = create_socket().unwrap();
        client.connect(&listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.send(b"towpath").unwrap();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 16];
        assert_eq!(server.recv(&mut buffer).unwrap(), 7);
        let (new_info, new_subflows) = full_info(server.as_fd()).unwrap();
        let (old_info, old_subflows) = separate_info(server.as_fd()).unwrap();
        assert_eq!((new_info.token, new_info.fallback), (old_info.token, old_info.fallback));
        let summaries = |subflows: &[SubflowSample]| -> Vec<_> {
            subflows
                .iter()
                .map(|subflow| (subflow.local, subflow.remote, subflow.info.bytes_received))
                .collect()
        };
        assert_eq!(summaries(&new_subflows), summaries(&old_subflows));
        assert_eq!(new_subflows.len(), 1);
    }

    #[test]
    fn a_mapped_address_is_shown_as_ipv4() {
        let mut bytes = [0; 128];
        bytes[0..2].copy_from_slice(&10u16.to_ne_bytes());
        bytes[8 + 10..8 + 16].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(socket_address(&bytes).unwrap().ip(), "10.0.0.1".parse::<IpAddr>().unwrap());
    }

    /// Regression: the addresses of an accepted socket did not match those of the socket listing,
    /// so that the server's congestion control was missing in results.
    #[test]
    fn a_socket_of_a_dual_stack_listener_has_ipv4_addresses() {
        use socket2::{Domain, SockAddr, Socket, Type};
        let listener = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        listener.set_only_v6(false).unwrap();
        listener.bind(&SockAddr::from("[::]:0".parse::<SocketAddr>().unwrap())).unwrap();
        listener.listen(1).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.connect(&SockAddr::from(loopback)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let ConnectionSample::Single(sample, _) = connection(&server, false).unwrap() else {
            panic!("it is not multipath");
        };
        let client_address = client.local_addr().unwrap().as_socket().unwrap();
        assert_eq!((sample.local, sample.remote), (loopback, client_address));
    }
}
