//! Link layers: from a frame to its IP packet.

use super::file::CapturedFrame;

const LINK_NULL: u16 = 0;
const LINK_ETHERNET: u16 = 1;
const LINK_PPP: u16 = 9;
const LINK_RAW_BSD: u16 = 12;
const LINK_RAW_OPENBSD: u16 = 14;
const LINK_PPP_HDLC: u16 = 50;
const LINK_PPP_ETHERNET: u16 = 51;
const LINK_RAW: u16 = 101;
const LINK_IEEE80211: u16 = 105;
const LINK_LOOP: u16 = 108;
const LINK_SLL: u16 = 113;
const LINK_RADIOTAP: u16 = 127;
const LINK_PPP_DIRECTION: u16 = 204;
const LINK_IPV4: u16 = 228;
const LINK_IPV6: u16 = 229;
const LINK_SLL2: u16 = 276;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// PPP over Ethernet, session stage (RFC 2516 §4).
const ETHERTYPE_PPPOE: u16 = 0x8864;
const VLAN: u16 = 0x8100;
const PROVIDER_VLAN: u16 = 0x88a8;
const OLD_VLAN: u16 = 0x9100;
/// Maximum number of nested VLAN tags that are parsed.
const MAX_TAGS: usize = 4;
/// SLL packet type of frames sent by the host itself.
const SLL_OUTGOING: u16 = 4;

/// Reason for skipping a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SkipReason {
    /// Unknown link layer, with its LINKTYPE.
    LinkType(u16),
    /// Neither IPv4 nor IPv6: ARP, LLDP, …
    NotIp,
    /// IP, but neither TCP nor UDP.
    NotTcp,
    /// UDP that is not known to be QUIC.
    Udp,
    /// QUIC (RFC 9000), whose contents are encrypted.
    Quic,
    /// An encrypted frame of a wireless network.
    Encrypted,
    /// A fragment, which is useless without the others.
    Fragment,
    /// The captured bytes end before the end of the TCP header.
    Cut,
    /// A header that contradicts itself.
    Malformed,
}

/// IP packet of a frame, and its direction if the link layer contains it.
type FoundPacket<'a> = (&'a [u8], Option<bool>);

/// Returns the IP packet of a frame; the error is the reason to skip it.
pub(super) fn find_ip_packet<'a>(frame: &CapturedFrame<'a>) -> Result<FoundPacket<'a>, SkipReason> {
    let bytes = frame.bytes;
    let undirected = |ip: &'a [u8]| (ip, None);
    match frame.link_type {
        LINK_ETHERNET => after_ethertype(after(bytes, 12)?).map(undirected),
        LINK_RAW | LINK_RAW_BSD | LINK_RAW_OPENBSD | LINK_IPV4 | LINK_IPV6 => Ok((bytes, None)),
        // The family value differs between systems; the version in the header does not.
        LINK_NULL | LINK_LOOP => after(bytes, 4).map(undirected),
        LINK_PPP | LINK_PPP_HDLC => after_ppp(bytes).map(undirected),
        LINK_PPP_ETHERNET => after_ppp(after(bytes, PPPOE_HEADER_BYTES)?).map(undirected),
        LINK_PPP_DIRECTION => {
            let (direction, ppp) = bytes.split_first().ok_or(SkipReason::Cut)?;
            Ok((after_ppp(ppp)?, Some(*direction != 0)))
        }
        LINK_SLL => {
            let &[t0, t1, ..] = bytes else { return Err(SkipReason::Cut) };
            let outbound = u16::from_be_bytes([t0, t1]) == SLL_OUTGOING;
            Ok((after_ethertype(after(bytes, 14)?)?, Some(outbound)))
        }
        LINK_SLL2 => find_in_sll2(bytes),
        LINK_IEEE80211 => after_ieee80211(bytes, false).map(undirected),
        LINK_RADIOTAP => after_radiotap(bytes).map(undirected),
        other => Err(SkipReason::LinkType(other)),
    }
}

/// Returns the interface of the capturing host, which only SLL2 contains.
pub(super) fn host_interface(frame: &CapturedFrame<'_>) -> Option<u32> {
    let &[_, _, _, _, i0, i1, i2, i3, ..] = frame.bytes else { return None };
    (frame.link_type == LINK_SLL2).then(|| u32::from_be_bytes([i0, i1, i2, i3]))
}

fn after(bytes: &[u8], len: usize) -> Result<&[u8], SkipReason> {
    bytes.get(len..).ok_or(SkipReason::Cut)
}

fn find_in_sll2(bytes: &[u8]) -> Result<FoundPacket<'_>, SkipReason> {
    let &[p0, p1, _, _, _, _, _, _, _, _, kind, ..] = bytes else { return Err(SkipReason::Cut) };
    let after_link = after(bytes, 20)?;
    let ip = match u16::from_be_bytes([p0, p1]) {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => after_link,
        VLAN | PROVIDER_VLAN | OLD_VLAN => after_ethertype(after(after_link, 2)?)?,
        _ => return Err(SkipReason::NotIp),
    };
    Ok((ip, Some(u16::from(kind) == SLL_OUTGOING)))
}

/// Returns the payload of a type field, without VLAN tags (IEEE 802.1Q) and PPP over Ethernet.
fn after_ethertype(mut bytes: &[u8]) -> Result<&[u8], SkipReason> {
    for _ in 0..=MAX_TAGS {
        let Some((&kind, payload)) = bytes.split_first_chunk::<2>() else {
            return Err(SkipReason::Cut);
        };
        match u16::from_be_bytes(kind) {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Ok(payload),
            ETHERTYPE_PPPOE => return after_ppp(after(payload, PPPOE_HEADER_BYTES)?),
            VLAN | PROVIDER_VLAN | OLD_VLAN => bytes = after(payload, 2)?,
            _ => return Err(SkipReason::NotIp),
        }
    }
    Err(SkipReason::NotIp)
}

/// Header of PPP over Ethernet before the PPP protocol field (RFC 2516 §4).
const PPPOE_HEADER_BYTES: usize = 6;

/// Returns the payload of a PPP frame, with or without HDLC's address and control fields (RFC 1662
/// §3.1), and with a protocol field of one or two bytes (RFC 1661 §6.5).
fn after_ppp(bytes: &[u8]) -> Result<&[u8], SkipReason> {
    const IPV4: u16 = 0x21;
    const IPV6: u16 = 0x57;
    let frame = bytes.strip_prefix(&[0xff, 0x03]).unwrap_or(bytes);
    let (protocol, payload) = match *frame {
        [first, ref payload @ ..] if first & 1 == 1 => (u16::from(first), payload),
        [first, second, ref payload @ ..] => (u16::from_be_bytes([first, second]), payload),
        _ => return Err(SkipReason::Cut),
    };
    match protocol {
        IPV4 | IPV6 => Ok(payload),
        _ => Err(SkipReason::NotIp),
    }
}

/// Returns the payload of a frame with a radiotap header.
fn after_radiotap(bytes: &[u8]) -> Result<&[u8], SkipReason> {
    /// Padding between header and body of the frame, to a multiple of 4 bytes.
    const DATA_PAD: u8 = 0x20;
    let &[_, _, l0, l1, ..] = bytes else { return Err(SkipReason::Cut) };
    let header = bytes.get(..usize::from(u16::from_le_bytes([l0, l1]))).ok_or(SkipReason::Cut)?;
    let flags = radiotap_flags(header).unwrap_or(0);
    after_ieee80211(after(bytes, header.len())?, flags & DATA_PAD != 0)
}

/// Returns the flags field of a radiotap header; `None` if it has none.
fn radiotap_flags(header: &[u8]) -> Option<u8> {
    let mut words =
        header.get(4..)?.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let first = words.next()?;
    let further = std::iter::once(first).chain(words).take_while(|word| word >> 31 == 1).count();
    let fields_start = 4 + 4 * (further + 1);
    let [has_timestamp, has_flags] = [first & 1 == 1, first & 2 == 2];
    let position = if has_timestamp { fields_start.next_multiple_of(8) + 8 } else { fields_start };
    header.get(position).copied().filter(|_| has_flags)
}

/// Returns the payload of a data frame (IEEE 802.11) with an LLC/SNAP header.
fn after_ieee80211(bytes: &[u8], is_padded: bool) -> Result<&[u8], SkipReason> {
    const DATA: u8 = 2;
    const SNAP: [u8; 6] = [0xaa, 0xaa, 0x03, 0, 0, 0];
    let &[control, flags, ..] = bytes else { return Err(SkipReason::Cut) };
    let (kind, subtype) = (control >> 2 & 3, control >> 4);
    let (has_no_data, has_qos) = (subtype & 4 != 0, subtype & 8 != 0);
    if control & 3 != 0 || kind != DATA || has_no_data {
        return Err(SkipReason::NotIp);
    }
    if flags & 0x40 != 0 {
        return Err(SkipReason::Encrypted);
    }
    let (has_four_addresses, has_high_throughput) = (flags & 3 == 3, flags & 0x80 != 0 && has_qos);
    let qos_start = if has_four_addresses { 30 } else { 24 };
    let len = qos_start + if has_qos { 2 } else { 0 } + if has_high_throughput { 4 } else { 0 };
    let is_fragment = flags & 4 != 0 || bytes.get(22).is_some_and(|sequence| sequence & 0xf != 0);
    if is_fragment {
        return Err(SkipReason::Fragment);
    }
    let is_aggregate = has_qos && bytes.get(qos_start).is_some_and(|qos| qos & 0x80 != 0);
    if is_aggregate {
        return Err(SkipReason::NotIp);
    }
    let body = after(bytes, if is_padded { len.next_multiple_of(4) } else { len })?;
    after_ethertype(body.strip_prefix(&SNAP).ok_or(SkipReason::NotIp)?)
}
