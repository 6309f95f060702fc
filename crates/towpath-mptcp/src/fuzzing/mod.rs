//! Bodies of the fuzz targets, which a test replays over the stored corpora.

mod stack_pair;

use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_wire as wire;
use towpath_wire::option::OPTION_BYTES;
use towpath_wire::{Packet, ParsedPacket, Segment};

use crate::connection::{self, ReceiveBufferMode};
use crate::path_manager::{InterfaceId, LocalAddress};
use crate::stack::{Stack, StackConfig};

pub use stack_pair::stack_pair;

/// Parses any bytes: parsing does not panic, and parsed packets survive a round trip through our
/// encoder.
///
/// # Panics
///
/// Panics if parsing panics or a round trip changes the packet.
pub fn wire_parse(data: &[u8]) {
    // The checksum is offloaded, as few inputs would pass otherwise.
    let Ok(packet) = Packet::from_bytes(&Bytes::copy_from_slice(data), true, 0) else { return };
    let Ok(ParsedPacket::Tcp(segment)) = wire::parse(&packet) else { return };
    if segment.options.encoded_len() > OPTION_BYTES {
        // Padding may need more room than the sender used: options may be dropped, but no panic
        // occurs.
        let _ = Packet::emit(&segment, 0).parse();
        return;
    }
    if segment.payload.len() > usize::from(u16::MAX) - wire::packet::HEADER_BYTES {
        return;
    }
    let mut encoded = Packet::emit(&segment, 0);
    assert_eq!(encoded.parse().as_ref(), Ok(&segment));
    encoded.complete_checksum();
    assert_eq!(encoded.parse().as_ref(), Ok(&segment));
    let received = Packet::from_bytes(&Bytes::from(encoded.to_vec()), false, 0);
    assert_eq!(received.as_ref(), Ok(&encoded));
    let parts = Packet { segment_bytes: 7, ..encoded }.split();
    let joined: Vec<u8> = parts.flat_map(|part| part.payload.to_bytes()).collect();
    assert_eq!(&joined[..], &segment.payload.to_bytes()[..]);
}

/// Feeds any packets to a host that listens and has one connection: nothing panics.
///
/// `data` is read as packets. Each is preceded by a byte of flags ([`AIMED`], and milliseconds
/// since the previous one in the other bits) and two bytes of its length. An aimed packet gets the
/// addresses and ports of the connection, and sequence numbers near the expected ones.
pub fn handle_packet(data: &[u8]) {
    let mut now = Instant::from_nanos(0);
    let Some((mut server, mut client)) = connecting_hosts(now) else { return };
    let Some(mut latest_segment) = exchange_packets(now, &mut server, &mut client) else { return };
    let mut rest = data;
    while let Some((&[flags, l0, l1], tail)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let (bytes, tail) = tail.split_at_checked(len).unwrap_or((tail, &[]));
        rest = tail;
        now += Duration::from_millis(u64::from(flags & !AIMED));
        let Ok(packet) = Packet::from_bytes(&Bytes::copy_from_slice(bytes), true, 0) else {
            continue;
        };
        let packet = if flags & AIMED == 0 { packet } else { aim(packet, &latest_segment) };
        server.handle_packet(now, INTERFACE, packet);
        if let Some(segment) = exchange_packets(now, &mut server, &mut client) {
            latest_segment = segment;
        }
    }
}

/// Flag of an input packet: rewrite the packet so that it belongs to the connection.
const AIMED: u8 = 0x80;
const INTERFACE: InterfaceId = InterfaceId(1);
const PORT: u16 = 5_001;
const SERVER: [u8; 4] = [10, 0, 0, 1];
const CLIENT: [u8; 4] = [10, 0, 0, 2];

/// Returns two hosts, and a connection between them that has not begun; `None` if a name in the
/// configuration is unknown.
fn connecting_hosts(now: Instant) -> Option<(Stack, Stack)> {
    let [mut server, mut client] = [SERVER, CLIENT].map(|address| {
        let seed = u64::from(u32::from_be_bytes(address));
        let mut stack = Stack::new(StackConfig {
            seed,
            syn_backlog: 16,
            time_wait_limit: 16,
            report_decisions: true,
        });
        stack.add_interface(INTERFACE, 1_500);
        stack.set_address(now, local_address(address));
        stack
    });
    server.listen(PORT, configuration()).ok()?;
    client.connect(now, None, (SERVER, PORT).into(), configuration()).ok()?;
    Some((server, client))
}

/// Carries packets between both hosts until none is left, or for 100 rounds. Returns the client's
/// last segment.
fn exchange_packets(now: Instant, server: &mut Stack, client: &mut Stack) -> Option<Segment> {
    let mut latest = None;
    for _ in 0..100 {
        server.handle_timeout(now);
        client.handle_timeout(now);
        let to_client = server.poll_transmit(now);
        let to_server = client.poll_transmit(now);
        if to_client.is_none() && to_server.is_none() {
            break;
        }
        if let Some((_, packet)) = to_client {
            client.handle_packet(now, INTERFACE, packet);
        }
        if let Some((_, packet)) = to_server {
            latest = packet.parse().ok().or(latest);
            server.handle_packet(now, INTERFACE, packet);
        }
    }
    while server.poll_event().is_some() {}
    while client.poll_event().is_some() {}
    latest
}

/// Returns `packet` as if it came from the sender of `latest`, shortly after it.
fn aim(packet: Packet, latest: &Segment) -> Packet {
    let Ok(segment) = packet.parse() else { return packet };
    let near = |base: u32, offset: u32| base.wrapping_add(offset & 0xffff);
    let segment = Segment {
        source: latest.source,
        destination: latest.destination,
        seq: near(latest.seq, segment.seq),
        ack: near(latest.ack, segment.ack),
        ..segment
    };
    if segment.payload.len() > usize::from(u16::MAX) - wire::packet::HEADER_BYTES {
        return packet;
    }
    Packet::emit(&segment, 0)
}

fn local_address(address: [u8; 4]) -> LocalAddress {
    LocalAddress {
        address_id: 1,
        address: address.into(),
        port: None,
        interface: INTERFACE,
        up: true,
        subflow: true,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    }
}

fn configuration() -> connection::ConnectionConfig {
    let mut config = connection::ConnectionConfig::linux();
    "lia".clone_into(&mut config.subflow.congestion_control);
    config.receive_buffer.mode = ReceiveBufferMode::Fixed;
    config.send_buffer_bytes = 1 << 20;
    config
}
