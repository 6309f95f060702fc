//! Output of the monitor as text lines, without a terminal to draw on. The screen shares its words.

use std::io::{self, Write};

use towpath_host::monitor::{
    DerivedConnection, DerivedSubflow, MonitoredConnection, SubflowActivity,
};
use towpath_result::Part;

use super::MonitorSample;

/// Prints one sample as lines.
pub(super) fn print(snapshot: &MonitorSample, out: &mut dyn Write) -> io::Result<()> {
    let time = format!("{:>8.1}", snapshot.at.as_secs_f64());
    for event in &snapshot.timeline {
        writeln!(out, "{time} {:<8} {}", event.source.name(), event.text)?;
    }
    for derived in &snapshot.connections {
        writeln!(out, "{time} {}", connection_text(derived))?;
        for (subflow, derived_subflow) in derived.connection.subflows.iter().zip(&derived.subflows)
        {
            let (local, remote) = (subflow.local, subflow.remote);
            let interface = derived_subflow.interface.as_deref().unwrap_or("?");
            let rates = rates(derived_subflow.down_bps, derived_subflow.up_bps);
            let share = share(derived_subflow.share);
            let (srtt, cwnd) = (milliseconds(subflow.srtt_us), subflow.cwnd_packets);
            let limits =
                limit_text(derived_subflow).map(|text| format!(" {text}")).unwrap_or_default();
            writeln!(
                out,
                "{time}   {:<12} {interface} {local} → {remote} {rates} {share} srtt {srtt} cwnd \
                 {cwnd}{limits}{}",
                status(derived_subflow),
                reason_text(derived_subflow)
            )?;
        }
    }
    out.flush()
}

/// Returns one line, such as `curl (123) 10.0.0.1:4000 → 10.0.0.2:80, 2 subflows`.
pub(super) fn connection_text(derived: &DerivedConnection) -> String {
    let MonitoredConnection { local, remote, .. } = derived.connection;
    let rates_text = rates(derived.down_bps, derived.up_bps);
    format!(
        "{} {local} → {remote} {rates_text}, {}",
        owner(&derived.connection),
        subflow_counts(derived)
    )
}

/// Returns the process that has the connection open.
pub(super) fn owner(connection: &MonitoredConnection) -> String {
    match connection.processes.first() {
        // A process chooses its own name, so the name must not start a new line.
        Some(process) => {
            format!("{} ({})", process.name.replace(['\n', '\t'], " "), process.id)
        }
        None if connection.inode == 0 => "closed".to_owned(),
        None => format!("user {}", connection.uid),
    }
}

/// Returns a count such as `2 subflows (1 trying, 1 stale)`. A trying subflow does not count yet.
pub(super) fn subflow_counts(derived: &DerivedConnection) -> String {
    if derived.connection.fallback {
        return "fell back to TCP".to_owned();
    }
    let count = |status| derived.subflows.iter().filter(|subflow| subflow.status == status).count();
    let trying = count(SubflowActivity::Trying);
    let established = derived.subflows.len() - trying;
    let plural = if established == 1 { "" } else { "s" };
    let qualifiers: Vec<_> = [(trying, "trying"), (count(SubflowActivity::Stale), "stale")]
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    if qualifiers.is_empty() {
        return format!("{established} subflow{plural}");
    }
    format!("{established} subflow{plural} ({})", qualifiers.join(", "))
}

/// Returns the status; `~stale` if it is inferred.
pub(super) fn status(derived: &DerivedSubflow) -> String {
    format!("{}{}", if derived.is_inferred { "~" } else { "" }, derived.status.name())
}

/// Returns the two longest limits, as `limited by receive window 80 %, application 20 %`.
///
/// `None` if nothing is known, as for a stale subflow.
pub(super) fn limit_text(derived: &DerivedSubflow) -> Option<String> {
    if derived.limits.iter().all(|limit| limit.part == Part::Unknown || limit.share < 0.05) {
        return None;
    }
    let main_limits = derived.limits.iter().filter(|limit| limit.share >= 0.05).take(2);
    let values: Vec<_> =
        main_limits.map(|limit| format!("{} {}", limit.name(), share(Some(limit.share)))).collect();
    (!values.is_empty()).then(|| format!("limited by {}", values.join(", ")))
}

/// Returns ` (reason)`, or an empty text without a reason.
fn reason_text(derived: &DerivedSubflow) -> String {
    derived.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
}

fn rates(down_bps: f64, up_bps: f64) -> String {
    format!("↓ {} ↑ {}", rate(down_bps), rate(up_bps))
}

/// Formats a rate as `12 M`: bits per second in at most five columns.
pub(super) fn rate(bps: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| bps >= *unit) {
        Some((unit, name)) if bps < 10.0 * unit => format!("{:.1} {name}", bps / unit),
        Some((unit, name)) => format!("{:.0} {name}", bps / unit),
        None => format!("{bps:.0}"),
    }
}

/// Formats a share as `75 %`; `–` if it is unknown.
pub(super) fn share(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// Formats microseconds as `12.3 ms`; `–` for 0.
pub(super) fn milliseconds(us: u32) -> String {
    match us {
        0 => "–".to_owned(),
        us if us < 10_000 => format!("{:.1} ms", f64::from(us) / 1e3),
        us => format!("{:.0} ms", f64::from(us) / 1e3),
    }
}
