//! Comparison with Wireshark's own analysis of the same captures, by `tshark`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Result;

/// Maximum number of packets of a compared capture: `tshark` reads some 7,000 of them in a second.
pub(super) const MAX_PACKETS: usize = 30_000;

const FIELDS: [&str; 10] = [
    "tcp.stream",
    "mptcp.stream",
    "tcp.len",
    "tcp.analysis.retransmission",
    "tcp.analysis.fast_retransmission",
    "tcp.analysis.spurious_retransmission",
    "tcp.analysis.out_of_order",
    "mptcp.reinjection_of",
    "mptcp.dss.missing_mapping",
    "tcp.analysis.keep_alive",
];

/// Values that are compared, in the order of the table.
const KINDS: [&str; 7] = [
    "Multipath TCP connections",
    "subflows per connection",
    "retransmitted packets",
    "out-of-order packets",
    "retransmitted and out-of-order packets together",
    "reinjected bytes",
    "packets or bytes without a mapping",
];

/// Values of one capture as one program sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Observation {
    /// Number of subflows of each Multipath TCP connection, in increasing order.
    subflows: Vec<usize>,
    retransmitted: u64,
    out_of_order: u64,
    reinjected_bytes: u64,
    unmapped: u64,
}

impl Observation {
    /// Reads lines of `tshark -T fields` with [`FIELDS`]. SYNs and FINs without payload are not
    /// counted, as in `towpath trace`.
    fn of_tshark(text: &str) -> Self {
        let mut subflows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut observation = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let field = |name: &str| {
                let index = FIELDS.iter().position(|field| *field == name);
                index.and_then(|index| fields.get(index)).copied().unwrap_or_default()
            };
            let has = |name: &str| !field(name).is_empty();
            if has("mptcp.stream") {
                subflows.entry(field("mptcp.stream")).or_default().insert(field("tcp.stream"));
            }
            let payload_bytes: u64 = field("tcp.len").parse().unwrap_or(0);
            if payload_bytes == 0 || has("tcp.analysis.keep_alive") {
                continue;
            }
            let is_retransmitted = has("tcp.analysis.retransmission")
                || has("tcp.analysis.fast_retransmission")
                || has("tcp.analysis.spurious_retransmission");
            observation.retransmitted += u64::from(is_retransmitted);
            observation.out_of_order +=
                u64::from(has("tcp.analysis.out_of_order") && !is_retransmitted);
            observation.unmapped += u64::from(has("mptcp.dss.missing_mapping"));
            if has("mptcp.reinjection_of") {
                observation.reinjected_bytes += payload_bytes;
            }
        }
        observation.subflows = subflows.values().map(BTreeSet::len).collect();
        observation.subflows.sort_unstable();
        observation
    }

    /// Reads the records of `towpath trace --json`.
    fn of_trace(records: &[Value]) -> Self {
        let mut observation = Self::default();
        let number = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        let list = |entry: &Value, key: &str| -> Vec<Value> {
            entry.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let is_capture =
            |record: &&Value| record.get("type").and_then(Value::as_str) == Some("capture");
        for connection in records.iter().filter(is_capture) {
            let subflows = list(connection, "subflows");
            if connection.get("multipath").and_then(Value::as_bool) == Some(true) {
                observation.subflows.push(subflows.len());
            }
            for direction in subflows.iter().flat_map(|subflow| list(subflow, "directions")) {
                observation.retransmitted += number(&direction, "retransmitted_packets");
                observation.out_of_order += number(&direction, "out_of_order_packets");
            }
            for direction in list(connection, "directions") {
                observation.reinjected_bytes += number(&direction, "reinjected_bytes");
                observation.unmapped += number(&direction, "unmapped_bytes");
            }
        }
        observation.subflows.sort_unstable();
        observation
    }

    /// Returns the values of [`KINDS`], as numbers for sums and as text for the comparison.
    fn values(&self) -> [(u64, String); 7] {
        let number = |value: u64| (value, value.to_string());
        [
            number(self.subflows.len() as u64),
            (self.subflows.iter().sum::<usize>() as u64, format!("{:?}", self.subflows)),
            number(self.retransmitted),
            number(self.out_of_order),
            number(self.retransmitted + self.out_of_order),
            number(self.reinjected_bytes),
            number(self.unmapped),
        ]
    }
}

/// Differences of all captures so far, by kind.
#[derive(Debug, Default)]
pub(super) struct TsharkComparison {
    captures: u32,
    /// Captures with equal values, and the sums of both programs.
    equal: [u32; 7],
    sums: [[u64; 2]; 7],
    differences: [Vec<String>; 7],
}

impl TsharkComparison {
    /// Returns an empty comparison; an error if there is no `tshark`.
    pub(super) fn new() -> Result<Self> {
        match Command::new("tshark").arg("--version").output() {
            Ok(_) => Ok(Self::default()),
            Err(error) => Err(format!(
                "`tshark` does not start ({error}): install Wireshark's `tshark`, or leave out \
                 `--tshark`"
            )
            .into()),
        }
    }

    /// Compares what both programs say about a capture.
    pub(super) fn add(&mut self, name: &str, capture: &Path, records: &[Value]) -> Result<()> {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(capture).args(["-T", "fields"]);
        for preference in ["analyze_mappings", "intersubflows_retransmission"] {
            command.args(["-o", &format!("mptcp.{preference}:TRUE")]);
        }
        command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
        let output = command.output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("tshark ended with {}: {text}", output.status).into());
        }
        let tshark = Observation::of_tshark(&String::from_utf8_lossy(&output.stdout));
        self.compare(name, &Observation::of_trace(records), &tshark);
        Ok(())
    }

    fn compare(&mut self, name: &str, trace: &Observation, tshark: &Observation) {
        self.captures += 1;
        let both = trace.values().into_iter().zip(tshark.values()).enumerate();
        for (kind, ((ours, our_text), (theirs, their_text))) in both {
            let (Some(equal), Some(sums), Some(differences)) =
                (self.equal.get_mut(kind), self.sums.get_mut(kind), self.differences.get_mut(kind))
            else {
                continue;
            };
            *sums = [sums[0] + ours, sums[1] + theirs];
            if our_text == their_text {
                *equal += 1;
            } else {
                differences.push(format!("{name}: trace {our_text}, tshark {their_text}"));
            }
        }
    }

    /// Prints a table, then every difference by kind.
    pub(super) fn print(&self, out: &mut dyn Write) -> Result<()> {
        let packets = MAX_PACKETS;
        writeln!(out, "\n{} captures, at most {packets} packets of each\n", self.captures)?;
        writeln!(out, "| value | equal | different | sum of trace | sum of tshark |")?;
        writeln!(out, "|---|---|---|---|---|")?;
        let rows = KINDS.iter().zip(self.equal).zip(self.sums).zip(&self.differences);
        for (((kind, equal), [ours, theirs]), differences) in rows {
            writeln!(out, "| {kind} | {equal} | {} | {ours} | {theirs} |", differences.len())?;
        }
        for (kind, differences) in KINDS.iter().zip(&self.differences) {
            for difference in differences {
                writeln!(out, "{kind}: {difference}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_programs_are_read_and_differences_are_grouped_by_kind() {
        let text = "0\t0\t100\t\t\t\t\t\t\t\n1\t0\t100\t\t\t\t\t4,5\t\t\n0\t0\t100\t1\t1\t\t\t\t\t\n\
                    0\t0\t100\t\t\t\t1\t\t\t\n0\t0\t0\t1\t\t\t\t\t\t\n2\t\t50\t\t\t\t\t\t\t\n";
        let tshark = Observation::of_tshark(text);
        let record = |out_of_order: u64| {
            json!({
                "type": "capture", "multipath": true,
                "directions": [{"reinjected_bytes": 100}],
                "subflows": [
                    {"directions": [{"retransmitted_packets": 1}]},
                    {"directions": [{"out_of_order_packets": out_of_order}]},
                ],
            })
        };
        let trace = Observation::of_trace(&[record(1)]);
        assert_eq!(trace, tshark);
        let mut comparison = TsharkComparison::default();
        comparison.compare("a", &trace, &tshark);
        comparison.compare("b", &Observation::of_trace(&[record(2)]), &tshark);
        let mut out = Vec::new();
        comparison.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("| out-of-order packets | 1 | 1 | 3 | 2 |"), "{text}");
        assert!(text.contains("out-of-order packets: b: trace 2, tshark 1"), "{text}");
        assert!(text.contains("| reinjected bytes | 2 | 0 | 200 | 200 |"), "{text}");
    }
}
