//! Time–sequence pictures of captures that these tests build packet by packet.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use bytes::Bytes;
use towpath_report::{ResultTable, csv, html};
use towpath_result::{Record, Sequence, SequenceKind, SequenceMark};
use towpath_trace as trace;
use towpath_trace::CaptureAnalysis;
use towpath_wire::pcapng::{PacketDirection, PcapngWriter};
use towpath_wire::{Flags, Options, Packet, Payload, SackBlocks, Segment};

const MS: u64 = 1_000_000;
const MSS_BYTES: u32 = 1_000;

/// TCP connection in a capture taken at the opener, which sends the data.
struct Connection {
    file: PcapngWriter<Vec<u8>>,
}

impl Connection {
    fn open() -> Self {
        let mut capture = Self { file: PcapngWriter::begin(Vec::new(), ["wifi", "lte"], None) };
        let syn = Options { window_scale: Some(2), sack_permitted: true, ..Options::default() };
        capture.up(0, Flags::SYN, 0, 0, syn.clone());
        capture.down(20, Flags::SYN.with(Flags::ACK), 0, 1_000, syn);
        capture
    }

    fn segment(flags: Flags, bytes: u32, window: u16, options: Options) -> Segment {
        Segment {
            source: ([10, 0, 0, 1], 40_000).into(),
            destination: ([10, 0, 0, 2], 80).into(),
            flags,
            window,
            options,
            payload: Payload::from(Bytes::from(vec![7; bytes as usize])),
            ..Segment::EMPTY
        }
    }

    fn add(&mut self, ms: u64, direction: PacketDirection, segment: &Segment) {
        let mut packet = Packet::emit(segment, 7);
        packet.complete_checksum();
        let bytes = packet.to_vec();
        self.file.packet(1_000_000 * MS + ms * MS, (0, direction), &bytes, bytes.len());
    }

    /// Captures a segment from the opener whose payload starts at offset `first_byte`.
    fn up(&mut self, ms: u64, flags: Flags, first_byte: u32, bytes: u32, options: Options) {
        let seq = if flags.contains(Flags::SYN) { 500 } else { 501 + first_byte };
        let segment = Segment { seq, ack: 901, ..Self::segment(flags, bytes, 900, options) };
        self.add(ms, PacketDirection::Outbound, &segment);
    }

    fn data(&mut self, ms: u64, number: u32) {
        self.up(ms, Flags::ACK, number * MSS_BYTES, MSS_BYTES, Options::default());
    }

    /// Captures a segment to the opener that acknowledges the first `acked_bytes` bytes.
    fn down(&mut self, ms: u64, flags: Flags, acked_bytes: u32, window: u16, options: Options) {
        let outbound = Self::segment(flags, 0, window, options);
        let segment = Segment {
            source: outbound.destination,
            destination: outbound.source,
            seq: if flags.contains(Flags::SYN) { 900 } else { 901 },
            ack: 501 + acked_bytes,
            ..outbound
        };
        self.add(ms, PacketDirection::Inbound, &segment);
    }

    fn ack(&mut self, ms: u64, acked_bytes: u32, window: u16, sack: &[(u32, u32)]) {
        let sack: SackBlocks = sack.iter().map(|(from, to)| (501 + from, 501 + to)).collect();
        self.down(ms, Flags::ACK, acked_bytes, window, Options { sack, ..Options::default() });
    }

    fn trace(self) -> CaptureAnalysis {
        trace::read(self.file.finish().unwrap().as_slice(), None).unwrap()
    }
}

/// Captures six data segments: the third is retransmitted, the fifth is retransmitted needlessly.
fn lossy_trace() -> CaptureAnalysis {
    let mut capture = Connection::open();
    for number in 0..6 {
        capture.data(30 + u64::from(number), number);
    }
    capture.ack(60, 2_000, 1_000, &[]);
    capture.ack(61, 2_000, 1_000, &[(3_000, 4_000)]);
    capture.ack(62, 2_000, 1_000, &[(3_000, 5_000)]);
    capture.ack(63, 2_000, 1_000, &[(3_000, 6_000)]);
    capture.data(64, 2);
    capture.data(65, 4);
    capture.ack(90, 6_000, 0, &[]);
    // The fifth arrived twice (RFC 2883).
    capture.ack(91, 6_000, 500, &[(4_000, 5_000)]);
    capture.up(100, Flags::ACK.with(Flags::FIN), 6_000, 0, Options::default());
    capture.ack(130, 6_001, 500, &[]);
    capture.trace()
}

fn upstream(trace: &CaptureAnalysis) -> Sequence {
    let mut sequences = trace.unreduced_sequences(1);
    assert_eq!(sequences.len(), 1, "{sequences:?}");
    sequences.remove(0)
}

fn marks(sequence: &Sequence, kind: SequenceKind) -> Vec<(u64, i64, i64)> {
    let mark_groups = sequence.views[0].marks.iter().filter(|marks| marks.kind == kind);
    let to_ms =
        |SequenceMark { t_ns, start_bytes, end_bytes, .. }| (t_ns / MS, start_bytes, end_bytes);
    mark_groups.flat_map(|marks| marks.each().map(to_ms).collect::<Vec<_>>()).collect()
}

#[test]
fn a_picture_has_every_packet_at_its_time_and_a_description() {
    let sequence = upstream(&lossy_trace());
    let sent: Vec<_> = (0..6).map(|n| (30 + n as u64, n * 1_000, n * 1_000 + 1_000)).collect();
    assert_eq!(marks(&sequence, SequenceKind::Sent), sent);
    assert_eq!(marks(&sequence, SequenceKind::Retransmitted), [(64, 2_000, 3_000)]);
    assert_eq!(marks(&sequence, SequenceKind::Spurious), [(65, 4_000, 5_000)], "DSACK told it");
    assert_eq!(sequence.retransmitted_packets, 2);
    assert_eq!(
        marks(&sequence, SequenceKind::Sack),
        [(61, 3_000, 4_000), (62, 4_000, 5_000), (63, 5_000, 6_000)],
        "only what is new of a block"
    );
    let duplicate_acks: Vec<_> = [61, 62, 63].map(|ms| (ms, 2_000, 2_000)).into();
    assert_eq!(marks(&sequence, SequenceKind::DuplicateAck), duplicate_acks);
    // The window of a SYN is not scaled, that of the others by 2 bits.
    let acks = [(20, 0, 1_000), (60, 2_000, 6_000), (90, 6_000, 6_000), (91, 6_000, 8_000)];
    assert_eq!(marks(&sequence, SequenceKind::Ack), acks);
    assert_eq!(marks(&sequence, SequenceKind::ZeroWindow), [(90, 6_000, 6_000)]);
    assert_eq!(marks(&sequence, SequenceKind::Syn), [(0, -1, -1)]);
    assert_eq!(marks(&sequence, SequenceKind::Fin), [(100, 6_000, 6_000)]);
}

#[test]
fn a_report_draws_it_and_a_table_has_its_numbers() {
    let run = lossy_trace().run("lossy", 5);
    let page = html(std::slice::from_ref(&run));
    let marks = [">R</text>", ">D</text>", ">Z</text>", ">FIN</text>"];
    for text in ["Sequence numbers over time", "reinjected", "lossy"].into_iter().chain(marks) {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("<p class=\"facts\">capture · "), "it is not a run between two hosts");
    assert!(page.contains("0.064 s: retransmitted, bytes 2000 to 3000"), "a title says what it is");
    let table = csv(&[run], ResultTable::Sequence);
    let retransmissions: Vec<_> =
        table.lines().filter(|line| line.contains(",retransmitted,")).collect();
    assert_eq!(retransmissions.len(), 1, "{table}");
    assert!(table.lines().next().unwrap().contains("t_ns,flow,stream,direction,subflow,path"));
}

#[test]
fn a_long_transfer_has_a_bounded_picture_with_all_resent_data() {
    let page_stored_and_resent = |packets: u32| {
        let mut capture = Connection::open();
        let mut ms = 30;
        for number in 0..packets {
            capture.data(ms, number);
            ms += 1;
            if number % 10 == 9 {
                capture.data(ms, number - 5);
                capture.ack(ms + 1, (number + 1) * MSS_BYTES, 60_000, &[]);
            }
        }
        let run = capture.trace().run("long", 5);
        let page = html(std::slice::from_ref(&run));
        let sequences = run.records.iter().filter_map(|record| {
            let Record::Sequence(sequence) = record else { return None };
            Some(sequence)
        });
        let stored: usize =
            sequences.clone().map(|s| serde_json::to_string(s).unwrap().len()).sum();
        let resent = sequences.flat_map(|s| &s.views[0].marks).filter(|marks| {
            matches!(marks.kind, SequenceKind::Retransmitted | SequenceKind::Spurious)
        });
        let resent: u32 = resent.flat_map(|marks| &marks.packets).sum();
        (page.len(), stored, resent)
    };
    let (small_page, _, few_resent) = page_stored_and_resent(1_000);
    let (large_page, stored, many_resent) = page_stored_and_resent(60_000);
    assert_eq!((few_resent, many_resent), (100, 6_000), "none is left out");
    assert!(large_page < small_page + 250_000, "{small_page} and {large_page} bytes");
    assert!(stored < 300_000, "{stored} bytes");
}
