//! Captures of very many subflows, connections or options.

use std::fs;
use std::time::Duration;

use towpath_wire::keys;

use super::super::fixture::times;
use super::{interface_block, packet_block, section_block};
use crate::program::{ProgramOutput, TestDir};

/// Timeout, far longer than the slowest capture takes in an unoptimised build on a busy machine.
const ANALYSIS_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum sizes of a table and of a page. Both list at most 100 subflows of a connection.
const MAX_TABLE_BYTES: usize = 100_000;
const MAX_PAGE_BYTES: u64 = 2_000_000;
/// Maximum size of the JSON for each captured item.
const MAX_JSON_BYTES_PER_ITEM: usize = 3_000;

const CLIENT: (u32, u16) = (0x0a00_0001, 40_000);
const SERVER: (u32, u16) = (0x0a00_0002, 80);
const CLIENT_KEY: u64 = 1;
const SERVER_KEY: u64 = 2;

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Capture file under construction, with one packet each microsecond.
struct CaptureFile {
    bytes: Vec<u8>,
    packets: u32,
    /// Added to the time of a packet, in units of 2^32 µs.
    high_time: u32,
}

impl CaptureFile {
    fn new() -> Self {
        Self {
            bytes: [section_block(&[]), interface_block(&[])].concat(),
            packets: 0,
            high_time: 0,
        }
    }

    /// Adds an IPv4 packet with TCP options, whose length must be a multiple of 4.
    fn add(
        &mut self,
        [source, destination]: [(u32, u16); 2],
        [seq, ack]: [u32; 2],
        flags: u8,
        options: &[u8],
        payload: &[u8],
    ) {
        let length = u16::try_from(40 + options.len() + payload.len()).unwrap().to_be_bytes();
        let number = (self.packets as u16).to_be_bytes();
        let header_words = u8::try_from(5 + options.len() / 4).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend([length, number].concat());
        packet.extend([0, 0, 64, 6, 0, 0]);
        packet.extend([source.0, destination.0].map(u32::to_be_bytes).concat());
        packet.extend([source.1, destination.1].map(u16::to_be_bytes).concat());
        packet.extend([seq, ack].map(u32::to_be_bytes).concat());
        packet.extend([header_words << 4, flags, 255, 255, 0, 0, 0, 0]);
        packet.extend([options, payload].concat());
        self.bytes.extend(packet_block(
            [self.high_time, self.packets],
            packet.len() as u32,
            &packet,
        ));
        self.packets += 1;
    }

    /// Adds the handshake of a connection with the two keys (RFC 8684 §3.1).
    fn add_connection(&mut self) {
        let (up, down) = ([CLIENT, SERVER], [SERVER, CLIENT]);
        let [client_key, server_key] = [CLIENT_KEY, SERVER_KEY].map(u64::to_be_bytes);
        self.add(up, [100, 0], SYN, &[30, 4, 1, 1], &[]);
        let reply = [&[30, 12, 1, 1], &server_key[..]].concat();
        self.add(down, [200, 101], SYN | ACK, &reply, &[]);
        let ack = [&[30, 20, 1, 1], &client_key[..], &server_key].concat();
        self.add(up, [101, 201], ACK, &ack, &[]);
    }

    /// Adds a SYN with MP_JOIN (RFC 8684 §3.2).
    fn add_join(&mut self, number: u32, token: u32) {
        let nonce = number.to_be_bytes();
        let option = [&[30, 12, 0x10, number as u8][..], &token.to_be_bytes(), &nonce].concat();
        self.add([joining_end(number), SERVER], [1_000, 0], SYN, &option, &[]);
    }

    /// Adds 100 bytes of data with their mapping, which follow those of the previous number.
    fn add_data(&mut self, number: u32) {
        let dsn =
            (keys::initial_dsn(CLIENT_KEY) as u32).wrapping_add(1 + number * 100).to_be_bytes();
        let option = [&[30, 18, 0x20, 4][..], &dsn, &1_u32.to_be_bytes(), &[0, 100, 0, 0, 1, 1]];
        let ends = [joining_end(number), SERVER];
        self.add(ends, [1_001, 2_001], ACK, &option.concat(), &[7; 100]);
    }
}

fn joining_end(number: u32) -> (u32, u16) {
    (0x0b00_0000 + number, 10_000 + (number % 50_000) as u16)
}

/// Returns the capture of a kind of attack with `count` items.
fn attack_capture(kind: &str, count: u32) -> Vec<u8> {
    let mut file = CaptureFile::new();
    file.add_connection();
    for number in 0..count {
        match kind {
            "joins" | "resets" | "data" => file.add_join(number, keys::token(SERVER_KEY)),
            "unknown joins" => file.add_join(number, number),
            "connections" => {
                let ends = [joining_end(number), SERVER];
                file.add(ends, [100, 0], SYN, &[30, 4, 1, 1], &[]);
            }
            "addresses" => {
                let option = [&[30, 16, 0x30, number as u8][..], &number.to_be_bytes(), &[1; 8]];
                file.add([CLIENT, SERVER], [101, 201], ACK, &option.concat(), &[]);
            }
            // Times that jump by 123 years and back.
            "times" => {
                file.high_time = number % 2 * 900_000;
                file.add([CLIENT, SERVER], [101 + number * 4, 201], ACK, &[], b"data");
            }
            _ => {
                let option = [30, 3, 0x50 | (number % 2) as u8, 1];
                file.add([CLIENT, SERVER], [101, 201], ACK, &option, &[]);
            }
        }
        match kind {
            "resets" => {
                file.add([SERVER, joining_end(number)], [0, 1_001], RST | ACK, &[], &[]);
            }
            "data" => {
                let ends = [SERVER, joining_end(number)];
                let reply = [&[30, 16, 0x10, 0][..], &[0; 12]].concat();
                file.add(ends, [2_000, 1_001], SYN | ACK, &reply, &[]);
                file.add_data(number);
            }
            _ => {}
        }
    }
    file.bytes
}

fn analyse(folder: &TestDir, options: &[&str]) -> ProgramOutput {
    let mut command = folder.towpath(&[&["trace", "c.pcapng"], options].concat());
    let output = folder.start(&mut command).wait_at_most(ANALYSIS_TIMEOUT);
    assert_eq!(output.code, Some(0), "{output}");
    output
}

/// F2, F3: "a table or page … lists at most", "no reader … hangs": very many items of each kind.
#[test]
fn a_capture_of_many_subflows_has_a_bounded_page_and_ends() {
    let folder = TestDir::new();
    let count = times(8_000, 75_000);
    let kinds = [
        "joins",
        "unknown joins",
        "connections",
        "resets",
        "data",
        "addresses",
        "priorities",
        "times",
    ];
    for kind in kinds {
        folder.write("c.pcapng", attack_capture(kind, u32::try_from(count).unwrap()));
        let table = analyse(&folder, &["-o", "c.html"]).out;
        let page_bytes = fs::metadata(folder.work().join("c.html")).unwrap().len();
        assert!(table.len() < MAX_TABLE_BYTES, "{kind}: a table of {} bytes", table.len());
        assert!(page_bytes < MAX_PAGE_BYTES, "{kind}: a page of {page_bytes} bytes");
        let json = analyse(&folder, &["--json"]).out;
        let max_bytes = count * MAX_JSON_BYTES_PER_ITEM;
        assert!(json.len() < max_bytes, "{kind}: {} bytes of JSON", json.len());
        if matches!(kind, "joins" | "resets" | "data") {
            assert!(table.contains("more subflows (`--json` lists them)"), "{kind}: {table}");
            // The first subflow has no join; beyond the limit, packets are only counted.
            let listed = json.matches("\"join\":true").count();
            assert_eq!(listed, count.min((1 << 16) - 1), "{kind}");
        }
    }
}
