//! The HTML report: one file that works offline, on a phone, on paper and in the dark.
//!
//! The page is complete without JavaScript; `script.js` adds the cursor, zoom and switching of
//! series. Its numbers are in the page once, as JSON.

mod account;
mod capture;
mod comparison;
mod datagrams;
mod delay;
mod events;
mod flows;
mod panel;
mod paths;
mod run;
mod sequence;
mod stack;
mod summary;
mod unfinished;
mod video;

use std::fmt::Write as _;

use serde_json::Value;

use crate::group::{RunGroup, groups, verdict};
use crate::page;
use crate::page::SiteFrame;
use crate::terminal::worlds;
use crate::text::{esc, prose};
pub(crate) use comparison::comparison;
use panel::{ChartPanel, PageStyle};
pub(crate) use sequence::mark_values as sequence_lines;
use towpath_result::format::number;
use towpath_result::format::text::{capital, clean, cut};
use towpath_result::store::StoredRun;
pub use unfinished::unfinished_run;

/// Maximum number of runs with charts each; beyond that, only each group's first repetition has
/// some.
const MAX_CHARTED_RUNS: usize = 16;
const STYLE: &str = concat!(
    include_str!("../style.css"),
    include_str!("../account.css"),
    include_str!("../sequence.css")
);
const SCRIPT: &str = include_str!("../script.js");

/// Returns the report of any number of runs as one self-contained page.
pub fn html(runs: &[StoredRun]) -> String {
    html_in(runs, None)
}

/// Returns the report in the frame of a site.
pub fn html_in(runs: &[StoredRun], site: Option<SiteFrame<'_>>) -> String {
    let groups = groups(runs);
    let mut page = HtmlPage::new(runs, site);
    page.head(runs);
    page.out.push_str("<main>");
    summary::write(&mut page.out, runs, &groups);
    if groups.len() > 1 || runs.len() > 1 {
        page.comparison(&groups);
    }
    let mut number = 0;
    for group in &groups {
        for (repetition, run) in group.runs.iter().enumerate() {
            let has_charts = repetition == 0 || runs.len() <= MAX_CHARTED_RUNS;
            page.run(group, run, number, has_charts);
            number += 1;
        }
    }
    page.out.push_str("</main>");
    page.foot(runs);
    page.out
}

/// State of a page that is being written.
struct HtmlPage<'a> {
    out: String,
    /// Numbers behind the charts, by panel.
    panels: Vec<Value>,
    style: PageStyle,
    site: Option<SiteFrame<'a>>,
}

impl<'a> HtmlPage<'a> {
    fn new(runs: &[StoredRun], site: Option<SiteFrame<'a>>) -> Self {
        Self { out: String::new(), panels: Vec::new(), style: PageStyle::of(runs), site }
    }

    fn head(&mut self, runs: &[StoredRun]) {
        let name = title(runs);
        self.out.push_str(&page::head_in(&name, STYLE, Some(SCRIPT), self.site.as_ref()));
        let _ = write!(self.out, "<header><h1>{}</h1>", esc(&name));
        let mut descriptions: Vec<&str> = Vec::new();
        for description in runs.iter().map(|run| run.meta.description.as_str()) {
            if !description.is_empty() && !descriptions.contains(&description) {
                descriptions.push(description);
            }
        }
        for description in descriptions.iter().take(3) {
            let _ = write!(self.out, "<p class=\"lead\">{}</p>", esc(description));
        }
        let _ = write!(self.out, "<p class=\"facts\">{}</p></header>", esc(&facts(runs)));
    }

    fn comparison(&mut self, groups: &[RunGroup<'_>]) {
        let Some(panel) = panel::comparison(groups, &self.style) else { return };
        self.out.push_str("<section id=\"comparison\"><h2>Comparison</h2>");
        write_event_legend(&mut self.out, &panel);
        self.panel(&panel);
        delay::distributions(&mut self.out, groups);
        self.out.push_str("</section>");
    }

    fn run(&mut self, group: &RunGroup<'_>, run: &StoredRun, number: usize, has_charts: bool) {
        let open =
            if run.meta.repeat <= 1 || group.runs.len() == 1 { " open=\"open\"" } else { "" };
        let repetition = if group.runs.len() > 1 {
            format!(" <small>repetition {}</small>", run.meta.repeat)
        } else {
            String::new()
        };
        let _ = write!(
            self.out,
            "<section id=\"run-{number}\" class=\"run\"><details{open}><summary><h2>{}{repetition}</h2>\
             </summary>",
            esc(&group.label)
        );
        if let Some(verdict) = verdict(run) {
            let _ = write!(self.out, "<p class=\"lead\">{}</p>", prose(&capital(&verdict)));
        }
        if has_charts {
            let panel = panel::run_panel(run, &self.style);
            if panel.charts.is_empty() {
                self.out.push_str("<p class=\"none\">The result contains no time series.</p>");
            } else {
                write_event_legend(&mut self.out, &panel);
                self.panel(&panel);
            }
            delay::distribution(&mut self.out, run);
            paths::distribution(&mut self.out, run, &self.style);
            self.account(run);
            let number = self.panels.len();
            let numbers = sequence::write(&mut self.out, run, &self.style, number);
            self.panels.extend(numbers);
        } else {
            self.out.push_str(
                "<p class=\"none\">To keep this page small, only the first repetition has charts. \
                 A report of this result alone has them.</p>",
            );
        }
        run::write(&mut self.out, run, &self.style);
        self.out.push_str("</details></section>");
    }

    fn account(&mut self, run: &StoredRun) {
        account::write(&mut self.out, run, &self.style);
        let panel = panel::account_panel(run);
        if !panel.charts.is_empty() {
            self.panel(&panel);
        }
    }

    fn panel(&mut self, panel: &ChartPanel) {
        let number = self.panels.len();
        let numbers = panel.write(&mut self.out, number);
        self.panels.push(numbers);
    }

    fn foot(&mut self, runs: &[StoredRun]) {
        let mut versions: Vec<&str> = runs.iter().map(|run| run.meta.towpath.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        let _ = writeln!(
            self.out,
            "<footer><p>Made by towpath {}. Goodput counts application bytes at the receiver; \
             round-trip time, window and retransmissions are the sender's.</p></footer>\
             <script type=\"application/json\" id=\"data\">{}</script><script>{}</script></body></html>",
            esc(&versions.join(", ")),
            json(&self.panels),
            SCRIPT
        );
    }
}

/// Writes the meaning of the letters in the charts.
fn write_event_legend(out: &mut String, panel: &ChartPanel) {
    if panel.axis.marks.is_empty() {
        return;
    }
    out.push_str("<ol class=\"events\">");
    for mark in &panel.axis.marks {
        let _ = write!(
            out,
            "<li><b>{}</b> <span>{}</span> {}</li>",
            mark.letter,
            number::short_moment(mark.at_s),
            esc(&mark.text)
        );
    }
    out.push_str("</ol>");
}

/// Returns a page of a site without a report, in the same style; `main` is its markup, in which all
/// texts from outside are escaped.
pub fn site_page(title: &str, main: &str, site: &SiteFrame<'_>) -> String {
    let script = site.live.map(|live| live.script);
    let head = page::head_in(title, STYLE, script, Some(site));
    let script = script.map(|script| format!("<script>{script}</script>")).unwrap_or_default();
    format!("{head}<main>{main}</main>{script}</body></html>\n")
}

/// Serialises JSON such that it cannot end its script element.
fn json(panels: &[Value]) -> String {
    Value::from(panels.to_vec()).to_string().replace('<', "\\u003c")
}

fn title(runs: &[StoredRun]) -> String {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let name = cut(&clean(&run.meta.scenario), 80);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match names.as_slice() {
        [] => "No results".to_owned(),
        [name] => name.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// Returns the facts below the title: `emu · 10 s · 2 runs · linux 6.18.5`.
fn facts(runs: &[StoredRun]) -> String {
    let join_distinct = |value_of: fn(&StoredRun) -> String| {
        let mut values: Vec<String> = runs.iter().map(value_of).collect();
        values.sort();
        values.dedup();
        values.retain(|value| !value.is_empty());
        values.join(", ")
    };
    let count = if runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", runs.len()) };
    let paths_text = runs.iter().max_by_key(|run| run.meta.paths.len()).map(|run| {
        let paths = run.meta.paths.iter().map(|p| format!("{}: {}", p.name, p.text));
        run::first_of(&paths.collect::<Vec<_>>()).join("; ")
    });
    let facts = [
        worlds(runs),
        join_distinct(|run| number::short_moment(run.meta.duration_ns as f64 / 1e9)),
        count,
        join_distinct(|run| match run.meta.kernel.as_str() {
            "" => String::new(),
            kernel => format!("kernel {kernel}"),
        }),
        paths_text.unwrap_or_default(),
    ];
    facts.into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(" · ")
}
