//! Pages of analyses: the figures of a campaign with a form for conditions, and a mobile round.

use std::collections::BTreeSet;

use maud::{Markup, html};
use towpath_analysis::{Analysis, AnalysisSettings, PageAddresses};
use towpath_campaign::CampaignPattern;
use towpath_report::SiteFrame;
use towpath_result::format;
use towpath_result::format::text::clean;
use towpath_result::store::StoredRun;

use super::{Reader, STYLE, navigation};
use crate::analysis_query::{
    AnalysisQuery, FAMILY, MAX_MIN_RUNS, MIN_RUNS, MIN_VERSION, PORT, SERVER,
};
use crate::campaign::CampaignEntry;
use crate::filter::encode;
use crate::test_server::TestServer;
use crate::time;

/// Content of the page of an analysis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnalysisView<'a> {
    pub(crate) entry: &'a CampaignEntry,
    pub(crate) analysis: &'a Analysis,
    pub(crate) query: &'a AnalysisQuery,
    /// All test servers.
    pub(crate) servers: &'a [TestServer],
    /// Time at which the runs were read, in microseconds since 1970.
    pub(crate) read_us: i64,
    /// Results that name the campaign and do not count.
    pub(crate) left_out: u64,
}

/// Writes the page of an analysis.
pub(crate) fn analysis(view: &AnalysisView<'_>, reader: Reader<'_>) -> String {
    let name = &view.entry.campaign.name;
    let selection = view.query.query();
    let mut files = format!("/campaigns/{name}/analysis/");
    if !selection.is_empty() {
        encode(&mut files, &selection);
        files.push('/');
    }
    let addresses = PageAddresses { files: &files, round: Some("/runs/{run}/round") };
    let navigation = navigation(reader).0 + &facts(view, &files).0;
    let frame = SiteFrame { navigation: &navigation, style: STYLE, live: None };
    view.analysis.page(addresses, Some(&frame))
}

/// Writes where the page belongs, and the form of its conditions.
fn facts(view: &AnalysisView<'_>, files: &str) -> Markup {
    let AnalysisView { entry, query, read_us, left_out, .. } = view;
    let name = &entry.campaign.name;
    html! {
        aside.facts-of-run aria-label="This analysis" {
            p.crumbs {
                a href="/campaigns" { "Campaigns" } " / "
                a href={ "/campaigns/" (name) } { (name) } " / analysis"
            }
            details.filters open[!query.query().is_empty()] {
                summary { "Select runs" }
                (form(view))
            }
            p.about {
                "Runs until " (time::second_text(*read_us)) ". "
                @if *left_out > 0 {
                    (format::count(*left_out, "result")) " named this campaign and "
                    @if *left_out == 1 { "does" } @else { "do" }
                    " not count, since no report connects "
                    @if *left_out == 1 { "it" } @else { "them" }
                    " with a planned run of the device. "
                }
                "All figures: "
                a href={ (files) "analysis.json" } download { "JSON" } ", "
                a href={ (files) "index.html" } download { "one page" } ". All runs: "
                a href={ (files) "runs.parquet" } download { "with a result" } ", "
                a href={ (files) "absent.parquet" } download { "without one" } " (Parquet)."
            }
        }
    }
}

fn form(view: &AnalysisView<'_>) -> Markup {
    let AnalysisView { entry, query, servers, .. } = view;
    let (filter, campaign) = (&query.filter, &entry.campaign);
    let values = |of: fn(&CampaignPattern) -> Vec<String>| {
        campaign.patterns.iter().flat_map(of).collect::<BTreeSet<_>>()
    };
    let families =
        values(|pattern| pattern.families.iter().map(|family| family.name().to_owned()).collect());
    let ports = values(|pattern| pattern.ports.iter().map(ToString::to_string).collect());
    let servers = servers.iter().map(|server| server.token.name.clone()).collect();
    let port = filter.port.map(|port| port.to_string());
    let min_runs = query.settings.min_runs;
    let default_runs = AnalysisSettings::default().min_runs;
    html! {
        form.inline method="get" action={ "/campaigns/" (campaign.name) "/analysis" } {
            (select("server", SERVER, &servers, filter.server.as_deref()))
            (select("address family", FAMILY, &families, filter.family.as_deref()))
            (select("port", PORT, &ports, port.as_deref()))
            label {
                "version at least "
                input name=(MIN_VERSION) size="6" placeholder="0.1"
                    value=(filter.min_version.as_deref().unwrap_or_default());
            }
            label {
                "fewest values of a curve "
                input name=(MIN_RUNS) type="number" min="1" max=(MAX_MIN_RUNS)
                    placeholder=(default_runs)
                    value=[(min_runs != default_runs).then_some(min_runs)];
            }
            button { "Select" }
            @if !query.query().is_empty() {
                a href={ "/campaigns/" (campaign.name) "/analysis" } { "Show all runs" }
            }
        }
    }
}

fn select(label: &str, name: &str, values: &BTreeSet<String>, chosen: Option<&str>) -> Markup {
    let is_listed = chosen.is_none_or(|chosen| values.contains(chosen));
    html! {
        label {
            (label) " "
            select name=(name) {
                option value="" { "all" }
                @if let Some(chosen) = chosen.filter(|_| !is_listed) {
                    option value=(chosen) selected { (clean(chosen)) }
                }
                @for value in values {
                    option value=(value) selected[chosen == Some(value.as_str())] { (clean(value)) }
                }
            }
        }
    }
}

/// Writes the page of a mobile round.
pub(crate) fn mobile_round(campaign: &str, runs: &[StoredRun], reader: Reader<'_>) -> String {
    let crumbs = html! {
        p.crumbs {
            a href="/campaigns" { "Campaigns" } " / "
            a href={ "/campaigns/" (campaign) } { (campaign) } " / "
            a href={ "/campaigns/" (campaign) "/analysis" } { "analysis" } " / round"
        }
    };
    let navigation = navigation(reader).0 + &crumbs.0;
    let frame = SiteFrame { navigation: &navigation, style: STYLE, live: None };
    towpath_report::mobile_round(runs, Some(frame))
}
