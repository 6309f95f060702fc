//! Time–sequence pictures of captures that these tests build packet by packet.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use bytes::Bytes;
use towpath_measure::pcapng::{PacketDirection, PcapngWriter};
use towpath_measure::result::{Record, Sequence, SequenceKind, SequenceMark};
use towpath_mptcp::wire::{Flags, Options, Packet, Payload, SackBlocks, Segment};
use towpath_report::trace::{self, CaptureAnalysis};
use towpath_report::{CsvTable, csv, html};

const MS: u64 = 1_000_000;
const MSS_BYTES: u32 = 1_000;

/// Connection captured at its opener, which sends.
struct Connection {
    file: PcapngWriter<Vec<u8>>,
}

impl Connection {
    fn open() -> Self {
        let mut made = Self { file: PcapngWriter::begin(Vec::new(), ["wifi", "lte"], None) };
        let syn = Options { window_scale: Some(2), sack_permitted: true, ..Options::default() };
        made.up(0, Flags::SYN, 0, 0, syn.clone());
        made.down(20, Flags::SYN.with(Flags::ACK), 0, 1_000, syn);
        made
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

    /// Captures payload from `at` on, counted from the first byte.
    fn up(&mut self, ms: u64, flags: Flags, at: u32, bytes: u32, options: Options) {
        let seq = if flags.contains(Flags::SYN) { 500 } else { 501 + at };
        let segment = Segment { seq, ack: 901, ..Self::segment(flags, bytes, 900, options) };
        self.add(ms, PacketDirection::Outbound, &segment);
    }

    fn data(&mut self, ms: u64, number: u32) {
        self.up(ms, Flags::ACK, number * MSS_BYTES, MSS_BYTES, Options::default());
    }

    /// Captures an acknowledgement of everything below `at`.
    fn down(&mut self, ms: u64, flags: Flags, at: u32, window: u16, options: Options) {
        let near = Self::segment(flags, 0, window, options);
        let segment = Segment {
            source: near.destination,
            destination: near.source,
            seq: if flags.contains(Flags::SYN) { 900 } else { 901 },
            ack: 501 + at,
            ..near
        };
        self.add(ms, PacketDirection::Inbound, &segment);
    }

    fn ack(&mut self, ms: u64, at: u32, window: u16, sack: &[(u32, u32)]) {
        let sack: SackBlocks = sack.iter().map(|(from, to)| (501 + from, 501 + to)).collect();
        self.down(ms, Flags::ACK, at, window, Options { sack, ..Options::default() });
    }

    fn trace(self) -> CaptureAnalysis {
        trace::read(self.file.finish().unwrap().as_slice(), None).unwrap()
    }
}

/// Captures ten segments; the third is lost and retransmitted, the fifth is a spurious
/// retransmission.
fn lossy_trace() -> CaptureAnalysis {
    let mut made = Connection::open();
    for number in 0..6 {
        made.data(30 + u64::from(number), number);
    }
    made.ack(60, 2_000, 1_000, &[]);
    made.ack(61, 2_000, 1_000, &[(3_000, 4_000)]);
    made.ack(62, 2_000, 1_000, &[(3_000, 5_000)]);
    made.ack(63, 2_000, 1_000, &[(3_000, 6_000)]);
    made.data(64, 2);
    made.data(65, 4);
    made.ack(90, 6_000, 0, &[]);
    // The fifth arrived twice (RFC 2883).
    made.ack(91, 6_000, 500, &[(4_000, 5_000)]);
    made.up(100, Flags::ACK.with(Flags::FIN), 6_000, 0, Options::default());
    made.ack(130, 6_001, 500, &[]);
    made.trace()
}

fn upstream(trace: &CaptureAnalysis) -> Sequence {
    let mut all = trace.unreduced_sequences(1);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn marks(sequence: &Sequence, kind: SequenceKind) -> Vec<(u64, i64, i64)> {
    let all = sequence.views[0].marks.iter().filter(|marks| marks.kind == kind);
    let tell =
        |SequenceMark { t_ns, start_bytes, end_bytes, .. }| (t_ns / MS, start_bytes, end_bytes);
    all.flat_map(|marks| marks.each().map(tell).collect::<Vec<_>>()).collect()
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
    let twice: Vec<_> = [61, 62, 63].map(|ms| (ms, 2_000, 2_000)).into();
    assert_eq!(marks(&sequence, SequenceKind::DuplicateAck), twice);
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
    for text in ["Sequence numbers over time", ">R</text>", ">D</text>", ">Z</text>", ">FIN</text>"]
    {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("<p class=\"facts\">capture · "), "it is no run between two hosts");
    assert!(page.contains("0.064 s: sent again, bytes 2000 to 3000"), "a title says what it is");
    let table = csv(&[run], CsvTable::Sequence);
    let again: Vec<_> = table.lines().filter(|line| line.contains(",retransmitted,")).collect();
    assert_eq!(again.len(), 1, "{table}");
    assert!(table.lines().next().unwrap().contains("t_ns,flow,stream,direction,subflow,path"));
}

#[test]
fn a_long_transfer_has_a_bounded_picture_with_all_resent_data() {
    let size = |packets: u32| {
        let mut made = Connection::open();
        let mut ms = 30;
        for number in 0..packets {
            made.data(ms, number);
            ms += 1;
            if number % 10 == 9 {
                made.data(ms, number - 5);
                made.ack(ms + 1, (number + 1) * MSS_BYTES, 60_000, &[]);
            }
        }
        let run = made.trace().run("long", 5);
        let page = html(std::slice::from_ref(&run));
        let sequences = run.records.iter().filter_map(|record| {
            let Record::Sequence(sequence) = record else { return None };
            Some(sequence)
        });
        let stored: usize =
            sequences.clone().map(|one| serde_json::to_string(one).unwrap().len()).sum();
        let again = sequences.flat_map(|one| &one.views[0].marks).filter(|marks| {
            matches!(marks.kind, SequenceKind::Retransmitted | SequenceKind::Spurious)
        });
        let again: u32 = again.flat_map(|marks| &marks.packets).sum();
        (page.len(), stored, again)
    };
    let (small, _, few) = size(1_000);
    let (large, stored, many) = size(60_000);
    assert_eq!((few, many), (100, 6_000), "none is left out");
    assert!(large < small + 250_000, "{small} and {large} bytes");
    assert!(stored < 300_000, "{stored} bytes");
}
