//! The list of test servers.

use maud::{Markup, html};
use towpath_campaign::Heartbeat;
use towpath_result::format::text::clean;

use super::{Reader, page};
use crate::test_server::TestServer;
use crate::time;

/// Writes the list of servers whose tokens are valid; `url` is the address of the site.
pub(crate) fn servers(
    servers: &[TestServer],
    now_us: i64,
    url: &str,
    reader: Reader<'_>,
) -> String {
    let valid: Vec<_> = servers.iter().filter(|server| server.token.revoked_us.is_none()).collect();
    let up = valid.iter().filter(|server| server.is_up(now_us)).count();
    let main = html! {
        h1 { "Test servers" }
        @if valid.is_empty() {
            section.notice {
                h2 { "No test servers yet" }
                p { "On this host, create a token with the name of the test server:" }
                pre { code {
                    "towpath collect token create --role server --name eu-1 --out eu-1.token"
                } }
                p { "On the host of the test server, start it with this token:" }
                pre { code { "towpath server --register " (url) " --token-file eu-1.token" } }
                p { "Devices learn from this collector which servers they can use." }
            }
        } @else {
            p.facts { (up) " of " (valid.len()) " servers are up." }
            div.scroll {
                table.list.cards {
                    thead { tr {
                        th scope="col" { "name" } th scope="col" { "place" }
                        th scope="col" { "hosts" } th scope="col" { "ports" }
                        th scope="col" { "transports" } th scope="col" { "tests" }
                        th scope="col" { "version" } th scope="col" { "last seen" }
                        th scope="col" { "state" }
                    } }
                    tbody { @for server in &valid { (row(server, now_us)) } }
                }
            }
        }
    };
    page("Test servers", reader, &main)
}

fn row(server: &TestServer, now_us: i64) -> Markup {
    let (class, state) = match (server.is_up(now_us), &server.heartbeat) {
        (true, _) => ("good", "up"),
        (false, Some(_)) => ("bad", "down"),
        (false, None) => ("", "never seen"),
    };
    html! {
        tr {
            th scope="row" { (clean(&server.token.name)) }
            (heartbeat(server.heartbeat.as_ref()))
            td.keep data-label="last seen" {
                (server.seen_us.map_or("–".to_owned(), time::second_text))
            }
            td.keep.(class) data-label="state" { (state) }
        }
    }
}

/// Writes the cells of a server's heartbeat.
fn heartbeat(heartbeat: Option<&Heartbeat>) -> Markup {
    let dash = || "–".to_owned();
    let [place, hosts, ports, transports, tests, version] = match heartbeat {
        None => [dash(), dash(), dash(), dash(), dash(), dash()],
        Some(heartbeat) => [
            if heartbeat.place.is_empty() { dash() } else { heartbeat.place.clone() },
            heartbeat.hosts.join(", "),
            joined(&heartbeat.ports),
            joined(&heartbeat.transports),
            format!("{} of {}", heartbeat.tests, heartbeat.max_tests),
            heartbeat.version.clone(),
        ],
    };
    html! {
        td data-label="place" { (clean(&place)) }
        td.wide data-label="hosts" { (clean(&hosts)) }
        td data-label="ports" { (ports) }
        td data-label="transports" { (transports) }
        td.keep data-label="tests" { (tests) }
        td data-label="version" { (clean(&version)) }
    }
}

/// Returns a list as text: `443, 6121`.
pub(super) fn joined<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
