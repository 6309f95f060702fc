//! `towpath monitor --json`.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};
use towpath_linux::monitor::{Condition, Connection, Monitor, Subflow};
use towpath_linux::netlink::{MptcpEvent, MptcpEventKind};
use towpath_linux::{Clock, interrupt};
use towpath_measure::result::Warning;

use crate::arguments::MonitorArguments;
use crate::error::CliError;
use crate::ui::Ui;

pub(crate) fn monitor(arguments: &MonitorArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if !arguments.json {
        return Err(CliError::Unavailable {
            what: "this version monitors as JSON lines only".to_owned(),
            hint: "say `towpath monitor --json`".to_owned(),
        });
    }
    let failed = |error: towpath_linux::netlink::NetlinkError| CliError::Unavailable {
        what: error.to_string(),
        hint: "the kernel must have socket listings (CONFIG_INET_DIAG)".to_owned(),
    };
    let mut monitor = Monitor::open().map_err(failed)?;
    if !monitor.hears_events() {
        ui.warn(&Warning {
            text: "the path manager's events are left out: they need CAP_NET_ADMIN".to_owned(),
            hint: Some("as root, they are shown too".to_owned()),
        });
    }
    interrupt::catch();
    let clock = Clock::start();
    let start = clock.now();
    let mut rounds = 0;
    while !interrupt::seen() && arguments.count.is_none_or(|count| rounds < count) {
        clock.sleep_until(start + arguments.interval * rounds);
        rounds += 1;
        let t_ns = clock.now().saturating_since(start).as_nanos() as u64;
        let (events, lost) = monitor.events().map_err(failed)?;
        for event in &events {
            writeln!(ui.out, "{}", event_line(t_ns, event))?;
        }
        if lost {
            writeln!(ui.out, "{}", json!({"type": "lost", "t_ns": t_ns}))?;
        }
        for connection in monitor.connections().map_err(failed)? {
            writeln!(ui.out, "{}", connection_line(t_ns, &connection))?;
        }
        ui.out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn connection_line(t_ns: u64, connection: &Connection) -> Value {
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
        "subflows": connection.subflows.iter().map(subflow).collect::<Vec<_>>(),
    })
}

fn subflow(subflow: &Subflow) -> Value {
    let condition = match subflow.condition {
        Condition::Trying => "trying",
        Condition::Established => "established",
        Condition::Silent => "silent",
        Condition::Closing => "closing",
    };
    json!({
        "local": subflow.local,
        "remote": subflow.remote,
        "state": format!("{:?}", subflow.state),
        "condition": condition,
        "inferred": subflow.condition == Condition::Silent,
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

fn event_line(t_ns: u64, event: &MptcpEvent) -> Value {
    let name = match event.kind {
        MptcpEventKind::Created => "CREATED".to_owned(),
        MptcpEventKind::Established => "ESTABLISHED".to_owned(),
        MptcpEventKind::Closed => "CLOSED".to_owned(),
        MptcpEventKind::Announced => "ANNOUNCED".to_owned(),
        MptcpEventKind::Removed => "REMOVED".to_owned(),
        MptcpEventKind::SubflowEstablished => "SF_ESTABLISHED".to_owned(),
        MptcpEventKind::SubflowClosed => "SF_CLOSED".to_owned(),
        MptcpEventKind::SubflowPriority => "SF_PRIO".to_owned(),
        MptcpEventKind::ListenerCreated => "LISTENER_CREATED".to_owned(),
        MptcpEventKind::ListenerClosed => "LISTENER_CLOSED".to_owned(),
        MptcpEventKind::Other(number) => format!("{number}"),
    };
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
