//! Comparison of a capture's analysis with the run that was captured.

use serde_json::Value;

use super::capture::Damage;

/// Questions about each capture, the columns of the matrix.
pub(super) const QUESTIONS: [&str; 6] =
    ["transport", "fallback", "grouping", "bytes", "retransmitted", "reinjected"];

/// Bytes by which the delivered data may differ: what the application had not read at the end.
const MAX_DIFFERENCE: (f64, u64) = (0.01, 300_000);

/// Retransmitted packets by which a claim may differ, as a share and as a number. The counters of a
/// run end with its last sample, up to 100 ms before the capture.
const MAX_RETRANSMISSION_DIFFERENCE: (f64, u64) = (0.02, 3);

/// Reinjected bytes by which a claim may differ, for the same reason: a share, and 20 full packets.
const MAX_REINJECTION_DIFFERENCE: (f64, u64) = (0.02, 30_000);

/// Quality of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Right,
    /// The analysis says that it does not know, or marks the value as incomplete.
    NotDecidable,
    Wrong,
}

/// Facts of a run with one flow.
#[derive(Debug, Clone)]
pub(super) struct Truth {
    /// True if Multipath TCP was used; `None` if the run tried it and fell back.
    multipath: Option<bool>,
    /// Bytes that the receivers read, up and down together.
    bytes: u64,
    /// Packets that the senders retransmitted on the same subflow: up and down.
    retransmissions: [u64; 2],
    /// Bytes that the senders reinjected on another subflow; `None` if the stack does not say.
    reinjected_bytes: [Option<u64>; 2],
}

/// Data directions, as results name them.
const DIRECTIONS: [&str; 2] = ["up", "down"];

impl Truth {
    /// Reads the truth from a line of `towpath run --json`; `None` without a result.
    pub(super) fn of(run: &Value) -> Option<Self> {
        let summary = run.get("summary")?;
        let is_used = summary.pointer("/multipath/used")?.as_bool()?;
        let is_mptcp = run.get("transport")?.as_str()? == "mptcp";
        let flows = summary.get("flows")?.as_array()?.iter();
        let sum = |list: &str, direction: &str, key: &str| -> Option<u64> {
            let entries = summary.get(list)?.as_array()?.iter();
            let of_direction = entries
                .filter(|entry| entry.get("direction").and_then(Value::as_str) == Some(direction));
            Some(of_direction.filter_map(|entry| entry.pointer(key)?.as_u64()).sum())
        };
        let says_reinjected = flows.clone().all(|flow| flow.get("stack").is_some());
        let reinjected = |direction| match is_used {
            true if !says_reinjected => None,
            true => sum("flows", direction, "/stack/reinjected_bytes"),
            false => Some(0),
        };
        Some(Self {
            retransmissions: DIRECTIONS
                .map(|direction| sum("subflows", direction, "/retransmissions").unwrap_or(0)),
            reinjected_bytes: DIRECTIONS.map(reinjected),
            multipath: if is_mptcp && !is_used { None } else { Some(is_mptcp) },
            bytes: flows.filter_map(|flow| flow.get("bytes")?.as_u64()).sum(),
        })
    }
}

/// Returns an answer to each question, with the claim in words.
pub(super) fn answers(truth: &Truth, damage: Damage, records: &[Value]) -> [(Answer, String); 6] {
    let is_capture =
        |record: &&Value| record.get("type").and_then(Value::as_str) == Some("capture");
    let connections: Vec<&Value> = records
        .iter()
        .filter(is_capture)
        .filter(|connection| payload_bytes(connection) > 0)
        .collect();
    [
        transport(truth, &connections),
        fallback(truth, &connections),
        grouping(damage, &connections),
        bytes(truth, damage, &connections),
        retransmitted(truth, damage, &connections),
        reinjected(truth, damage, &connections),
    ]
}

fn cut(connection: &Value) -> Option<&str> {
    connection.get("cut_options").and_then(Value::as_str)
}

fn flag(connection: &Value, key: &str) -> bool {
    connection.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the payload of all subflows.
fn payload_bytes(connection: &Value) -> u64 {
    let subflows = connection.get("subflows").and_then(Value::as_array).into_iter().flatten();
    let directions = subflows.filter_map(|subflow| subflow.get("directions")?.as_array()).flatten();
    directions.filter_map(|direction| direction.get("payload_bytes")?.as_u64()).sum()
}

/// Returns the payload that was first seen on each subflow.
fn sent_bytes(connection: &Value) -> u64 {
    let subflows = connection.get("subflows").and_then(Value::as_array).into_iter().flatten();
    let directions = subflows.filter_map(|subflow| subflow.get("directions")?.as_array()).flatten();
    directions.filter_map(|direction| direction.get("new_bytes")?.as_u64()).sum()
}

/// Returns true if the direction with data was captured at its sender.
fn is_at_sender(connections: &[&Value]) -> bool {
    let directions =
        connections.iter().filter_map(|connection| connection.get("directions")?.as_array());
    let by_bytes = directions
        .flatten()
        .max_by_key(|direction| direction.get("bytes").and_then(Value::as_u64).unwrap_or(0));
    by_bytes.and_then(|direction| direction.get("capture_point")?.as_str()) == Some("sender")
}

fn transport(truth: &Truth, connections: &[&Value]) -> (Answer, String) {
    let Some(is_multipath) = truth.multipath else {
        return (Answer::NotDecidable, "the run itself fell back".to_owned());
    };
    let mut answer = Answer::Right;
    for connection in connections {
        let claims_multipath = flag(connection, "multipath");
        match cut(connection) {
            Some("unknown") => answer = answer.max(Answer::NotDecidable),
            _ if claims_multipath == is_multipath => {}
            _ => {
                let claim = if claims_multipath { "Multipath TCP" } else { "plain TCP" };
                return (Answer::Wrong, format!("claims {claim}"));
            }
        }
    }
    if connections.is_empty() {
        answer = Answer::NotDecidable;
    }
    (answer, String::new())
}

fn fallback(truth: &Truth, connections: &[&Value]) -> (Answer, String) {
    let claims: Vec<&str> = { connections.iter() }
        .filter_map(|connection| connection.get("fallback").and_then(Value::as_str))
        .collect();
    match (truth.multipath, claims.first()) {
        (Some(_), Some(claim)) => (Answer::Wrong, format!("claims a fallback: {claim}")),
        (None, None) => (Answer::NotDecidable, String::new()),
        _ if connections.is_empty() => (Answer::NotDecidable, String::new()),
        _ => (Answer::Right, String::new()),
    }
}

/// Each run has one connection.
fn grouping(damage: Damage, connections: &[&Value]) -> (Answer, String) {
    let cut_count = connections.iter().filter(|connection| cut(connection).is_some()).count();
    match connections.len() {
        0 if damage == Damage::None => (Answer::Wrong, "finds no connection".to_owned()),
        1 if cut_count == 0 => (Answer::Right, String::new()),
        count if count == cut_count => (Answer::NotDecidable, String::new()),
        count => (Answer::Wrong, format!("claims {count} connections")),
    }
}

fn bytes(truth: &Truth, damage: Damage, connections: &[&Value]) -> (Answer, String) {
    let delivered: u64 = { connections.iter() }
        .filter_map(|connection| connection.get("directions")?.as_array())
        .flatten()
        .filter_map(|direction| direction.get("bytes")?.as_u64())
        .sum();
    let is_incomplete = connections.iter().any(|connection| {
        let directions = connection.get("directions").and_then(Value::as_array);
        let has = |key: &str| {
            directions
                .into_iter()
                .flatten()
                .any(|direction| direction.get(key).and_then(Value::as_u64).unwrap_or(0) > 0)
        };
        let lacks_packets = damage.lacks_packets() && has("unseen_bytes");
        let is_cut = cut(connection).is_some() || flag(connection, "truncated_start");
        is_cut || lacks_packets || has("unmapped_bytes")
    });
    let (share, bytes) = MAX_DIFFERENCE;
    let slack = bytes.max((truth.bytes as f64 * share) as u64);
    // At the sender, data counts when it is acknowledged: the last flight may be missing.
    let sent: u64 = connections.iter().map(|connection| sent_bytes(connection)).sum();
    let sees_sender = damage.is_merged() || is_at_sender(connections);
    let is_near = delivered <= truth.bytes + slack
        && (delivered + slack >= truth.bytes || sees_sender && sent >= truth.bytes)
        && delivered * 2 >= truth.bytes;
    // The end of the data may be missing, so less than the truth is right.
    let is_early = matches!(damage, Damage::Early(_)) && delivered <= truth.bytes + bytes;
    if connections.is_empty() {
        (Answer::NotDecidable, String::new())
    } else if is_near || is_early {
        (Answer::Right, String::new())
    } else if is_incomplete {
        (Answer::NotDecidable, String::new())
    } else {
        (Answer::Wrong, format!("claims {delivered} bytes instead of {}", truth.bytes))
    }
}

/// Value that a capture claims for one direction of the data.
#[derive(Debug, Clone, Copy)]
struct Claim {
    value: u64,
    truth: u64,
    max_difference: u64,
    /// True if the capture names the value as undecided.
    is_undecided: bool,
    /// True if the file has all packets as the sender sent them.
    is_complete: bool,
}

impl Claim {
    /// Judges the claim; fewer are right where the capture cannot have seen all.
    fn judge(self, what: &str) -> (Answer, String) {
        let Self { value, truth, max_difference, is_undecided, is_complete } = self;
        let is_right =
            value <= truth + max_difference && (!is_complete || value + max_difference >= truth);
        match (is_undecided, is_right) {
            (true, _) => (Answer::NotDecidable, String::new()),
            (false, true) => (Answer::Right, String::new()),
            (false, false) => (Answer::Wrong, format!("claims {value} {what} instead of {truth}")),
        }
    }
}

/// Returns the worse answer of both directions.
fn worse(answers: impl Iterator<Item = (Answer, String)>) -> (Answer, String) {
    let worst = answers.max_by_key(|(answer, _)| *answer);
    worst.unwrap_or((Answer::NotDecidable, String::new()))
}

fn max_difference(truth: u64, (share, number): (f64, u64)) -> u64 {
    number.max((truth as f64 * share).ceil() as u64)
}

fn is_undecided(connections: &[&Value], name: &str) -> bool {
    let names = connections.iter().filter_map(|connection| connection.get("undecided")?.as_array());
    names.flatten().any(|undecided| undecided.as_str() == Some(name))
}

/// Returns true if the file has all packets of a direction as its sender sent them.
fn is_complete(damage: Damage, connections: &[&Value], direction: &str) -> bool {
    let keeps_all = matches!(damage, Damage::None | Damage::SnapLength(_)) || damage.is_doubled();
    let directions = connections.iter().filter_map(|connection| {
        let all = connection.get("directions")?.as_array()?;
        all.iter().find(|entry| entry.get("direction").and_then(Value::as_str) == Some(direction))
    });
    let mut capture_points = directions.filter_map(|entry| entry.get("capture_point")?.as_str());
    let is_at_sender = damage == Damage::Merged || capture_points.all(|point| point == "sender");
    keeps_all && is_at_sender
}

fn retransmitted(truth: &Truth, damage: Damage, connections: &[&Value]) -> (Answer, String) {
    if connections.is_empty() {
        return (Answer::NotDecidable, String::new());
    }
    worse(DIRECTIONS.into_iter().zip(truth.retransmissions).map(|(direction, truth)| {
        let subflows = connections.iter().filter_map(|c| c.get("subflows")?.as_array()).flatten();
        let directions = subflows.filter_map(|subflow| subflow.get("directions")?.as_array());
        let of_direction = directions
            .flatten()
            .filter(|entry| entry.get("direction").and_then(Value::as_str) == Some(direction));
        let value = of_direction.filter_map(|entry| entry.get("retransmitted_packets")?.as_u64());
        let claim = Claim {
            value: value.sum(),
            truth,
            max_difference: max_difference(truth, MAX_RETRANSMISSION_DIFFERENCE),
            is_undecided: is_undecided(connections, "retransmitted_packets"),
            is_complete: is_complete(damage, connections, direction),
        };
        claim.judge(&format!("retransmissions {direction}"))
    }))
}

fn reinjected(truth: &Truth, damage: Damage, connections: &[&Value]) -> (Answer, String) {
    if connections.is_empty() || connections.iter().any(|connection| cut(connection).is_some()) {
        return (Answer::NotDecidable, String::new());
    }
    worse(DIRECTIONS.into_iter().zip(truth.reinjected_bytes).map(|(direction, truth)| {
        let Some(truth) = truth else { return (Answer::NotDecidable, String::new()) };
        let directions = connections.iter().filter_map(|c| c.get("directions")?.as_array());
        let of_direction = directions
            .flatten()
            .filter(|entry| entry.get("direction").and_then(Value::as_str) == Some(direction));
        // The stack's counter does not tell whether a copy went to another subflow or the same one.
        let bytes = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        let value = of_direction
            .map(|entry| bytes(entry, "reinjected_bytes") + bytes(entry, "remapped_bytes"));
        let claim = Claim {
            value: value.sum(),
            truth,
            max_difference: max_difference(truth, MAX_REINJECTION_DIFFERENCE),
            is_undecided: is_undecided(connections, "reinjected_bytes"),
            is_complete: is_complete(damage, connections, direction),
        };
        claim.judge(&format!("reinjected bytes {direction}"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn connection(multipath: bool, bytes: u64) -> Value {
        json!({
            "type": "capture", "multipath": multipath, "truncated_start": false,
            "directions": [{"bytes": bytes}],
            "subflows": [{"directions": [{"payload_bytes": bytes}]}],
        })
    }

    fn truth() -> Truth {
        Truth {
            multipath: Some(true),
            bytes: 5_000_000,
            retransmissions: [0, 0],
            reinjected_bytes: [Some(0), Some(0)],
        }
    }

    #[test]
    fn resent_data_is_compared_with_the_counters_of_the_sender() {
        let truth = Truth {
            retransmissions: [100, 0],
            reinjected_bytes: [Some(1_000_000), Some(0)],
            ..truth()
        };
        let claim = |packets: u64, bytes: u64, capture_point: &str| {
            let mut connection = connection(true, 5_000_000);
            connection["directions"][0]["direction"] = "up".into();
            connection["directions"][0]["capture_point"] = capture_point.into();
            connection["directions"][0]["reinjected_bytes"] = bytes.into();
            connection["subflows"][0]["directions"][0]["direction"] = "up".into();
            connection["subflows"][0]["directions"][0]["retransmitted_packets"] = packets.into();
            connection
        };
        let of = |damage: Damage, connection: Value| {
            let [.., retransmitted, reinjected] =
                answers(&truth, damage, &[connection]).map(|(answer, _)| answer);
            [retransmitted, reinjected]
        };
        let (right, wrong) = ([Answer::Right; 2], [Answer::Wrong; 2]);
        assert_eq!(of(Damage::None, claim(101, 1_010_000, "sender")), right);
        assert_eq!(of(Damage::None, claim(90, 900_000, "sender")), wrong);
        assert_eq!(of(Damage::None, claim(90, 900_000, "receiver")), right);
        assert_eq!(of(Damage::None, claim(110, 1_100_000, "receiver")), wrong);
        assert_eq!(of(Damage::Early(50), claim(50, 500_000, "sender")), right);
        assert_eq!(of(Damage::Merged, claim(200, 1_000_000, "between"))[0], Answer::Wrong);
        let mut undecided = claim(200, 1_000_000, "between");
        undecided["undecided"] = json!(["retransmitted_packets"]);
        assert_eq!(of(Damage::Merged, undecided)[0], Answer::NotDecidable);
    }

    #[test]
    fn claims_are_right_not_decidable_or_wrong() {
        let truth = truth();
        let of =
            |records: &[Value]| answers(&truth, Damage::None, records).map(|(answer, _)| answer);
        assert_eq!(of(&[connection(true, 5_000_000)]), [Answer::Right; 6]);
        assert_eq!(of(&[connection(false, 5_000_000)])[0], Answer::Wrong);
        let two = of(&[connection(true, 2_500_000), connection(true, 2_500_000)]);
        assert_eq!(two[2], Answer::Wrong);
        assert_eq!(of(&[connection(true, 1_000_000)])[3], Answer::Wrong);
        let mut in_flight = connection(true, 4_000_000);
        in_flight["directions"][0]["capture_point"] = "sender".into();
        in_flight["subflows"][0]["directions"][0]["new_bytes"] = 5_100_000.into();
        assert_eq!(of(&[in_flight.clone()])[3], Answer::Right);
        in_flight["directions"][0]["capture_point"] = "receiver".into();
        assert_eq!(of(&[in_flight])[3], Answer::Wrong);
        let mut unknown = connection(false, 5_000_000);
        unknown["cut_options"] = "unknown".into();
        assert_eq!(of(&[unknown])[0], Answer::NotDecidable);
        let mut fallback = connection(true, 5_000_000);
        fallback["fallback"] = "a middlebox".into();
        assert_eq!(of(&[fallback])[1], Answer::Wrong);
        assert_eq!(of(&[])[0], Answer::NotDecidable);
        assert_eq!(of(&[])[2], Answer::Wrong, "a whole capture has a connection");
    }

    #[test]
    fn the_truth_is_read_from_a_result() {
        let run = json!({"transport": "mptcp", "summary": {
            "multipath": {"used": true}, "flows": [{"bytes": 3}, {"bytes": 4}],
        }});
        let truth = Truth::of(&run).unwrap();
        assert_eq!((truth.multipath, truth.bytes), (Some(true), 7));
        assert!(Truth::of(&json!({})).is_none());
    }
}
