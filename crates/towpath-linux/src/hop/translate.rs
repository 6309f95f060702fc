//! Network address translation of TCP and of the ICMP messages about it (RFC 3022, RFC 5508).

use std::net::Ipv4Addr;

use super::packet::{self, Tcp};
use crate::emulator::headers;

/// The first port that is given out.
const FIRST_PORT: u16 = 40_000;
/// Where an IPv4 header has its addresses.
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
/// Bytes of an ICMP message before what it quotes.
const ICMP_HEADER: usize = 8;

/// Address and port, as in a packet.
type Inside = ([u8; 4], [u8; 2]);

/// What an inside shows to the outside.
#[derive(Debug)]
pub(super) struct Translator {
    outside: Ipv4Addr,
    /// The connection at index n has the port [`FIRST_PORT`] + n outside.
    known: Vec<Inside>,
}

impl Translator {
    pub(super) const fn new(outside: Ipv4Addr) -> Self {
        Self { outside, known: Vec::new() }
    }

    /// Translates a packet; `false` if it has no business here. IPv6 passes as it is.
    pub(super) fn pass(&mut self, up: bool, packet: &mut [u8]) -> bool {
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            return true;
        }
        if let Some((_, message)) = packet::icmp(packet) {
            return if up { false } else { self.message(packet, message) };
        }
        if Tcp::parse(packet).is_none() {
            return false;
        }
        let done = if up { self.outwards(packet) } else { self.inwards(packet) };
        if done.is_some() {
            headers::seal_v4(packet);
            headers::seal_tcp(packet);
        }
        done.is_some()
    }

    fn outwards(&mut self, packet: &mut [u8]) -> Option<()> {
        let ports = ip_bytes(packet)?;
        let inside = (read(packet, SOURCE)?, read(packet, ports)?);
        let known = self.known.iter().position(|known| *known == inside);
        let index = known.unwrap_or_else(|| {
            self.known.push(inside);
            self.known.len() - 1
        });
        let port = FIRST_PORT.checked_add(u16::try_from(index).ok()?)?;
        write(packet, SOURCE, self.outside.octets())?;
        write(packet, ports, port.to_be_bytes())
    }

    fn inwards(&self, packet: &mut [u8]) -> Option<()> {
        let port = ip_bytes(packet)? + 2;
        let (address, own) = self.inside(read(packet, port)?)?;
        write(packet, DESTINATION, address)?;
        write(packet, port, own)
    }

    /// A message about a packet that was translated on its way out: so is what it quotes.
    fn message(&self, packet: &mut [u8], message: usize) -> bool {
        let translated = (|| {
            let quoted = message + ICMP_HEADER;
            let port = quoted + ip_bytes(packet.get(quoted..)?)?;
            let (address, own) = self.inside(read(packet, port)?)?;
            write(packet, port, own)?;
            write(packet, quoted + SOURCE, address)?;
            headers::seal_v4(packet.get_mut(quoted..)?);
            write(packet, DESTINATION, address)?;
            headers::seal_v4(packet);
            write(packet, message + 2, [0; 2])?;
            headers::complete_checksum(packet, message, 2);
            Some(())
        })();
        translated.is_some()
    }

    fn inside(&self, outside: [u8; 2]) -> Option<Inside> {
        let index = u16::from_be_bytes(outside).checked_sub(FIRST_PORT)?;
        self.known.get(usize::from(index)).copied()
    }
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
