//! IPv4 and TCP encoder that also produces invalid packets. Deliberately independent of the stack's
//! own code.

use std::net::{IpAddr, Ipv4Addr};

use towpath_wire::{Ecn, Segment};

/// Parts of a packet that [`Segment`] cannot represent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawExtras<'a> {
    /// Raw options after the others.
    pub(super) raw: &'a [u8],
    /// Urgent pointer, in the TCP header.
    pub(super) urgent: u16,
    /// True to spoil the TCP checksum.
    pub(super) bad_checksum: bool,
}

/// Encodes a segment as one IPv4 packet.
pub(super) fn encode(segment: &Segment, extra: RawExtras<'_>) -> Result<Vec<u8>, String> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) =
        (segment.source.ip(), segment.destination.ip())
    else {
        return Err("only IPv4 is sent".to_owned());
    };
    let mut options = segment.options.emit().to_vec();
    options.extend_from_slice(extra.raw);
    while !options.len().is_multiple_of(4) {
        options.push(1);
    }
    if options.len() > 40 {
        return Err(format!("{} bytes of options, at most 40 fit", options.len()));
    }
    let mut tcp = Vec::new();
    tcp.extend(segment.source.port().to_be_bytes());
    tcp.extend(segment.destination.port().to_be_bytes());
    tcp.extend(segment.seq.to_be_bytes());
    tcp.extend(segment.ack.to_be_bytes());
    tcp.push(((5 + options.len() / 4) << 4) as u8);
    tcp.push(segment.flags.0);
    tcp.extend(segment.window.to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(extra.urgent.to_be_bytes());
    tcp.extend(options);
    tcp.extend_from_slice(&segment.payload.to_bytes());
    let mut pseudo_header = Vec::new();
    pseudo_header.extend(source.octets());
    pseudo_header.extend(destination.octets());
    pseudo_header.extend([0, 6]);
    pseudo_header.extend((tcp.len() as u16).to_be_bytes());
    let sum = checksum(&[&pseudo_header, &tcp]) ^ u16::from(extra.bad_checksum);
    if let [.., _, _] = tcp.get_mut(..18).unwrap_or_default()
        && let Some(field) = tcp.get_mut(16..18)
    {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    let mut packet = header(source, destination, segment.ecn, tcp.len());
    packet.extend(tcp);
    Ok(packet)
}

fn header(source: Ipv4Addr, destination: Ipv4Addr, ecn: Ecn, tcp_bytes: usize) -> Vec<u8> {
    let ecn = match ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable1 => 1,
        Ecn::Capable0 => 2,
        Ecn::Marked => 3,
    };
    let mut ip = vec![0x45, ecn];
    ip.extend(((20 + tcp_bytes) as u16).to_be_bytes());
    // Identification 0, do not fragment, 64 hops, TCP, checksum still 0.
    ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    ip.extend(source.octets());
    ip.extend(destination.octets());
    let sum = checksum(&[&ip]);
    if let Some(field) = ip.get_mut(10..12) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    ip
}

/// Computes the Internet checksum over parts; all but the last must have even lengths.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for word in part.chunks(2) {
            let [high, low] = match *word {
                [high, low] => [high, low],
                [high] => [high, 0],
                _ => [0, 0],
            };
            sum += u32::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
