//! Pages of the site. They work without JavaScript; only the charts of a report have a script.
//!
//! `html!` escapes every text. Only [`frame`] and `towpath-report` pass markup.

mod analysis;
mod api;
mod campaigns;
mod devices;
mod list;
mod live;
mod qr;
mod series;
mod servers;
mod tokens;

use maud::{Markup, html};
use towpath_report::{Comparison, ResultTable, SiteFrame, html_in, site_page};
use towpath_result::format::number;
use towpath_result::store::StoredRun;

use crate::access::Role;
use crate::catalogue::Session;
use crate::entry::RunEntry;
use crate::time;

pub(crate) use analysis::{AnalysisView, analysis, mobile_round};
pub(crate) use api::api;
pub(crate) use campaigns::{
    CampaignDraft, CampaignView, Example, campaign, campaigns, end_of_campaign,
};
pub(crate) use devices::{DeviceList, MAX_INVITATION_DAYS, NewInvitation, devices, revocation};
pub(crate) use list::list;
pub(crate) use live::live;
pub(crate) use series::series;
pub(crate) use servers::servers;
pub(crate) use tokens::tokens;

const STYLE: &str = include_str!("site.css");

/// Client of a page, as far as its frame shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reader<'a> {
    /// Browser that is logged in.
    Session(&'a Session),
    /// Client without a session, which may log in.
    Anonymous,
    /// Client of a page that is written before its session is known. The frame is the same for all.
    Unidentified,
}

/// Writes a page of the site: its navigation, and `main`.
fn page(title: &str, reader: Reader<'_>, main: &Markup) -> String {
    frame(reader, |site| site_page(title, &main.0, &site))
}

/// Calls `write` with the frame of the site.
fn frame(reader: Reader<'_>, write: impl FnOnce(SiteFrame<'_>) -> String) -> String {
    let navigation = navigation(reader).0;
    write(SiteFrame { navigation: &navigation, style: STYLE, live: None })
}

fn navigation(reader: Reader<'_>) -> Markup {
    html! {
        nav.site aria-label="Site" {
            a.brand href="/" { "towpath" }
            a href="/" { "Runs" }
            a href="/campaigns" { "Campaigns" }
            a href="/servers" { "Servers" }
            @if is_admin(reader) {
                a href="/devices" { "Devices" }
                a href="/tokens" { "Tokens" }
            }
            a href="/api" { "API" }
            @match reader {
                Reader::Session(session) => {
                    span.fill {}
                    span.who { (session.token.name) " · " (session.token.role) }
                    form method="post" action="/logout" {
                        input type="hidden" name="csrf" value=(session.csrf);
                        button.plain { "Log out" }
                    }
                }
                Reader::Anonymous => { span.fill {} a href="/login" { "Log in" } }
                Reader::Unidentified => {}
            }
        }
    }
}

fn is_admin(reader: Reader<'_>) -> bool {
    match reader {
        Reader::Session(session) => session.token.role == Role::Admin,
        Reader::Anonymous | Reader::Unidentified => false,
    }
}

/// Writes the page of one run: its report, with conditions and downloads.
pub(crate) fn run(entry: &RunEntry, run: &StoredRun, reader: Reader<'_>) -> String {
    let navigation = navigation(reader).0 + &run_facts(entry, run).0;
    html_in(
        std::slice::from_ref(run),
        Some(SiteFrame { navigation: &navigation, style: STYLE, live: None }),
    )
}

fn run_facts(entry: &RunEntry, run: &StoredRun) -> Markup {
    let group = &entry.group;
    html! {
        aside.facts-of-run aria-label="This run" {
            p.crumbs { a href="/" { "Runs" } " / " code { (entry.id) } }
            dl.conditions {
                (fact("Started", &time::second_text(entry.started_us)))
                @if !group.host.is_empty() { (fact("Host", &group.host)) }
                @if !group.server.is_empty() { (fact("Server", &group.server)) }
                (fact("Received", &time::second_text(entry.received_us)))
                (fact("Size", &format!(
                    "{} records, {}",
                    number::count(entry.records as f64),
                    number::bytes(entry.stored_bytes as f64),
                )))
            }
            p {
                "Download: "
                a href={ "/api/v1/runs/" (entry.id) "/records" } download { "records (JSON Lines)" }
                " · "
                a href={ "/api/v1/runs/" (entry.id) } { "summary (JSON)" }
                " · "
                a href={ "/runs/" (entry.id) "/badge.svg" } { "badge (SVG)" }
            }
            (tables(entry, run))
        }
    }
}

/// Writes links to the tables that the run has rows of.
fn tables(entry: &RunEntry, run: &StoredRun) -> Markup {
    let address = |table: ResultTable, extension: &str| {
        format!("/api/v1/runs/{}/tables/{}.{extension}", entry.id, table.name())
    };
    html! {
        details.tables {
            summary { "Tables as CSV or Parquet" }
            ul {
                @for table in ResultTable::ALL.into_iter().filter(|table| table.is_in(run)) {
                    li {
                        (table.name()) ": "
                        a href=(address(table, "csv")) download
                            aria-label={ (table.name()) " as CSV" } { "CSV" }
                        @if table.has_fixed_columns() {
                            " · "
                            a href=(address(table, "parquet")) download
                                aria-label={ (table.name()) " as Parquet" } { "Parquet" }
                        }
                    }
                }
            }
        }
    }
}

fn fact(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

/// Writes the page that compares runs.
pub(crate) fn comparison(entries: &[RunEntry], runs: &[StoredRun], reader: Reader<'_>) -> String {
    // The resampling of equal runs is equal each time.
    let comparison = Comparison::of(runs, 0).with_run_labels(labels(entries));
    frame(reader, |site| comparison.html_in(site))
}

/// Returns a label for each run: its transport, and whatever else differs between the runs.
fn labels(entries: &[RunEntry]) -> Vec<String> {
    let parts: [fn(&RunEntry) -> String; 8] = [
        |run| run.group.transport.clone(),
        |run| run.group.scenario.clone(),
        |run| run.group.world.clone(),
        |run| run.stack.clone(),
        |run| run.congestion_control.clone(),
        |run| run.group.host.clone(),
        |run| run.group.server.clone(),
        |run| run.group.version.clone(),
    ];
    let differs = |part: &fn(&RunEntry) -> String| {
        entries.first().is_some_and(|first| entries.iter().any(|run| part(run) != part(first)))
    };
    let mut shown: Vec<_> = parts.into_iter().enumerate().collect();
    shown.retain(|(index, part)| *index == 0 || differs(part));
    let label = |run: &RunEntry| {
        let parts = shown.iter().map(|(_, part)| part(run)).filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(" ")
    };
    let mut labels: Vec<String> = entries.iter().map(label).collect();
    let is_ambiguous: Vec<bool> = labels
        .iter()
        .map(|label| labels.iter().filter(|other| *other == label).count() > 1)
        .collect();
    for ((label, run), is_ambiguous) in labels.iter_mut().zip(entries).zip(is_ambiguous) {
        if is_ambiguous {
            let date = time::text(run.started_us);
            *label = format!("{label}, {} seed {}", date.get(..16).unwrap_or(&date), run.seed);
        }
    }
    labels
}

/// Draws a badge for other pages: the goodput of a run, coloured by its outcome.
pub(crate) fn badge(entry: &RunEntry) -> String {
    let value = entry.goodput_bps.map_or_else(|| entry.group.outcome.clone(), number::rate);
    let colour = if entry.group.outcome == "ok" { "#0a6e45" } else { "#b3261e" };
    let (label, label_width) = (&entry.group.transport, 64);
    let value_width = 8 * value.chars().count() + 16;
    let (width, middle) = (label_width + value_width, label_width + value_width / 2);
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height="20" role="img"
            aria-label={ (label) ": " (value) } {
            title { (label) ": " (value) }
            rect width=(width) height="20" rx="3" fill="#444c54" {}
            rect x=(label_width) width=(value_width) height="20" rx="3" fill=(colour) {}
            g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif"
                font-size="11" {
                text x=(label_width / 2) y="14" { (label) }
                text x=(middle) y="14" { (value) }
            }
        }
    };
    svg.0
}

/// Writes the login page; `code` comes from a login link, and `next` is the page to return to.
pub(crate) fn login(code: Option<&str>, next: Option<&str>, error: Option<&str>) -> String {
    let main = html! {
        section.narrow {
            h1 { "Log in" }
            @if let Some(error) = error { p.bad role="alert" { (error) } }
            form method="post" action="/login" {
                @if let Some(next) = next { input type="hidden" name="next" value=(next); }
                @if let Some(code) = code {
                    input type="hidden" name="code" value=(code);
                    p { "This link logs this browser in once." }
                    button { "Log in" }
                } @else {
                    label for="token" { "Token" }
                    input id="token" name="token" type="password" autocomplete="current-password" required;
                    button { "Log in" }
                }
            }
            p.about {
                "On the collector's host, " code { "towpath collect login" } " prints a link, and "
                code { "towpath collect token create" } " prints a token."
            }
        }
    };
    page("Log in", Reader::Unidentified, &main)
}

/// Writes the page of a refused request.
pub(crate) fn refusal(error: &str, hint: Option<&str>) -> String {
    let main = html! {
        section.narrow {
            h1 { "This did not work" }
            p role="alert" { (capital(error)) "." }
            @if let Some(hint) = hint { p { (capital(hint)) "." } }
            p { a href="/" { "Back to the runs" } }
        }
    };
    page("Error", Reader::Unidentified, &main)
}

/// Formats a time to the minute: `2026-11-28 06:35 UTC`.
fn minute_text(time_us: i64) -> String {
    let text = time::text(time_us);
    format!("{} UTC", text.get(..16).unwrap_or(&text))
}

fn capital(text: &str) -> String {
    towpath_result::format::text::capital(text)
}
