//! The list of runs: filter, counts, table, paging.

use std::collections::BTreeMap;

use maud::{Markup, html};
use towpath_result::format::number;

use super::{Reader, live, page};
use crate::catalogue::{RunPage, facet_value};
use crate::entry::RunEntry;
use crate::filter::{Facet, RunFilter, Sort};
use crate::live::LiveFacts;
use crate::time;

/// Values of a facet that are shown at once; the others are folded.
const SHOWN_VALUES: usize = 8;
/// Maximum number of values of a facet on a page.
const MAX_SHOWN_VALUES: usize = 200;

/// Writes the list; `url` is the address of the site, for the commands of an empty collector.
pub(crate) fn list(
    (filter, runs): (&RunFilter, &RunPage),
    in_progress: &[LiveFacts],
    url: &str,
    reader: Reader<'_>,
) -> String {
    let is_empty = runs.groups.is_empty() && !filter.is_filtered();
    let main = html! {
        h1 { "Runs" }
        (live::running_now(in_progress))
        @if is_empty {
            (first_steps(url))
        } @else {
            (filters(filter, runs, "/"))
            (chips(filter, "/"))
            p.facts {
                (count(runs.matching)) " "
                @if runs.matching == 1 { "run" } @else { "runs" }
                @if filter.sort != Sort::Time {
                    "; those without " (sort_label(filter.sort)) " are not listed"
                }
                " · "
                a href=(address_at("/series", &RunFilter { page: 0, ..filter.clone() })) { "over time" }
            }
            @if runs.runs.is_empty() {
                p.none {
                    "No run matches. " a href="/" { "Show all runs" } "."
                }
            } @else {
                (table(filter, runs))
                (paging(filter, runs.last_page()))
            }
        }
    };
    page("Runs", reader, &main)
}

fn first_steps(url: &str) -> Markup {
    html! {
        section.notice {
            h2 { "No runs yet" }
            p { "On this host, create a token for the host that measures:" }
            pre { code { "towpath collect token create --role uploader --name lab3 --out lab3.token" } }
            p { "On that host, run a scenario and send its results here:" }
            pre { code {
                "towpath run two-links --world sim --to " (url) " --token-file lab3.token"
            } }
            p {
                "Results that exist already: "
                code { "towpath upload RESULT… --to " (url) " --token-file lab3.token" }
            }
        }
    }
}

fn count(number: i64) -> String {
    number::count(number as f64)
}

/// Returns the text of a condition. No value can look like the condition of an empty one.
fn condition(facet: Facet, value: &str) -> String {
    match value {
        "" => format!("without {}", facet.name()),
        value => format!("{} {value}", facet.name()),
    }
}

/// Returns the number of runs for each value of a facet, given the conditions of all other facets.
///
/// Values without a run are part of it: a query that matches nothing can be changed to any other.
fn choices(filter: &RunFilter, runs: &RunPage, facet: Facet) -> Vec<(String, i64)> {
    let chosen = filter.values.get(&facet).map(Vec::as_slice).unwrap_or_default();
    let mut sums: BTreeMap<&str, i64> = chosen.iter().map(|value| (value.as_str(), 0)).collect();
    for entry in &runs.groups {
        let others = Facet::ALL.into_iter().filter(|other| *other != facet);
        let accepted =
            others.into_iter().all(|other| filter.accepts(other, facet_value(&entry.group, other)));
        let runs = if accepted { entry.runs } else { 0 };
        *sums.entry(facet_value(&entry.group, facet)).or_default() += runs;
    }
    let mut choices: Vec<_> =
        sums.into_iter().map(|(value, runs)| (value.to_owned(), runs)).collect();
    choices.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut count = 0;
    choices.retain(|(value, _)| {
        count += 1;
        count <= MAX_SHOWN_VALUES || chosen.contains(value)
    });
    choices
}

/// Writes the form of the filter, which leads to the page at `path`.
pub(super) fn filters(filter: &RunFilter, runs: &RunPage, path: &str) -> Markup {
    html! {
        details.filters open[filter.is_filtered()] {
            summary { "Filter" }
            form method="get" action=(path) {
                div.facets {
                    @for facet in Facet::ALL {
                        @let choices = choices(filter, runs, facet);
                        @if choices.len() > 1 || filter.values.contains_key(&facet) {
                            (facet_choices(filter, facet, &choices))
                        }
                    }
                    fieldset {
                        legend { "time" }
                        label { "from " input type="date" name="since"
                            value=[filter.since.map(time::day_text)]; }
                        label { "to " input type="date" name="until"
                            value=[filter.until.map(time::day_text)]; }
                    }
                }
                @if filter.sort != Sort::Time || filter.ascending {
                    input type="hidden" name="sort" value=(sort_value(filter.sort, filter.ascending));
                }
                button { "Apply" }
                " "
                a href=(path) { "Clear" }
            }
        }
    }
}

fn facet_choices(filter: &RunFilter, facet: Facet, choices: &[(String, i64)]) -> Markup {
    let first = choices.get(..SHOWN_VALUES.min(choices.len())).unwrap_or_default();
    let rest = choices.get(first.len()..).unwrap_or_default();
    let is_chosen = |value: &str| {
        filter.values.get(&facet).is_some_and(|values| values.iter().any(|chosen| chosen == value))
    };
    let choice = |(value, runs): &(String, i64)| {
        let sent = if value.is_empty() { "-" } else { value };
        html! {
            label {
                input type="checkbox" name=(facet.name()) value=(sent) checked[is_chosen(value)];
                " " (if value.is_empty() { "(none)" } else { value }) " " small { (count(*runs)) }
            }
        }
    };
    html! {
        fieldset {
            legend { (facet.name()) }
            @for entry in first { (choice(entry)) }
            @if !rest.is_empty() {
                details open[rest.iter().any(|(value, _)| is_chosen(value))] {
                    summary { (rest.len()) " more" }
                    @for entry in rest { (choice(entry)) }
                }
            }
        }
    }
}

/// Writes the conditions of the query, each with a link that removes it.
pub(super) fn chips(filter: &RunFilter, path: &str) -> Markup {
    let mut chips: Vec<(String, RunFilter)> = Vec::new();
    for (facet, values) in &filter.values {
        for value in values {
            let mut without = RunFilter { page: 0, ..filter.clone() };
            let is_empty = without.values.get_mut(facet).is_some_and(|values| {
                values.retain(|other| other != value);
                values.is_empty()
            });
            if is_empty {
                without.values.remove(facet);
            }
            chips.push((condition(*facet, value), without));
        }
    }
    if let Some(day) = filter.since {
        let without = RunFilter { since: None, page: 0, ..filter.clone() };
        chips.push((format!("from {}", time::day_text(day)), without));
    }
    if let Some(day) = filter.until {
        let without = RunFilter { until: None, page: 0, ..filter.clone() };
        chips.push((format!("to {}", time::day_text(day)), without));
    }
    html! {
        @if !chips.is_empty() {
            ul.chips aria-label="Conditions" {
                @for (text, without) in &chips {
                    li { a href=(address_at(path, without)) aria-label={ "Remove " (text) } { (text) " ×" } }
                }
            }
        }
    }
}

/// Returns the address of the list with a query.
pub(super) fn address(filter: &RunFilter) -> String {
    address_at("/", filter)
}

/// Returns the address of a page with a query.
fn address_at(path: &str, filter: &RunFilter) -> String {
    let query = filter.query();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

fn sort_value(sort: Sort, ascending: bool) -> String {
    format!("{}{}", if ascending { "+" } else { "" }, sort.name())
}

fn sort_label(sort: Sort) -> &'static str {
    match sort {
        Sort::Time => "a time",
        Sort::Goodput => "a goodput",
        Sort::Delay => "a delay",
        Sort::Stall => "a stall time",
    }
}

fn table(filter: &RunFilter, runs: &RunPage) -> Markup {
    html! {
        form method="get" action="/compare" {
            div.scroll {
                table.list.runs {
                    thead { tr {
                        th scope="col" { span.hidden { "compare" } }
                        (sort_head(filter, Sort::Time, "started"))
                        th scope="col" { "scenario" }
                        th scope="col" { "transport" }
                        th scope="col" { "world" }
                        th scope="col" { "host" }
                        (sort_head(filter, Sort::Goodput, "goodput"))
                        (sort_head(filter, Sort::Delay, "delay, 99 %"))
                        (sort_head(filter, Sort::Stall, "longest stall"))
                        th scope="col" { "outcome" }
                    } }
                    tbody { @for run in &runs.runs { (row(run)) } }
                }
            }
            p { button { "Compare the selected runs" } " " small { "two to eight" } }
        }
    }
}

fn sort_head(filter: &RunFilter, sort: Sort, label: &str) -> Markup {
    let is_current = filter.sort == sort;
    // A second click on the same column reverses the order.
    let ascending = is_current && !filter.ascending;
    let next = RunFilter { sort, ascending, page: 0, ..filter.clone() };
    let (order, arrow) = match (is_current, filter.ascending) {
        (true, true) => (Some("ascending"), " ↑"),
        (true, false) => (Some("descending"), " ↓"),
        (false, _) => (None, ""),
    };
    html! {
        th scope="col" aria-sort=[order] { a href=(address(&next)) { (label) (arrow) } }
    }
}

fn row(run: &RunEntry) -> Markup {
    let group = &run.group;
    let started = time::text(run.started_us);
    let started = started.get(..16).unwrap_or(&started);
    let host = match (group.host.as_str(), group.server.as_str()) {
        ("", "") => "–".to_owned(),
        (host, "") => host.to_owned(),
        ("", server) => format!("→ {server}"),
        (host, server) => format!("{host} → {server}"),
    };
    let micros =
        |value: Option<f64>| value.map_or("–".to_owned(), |micros| number::time(micros * 1e3));
    let class = match group.outcome.as_str() {
        "ok" => "good",
        "failed" => "bad",
        _ => "",
    };
    html! {
        tr {
            td { input type="checkbox" name="run" value=(run.id)
                aria-label={ "Compare " (run.name) " of " (started) }; }
            td.keep { a href={ "/runs/" (run.id) } { (started) } }
            td { (group.scenario) }
            td.keep { (group.transport) @if run.multipath == "fallback" { " " small { "fell back" } } }
            td { (group.world) }
            td { (host) }
            td.keep { (run.goodput_bps.map_or("–".to_owned(), number::rate)) }
            td.keep { (micros(run.delay_p99_us)) }
            td.keep { (micros(run.stall_us)) }
            td class=(class) title=(run.verdict) { (group.outcome) }
        }
    }
}

fn paging(filter: &RunFilter, last: i64) -> Markup {
    let to = |page: i64| address(&RunFilter { page, ..filter.clone() });
    html! {
        @if last > 0 {
            nav.paging aria-label="Pages" {
                @if filter.page > 0 { a rel="prev" href=(to(filter.page - 1)) { "← Newer" } }
                span { "Page " (count(filter.page + 1)) " of " (count(last + 1)) }
                @if filter.page < last { a rel="next" href=(to(filter.page + 1)) { "Older →" } }
            }
        }
    }
}
