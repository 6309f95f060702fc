//! Chooses the server: the named one, or the nearest of a list.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use towpath_live as live;
use towpath_live::{PINGS, PingResult};
use towpath_result::{format, input};

use super::MeasureArguments;
use crate::check::describe;
use crate::error::CliError;
use crate::ui::Ui;

/// Server that one call measures to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerTarget {
    pub(super) host: String,
    pub(super) port: u16,
    /// Reason for choosing this server; `None` if the user named it.
    pub(super) choice: Option<String>,
}

/// A server of a list with the result of its pings.
#[derive(Debug)]
struct ServerCandidate {
    server: ServerTarget,
    ping: Result<PingResult, String>,
}

impl ServerCandidate {
    fn median(&self) -> Option<Duration> {
        self.ping.as_ref().ok()?.median()
    }

    /// Returns the server as the list writes it; the `default` port is omitted.
    fn name(&self, default: u16) -> String {
        let ServerTarget { host, port, .. } = &self.server;
        match (*port == default, host.contains(':')) {
            (true, _) => host.clone(),
            (false, false) => format!("{host}:{port}"),
            (false, true) => format!("[{host}]:{port}"),
        }
    }

    fn result_text(&self) -> String {
        match (&self.ping, self.median()) {
            (Err(reason), _) => reason.clone(),
            (Ok(_), Some(median)) => format::time(median),
            (Ok(ping), None) => match ping.answers.len() {
                0 => describe(&ping.finding),
                answers => {
                    format!("{answers} of {PINGS} answers, then: {}", describe(&ping.finding))
                }
            },
        }
    }
}

/// Returns the server that `arguments` name. Pings the servers of a list and prints the results.
pub(super) fn server(arguments: &MeasureArguments, ui: &mut Ui) -> Result<ServerTarget, CliError> {
    let named_server = |host: &str| ServerTarget {
        host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port: arguments.port,
        choice: None,
    };
    let usage_error = |what: &str, hint: &str| {
        Err(CliError::Unavailable { what: what.to_owned(), hint: hint.to_owned() })
    };
    match (arguments.host(), arguments.server.as_deref(), &arguments.servers) {
        (Some(_), Some(_), _) => {
            usage_error("two servers are given", "omit HOST if `--server` is given")
        }
        (_, Some("auto"), Some(list)) => nearest(arguments, list, ui),
        (None, Some("auto"), None) => {
            usage_error("`--server auto` has no list of servers", "add one with `--servers FILE`")
        }
        (_, _, Some(_)) => usage_error("the list of servers is not used", "add `--server auto`"),
        (Some(host), None, None) | (None, Some(host), None) => Ok(named_server(host)),
        (None, None, None) => usage_error(
            "no server is given",
            "give one: `towpath measure HOST`, or `--server auto`",
        ),
    }
}

fn nearest(
    arguments: &MeasureArguments,
    list: &Path,
    ui: &mut Ui,
) -> Result<ServerTarget, CliError> {
    let text = input::read_text(list)
        .map_err(|source| CliError::Read { path: list.to_owned(), source })?;
    let servers = parse(&text, arguments.port).map_err(|(line, what)| CliError::Unavailable {
        what: format!("`{}`, line {line}: {what}", list.display()),
        hint: "write one server per line: a name or an address, with the port if it is not the default: `server.example:5211`"
            .to_owned(),
    })?;
    let addresses: Vec<_> = servers.iter().map(|server| addresses(server, arguments)).collect();
    let pinged_addresses: Vec<Vec<SocketAddr>> = addresses.iter().flatten().cloned().collect();
    let mut pings = live::ping(&pinged_addresses).into_iter();
    let candidates = servers.into_iter().zip(addresses).map(|(server, addresses)| {
        let not_pinged = || "no server was contacted".to_owned();
        let ping = addresses.and_then(|_| pings.next().ok_or_else(not_pinged));
        ServerCandidate { server, ping }
    });
    let candidates: Vec<ServerCandidate> = candidates.collect();
    ui.progress_lines(table(&candidates, arguments.port));
    // Of equally near servers, the first in the list wins.
    let best = candidates.iter().filter(|candidate| candidate.median().is_some());
    let Some(best) = best.min_by_key(|candidate| candidate.median()) else {
        return Err(CliError::Unavailable {
            what: format!("no server in `{}` answers", list.display()),
            hint: "is `towpath server` running there, and does the firewall allow its port?"
                .to_owned(),
        });
    };
    let name = |candidate: &ServerCandidate| candidate.name(arguments.port);
    let other_servers = candidates.iter().filter(|candidate| !std::ptr::eq(*candidate, best));
    let other_servers: Vec<_> = other_servers
        .map(|candidate| format!("{}: {}", name(candidate), candidate.result_text()))
        .collect();
    let reason = format!("the lowest median of {PINGS} pings, {}", best.result_text());
    let other_servers = if other_servers.is_empty() {
        String::new()
    } else {
        format!("; {}", other_servers.join("; "))
    };
    Ok(ServerTarget { choice: Some(format!("{reason}{other_servers}")), ..best.server.clone() })
}

/// Parses a list with one server a line. The error is the number of the invalid line and the
/// reason.
fn parse(text: &str, port: u16) -> Result<Vec<ServerTarget>, (usize, String)> {
    let mut servers: Vec<ServerTarget> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let server = parse_server(line, port).map_err(|what| (number, what))?;
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    if servers.is_empty() { Err((1, "it contains no server".to_owned())) } else { Ok(servers) }
}

/// Parses `server.example`, `server.example:5211`, `2001:db8::1` or `[2001:db8::1]:5211`.
fn parse_server(text: &str, default: u16) -> Result<ServerTarget, String> {
    let target = |host: &str, port: u16| ServerTarget { host: host.to_owned(), port, choice: None };
    let invalid = || format!("`{text}` is not a server");
    if text.contains(char::is_whitespace) {
        return Err(invalid());
    }
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(target(text, default));
    }
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return Err(invalid()),
        Some(Some((host, ""))) => (host, None),
        Some(Some((host, rest))) => (host, Some(rest.strip_prefix(':').ok_or_else(invalid)?)),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse().ok().filter(|port| *port > 0));
    match (host, port) {
        ("", _) => Err(invalid()),
        (_, Some(None)) => Err(format!("`{text}` has an invalid port")),
        (host, Some(Some(port))) => Ok(target(host, port)),
        (host, None) => Ok(target(host, default)),
    }
}

/// Returns the server's addresses in the requested families. The error is the reason as text.
pub(super) fn addresses(
    server: &ServerTarget,
    arguments: &MeasureArguments,
) -> Result<Vec<SocketAddr>, String> {
    let resolved = (server.host.as_str(), server.port).to_socket_addrs().map_err(|error| {
        let reason = error.to_string();
        format!("no address: {}", reason.split(": ").last().unwrap_or_default().to_lowercase())
    })?;
    let is_requested = |target: &SocketAddr| {
        if target.is_ipv4() { !arguments.v6 } else { !arguments.v4 }
    };
    let resolved: Vec<_> = resolved.filter(is_requested).collect();
    if resolved.is_empty() { Err("no address of this family".to_owned()) } else { Ok(resolved) }
}

/// Returns the lines of a table of the results in the list's order, with a mark at the chosen server.
fn table(candidates: &[ServerCandidate], port: u16) -> Vec<String> {
    let best = candidates.iter().filter_map(ServerCandidate::median).min();
    let mut lines = vec![format!("{:44} {:>10}  answers", "server", "median")];
    let mut is_marked = false;
    for candidate in candidates {
        let is_nearest = !is_marked && best.is_some() && candidate.median() == best;
        is_marked |= is_nearest;
        let median = candidate.median().map_or("-".to_owned(), format::time);
        let answers = match &candidate.ping {
            Ok(ping) if candidate.median().is_some() => {
                format!("{} of {PINGS}", ping.answers.len())
            }
            _ => candidate.result_text(),
        };
        let mark = if is_nearest { "  ← nearest" } else { "" };
        lines.push(format!("{:44} {median:>10}  {answers}{mark}", candidate.name(port)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_server_a_line() {
        let text = "# near\nfr.example\n\nca.example:5211  # far\n2001:db8::1\n[2001:db8::2]:7\n\
            [2001:db8::3]\nfr.example\n10.0.0.1\n";
        let servers = parse(text, 5_210).unwrap();
        let parsed: Vec<_> =
            servers.iter().map(|server| (server.host.as_str(), server.port)).collect();
        let expected = [
            ("fr.example", 5_210),
            ("ca.example", 5_211),
            ("2001:db8::1", 5_210),
            ("2001:db8::2", 7),
            ("2001:db8::3", 5_210),
            ("10.0.0.1", 5_210),
        ];
        assert_eq!(parsed, expected);
    }

    #[test]
    fn an_invalid_server_is_reported_with_its_line() {
        for (text, line) in [
            ("", 1),
            ("# none\n", 1),
            ("a\nb c\n", 2),
            ("a:b\n", 1),
            ("a:0\n", 1),
            ("a\n\n[::1\n", 3),
            ("[::1]5210\n", 1),
            (":5210\n", 1),
        ] {
            assert_eq!(parse(text, 5_210).unwrap_err().0, line, "{text}");
        }
    }
}
