//! SYN packets with rising time to live: find the router that removes the option or drops the
//! packet.
//!
//! A router quotes the packet that it cannot forward (RFC 792, RFC 1812 §4.3.2.3, RFC 4443). The
//! quote shows the packet as it arrived there. The packets are sent over raw sockets. This host's
//! kernel resets replies of the target, as it knows no such connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::sys;
use towpath_wire::{Flags, MpCapable, MpJoin, MptcpOption, Options, Packet, Segment};

use super::observation::{HopProbe, HopReply, ProbeOption, TargetReply};

/// Time to live of the packets of the first round.
const NEAR_TTLS: std::ops::RangeInclusive<u8> = 1..=5;
/// Time to live of the packets of the second round, if the path is longer.
const FAR_TTLS: std::ops::RangeInclusive<u8> = 6..=14;
/// Timeout of each of the two rounds.
const ROUND_TIMEOUT: Duration = Duration::from_millis(450);
/// First source port, above those that Linux assigns. Each packet has a separate one.
const FIRST_PORT: u16 = 61_000;
/// Source ports for one path and option.
const PORTS_PER_PROBE: u16 = 16;
/// Kinds of TCP options (IANA).
const TCPOPT_EOL: u8 = 0;
const TCPOPT_NOP: u8 = 1;
const TCPOPT_MPTCP: u8 = 30;

/// A path to be probed, with one of the options.
#[derive(Debug, Clone)]
pub(super) struct ProbeSpec {
    pub(super) local: IpAddr,
    pub(super) device: Option<String>,
    pub(super) remote: SocketAddr,
    pub(super) option: ProbeOption,
}

/// Returns true if this process may open raw sockets.
pub(super) fn is_allowed() -> bool {
    Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).is_ok()
}

/// Sends all probes at once, and receives until `end` at the latest.
pub(super) fn probe(specs: &[ProbeSpec], clock: Clock, end: Instant) -> Vec<HopProbe> {
    let (v4, v6): (Vec<_>, Vec<_>) = specs.iter().cloned().partition(|spec| spec.local.is_ipv4());
    let mut probes = Vec::new();
    for family in [v4, v6] {
        if !family.is_empty() {
            probes
                .extend(ProbeRun::open(family, clock, end).map(ProbeRun::run).unwrap_or_default());
        }
    }
    probes
}

/// Probes of one address family.
#[derive(Debug)]
struct ProbeRun {
    clock: Clock,
    end: Instant,
    icmp_socket: UdpSocket,
    paths: Vec<PathProbe>,
}

/// Probe of one path with one option: a SYN for each time to live.
#[derive(Debug)]
struct PathProbe {
    socket: UdpSocket,
    /// Source port of a SYN minus its time to live, which a quote thus identifies.
    base_port: u16,
    probe: HopProbe,
    /// Smallest time to live that reached the target.
    target_ttl: Option<u8>,
}

impl ProbeRun {
    fn open(specs: Vec<ProbeSpec>, clock: Clock, end: Instant) -> io::Result<Self> {
        let v4 = specs.first().is_some_and(|spec| spec.local.is_ipv4());
        let (domain, protocol) =
            if v4 { (Domain::IPV4, Protocol::ICMPV4) } else { (Domain::IPV6, Protocol::ICMPV6) };
        let icmp_socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        icmp_socket.set_nonblocking(true)?;
        let mut base_port = FIRST_PORT;
        let mut probes = Vec::new();
        for spec in specs {
            probes.push(PathProbe::open(domain, base_port, spec)?);
            base_port = base_port.wrapping_add(PORTS_PER_PROBE);
        }
        Ok(Self { clock, end, icmp_socket: icmp_socket.into(), paths: probes })
    }

    fn run(mut self) -> Vec<HopProbe> {
        self.run_round(NEAR_TTLS);
        // A path is longer if its last router of the first round replied, and the target did not.
        let last_near_ttl = usize::from(*NEAR_TTLS.end());
        let is_unfinished =
            |path: &PathProbe| path.target_ttl.is_none() && path.probe.hops.len() >= last_near_ttl;
        if self.paths.iter().any(is_unfinished) {
            self.run_round(FAR_TTLS);
        }
        self.paths.into_iter().map(PathProbe::into_probe).collect()
    }

    fn run_round(&mut self, range: std::ops::RangeInclusive<u8>) {
        for ttl in range.clone() {
            for path in self.paths.iter().filter(|path| path.target_ttl.is_none()) {
                let _ = path.send(ttl); // a failed send counts as loss
            }
        }
        let deadline = self.end.min(self.clock.now() + ROUND_TIMEOUT);
        while !self.is_complete(*range.end()) && self.wait(deadline) {
            self.receive();
        }
    }

    /// Returns true if every packet was answered, so that nothing more can arrive.
    fn is_complete(&self, max_ttl: u8) -> bool {
        self.paths.iter().all(|path| {
            let expected_hops =
                usize::from(path.target_ttl.map_or(max_ttl, |ttl| ttl.saturating_sub(1)));
            let is_answered =
                |index: usize| path.probe.hops.get(index).is_some_and(|hop| hop.address.is_some());
            (0..expected_hops).all(is_answered)
        })
    }

    /// Waits for input; returns true if there is time left.
    fn wait(&self, deadline: Instant) -> bool {
        let remaining = deadline.saturating_since(self.clock.now());
        let mut fds = vec![sys::input_pollfd(&self.icmp_socket)];
        fds.extend(self.paths.iter().map(|path| sys::input_pollfd(&path.socket)));
        !remaining.is_zero() && sys::poll(&mut fds, Some(remaining)).is_ok()
    }

    fn receive(&mut self) {
        let mut buffer = [0; 2_048];
        while let Ok((length, from)) = self.icmp_socket.recv_from(&mut buffer) {
            let message = buffer.get(..length).unwrap_or_default();
            if let Some(quote) = IcmpQuote::parse(message, from.is_ipv4()) {
                for path in &mut self.paths {
                    path.on_error(from.ip(), &quote);
                }
            }
        }
        for path in &mut self.paths {
            while let Ok((length, source)) = path.socket.recv_from(&mut buffer) {
                let packet = buffer.get(..length).unwrap_or_default();
                path.on_answer(source.ip(), packet);
            }
        }
    }
}

impl PathProbe {
    fn open(domain: Domain, base_port: u16, spec: ProbeSpec) -> io::Result<Self> {
        let ProbeSpec { local, device, remote, option } = spec;
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        if let Some(device) = &device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        socket.bind(&SockAddr::from(SocketAddr::new(local, 0)))?;
        let probe = HopProbe { local, remote, option, hops: Vec::new(), answer: None };
        Ok(Self { socket: socket.into(), base_port, probe, target_ttl: None })
    }

    fn send(&self, ttl: u8) -> io::Result<()> {
        let HopProbe { local, remote, option, .. } = self.probe;
        let port = self.base_port.wrapping_add(ttl.into());
        let packet = Packet::emit(&build_syn(SocketAddr::new(local, port), remote, option), 0);
        let bytes = packet.to_vec();
        // The kernel adds the IP header.
        let ip_header_bytes = if local.is_ipv4() { 20 } else { 40 };
        let socket = SockRef::from(&self.socket);
        if local.is_ipv4() {
            socket.set_ttl_v4(ttl.into())?;
        } else {
            socket.set_unicast_hops_v6(ttl.into())?;
        }
        let destination = SocketAddr::new(remote.ip(), 0);
        self.socket.send_to(bytes.get(ip_header_bytes..).unwrap_or_default(), destination).map(drop)
    }

    /// Returns the time to live that belongs to a source port.
    fn ttl_of(&self, port: u16) -> Option<u8> {
        let ttl =
            port.checked_sub(self.base_port).filter(|ttl| (1..PORTS_PER_PROBE).contains(ttl))?;
        u8::try_from(ttl).ok()
    }

    fn on_error(&mut self, router: IpAddr, quote: &IcmpQuote) {
        let ttl = self.ttl_of(quote.source_port).filter(|_| quote.remote == self.probe.remote);
        let Some(ttl) = ttl else { return };
        let index = usize::from(ttl.saturating_sub(1));
        if self.probe.hops.len() <= index {
            self.probe.hops.resize(index + 1, HopReply::default());
        }
        if let Some(hop) = self.probe.hops.get_mut(index) {
            let has_option = quote.has_option;
            *hop = HopReply { address: Some(router), has_option, refused: quote.refused };
        }
    }

    fn on_answer(&mut self, source: IpAddr, packet: &[u8]) {
        // A raw IPv4 socket returns the IP header as well, one of IPv6 does not.
        let tcp = if source.is_ipv4() { ipv4_payload(packet) } else { Some(packet) };
        let Some(tcp) = tcp else { return };
        let &[s0, s1, d0, d1, _, _, _, _, _, _, _, _, _, flags, ..] = tcp else { return };
        let (source_port, local_port) =
            (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        let Some(ttl) = self.ttl_of(local_port) else { return };
        if SocketAddr::new(source.to_canonical(), source_port) != self.probe.remote {
            return;
        }
        let flags = Flags(flags);
        let reply = if flags.contains(Flags::RST) {
            TargetReply::Reset { option: has_option(tcp) == Some(true) }
        } else if flags.contains(Flags::SYN.with(Flags::ACK)) {
            TargetReply::SynAck { option: has_option(tcp) == Some(true) }
        } else {
            return;
        };
        if self.target_ttl.is_none_or(|target_ttl| ttl < target_ttl) {
            self.target_ttl = Some(ttl);
            self.probe.answer = Some(reply);
        }
    }

    fn into_probe(self) -> HopProbe {
        let Self { mut probe, target_ttl, .. } = self;
        if let Some(ttl) = target_ttl {
            probe.hops.truncate(usize::from(ttl.saturating_sub(1)));
        }
        probe
    }
}

/// Builds a SYN as Linux would send it.
fn build_syn(source: SocketAddr, destination: SocketAddr, option: ProbeOption) -> Segment {
    let mptcp = match option {
        ProbeOption::Plain => Vec::new(),
        ProbeOption::Capable => vec![MptcpOption::Capable(MpCapable {
            version: 1,
            checksum: false,
            extensibility: false,
            no_join_to_source: false,
            hmac_sha256: true,
            sender_key: None,
            receiver_key: None,
            data: None,
        })],
        // No host knows this token; only the distance of the packet matters.
        ProbeOption::Join => vec![MptcpOption::Join(MpJoin::Syn {
            backup: false,
            address_id: 1,
            token: 0x746f_7770,
            nonce: 0x6174_6821,
        })],
    };
    let options = Options {
        mss: Some(1_400),
        window_scale: Some(7),
        sack_permitted: true,
        mptcp,
        ..Options::default()
    };
    let (seq, window) = (u32::from(source.port()) << 12, 64_240);
    Segment { source, destination, seq, window, flags: Flags::SYN, options, ..Segment::EMPTY }
}

/// A router's quote of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IcmpQuote {
    remote: SocketAddr,
    source_port: u16,
    has_option: Option<bool>,
    /// Type and code, unless the time to live expired.
    refused: Option<(u8, u8)>,
}

impl IcmpQuote {
    fn parse(message: &[u8], v4: bool) -> Option<Self> {
        // A raw IPv4 socket returns the IP header as well.
        let message = if v4 { ipv4_payload(message)? } else { message };
        let &[kind, code, _, _, _, _, _, _, ref packet @ ..] = message else { return None };
        let refused = match (v4, kind) {
            (true, 11) | (false, 3) => None,
            (true, 3) | (false, 1) => Some((kind, code)),
            _ => return None,
        };
        let destination: IpAddr = if v4 {
            Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?).into()
        } else {
            Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?).into()
        };
        let tcp = tcp_header(packet, v4)?;
        let &[s0, s1, d0, d1, ..] = tcp else { return None };
        Some(Self {
            remote: SocketAddr::new(destination, u16::from_be_bytes([d0, d1])),
            source_port: u16::from_be_bytes([s0, s1]),
            has_option: has_option(tcp),
            refused,
        })
    }
}

/// Returns the payload of an IPv4 packet.
fn ipv4_payload(packet: &[u8]) -> Option<&[u8]> {
    let version_and_length = *packet.first()?;
    packet.get(usize::from(version_and_length & 0x0f) * 4..)
}

/// Returns the TCP header of a packet, if it has one.
fn tcp_header(packet: &[u8], v4: bool) -> Option<&[u8]> {
    const TCP: u8 = 6;
    if v4 {
        return (*packet.get(9)? == TCP).then(|| ipv4_payload(packet))?;
    }
    (*packet.get(6)? == TCP).then(|| packet.get(40..))?
}

/// Returns true if a TCP header has a Multipath TCP option; `None` if the header is cut off.
fn has_option(tcp: &[u8]) -> Option<bool> {
    let length = usize::from(*tcp.get(12)? >> 4) * 4;
    let mut rest = tcp.get(20..length.min(tcp.len()))?;
    loop {
        match rest {
            [] => return (tcp.len() >= length).then_some(false),
            [TCPOPT_EOL, ..] => return Some(false),
            [TCPOPT_NOP, tail @ ..] => rest = tail,
            [TCPOPT_MPTCP, ..] => return Some(true),
            [_, length, ..] => rest = rest.get(usize::from(*length).max(2)..).unwrap_or_default(),
            [_] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(option: ProbeOption) -> Vec<u8> {
        let (source, destination) =
            ("10.0.0.1:61003".parse().unwrap(), "10.0.9.1:80".parse().unwrap());
        Packet::emit(&build_syn(source, destination, option), 0).to_vec()
    }

    fn icmp_message(kind: u8, code: u8, packet: &[u8]) -> Vec<u8> {
        let ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 5, 1, 10, 0, 0, 1];
        [&ip[..], &[kind, code, 0, 0, 0, 0, 0, 0], packet].concat()
    }

    #[test]
    fn a_quote_shows_whether_the_option_was_still_there() {
        for (option, expected) in
            [(ProbeOption::Plain, false), (ProbeOption::Capable, true), (ProbeOption::Join, true)]
        {
            let quote = IcmpQuote::parse(&icmp_message(11, 0, &packet(option)), true).unwrap();
            assert_eq!(
                (quote.source_port, quote.has_option),
                (61_003, Some(expected)),
                "{option:?}"
            );
            assert_eq!((quote.remote.to_string().as_str(), quote.refused), ("10.0.9.1:80", None));
        }
    }

    #[test]
    fn a_quote_of_eight_bytes_reveals_no_options() {
        let packet = packet(ProbeOption::Capable);
        let quote = IcmpQuote::parse(&icmp_message(3, 13, &packet[..28]), true).unwrap();
        assert_eq!((quote.has_option, quote.refused), (None, Some((3, 13))));
        assert_eq!(
            IcmpQuote::parse(&icmp_message(0, 0, &packet), true),
            None,
            "an echo reply quotes nothing"
        );
    }

    proptest! {
        #[test]
        fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120), v4: bool) {
            let _ = IcmpQuote::parse(&bytes, v4);
            let _ = tcp_header(&bytes, v4).and_then(has_option);
        }
    }
}
