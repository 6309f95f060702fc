//! Encoding, parsing and cutting of packets, and their checksums.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use towpath_wire::keys;
use towpath_wire::{
    DataAck, Dss, DssMapping, Ecn, Flags, Options, Packet, Payload, Segment, Timestamps,
};

/// Returns a full packet of bulk transfer: timestamps, and a DSS with 8-byte data ACK and DSN.
fn data_segment(payload_bytes: usize, segment_bytes: u16) -> Segment {
    let dss = Dss {
        data_fin: false,
        data_ack: Some(DataAck::Long(0x0102_0304_0506_0708)),
        mapping: Some(DssMapping {
            dsn: DataAck::Long(0x1112_1314_1516_1718),
            ssn: 1_000_001,
            len: payload_bytes as u16,
            checksum: None,
        }),
    };
    Segment {
        source: ([10, 0, 0, 1], 40_000).into(),
        destination: ([10, 0, 0, 2], 443).into(),
        seq: 1,
        ack: 2,
        flags: Flags::ACK,
        window: 512,
        ecn: Ecn::NotCapable,
        options: Options {
            timestamps: Some(Timestamps { value: 3, echo: 4 }),
            dss: Some(dss),
            ..Options::default()
        },
        payload: Bytes::from(vec![0xa5; payload_bytes]).into(),
        segment_bytes,
    }
}

fn ack_segment() -> Segment {
    let dss = Dss { data_fin: false, data_ack: Some(DataAck::Long(5)), mapping: None };
    let mut segment = data_segment(0, 0);
    segment.options.dss = Some(dss);
    segment.options.sack.push((7, 9));
    segment
}

fn bench_codec(c: &mut Criterion) {
    for (name, segment) in [("data", data_segment(1_424, 0)), ("ack", ack_segment())] {
        let packet = Packet::emit(&segment, 1);
        c.bench_function(&format!("wire/{name}/emit"), |b| {
            b.iter(|| Packet::emit(black_box(&segment), 1));
        });
        c.bench_function(&format!("wire/{name}/parse"), |b| b.iter(|| black_box(&packet).parse()));
    }
    let packet = Packet::emit(&data_segment(1_424 * 40, 1_424), 1);
    let mut group = c.benchmark_group("wire/split");
    group.throughput(Throughput::Elements(40));
    group.bench_function("40", |b| {
        b.iter_batched(|| packet.clone(), |p| p.split().for_each(drop), BatchSize::SmallInput);
    });
}

fn bench_checksums(c: &mut Criterion) {
    let payload = Payload::from(Bytes::from(vec![0xa5; 1_424]));
    let mut group = c.benchmark_group("checksum");
    group.throughput(Throughput::Bytes(1_424));
    group.bench_function("dss", |b| {
        b.iter(|| keys::dss_checksum(1, 2, 1_424, black_box(&payload)));
    });
    let packet = Packet::emit(&data_segment(1_424, 0), 1);
    group.bench_function("tcp", |b| {
        b.iter_batched_ref(|| packet.clone(), Packet::complete_checksum, BatchSize::SmallInput);
    });
}

criterion_group!(benches, bench_codec, bench_checksums);
criterion_main!(benches);
