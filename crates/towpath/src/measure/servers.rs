//! Chooses the server: the named one, or the nearest of a list.

use std::fmt::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use towpath_linux::live::{self, PINGS, PingResult};
use towpath_measure::{format, input};

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
    pinged: Result<PingResult, String>,
}

impl ServerCandidate {
    fn median(&self) -> Option<Duration> {
        self.pinged.as_ref().ok()?.median()
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
        match (&self.pinged, self.median()) {
            (Err(why), _) => why.clone(),
            (Ok(_), Some(median)) => format::time(median),
            (Ok(pinged), None) => match pinged.answers.len() {
                0 => describe(&pinged.finding),
                some => {
                    format!("{some} of {PINGS} answers, then: {}", describe(&pinged.finding))
                }
            },
        }
    }
}

/// Returns the server that `arguments` name. Pings the servers of a list and prints the results.
pub(super) fn server(arguments: &MeasureArguments, ui: &mut Ui) -> Result<ServerTarget, CliError> {
    let named = |host: &str| ServerTarget {
        host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port: arguments.port,
        choice: None,
    };
    let wrong = |what: &str, hint: &str| {
        Err(CliError::Unavailable { what: what.to_owned(), hint: hint.to_owned() })
    };
    match (arguments.host(), arguments.server.as_deref(), &arguments.servers) {
        (Some(_), Some(_), _) => {
            wrong("two servers are named", "leave out HOST where `--server` is given")
        }
        (_, Some("auto"), Some(list)) => nearest(arguments, list, ui),
        (None, Some("auto"), None) => {
            wrong("`--server auto` has no list of servers", "give one with `--servers FILE`")
        }
        (_, _, Some(_)) => wrong("nothing is chosen from the list", "add `--server auto`"),
        (Some(host), None, None) | (None, Some(host), None) => Ok(named(host)),
        (None, None, None) => {
            wrong("no server is named", "name one: `towpath measure HOST`, or `--server auto`")
        }
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
        hint: "write one server a line: a name or an address, and its port if it has another: \
               `server.example:5211`"
            .to_owned(),
    })?;
    let addresses: Vec<_> = servers.iter().map(|one| addresses(one, arguments)).collect();
    let known: Vec<Vec<SocketAddr>> = addresses.iter().flatten().cloned().collect();
    let mut pinged = live::ping(&known).into_iter();
    let candidates = servers.into_iter().zip(addresses).map(|(server, addresses)| {
        let nobody = || "nothing was asked".to_owned();
        let pinged = addresses.and_then(|_| pinged.next().ok_or_else(nobody));
        ServerCandidate { server, pinged }
    });
    let candidates: Vec<ServerCandidate> = candidates.collect();
    ui.progress(&table(&candidates, arguments.port));
    // Of equally near servers, the first in the list wins.
    let best = candidates.iter().filter(|one| one.median().is_some());
    let Some(best) = best.min_by_key(|one| one.median()) else {
        return Err(CliError::Unavailable {
            what: format!("no server of `{}` answers", list.display()),
            hint: "is `towpath server` running there, and does a firewall let its port through?"
                .to_owned(),
        });
    };
    let name = |one: &ServerCandidate| one.name(arguments.port);
    let others = candidates.iter().filter(|one| !std::ptr::eq(*one, best));
    let others: Vec<_> =
        others.map(|one| format!("{}: {}", name(one), one.result_text())).collect();
    let lowest = format!("the lowest median of {PINGS} pings, {}", best.result_text());
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join("; ")) };
    Ok(ServerTarget { choice: Some(format!("{lowest}{others}")), ..best.server.clone() })
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
        let server = one(line, port).map_err(|what| (number, what))?;
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    if servers.is_empty() { Err((1, "there is no server in it".to_owned())) } else { Ok(servers) }
}

/// Parses `server.example`, `server.example:5211`, `2001:db8::1` or `[2001:db8::1]:5211`.
fn one(text: &str, default: u16) -> Result<ServerTarget, String> {
    let made = |host: &str, port: u16| ServerTarget { host: host.to_owned(), port, choice: None };
    let strange = || format!("`{text}` is no server");
    if text.contains(char::is_whitespace) {
        return Err(strange());
    }
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(made(text, default));
    }
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return Err(strange()),
        Some(Some((host, ""))) => (host, None),
        Some(Some((host, rest))) => (host, Some(rest.strip_prefix(':').ok_or_else(strange)?)),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse().ok().filter(|port| *port > 0));
    match (host, port) {
        ("", _) => Err(strange()),
        (_, Some(None)) => Err(format!("`{text}` names no port")),
        (host, Some(Some(port))) => Ok(made(host, port)),
        (host, None) => Ok(made(host, default)),
    }
}

/// Returns the server's addresses in the requested families. The error is the reason as text.
pub(super) fn addresses(
    server: &ServerTarget,
    arguments: &MeasureArguments,
) -> Result<Vec<SocketAddr>, String> {
    let found = (server.host.as_str(), server.port).to_socket_addrs().map_err(|error| {
        let reason = error.to_string();
        format!("no address: {}", reason.split(": ").last().unwrap_or_default().to_lowercase())
    })?;
    let wanted = |target: &SocketAddr| {
        if target.is_ipv4() { !arguments.v6 } else { !arguments.v4 }
    };
    let found: Vec<_> = found.filter(wanted).collect();
    if found.is_empty() { Err("no address of this family".to_owned()) } else { Ok(found) }
}

/// Returns a table of the results in the list's order, with a mark at the chosen server.
fn table(candidates: &[ServerCandidate], port: u16) -> String {
    let best = candidates.iter().filter_map(ServerCandidate::median).min();
    let mut text = format!("{:44} {:>10}  answers", "server", "median");
    let mut marked = false;
    for one in candidates {
        let chosen = !marked && best.is_some() && one.median() == best;
        marked |= chosen;
        let median = one.median().map_or("-".to_owned(), format::time);
        let answers = match &one.pinged {
            Ok(pinged) if one.median().is_some() => format!("{} of {PINGS}", pinged.answers.len()),
            _ => one.result_text(),
        };
        let mark = if chosen { "  ← nearest" } else { "" };
        let _ = write!(text, "\n{:44} {median:>10}  {answers}{mark}", one.name(port));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_server_a_line() {
        let text = "# near\nfr.example\n\nca.example:5211  # far\n2001:db8::1\n[2001:db8::2]:7\n\
            [2001:db8::3]\nfr.example\n10.0.0.1\n";
        let servers = parse(text, 5_210).unwrap();
        let found: Vec<_> = servers.iter().map(|one| (one.host.as_str(), one.port)).collect();
        let wanted = [
            ("fr.example", 5_210),
            ("ca.example", 5_211),
            ("2001:db8::1", 5_210),
            ("2001:db8::2", 7),
            ("2001:db8::3", 5_210),
            ("10.0.0.1", 5_210),
        ];
        assert_eq!(found, wanted);
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
