//! Network address translation of TCP and of the ICMP messages about it (RFC 3022, RFC 5508).

use std::net::Ipv4Addr;
use std::time::Duration;

use towpath_net::Instant;
use towpath_sockets::headers;
use towpath_wire::Flags;

use super::packet::{self, TcpHeader};

/// First port that the translation assigns.
const FIRST_PORT: u16 = 40_000;
/// Offsets of the addresses in an IPv4 header.
const SRC_OFFSET: usize = 12;
const DST_OFFSET: usize = 16;
/// Bytes of an ICMP message before its quote.
const ICMP_HEADER_BYTES: usize = 8;

/// Address and port, in network byte order.
type InsideAddr = ([u8; 4], [u8; 2]);

/// Address and port translation from the inside to one outside address.
#[derive(Debug)]
pub(super) struct Nat {
    outside: Ipv4Addr,
    /// Connections with the time of their last packet; index n has outside port [`FIRST_PORT`] + n.
    connections: Vec<(InsideAddr, Instant)>,
}

impl Nat {
    pub(super) const fn new(outside: Ipv4Addr) -> Self {
        Self { outside, connections: Vec::new() }
    }

    /// Translates a packet; IPv6 passes unchanged.
    ///
    /// Returns false for a packet without a translation, such as one of a connection that was idle
    /// for too long.
    pub(super) fn translate(
        &mut self,
        up: bool,
        packet: &mut [u8],
        (now, idle): (Instant, Duration),
    ) -> bool {
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            return true;
        }
        if let Some((_, message)) = packet::find_icmp(packet) {
            return if up { false } else { self.translate_quote(packet, message) };
        }
        let Some(tcp) = TcpHeader::parse(packet) else { return false };
        let is_syn = tcp.has(Flags::SYN) && !tcp.has(Flags::ACK);
        let is_active = |received: Instant| now.saturating_since(received) <= idle;
        let result = if up {
            self.translate_outbound(packet, now, |last_packet| is_syn || is_active(last_packet))
        } else {
            self.translate_inbound(packet, now, is_active)
        };
        if result.is_some() {
            headers::update_ipv4_checksum(packet);
            headers::update_tcp_checksum(packet);
        }
        result.is_some()
    }

    fn translate_outbound(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        accepts: impl Fn(Instant) -> bool,
    ) -> Option<()> {
        let ports_offset = ip_header_bytes(packet)?;
        let inside = (read(packet, SRC_OFFSET)?, read(packet, ports_offset)?);
        let existing = self.connections.iter().position(|(address, _)| *address == inside);
        let index = existing.unwrap_or_else(|| {
            self.connections.push((inside, now));
            self.connections.len() - 1
        });
        self.refresh(index, now, accepts)?;
        let port = FIRST_PORT.checked_add(u16::try_from(index).ok()?)?;
        write(packet, SRC_OFFSET, self.outside.octets())?;
        write(packet, ports_offset, port.to_be_bytes())
    }

    fn translate_inbound(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        accepts: impl Fn(Instant) -> bool,
    ) -> Option<()> {
        let port_offset = ip_header_bytes(packet)? + 2;
        let outside = read(packet, port_offset)?;
        let (address, inside_port) = self.inside_address(outside)?;
        self.refresh(connection_index(outside)?, now, accepts)?;
        write(packet, DST_OFFSET, address)?;
        write(packet, port_offset, inside_port)
    }

    /// Updates a connection's time if `accepts` returns true for the time of its last packet.
    fn refresh(
        &mut self,
        index: usize,
        now: Instant,
        accepts: impl Fn(Instant) -> bool,
    ) -> Option<()> {
        let (_, last_packet) = self.connections.get_mut(index)?;
        accepts(*last_packet).then(|| *last_packet = now)
    }

    /// Translates the quote in an ICMP message about a packet that was translated on its way out.
    fn translate_quote(&self, packet: &mut [u8], message: usize) -> bool {
        let translated = (|| {
            let quoted = message + ICMP_HEADER_BYTES;
            let port_offset = quoted + ip_header_bytes(packet.get(quoted..)?)?;
            let (address, inside_port) = self.inside_address(read(packet, port_offset)?)?;
            write(packet, port_offset, inside_port)?;
            write(packet, quoted + SRC_OFFSET, address)?;
            headers::update_ipv4_checksum(packet.get_mut(quoted..)?);
            write(packet, DST_OFFSET, address)?;
            headers::update_ipv4_checksum(packet);
            write(packet, message + 2, [0; 2])?;
            headers::complete_checksum(packet, message, 2);
            Some(())
        })();
        translated.is_some()
    }

    fn inside_address(&self, outside: [u8; 2]) -> Option<InsideAddr> {
        self.connections.get(connection_index(outside)?).map(|(inside, _)| *inside)
    }
}

/// Replaces the server's public address by its private one on the way up, and back on the way
/// down, also in the quotes of ICMP messages; IPv6 passes unchanged.
///
/// Returns false for a packet from outside to the private address, which is not routed there.
pub(super) fn map_server(up: bool, packet: &mut [u8], public: Ipv4Addr, private: Ipv4Addr) -> bool {
    if packet.first().is_none_or(|first| first >> 4 != 4) {
        return true;
    }
    let (offset, quoted_offset) =
        if up { (DST_OFFSET, SRC_OFFSET) } else { (SRC_OFFSET, DST_OFFSET) };
    let (from, to) = if up { (public, private) } else { (private, public) };
    if up && read(packet, DST_OFFSET) == Some(private.octets()) {
        return false;
    }
    let is_tcp = TcpHeader::parse(packet).is_some();
    if replace(packet, offset, from, to) {
        headers::update_ipv4_checksum(packet);
        if is_tcp {
            headers::update_tcp_checksum(packet);
        }
    }
    if packet::is_icmp_error(packet)
        && let Some((_, message)) = packet::find_icmp(packet)
    {
        let quoted = message + ICMP_HEADER_BYTES;
        if replace(packet, quoted + quoted_offset, from, to) {
            headers::update_ipv4_checksum(packet.get_mut(quoted..).unwrap_or_default());
            if write(packet, message + 2, [0; 2]).is_some() {
                headers::complete_checksum(packet, message, 2);
            }
        }
    }
    true
}

/// Replaces an address at an offset; false if another one is there.
fn replace(packet: &mut [u8], offset: usize, from: Ipv4Addr, to: Ipv4Addr) -> bool {
    read(packet, offset) == Some(from.octets()) && write(packet, offset, to.octets()).is_some()
}

/// Returns the index of the connection with this outside port.
fn connection_index(outside: [u8; 2]) -> Option<usize> {
    u16::from_be_bytes(outside).checked_sub(FIRST_PORT).map(usize::from)
}

fn ip_header_bytes(packet: &[u8]) -> Option<usize> {
    packet.first().map(|first| usize::from(first & 0x0f) * 4)
}

fn read<const N: usize>(packet: &[u8], offset: usize) -> Option<[u8; N]> {
    packet.get(offset..)?.first_chunk().copied()
}

fn write<const N: usize>(packet: &mut [u8], offset: usize, value: [u8; N]) -> Option<()> {
    *packet.get_mut(offset..)?.first_chunk_mut()? = value;
    Some(())
}
