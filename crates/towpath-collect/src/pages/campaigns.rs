//! Pages of campaigns: list, plan, progress, and the forms of an administrator.

mod form;
mod progress;

use std::time::Duration;

use maud::{Markup, html};
use towpath_campaign::{Campaign, CampaignMode, CampaignPattern, CampaignState};
use towpath_result::format::number;
use towpath_result::format::text::clean;
use towpath_scenario::units::duration_text;

use super::servers::joined;
use super::{Reader, fact, minute_text, page};
use crate::access::Role;
use crate::campaign::CampaignEntry;
use crate::catalogue::Session;
use crate::planning::RunCounts;
use crate::test_server::TestServer;

pub(crate) use form::{CampaignDraft, Example};
pub(crate) use progress::CampaignView;

/// Writes the list of campaigns, the newest first; `draft` is the content of the form.
pub(crate) fn campaigns(
    campaigns: &[(CampaignEntry, RunCounts)],
    draft: CampaignDraft<'_>,
    reader: Reader<'_>,
) -> String {
    let form = admin(reader).map(|session| form::form(draft, session));
    // A reader has to see the reason of a refusal.
    let (first, last) = match draft {
        CampaignDraft::Refused { .. } => (form, None),
        CampaignDraft::Example(_) => (None, form),
    };
    let main = html! {
        h1 { "Campaigns" }
        @if let Some(form) = first { (form) }
        @if campaigns.is_empty() {
            p.none { "No campaign yet." }
        } @else {
            div.scroll {
                table.list.cards {
                    thead { tr {
                        th scope="col" { "name" } th scope="col" { "mode" }
                        th scope="col" { "state" } th scope="col" { "every" }
                        th scope="col" { "end" } th scope="col" { "progress" }
                        th scope="col" { "planned" } th scope="col" { "stored" }
                        th scope="col" { "invalid" } th scope="col" { "missing" }
                        th scope="col" { "not uploaded" } th scope="col" { "not reported" }
                    } }
                    tbody { @for (entry, counts) in campaigns.iter().rev() { (row(entry, counts)) } }
                }
            }
            p.about {
                "Planned runs are those whose time has come. Each one is stored, invalid, missing, "
                "not uploaded, or not reported by its device."
            }
        }
        @if let Some(form) = last { (form) }
    };
    page("Campaigns", reader, &main)
}

/// Returns the session of an administrator.
fn admin(reader: Reader<'_>) -> Option<&Session> {
    match reader {
        Reader::Session(session) if session.token.role == Role::Admin => Some(session),
        Reader::Session(_) | Reader::Anonymous | Reader::Unidentified => None,
    }
}

fn row(entry: &CampaignEntry, counts: &RunCounts) -> Markup {
    let CampaignEntry { campaign, state, end_us, .. } = entry;
    html! {
        tr {
            th scope="row" { a href=(address(&campaign.name)) { (campaign.name) } }
            td data-label="mode" { (campaign.mode.name()) }
            td data-label="state" { (state_name(*state)) }
            td.keep data-label="every" { (period_text(campaign.every)) }
            td.keep data-label="end" { (time_text(*end_us)) }
            td.wide data-label="progress" { (progress::bar(counts)) }
            (progress::cells(counts))
        }
    }
}

/// Returns the address of a campaign's page. The name has letters, digits and hyphens only.
fn address(name: &str) -> String {
    format!("/campaigns/{name}")
}

fn state_name(state: CampaignState) -> &'static str {
    match state {
        CampaignState::Active => "active",
        CampaignState::Paused => "paused",
        CampaignState::Ended => "ended",
    }
}

/// Formats a time in microseconds since 1970: `2026-11-28 06:35 UTC`.
fn time_text(time_us: u64) -> String {
    minute_text(i64::try_from(time_us).unwrap_or(i64::MAX))
}

/// Formats a period: days and minutes as well.
fn period_text(period: Duration) -> String {
    let seconds = period.as_secs();
    match seconds {
        0 => duration_text(period),
        _ if seconds.is_multiple_of(86_400) => format!("{} d", seconds / 86_400),
        _ if !seconds.is_multiple_of(3_600) && seconds.is_multiple_of(60) => {
            format!("{} min", seconds / 60)
        }
        _ => duration_text(period),
    }
}

fn count(number: u64) -> String {
    number::count(number as f64)
}

fn bytes(bytes: u64) -> String {
    number::bytes(bytes as f64)
}

/// Writes the page of a campaign.
pub(crate) fn campaign(view: &CampaignView<'_>, reader: Reader<'_>) -> String {
    let CampaignView { entry, servers, now_us, .. } = view;
    let campaign = &entry.campaign;
    let main = html! {
        p.crumbs { a href="/campaigns" { "Campaigns" } " / " (campaign.name) }
        h1 { (campaign.name) }
        @if !campaign.description.is_empty() { p.lead { (clean(&campaign.description)) } }
        @if let Some(session) = admin(reader) { (actions(entry, session)) }
        dl.conditions {
            (fact("State", state_name(entry.state)))
            (fact("Mode", mode_text(campaign)))
            (fact("Created", &time_text(entry.created_us)))
            (fact("Start", &time_text(campaign.start_us)))
            (fact("End", &time_text(entry.end_us)))
            (fact("Period", &schedule_text(campaign)))
            @if let Some(rounds) = campaign.rounds {
                (fact("Rounds", &format!("at most {}", count(rounds.into()))))
            }
            (fact("Runs per round", &count(campaign.runs_per_round().into())))
            (fact("Bytes per round", &format!("at most {}", bytes(campaign.bytes_per_round()))))
            (fact("Bytes per day", &format!("at most {}", bytes(campaign.bytes_per_day))))
            (fact("IP addresses", addresses_text(campaign)))
        }
        p { a href={ (address(&campaign.name)) "/analysis" } { "Analysis: figures and tables" } }
        (progress::sections(view))
        section {
            h2 { "Plan" }
            (patterns(campaign))
        }
        section {
            h2 { "Servers" }
            (server_list(campaign, servers, *now_us))
        }
    };
    page(&campaign.name, reader, &main)
}

fn mode_text(campaign: &Campaign) -> &'static str {
    match campaign.mode {
        CampaignMode::Stable => "stable: one run after the other",
        CampaignMode::Mobile => "mobile: all transports at the same time",
    }
}

fn addresses_text(campaign: &Campaign) -> &'static str {
    if campaign.full_addresses { "complete" } else { "network prefixes only" }
}

fn schedule_text(campaign: &Campaign) -> String {
    let every = period_text(campaign.every);
    if campaign.jitter.is_zero() {
        return format!("every {every}");
    }
    format!("every {every}, up to {} later", period_text(campaign.jitter))
}

/// Writes the buttons that change the state.
fn actions(entry: &CampaignEntry, session: &Session) -> Markup {
    let name = &entry.campaign.name;
    let change = |state: CampaignState, label: &str| {
        html! {
            form method="post" action={ (address(name)) "/state" } {
                input type="hidden" name="csrf" value=(session.csrf);
                input type="hidden" name="state" value=(state_name(state));
                button.plain { (label) }
            }
        }
    };
    html! {
        @if entry.state != CampaignState::Ended {
            div.actions {
                @match entry.state {
                    CampaignState::Active => { (change(CampaignState::Paused, "Pause")) }
                    CampaignState::Paused => { (change(CampaignState::Active, "Resume")) }
                    CampaignState::Ended => {}
                }
                a href={ (address(name)) "/end" } { "End…" }
            }
        }
    }
}

/// Writes the page that asks before a campaign ends.
pub(crate) fn end_of_campaign(entry: &CampaignEntry, session: &Session) -> String {
    let name = &entry.campaign.name;
    let main = html! {
        section.narrow {
            p.crumbs {
                a href="/campaigns" { "Campaigns" } " / " a href=(address(name)) { (name) }
            }
            h1 { "End " (name) "?" }
            p {
                "Devices make no further runs of this campaign. Its stored runs stay. This cannot "
                "be undone: an ended campaign cannot be resumed, and its name cannot be used again."
            }
            form method="post" action={ (address(name)) "/state" } {
                input type="hidden" name="csrf" value=(session.csrf);
                input type="hidden" name="state" value=(state_name(CampaignState::Ended));
                button { "End the campaign" }
            }
            p { a href=(address(name)) { "Cancel" } }
        }
    };
    page("End a campaign", Reader::Session(session), &main)
}

fn patterns(campaign: &Campaign) -> Markup {
    html! {
        div.scroll {
            table.list.cards {
                thead { tr {
                    th scope="col" { "pattern" } th scope="col" { "options" }
                    th scope="col" { "transports" } th scope="col" { "families" }
                    th scope="col" { "ports" } th scope="col" { "duration" }
                    th scope="col" { "bytes of a run" }
                } }
                tbody { @for pattern in &campaign.patterns { (pattern_row(pattern)) } }
            }
        }
    }
}

fn pattern_row(pattern: &CampaignPattern) -> Markup {
    let options = pattern.keys.iter().map(|(key, value)| format!("{key} = {value}"));
    let options = options.collect::<Vec<_>>().join(", ");
    html! {
        tr {
            th scope="row" { (pattern.name) }
            td.wide data-label="options" {
                @if options.is_empty() { "–" } @else { code { (clean(&options)) } }
            }
            td data-label="transports" { (joined(&pattern.transports)) }
            td data-label="families" { (joined(&pattern.families)) }
            td data-label="ports" { (joined(&pattern.ports)) }
            td.keep data-label="duration" { "up to " (period_text(pattern.duration)) }
            td.keep data-label="bytes of a run" { "up to " (bytes(pattern.max_bytes)) }
        }
    }
}

/// Writes the servers that the campaign names, or all that have registered.
fn server_list(campaign: &Campaign, servers: &[TestServer], now_us: i64) -> Markup {
    let state = |server: &TestServer| if server.is_up(now_us) { "up" } else { "down" };
    let valid = servers.iter().filter(|server| server.token.revoked_us.is_none());
    let is = |server: &TestServer, name: &String| {
        let hosts = server.heartbeat.as_ref().map(|heartbeat| heartbeat.hosts.as_slice());
        server.token.name == *name || hosts.is_some_and(|hosts| hosts.contains(name))
    };
    html! {
        @if campaign.servers.is_empty() {
            p { "All that have registered with this collector:" }
            ul {
                @for server in valid { li { (clean(&server.token.name)) ": " (state(server)) } }
            }
        } @else {
            ul {
                @for name in &campaign.servers {
                    li {
                        (clean(name)) ": "
                        @match valid.clone().find(|server| is(server, name)) {
                            Some(server) => (state(server)),
                            None => "not registered here",
                        }
                    }
                }
            }
        }
        p { a href="/servers" { "All test servers" } }
    }
}
