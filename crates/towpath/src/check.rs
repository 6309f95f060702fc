//! `towpath check`: tests which transports and address families reach a server.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use towpath_live as live;
use towpath_live::{ProbeKind, ProbeOutcome, ProbeResult, UnusableFirstPath};
use towpath_result::Warning;

use crate::error::CliError;
use crate::ui::Ui;

/// Test which transports and ports reach a server, and what blocks the others
///
/// Tests TCP, Multipath TCP, UDP, QUIC and Multipath QUIC over IPv4 and IPv6 on every port of a
/// host that runs `towpath server`. Distinguishes removed MPTCP options, blocked UDP, and a server
/// that does not run. Exit code 1 if a test fails.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Name or address of the server
    pub(crate) host: String,
    /// Ports
    #[arg(short, long, value_delimiter = ',', value_name = "LIST", default_values_t = [towpath_live::protocol::DEFAULT_PORT])]
    pub(crate) port: Vec<u16>,
    /// Only IPv4
    #[arg(short = '4', long = "ipv4", conflicts_with = "v6")]
    pub(crate) v4: bool,
    /// Only IPv6
    #[arg(short = '6', long = "ipv6")]
    pub(crate) v6: bool,
    /// Print the findings as JSON, one line per test
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

pub(crate) fn check(arguments: &CheckArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let targets = targets(arguments)?;
    let results = live::check(&targets);
    if arguments.json {
        for result in &results {
            let json = serde_json::to_string(result);
            writeln!(ui.out, "{}", json.map_err(|error| CliError::Internal(error.to_string()))?)?;
        }
    } else {
        writeln!(
            ui.out,
            "{:44} {:6} {:>10} {:>10}  finding",
            "address", "over", "connect", "answer"
        )?;
        for result in &results {
            writeln!(ui.out, "{}", result_line(result))?;
        }
        for text in advice(&results) {
            ui.warn(&Warning { text, hint: None });
        }
    }
    let good =
        !results.is_empty() && results.iter().all(|result| result.finding == ProbeOutcome::Works);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Keeps one address of each family, on all ports.
fn targets(arguments: &CheckArguments) -> Result<Vec<SocketAddr>, CliError> {
    let host = arguments.host.trim_start_matches('[').trim_end_matches(']');
    let no_address = |reason: String| CliError::Unavailable {
        what: format!("`{host}` has no address: {reason}"),
        hint: "give a host or an address".to_owned(),
    };
    let resolved: Vec<SocketAddr> = (host, 0)
        .to_socket_addrs()
        .map_err(|error| {
            let reason = error.to_string();
            no_address(reason.split(": ").last().unwrap_or_default().to_lowercase())
        })?
        .collect();
    let v4 = resolved.iter().find(|target| target.is_ipv4()).filter(|_| !arguments.v6);
    let v6 = resolved.iter().find(|target| target.is_ipv6()).filter(|_| !arguments.v4);
    let chosen = v4.into_iter().chain(v6);
    let targets: Vec<_> = chosen
        .flat_map(|target| arguments.port.iter().map(|port| SocketAddr::new(target.ip(), *port)))
        .collect();
    if targets.is_empty() {
        return Err(no_address("none of this family".to_owned()));
    }
    Ok(targets)
}

fn result_line(result: &ProbeResult) -> String {
    let time = |nanos: Option<u64>| match nanos.map(Duration::from_nanos) {
        Some(span) => format!("{:.1} ms", span.as_secs_f64() * 1e3),
        None => "-".to_owned(),
    };
    let probe = match result.probe {
        ProbeKind::Tcp => "tcp",
        ProbeKind::Mptcp => "mptcp",
        ProbeKind::Udp => "udp",
        ProbeKind::Quic => "quic",
        ProbeKind::Mpquic => "mpquic",
    };
    let (connect, answer) = (time(result.connect_ns), time(result.answer_ns));
    let target = result.target.to_string();
    format!("{target:44} {probe:6} {connect:>10} {answer:>10}  {}", describe(&result.finding))
}

pub(crate) fn describe(finding: &ProbeOutcome) -> String {
    match finding {
        ProbeOutcome::Works => "works".to_owned(),
        ProbeOutcome::StrippedForward => {
            "plain TCP: the forward path removes MPTCP options".to_owned()
        }
        ProbeOutcome::StrippedReverse => {
            "plain TCP: the return path removes MPTCP options".to_owned()
        }
        ProbeOutcome::Plain { why } => format!("plain TCP: {why}"),
        ProbeOutcome::Refused => "refused: no program listens there".to_owned(),
        ProbeOutcome::Silent => "no answer".to_owned(),
        ProbeOutcome::FirstPathUnusable(path) => {
            format!("no answer over {}, but over {}", path.first, path.interface)
        }
        ProbeOutcome::Blocked => "blocked: TCP reaches the server, UDP does not".to_owned(),
        ProbeOutcome::Filtered => "filtered: UDP passes, QUIC packets do not".to_owned(),
        ProbeOutcome::NoQuic => "the server does not offer QUIC on this port".to_owned(),
        ProbeOutcome::VersionMismatch => "the server uses another version of QUIC".to_owned(),
        ProbeOutcome::SinglePath => {
            "one path: the server does not support this draft of Multipath QUIC".to_owned()
        }
        ProbeOutcome::Unreachable { why } => format!("unreachable: {why}"),
        ProbeOutcome::NotTowpath { why } => format!("not a towpath server: {why}"),
    }
}

/// Returns advice for measurements, one text for each finding.
fn advice(results: &[ProbeResult]) -> Vec<String> {
    let any_result = |predicate: &dyn Fn(&ProbeResult) -> bool| results.iter().any(predicate);
    let mut advice_lines = Vec::new();
    if any_result(&|result| {
        matches!(result.finding, ProbeOutcome::StrippedForward | ProbeOutcome::StrippedReverse)
    }) {
        advice_lines.push(
            "something on the path removes MPTCP options, so measurements fall back to TCP; try another port"
                .to_owned(),
        );
    }
    if any_result(&|result| result.finding == ProbeOutcome::Blocked) {
        advice_lines.push("UDP is blocked: QUIC cannot work on that port".to_owned());
    }
    if any_result(&|result| result.finding == ProbeOutcome::Filtered) {
        advice_lines.push("something on the path drops QUIC; try another port".to_owned());
    }
    if any_result(&|result| result.finding == ProbeOutcome::NoQuic) {
        advice_lines
            .push("the server reports that its UDP port was in use when it started".to_owned());
    }
    let mut unusable_paths: Vec<(IpAddr, &UnusableFirstPath)> = Vec::new();
    for result in results {
        if let ProbeOutcome::FirstPathUnusable(path) = &result.finding
            && !unusable_paths.contains(&(result.target.ip(), path))
        {
            unusable_paths.push((result.target.ip(), path));
        }
    }
    advice_lines.extend(
        unusable_paths.iter().map(|(target, path)| {
            format!("{}: {}", path.describe(&target.to_string()), path.hint())
        }),
    );
    if unusable_paths.is_empty() && !any_result(&|result| result.finding == ProbeOutcome::Works) {
        advice_lines.push("is `towpath server` running there?".to_owned());
    }
    advice_lines
}
