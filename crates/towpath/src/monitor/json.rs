//! Output of the monitor as JSON, one object a line.

use serde_json::{Value, json};
use towpath_host::monitor::{
    DerivedConnection, DerivedSubflow, EndedSubflow, EventSource, MonitorEvent, MonitoredSubflow,
    ObservedLimit, SubflowCondition,
};
use towpath_netlink::{MptcpEvent, MptcpEventKind};

/// Returns the first line; `hears_events` is false if path manager events will be missing.
pub(super) fn start_line(hears_events: bool) -> Value {
    json!({"type": "start", "t_ns": 0, "hears_events": hears_events})
}

/// Returns one connection in one sample.
pub(super) fn connection_line(t_ns: u64, derived: &DerivedConnection) -> Value {
    let connection = &derived.connection;
    let pairs = connection.subflows.iter().zip(&derived.subflows);
    let processes = connection.processes.iter();
    let processes = processes.map(|process| json!({"id": process.id, "name": process.name}));
    json!({
        "type": "connection",
        "t_ns": t_ns,
        "token": format!("{:08x}", connection.token),
        "state": format!("{:?}", connection.state),
        "fallback": connection.fallback,
        "local": connection.local,
        "remote": connection.remote,
        "inode": connection.inode,
        "uid": connection.uid,
        "processes": processes.collect::<Vec<_>>(),
        "bytes_received": connection.bytes_received,
        "bytes_acked": connection.bytes_acked,
        "bytes_reinjected": connection.bytes_reinjected,
        "down_bps": derived.down_bps.round(),
        "up_bps": derived.up_bps.round(),
        "subflows": pairs.map(|(subflow, derived_subflow)| subflow_value(subflow, derived_subflow)).collect::<Vec<_>>(),
    })
}

fn subflow_value(subflow: &MonitoredSubflow, derived: &DerivedSubflow) -> Value {
    let condition = match subflow.condition {
        SubflowCondition::Trying => "trying",
        SubflowCondition::Established => "established",
        SubflowCondition::Silent => "silent",
        SubflowCondition::Closing => "closing",
    };
    json!({
        "local": subflow.local,
        "remote": subflow.remote,
        "state": format!("{:?}", subflow.state),
        "condition": condition,
        "status": derived.status.name(),
        "why": derived.why,
        "inferred": derived.is_inferred,
        "interface": derived.interface,
        "down_bps": derived.down_bps.round(),
        "up_bps": derived.up_bps.round(),
        "share": derived.share,
        "limits": derived.limits.iter().map(limit_value).collect::<Vec<_>>(),
        "backup": subflow.backup,
        "local_id": subflow.local_id,
        "remote_id": subflow.remote_id,
        "congestion_control": subflow.congestion,
        "srtt_us": subflow.srtt_us,
        "cwnd_packets": subflow.cwnd_packets,
        "backoff": subflow.backoff,
        "unacked_packets": subflow.unacked_packets,
        "retransmissions": subflow.retransmissions,
        "bytes_received": subflow.bytes_received,
        "bytes_acked": subflow.bytes_acked,
    })
}

/// Returns one limit of a sender and its share of the time.
fn limit_value(limit: &ObservedLimit) -> Value {
    json!({"limit": limit.id(), "share": limit.share})
}

/// Returns an event of the path manager, with its details.
pub(super) fn event_line(t_ns: u64, event: &MptcpEvent) -> Value {
    let mut name = event.kind.name().to_owned();
    if let MptcpEventKind::Other(number) = event.kind {
        name = number.to_string();
    }
    let mut line = json!({"type": "event", "t_ns": t_ns, "event": name});
    let details = [
        ("token", event.token.map(|token| json!(format!("{token:08x}")))),
        ("local_id", event.local_id.map(|id| json!(id))),
        ("remote_id", event.remote_id.map(|id| json!(id))),
        ("local", event.local.map(|address| json!(address))),
        ("local_port", event.local_port.map(|port| json!(port))),
        ("remote", event.remote.map(|address| json!(address))),
        ("remote_port", event.remote_port.map(|port| json!(port))),
        ("backup", event.backup.map(|backup| json!(backup))),
        ("error", event.error.map(|error| json!(error))),
        ("reset_reason", event.reset_reason.map(|reason| json!(reason))),
        ("interface", event.link_index.map(|index| json!(index))),
    ];
    if let Some(fields) = line.as_object_mut() {
        for (name, value) in details {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        }
    }
    line
}

/// Returns a subflow that has ended.
pub(super) fn ended_line(t_ns: u64, ended: &EndedSubflow) -> Value {
    json!({
        "type": "subflow_end",
        "t_ns": t_ns,
        "token": format!("{:08x}", ended.token),
        "local": ended.local,
        "remote": ended.remote,
        "interface": ended.interface,
        "bytes_received": ended.bytes_received,
        "bytes_acked": ended.bytes_acked,
        "retransmissions": ended.retransmissions,
        "final": ended.is_final,
    })
}

/// Returns an event that has only a text.
pub(super) fn event_text_line(t_ns: u64, event: &MonitorEvent) -> Value {
    let kind = match event.source {
        EventSource::Lost => "lost",
        EventSource::Link => "link",
        EventSource::Route => "route",
        EventSource::Inferred => "inferred",
        EventSource::PathManager => "mptcp",
    };
    json!({"type": kind, "t_ns": t_ns, "text": event.text})
}
