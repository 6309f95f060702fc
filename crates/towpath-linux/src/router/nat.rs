//! Network address translation of TCP and of the ICMP messages about it (RFC 3022, RFC 5508).

use std::net::Ipv4Addr;
use std::time::Duration;

use towpath_mptcp::wire::Flags;
use towpath_net::Instant;

use super::packet::{self, TcpHeader};
use crate::emulator::headers;

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
    known: Vec<(InsideAddr, Instant)>,
}

impl Nat {
    pub(super) const fn new(outside: Ipv4Addr) -> Self {
        Self { outside, known: Vec::new() }
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
        if let Some((_, message)) = packet::icmp(packet) {
            return if up { false } else { self.message(packet, message) };
        }
        let Some(tcp) = TcpHeader::parse(packet) else { return false };
        let begins = tcp.has(Flags::SYN) && !tcp.has(Flags::ACK);
        let awake = |received: Instant| now.saturating_since(received) <= idle;
        let done = if up {
            self.outwards(packet, now, |heard| begins || awake(heard))
        } else {
            self.inwards(packet, now, awake)
        };
        if done.is_some() {
            headers::update_ipv4_checksum(packet);
            headers::update_tcp_checksum(packet);
        }
        done.is_some()
    }

    fn outwards(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        passes: impl Fn(Instant) -> bool,
    ) -> Option<()> {
        let ports = ip_bytes(packet)?;
        let inside = (read(packet, SRC_OFFSET)?, read(packet, ports)?);
        let known = self.known.iter().position(|(known, _)| *known == inside);
        let index = known.unwrap_or_else(|| {
            self.known.push((inside, now));
            self.known.len() - 1
        });
        self.refresh(index, now, passes)?;
        let port = FIRST_PORT.checked_add(u16::try_from(index).ok()?)?;
        write(packet, SRC_OFFSET, self.outside.octets())?;
        write(packet, ports, port.to_be_bytes())
    }

    fn inwards(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        passes: impl Fn(Instant) -> bool,
    ) -> Option<()> {
        let port = ip_bytes(packet)? + 2;
        let outside = read(packet, port)?;
        let (address, own) = self.inside(outside)?;
        self.refresh(index(outside)?, now, passes)?;
        write(packet, DST_OFFSET, address)?;
        write(packet, port, own)
    }

    /// Updates a connection's time if `passes` accepts the time of its last packet.
    fn refresh(&mut self, at: usize, now: Instant, passes: impl Fn(Instant) -> bool) -> Option<()> {
        let (_, heard) = self.known.get_mut(at)?;
        passes(*heard).then(|| *heard = now)
    }

    /// Translates the quote in an ICMP message about a packet that was translated on its way out.
    fn message(&self, packet: &mut [u8], message: usize) -> bool {
        let translated = (|| {
            let quoted = message + ICMP_HEADER_BYTES;
            let port = quoted + ip_bytes(packet.get(quoted..)?)?;
            let (address, own) = self.inside(read(packet, port)?)?;
            write(packet, port, own)?;
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

    fn inside(&self, outside: [u8; 2]) -> Option<InsideAddr> {
        self.known.get(index(outside)?).map(|(inside, _)| *inside)
    }
}

/// Returns the index of the connection with this outside port.
fn index(outside: [u8; 2]) -> Option<usize> {
    u16::from_be_bytes(outside).checked_sub(FIRST_PORT).map(usize::from)
}

fn ip_bytes(packet: &[u8]) -> Option<usize> {
    packet.first().map(|first| usize::from(first & 0x0f) * 4)
}

fn read<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..)?.first_chunk().copied()
}

fn write<const N: usize>(packet: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *packet.get_mut(at..)?.first_chunk_mut()? = value;
    Some(())
}
