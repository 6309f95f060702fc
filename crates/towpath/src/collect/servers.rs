//! What `towpath collect server` does.

use std::io::Write as _;

use serde_json::json;
use towpath_campaign::Heartbeat;
use towpath_collect::{Store, TestServer, run_to_end};
use towpath_os::clock::unix_us;

use super::server::{date, store_config};
use super::{ListTestServersArguments, TestServerCommand};
use crate::error::CliError;
use crate::ui::Ui;

/// Carries out `towpath collect server`.
pub(super) fn administer(command: &TestServerCommand, ui: &mut Ui) -> Result<(), CliError> {
    match command {
        TestServerCommand::List(arguments) => list(arguments, ui),
    }
}

fn list(arguments: &ListTestServersArguments, ui: &mut Ui) -> Result<(), CliError> {
    let servers = run_to_end(async {
        Store::open(&store_config(&arguments.store)).await?.test_servers().await
    })?;
    if servers.is_empty() && !arguments.json {
        ui.progress(
            "hint: `towpath collect token create --name NAME --role server` creates a token for one",
        );
    }
    let now_us = i64::try_from(unix_us()).unwrap_or(i64::MAX);
    for server in servers {
        if arguments.json {
            writeln!(ui.out, "{}", line(&server, now_us))?;
        } else {
            for line in entry(&server, now_us) {
                writeln!(ui.out, "{line}")?;
            }
        }
    }
    Ok(())
}

/// Returns the state of a server in one word for programs.
fn state(server: &TestServer, now_us: i64) -> &'static str {
    if server.token.revoked_us.is_some() {
        "revoked"
    } else if server.is_up(now_us) {
        "up"
    } else {
        "down"
    }
}

fn line(server: &TestServer, now_us: i64) -> serde_json::Value {
    json!({
        "id": server.token.id,
        "name": server.token.name,
        "state": state(server, now_us),
        "seen_us": server.seen_us,
        "revoked_us": server.token.revoked_us,
        "heartbeat": server.heartbeat,
    })
}

/// Returns the lines of one server: its state, then how devices reach it.
fn entry(server: &TestServer, now_us: i64) -> Vec<String> {
    let state = match (state(server, now_us), server.seen_us) {
        ("revoked", _) => format!("revoked {}", date(server.token.revoked_us)),
        ("up", seen_us) => format!("up, last seen {}", date(seen_us)),
        (_, None) => "never seen: `towpath server --register` starts it".to_owned(),
        (_, seen_us) => format!("not seen since {}", date(seen_us)),
    };
    let name = &server.token.name;
    let Some(heartbeat) = &server.heartbeat else { return vec![format!("{name}: {state}")] };
    let Heartbeat { place, hosts, ports, transports, version, tests, max_tests, .. } = heartbeat;
    let place = if place.is_empty() { String::new() } else { format!(" ({place})") };
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let transports: Vec<String> = transports.iter().map(ToString::to_string).collect();
    let (hosts, ports) = (hosts.join(", "), ports.join(", "));
    vec![
        format!("{name}{place}: {state}"),
        format!("  hosts {hosts}; ports {ports}; {}", transports.join(", ")),
        format!("  {tests} of {max_tests} tests; towpath {version}"),
    ]
}

#[cfg(test)]
mod tests {
    use towpath_collect::{Role, Token};
    use towpath_scenario::Transport;

    use super::*;

    fn server(seen_us: Option<i64>, revoked_us: Option<i64>) -> TestServer {
        let heartbeat = Heartbeat {
            place: "Brussels".to_owned(),
            hosts: vec!["192.0.2.1".to_owned(), "2001:db8::1".to_owned()],
            ports: vec![5_210, 443],
            transports: vec![Transport::Tcp, Transport::Quic],
            certificate: None,
            version: "0.1.0".to_owned(),
            tests: 2,
            max_tests: 16,
        };
        let token = Token {
            id: "a1".to_owned(),
            name: "eu-1".to_owned(),
            role: Role::Server,
            created_us: 0,
            used_us: None,
            revoked_us,
        };
        TestServer { token, heartbeat: seen_us.map(|_| heartbeat), seen_us }
    }

    #[test]
    fn a_list_shows_the_state_and_the_load_of_each_server() {
        let now_us = 1_790_000_000_000_000;
        let up = entry(&server(Some(now_us - 1), None), now_us);
        assert!(up[0].starts_with("eu-1 (Brussels): up, last seen 20"), "{up:?}");
        assert_eq!(up[1], "  hosts 192.0.2.1, 2001:db8::1; ports 5210, 443; tcp, quic");
        assert_eq!(up[2], "  2 of 16 tests; towpath 0.1.0");
        let first = |server: &TestServer| entry(server, now_us).remove(0);
        assert!(first(&server(Some(1), None)).contains("not seen since 1970"));
        assert!(first(&server(None, None)).starts_with("eu-1: never seen"));
        assert!(first(&server(None, Some(1))).starts_with("eu-1: revoked 1970"));
        let line = line(&server(Some(now_us), None), now_us);
        assert_eq!((&line["state"], &line["heartbeat"]["tests"]), (&json!("up"), &json!(2)));
    }
}
