//! Runs in progress: their part of the list, and the page of one.

use maud::{Markup, PreEscaped, html};
use towpath_report::{LivePage, site_page};
use towpath_result::format::number;

use super::{Reader, frame};
use crate::live::LiveFacts;
use crate::time;

const SCRIPT: &str = include_str!("live.js");
/// Seconds after which a browser without scripts loads the page again.
const RELOAD_S: u32 = 3;

/// Writes links to the runs in progress.
pub(super) fn running_now(runs: &[LiveFacts]) -> Markup {
    html! {
        @if !runs.is_empty() {
            section.notice aria-label="Runs in progress" {
                h2 { "Running now" }
                ul {
                    @for run in runs {
                        li {
                            a href={ "/live/" (run.id) } { (run.scenario) " over " (run.transport) }
                            @if !run.host.is_empty() { " on " (run.host) }
                            ", since " (time::second_text(run.started_us))
                        }
                    }
                }
            }
        }
    }
}

/// Writes the page of a run in progress; `charts` is markup.
pub(crate) fn live(facts: &LiveFacts, charts: &str, reader: Reader<'_>) -> String {
    let duration = number::short_moment(facts.duration_us as f64 / 1e6);
    let main = html! {
        p.crumbs { a href="/" { "Runs" } " / in progress" }
        h1 { (facts.scenario) " over " (facts.transport) }
        p.facts {
            (facts.world) " · " (duration)
            @if !facts.host.is_empty() { " · on " (facts.host) }
            " · started " (time::second_text(facts.started_us))
        }
        div #live data-events={ "/live/" (facts.id) "/events" } { (PreEscaped(charts)) }
        p.about {
            "This page follows the run. Afterwards, it shows the result. "
            a href={ "/api/v1/live/" (facts.id) } { "Records so far (JSON Lines)" }
        }
    };
    frame(reader, |site| {
        let live = Some(LivePage { script: SCRIPT, reload_s: RELOAD_S });
        site_page(&facts.scenario, &main.0, &towpath_report::SiteFrame { live, ..site })
    })
}
