//! Progress of a campaign: amounts of runs, reasons, devices and their versions.

use std::collections::BTreeMap;

use maud::{Markup, html};
use towpath_campaign::MissingReason;
use towpath_result::format::text::clean;

use super::{count, time_text};
use crate::campaign::CampaignEntry;
use crate::filter::{Facet, RunFilter};
use crate::pages::list::address;
use crate::pages::minute_text;
use crate::planning::{AbsenceReason, CampaignSummary, DeviceSummary, RunCounts};
use crate::test_server::TestServer;

/// Width of a drawn bar, in units of its drawing.
const BAR_WIDTH: f64 = 1_000.0;

/// Content of the page of a campaign.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CampaignView<'a> {
    pub(crate) entry: &'a CampaignEntry,
    pub(crate) summary: &'a CampaignSummary,
    /// Time of the counting, in microseconds since 1970.
    pub(crate) counted_us: i64,
    /// All test servers.
    pub(crate) servers: &'a [TestServer],
    pub(crate) now_us: i64,
    /// True if the reader may see single devices.
    pub(crate) has_devices: bool,
}

/// Writes the amounts of a campaign, and its devices.
pub(super) fn sections(view: &CampaignView<'_>) -> Markup {
    let CampaignView { summary, counted_us, has_devices, .. } = view;
    let counts = summary.counts();
    html! {
        section {
            h2 { "Runs" }
            @if counts.planned == 0 {
                p.none { "No run is planned until now." }
            } @else {
                (bar(&counts))
                (totals(&counts))
            }
            p.about { "Counted at " (crate::time::second_text(*counted_us)) "." }
            @if *has_devices && !summary.invalid.is_empty() { (invalid(&summary.invalid)) }
        }
        section {
            h2 { "Devices" }
            (versions(&summary.devices))
            @if *has_devices && !summary.devices.is_empty() { (devices(&summary.devices)) }
        }
    }
}

/// Returns the amounts with their names and classes, except the missing runs.
fn parts(counts: &RunCounts) -> [(&'static str, &'static str, u64); 5] {
    [
        ("stored", "stored", counts.stored),
        ("invalid", "invalid", counts.invalid),
        ("missing", "missing", counts.all_missing()),
        ("not uploaded", "away", counts.not_uploaded),
        ("not reported", "unreported", counts.not_reported),
    ]
}

/// Draws the amounts as parts of a bar.
pub(super) fn bar(counts: &RunCounts) -> Markup {
    let label = parts(counts).map(|(name, _, runs)| format!("{name} {runs}")).join(", ");
    let mut left = 0.0;
    html! {
        svg.share viewBox={ "0 0 " (BAR_WIDTH) " 1" } preserveAspectRatio="none" role="img"
            aria-label=(label) {
            @for (_, class, runs) in parts(counts) {
                @if runs > 0 {
                    @let width = runs as f64 / counts.planned.max(1) as f64 * BAR_WIDTH;
                    rect.(class) x=(format!("{left:.1}")) width=(format!("{width:.1}"))
                        height="1" {}
                    ({ left += width; "" })
                }
            }
        }
    }
}

/// Writes the amounts as cells of a table.
pub(super) fn cells(counts: &RunCounts) -> Markup {
    html! {
        td.n data-label="planned" { (count(counts.planned)) }
        @for (name, _, runs) in parts(counts) { td.n data-label=(name) { (count(runs)) } }
    }
}

/// Writes the amounts of all devices, and the reasons of missing runs.
fn totals(counts: &RunCounts) -> Markup {
    html! {
        div.scroll {
            table.list.totals {
                tbody {
                    tr { th scope="row" { "planned" } td.n { (count(counts.planned)) } td {} }
                    @for (name, class, runs) in parts(counts) {
                        tr {
                            th scope="row" { (swatch(class)) (name) }
                            td.n { (count(runs)) }
                            td.n { (percent(runs, counts.planned)) }
                        }
                        @if name == "missing" {
                            @for (reason, runs) in &counts.missing {
                                tr {
                                    th.reason scope="row" {
                                        (AbsenceReason::Missing(*reason).name())
                                        " " small { (explanation(*reason)) }
                                    }
                                    td.n { (count(*runs)) }
                                    td.n { (percent(*runs, counts.planned)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn swatch(class: &str) -> Markup {
    html! {
        svg.swatch viewBox="0 0 1 1" aria-hidden="true" { rect.(class) width="1" height="1" {} }
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

fn explanation(reason: MissingReason) -> &'static str {
    match reason {
        MissingReason::OwnerLimit => "a limit of the device's owner",
        MissingReason::CampaignLimit => "the bytes per day of the campaign",
        MissingReason::NoAddress => "device or server has no address of the family",
        MissingReason::NoServer => "no server answered",
        MissingReason::Unreachable => "no answer on the port with the transport",
        MissingReason::Refused => "the server refused the test",
        MissingReason::Interrupted => "the agent was stopped during the run",
        MissingReason::Missed => "the agent did not run at the planned time",
        MissingReason::Stopped => "the campaign was paused or ended",
        MissingReason::Failed => "another error",
    }
}

/// Writes the most frequent reasons of invalid runs, which devices report.
fn invalid(reasons: &[(String, u64)]) -> Markup {
    html! {
        h3 { "Reasons of invalid runs" }
        ul {
            @for (detail, runs) in reasons {
                li {
                    (count(*runs)) ": "
                    @if detail.is_empty() { "no reason" } @else { (clean(detail)) }
                }
            }
        }
    }
}

/// Writes the number of devices, and that of each version.
fn versions(devices: &[DeviceSummary]) -> Markup {
    let mut versions: BTreeMap<&str, u64> = BTreeMap::new();
    for device in devices {
        *versions.entry(&device.version).or_default() += 1;
    }
    html! {
        @if devices.is_empty() {
            p.none { "No device has taken part." }
        } @else {
            p {
                (count(devices.len() as u64))
                @if devices.len() == 1 { " device" } @else { " devices" }
                " by version of towpath: "
                @for (index, (version, devices)) in versions.iter().enumerate() {
                    @if index > 0 { ", " }
                    @if version.is_empty() { "unknown" } @else { (clean(version)) }
                    " × " (count(*devices))
                }
            }
        }
    }
}

fn devices(devices: &[DeviceSummary]) -> Markup {
    html! {
        div.scroll {
            table.list.progress {
                thead { tr {
                    th scope="col" { "device" } th scope="col" { "version" }
                    th scope="col" { "platform" } th scope="col" { "planned" }
                    th scope="col" { "stored" } th scope="col" { "invalid" }
                    th scope="col" { "missing" } th scope="col" { "not uploaded" }
                    th scope="col" { "not reported" } th scope="col" { "last seen" }
                    th scope="col" { "reasons" }
                } }
                tbody { @for device in devices { (device_row(device)) } }
            }
        }
    }
}

fn device_row(device: &DeviceSummary) -> Markup {
    let DeviceSummary { progress, version, platform, used_us } = device;
    let text = |text: &str| if text.is_empty() { "–".to_owned() } else { clean(text) };
    html! {
        tr {
            th scope="row" { (device_link(&progress.name)) }
            td { (text(version)) }
            td.platform { (text(platform)) }
            (cells(&progress.counts))
            td.keep { (used_us.map_or("never".to_owned(), minute_text)) }
            td { (reasons(device)) }
        }
    }
}

/// Links a device to the list of its stored runs. Its agent sends its name as that of the host.
fn device_link(name: &str) -> Markup {
    let mut filter = RunFilter::default();
    filter.values.insert(Facet::Host, vec![name.to_owned()]);
    html! { a href=(address(&filter)) { (clean(name)) } }
}

/// Returns the reasons of missing runs: `no-address 12, missed 3`.
fn reasons(device: &DeviceSummary) -> String {
    let reasons = device.progress.counts.missing.iter();
    let reasons = reasons.map(|(reason, runs)| {
        format!("{} {}", AbsenceReason::Missing(*reason).name(), count(*runs))
    });
    let mut reasons: Vec<String> = reasons.collect();
    if device.progress.has_withdrawn {
        reasons.push(format!("left at {}", time_text(device.progress.until_us)));
    }
    if reasons.is_empty() { "–".to_owned() } else { reasons.join(", ") }
}
