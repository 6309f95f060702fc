//! Link layers, file formats, and captures without TCP.

use towpath_trace as trace;

use crate::packets::*;

fn read(link: u16, frames: &[Vec<u8>]) -> trace::CaptureAnalysis {
    let packets = frames.iter().map(|frame| (1_000 * MS, frame.clone())).collect();
    let capture = Capture { packets };
    trace::read(capture.file(Layout { link, ..RAW }).as_slice(), None).unwrap()
}

/// Returns the packets of a handshake, each after these bytes.
fn frames_after(header: &[u8]) -> Vec<Vec<u8>> {
    let packets = handshake_capture().packets;
    packets.into_iter().map(|(_, packet)| [header, &packet].concat()).collect()
}

#[test]
fn each_link_layer_leads_to_the_same_packets() {
    let pppoe = [0x11, 0, 0, 7, 0, 42, 0, 0x21];
    let ethernet_pppoe = [&[1; 12][..], &[0x88, 0x64], &pppoe].concat();
    // A data frame of an access point with QoS, LLC/SNAP behind the header.
    let wireless = [&[0x88, 0x02][..], &[0; 24], &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0]].concat();
    // TSFT, flags with padding, rate: 8 + 8 + 1 + 1 bytes, and 2 more behind the 26-byte header.
    let radiotap_fields = [&[0, 0, 18, 0, 7, 0, 0, 0][..], &[0; 8], &[0x20, 2]].concat();
    let padded = [&wireless[..26], &[0, 0], &wireless[26..]].concat();
    let four_addresses = [&[0x08, 0x03][..], &[0; 28], &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0]].concat();
    let layouts: [(u16, Vec<u8>); 9] = [
        (9, vec![0, 0x21]),
        (9, vec![0xff, 3, 0, 0x21]),
        (50, vec![0xff, 3, 0x21]),
        (51, pppoe.to_vec()),
        (1, ethernet_pppoe),
        (204, vec![1, 0xff, 3, 0, 0x21]),
        (105, wireless),
        (127, [radiotap_fields, padded].concat()),
        (105, four_addresses),
    ];
    for (link, header) in layouts {
        let trace = read(link, &frames_after(&header));
        assert_eq!(trace.connections.len(), 1, "link {link}: {}", trace.table(&[], 100, 1));
        assert_eq!(only_connection(&trace).version, Some(1));
    }
}

#[test]
fn frames_without_readable_ip_are_named() {
    let encrypted = frames_after(&[&[0x88, 0x42][..], &[0; 24]].concat());
    let beacon = vec![vec![0x80, 0, 0, 0]];
    let fragment = frames_after(&[&[0x08, 0x06][..], &[0; 22]].concat());
    for (link, frames, text) in [
        (105, encrypted, "no TCP packets: 3 encrypted Wi-Fi frames"),
        (105, beacon, "no TCP packets: 1 not IP"),
        (105, fragment, "no TCP packets: 3 fragments"),
        (147, frames_after(&[]), "no TCP packets: 3 unknown link type 147"),
        (101, Vec::new(), "the capture has no packets"),
    ] {
        let table = read(link, &frames).table(&[], 100, 1);
        assert!(table.contains(text), "{table}");
    }
}

/// Returns an IP packet with a UDP datagram between the same ends, in one direction.
fn udp(ipv6: bool, down: bool, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let ports: [u16; 2] = if down { [443, 50_000] } else { [50_000, 443] };
    let mut header = if ipv6 {
        [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[17, 64]].concat()
    } else {
        [&[0x45, 0][..], &(20 + length).to_be_bytes(), &[0, 0, 0, 0, 64, 17, 0, 0]].concat()
    };
    for end in if down { [2_u8, 1] } else { [1, 2] } {
        header.extend(if ipv6 { vec![end; 16] } else { vec![end; 4] });
    }
    header.extend(ports.map(u16::to_be_bytes).concat());
    header.extend(length.to_be_bytes());
    header.extend([0, 0]);
    header.extend(payload);
    header
}

#[test]
fn quic_is_recognised_by_its_long_header() {
    for ipv6 in [false, true] {
        for version in [1_u32, 0x6b33_43cf, 0xff00_001d] {
            let initial = [&[0xc3][..], &version.to_be_bytes(), &[0; 30]].concat();
            let short = [&[0x43][..], &[9; 30]].concat();
            let frames = [
                udp(ipv6, false, &initial),
                udp(ipv6, true, &initial),
                udp(ipv6, false, &short),
                udp(ipv6, true, &short),
            ];
            let text = read(101, &frames).table(&[], 100, 1);
            assert!(text.contains("no TCP packets: 4 QUIC; QUIC is encrypted: use qlog"), "{text}");
        }
        // DNS, and a datagram whose first bytes only look like a long header.
        let frames = [udp(ipv6, false, &[0x12; 30]), udp(ipv6, false, &[0xc3; 30])];
        let text = read(101, &frames).table(&[], 100, 1);
        assert!(text.contains("no TCP packets: 2 UDP"), "{text}");
    }
}

#[test]
fn compressed_files_are_refused_by_name() {
    for (magic, name) in [
        (&[0x1f, 0x8b, 8, 0][..], "gzip"),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
        (b"BZh9", "bzip2"),
    ] {
        let error = trace::read(magic, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("compressed with {name}, expected pcap")), "{error}");
        assert!(error.contains(&format!("`{name} -dc FILE | towpath trace -`")), "{error}");
    }
}

#[test]
fn times_that_no_clock_has_are_reported() {
    let warnings = |file: &[u8]| {
        let trace = trace::read(file, None).unwrap();
        let texts: Vec<_> = trace.warnings().into_iter().map(|warning| warning.text).collect();
        texts.join("\n")
    };
    let capture = handshake_capture();
    let micros = Layout { nanos: false, ..RAW };
    assert!(!warnings(&capture.file(micros)).contains("time"), "the times are right");
    let mut file = capture.file(micros);
    // The fraction of the second record: 1,200,000 µs.
    let second = 24 + 16 + capture.packets[0].1.len();
    file[second + 4..second + 8].copy_from_slice(&1_200_000_u32.to_le_bytes());
    assert!(warnings(&file).contains("1 packet has an impossible time"));
    let mut backward = capture;
    backward.packets[2].0 = 0;
    let text = warnings(&backward.file(RAW));
    assert!(text.contains("1 packet is more than 1 s older than an earlier packet"), "{text}");
}
