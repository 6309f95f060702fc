//! Comparison of a capture's analysis with the run that was captured.

use serde_json::Value;

use super::capture::Damage;

/// Questions about each capture, the columns of the matrix.
pub(super) const QUESTIONS: [&str; 4] = ["transport", "fallback", "grouping", "bytes"];

/// Bytes by which the delivered data may differ: what the application had not read at the end.
const MAX_DIFFERENCE: (f64, u64) = (0.01, 300_000);

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
}

impl Truth {
    /// Reads the truth from a line of `towpath run --json`; `None` without a result.
    pub(super) fn of(run: &Value) -> Option<Self> {
        let summary = run.get("summary")?;
        let is_used = summary.pointer("/multipath/used")?.as_bool()?;
        let is_mptcp = run.get("transport")?.as_str()? == "mptcp";
        let flows = summary.get("flows")?.as_array()?.iter();
        Some(Self {
            multipath: if is_mptcp && !is_used { None } else { Some(is_mptcp) },
            bytes: flows.filter_map(|flow| flow.get("bytes")?.as_u64()).sum(),
        })
    }
}

/// Returns an answer to each question, with the claim in words.
pub(super) fn answers(truth: &Truth, damage: Damage, records: &[Value]) -> [(Answer, String); 4] {
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

    #[test]
    fn claims_are_right_not_decidable_or_wrong() {
        let truth = Truth { multipath: Some(true), bytes: 5_000_000 };
        let of =
            |records: &[Value]| answers(&truth, Damage::None, records).map(|(answer, _)| answer);
        assert_eq!(of(&[connection(true, 5_000_000)]), [Answer::Right; 4]);
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
