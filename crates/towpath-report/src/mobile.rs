//! Page of a mobile round: a host that moves, measured over several transports at the same time.
//!
//! All plots share one time axis, and each event is a line through all of them. The page has no
//! script. Points are thinned to the pixels of a screen, so its size does not depend on the length
//! of the run.

mod bands;
mod delays;
mod events;
mod handover;
mod plot;
mod round;
mod scale;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;

use crate::page::{SiteFrame, head_in};
use crate::terminal::warnings;
use crate::text::{esc, prose};
use round::{MAX_RUNS, MobileRound};

const STYLE: &str = concat!(include_str!("style.css"), include_str!("mobile/mobile.css"));
/// Maximum length of a value in the facts, in characters.
const MAX_FACT_CHARS: usize = 80;

/// Returns the page of a mobile round as one self-contained file: one run for each transport, of
/// which any may have the datagrams.
///
/// Runs that began within 10 s of each other are aligned by [`started_us`].
///
/// [`started_us`]: towpath_result::Meta::started_us
pub fn mobile_round(runs: &[StoredRun], site: Option<SiteFrame<'_>>) -> String {
    let round = MobileRound::of(runs);
    let (events, omitted) = events::collect(&round);
    let marks = events::marks(&round, events);
    let title = title(runs);
    let mut out = head_in(&title, STYLE, None, site.as_ref());
    let _ = write!(out, "<header><h1>{}</h1>", esc(&title));
    let _ = write!(out, "<p class=\"facts\">{}</p></header><main>", esc(&facts(&round)));
    if runs.is_empty() {
        out.push_str("<p class=\"none\">The round has no results.</p>");
    } else {
        write_sentences(&mut out, runs, &round);
        write_plots(&mut out, &round, &marks);
        events::write_table(&mut out, &marks, round.runs.len(), omitted);
    }
    let mut versions: Vec<&str> = runs.iter().map(|run| run.meta.towpath.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let _ = writeln!(
        out,
        "</main><footer><p>Made by towpath {}. Of the points in one pixel column, the smallest and the \
         largest are drawn.</p></footer></body></html>",
        esc(&versions.join(", "))
    );
    out
}

fn title(runs: &[StoredRun]) -> String {
    let condition = |name: &str| {
        let value = runs.iter().find_map(|run| run.meta.conditions.get(name));
        value.map(|value| cut(&clean(value), MAX_FACT_CHARS))
    };
    match (condition("campaign"), condition("campaign run")) {
        (Some(campaign), Some(number)) => format!("Mobile round {number} of {campaign}"),
        (Some(campaign), None) => format!("Mobile round of {campaign}"),
        (None, _) => "Mobile round".to_owned(),
    }
}

/// Returns the facts below the title: start, duration, server and networks.
fn facts(round: &MobileRound<'_>) -> String {
    let mut facts: Vec<String> = Vec::new();
    let starts = round.runs.iter().filter_map(|view| view.run.meta.started_us);
    facts.extend(starts.min().map(|start_us| number::date(start_us.saturating_mul(1_000))));
    if !round.runs.is_empty() {
        facts.push(number::short_moment(round.end_ns as f64 / 1e9));
    }
    let server = round.runs.iter().find_map(|view| view.run.meta.conditions.get("server"));
    facts.extend(server.map(|name| format!("server {}", cut(&clean(name), MAX_FACT_CHARS))));
    let networks: Vec<String> = round.paths.iter().map(|path| round.path_text(path)).collect();
    if !networks.is_empty() {
        facts.push(networks.join(", "));
    }
    facts.join(" · ")
}

fn write_sentences(out: &mut String, runs: &[StoredRun], round: &MobileRound<'_>) {
    let warnings = warnings(runs);
    if !warnings.is_empty() {
        out.push_str("<aside class=\"warnings\"><h2>Check before you trust this</h2><ul>");
        for warning in warnings {
            let _ = write!(out, "<li>{}</li>", prose(&warning.text));
        }
        out.push_str("</ul></aside>");
    }
    out.push_str("<ul class=\"handovers\">");
    for view in &round.runs {
        let sentence = handover::sentence(round, view);
        let _ = write!(out, "<li class=\"{}\">{}</li>", view.class, esc(&sentence));
    }
    out.push_str("</ul>");
    if !round.is_concurrent {
        out.push_str(
            "<p class=\"none\">The runs did not start together, so each counts from its own start.</p>",
        );
    }
    if let Some(omitted) = runs.len().checked_sub(MAX_RUNS).filter(|omitted| *omitted > 0) {
        let _ = write!(out, "<p class=\"none\">{omitted} more results are not shown.</p>");
    }
}

fn write_plots(out: &mut String, round: &MobileRound<'_>, marks: &[events::EventMark]) {
    let mut plots = delays::message_plots(round);
    plots.extend(delays::probe_plot(round));
    plots.extend(bands::carried_plot(round));
    plots.extend(bands::state_plot(round));
    if plots.is_empty() {
        out.push_str("<p class=\"none\">The results contain no time series.</p>");
    }
    for plot in plots {
        plot.write(out, round, marks);
    }
}
