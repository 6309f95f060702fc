//! The page of an analysis.

use towpath_report::{FigureSection, FiguresPage, PageCell, PageTable, SiteFrame, figures_page};
use towpath_result::format;
use towpath_result::format::number::three_digits;
use towpath_result::metrics::clusters::{CLUSTER_RESAMPLES, MIN_CLUSTERS};

use crate::analysis::{Analysis, MobileRound};
use crate::figures::{AnalysisFigure, DataTable};

/// Maximum number of mobile rounds in the list.
const MAX_LISTED_ROUNDS: usize = 500;

/// Addresses in a page.
#[derive(Debug, Clone, Copy)]
pub struct PageAddresses<'a> {
    /// Beginning of the addresses of files; empty for files in the same folder.
    pub files: &'a str,
    /// Address of the page of a round, in which `{run}` is the identifier of its first run. `None`
    /// if there are no such pages.
    pub round: Option<&'a str>,
}

impl Analysis {
    /// Returns the page as one self-contained file, or in the frame of a site.
    pub fn page(&self, addresses: PageAddresses<'_>, site: Option<&SiteFrame<'_>>) -> String {
        let mut sections: Vec<FigureSection> =
            self.figures.iter().map(|figure| figure.section(addresses.files)).collect();
        sections.extend(self.rounds_section(addresses.round));
        let settings = self.settings;
        let title = if self.campaign.is_empty() { "Results" } else { &self.campaign };
        let page = FiguresPage {
            title: format!("Analysis: {title}"),
            lead: String::new(),
            facts: vec![
                format::count(self.runs().len() as u64, "run"),
                format!(
                    "95 % intervals: bootstrap over devices, {CLUSTER_RESAMPLES} resamples, seed {}, \
                     at least {MIN_CLUSTERS} devices",
                    settings.seed
                ),
                format!("curves of at least {} values", settings.min_runs),
            ],
            sections,
        };
        figures_page(&page, site)
    }

    /// Returns the list of mobile rounds; `None` without any.
    fn rounds_section(&self, address: Option<&str>) -> Option<FigureSection> {
        if self.rounds.is_empty() {
            return None;
        }
        let columns = ["device", "round", "first network lost (s)", "longest delays (s)"];
        let rows = self.rounds.iter().take(MAX_LISTED_ROUNDS);
        let table = PageTable {
            title: String::new(),
            columns: columns.map(str::to_owned).to_vec(),
            rows: rows.map(|round| round.row(address)).collect(),
        };
        let omitted = self.rounds.len().saturating_sub(MAX_LISTED_ROUNDS);
        let omitted = (omitted > 0).then(|| format::count(omitted as u64, "further round"));
        Some(FigureSection {
            id: "rounds".to_owned(),
            title: "Mobile rounds".to_owned(),
            sentence: format::count(self.rounds.len() as u64, "round"),
            notes: omitted.map(|count| format!("Not listed: {count}.")).into_iter().collect(),
            tables: vec![table],
            ..FigureSection::default()
        })
    }
}

impl MobileRound {
    fn row(&self, address: Option<&str>) -> Vec<PageCell> {
        let round = self.round.to_string();
        let link = address.zip(self.runs.first());
        let round = match link {
            Some((address, run)) => PageCell::Link(round, address.replace("{run}", run)),
            None => PageCell::Number(round),
        };
        let lost = self.network_lost_s.map_or_else(|| "–".to_owned(), three_digits);
        let delays = self.max_delays_s.iter();
        let delays = delays.map(|(name, delay)| format!("{name} {}", three_digits(*delay)));
        vec![
            PageCell::Text(self.device.clone()),
            round,
            PageCell::Number(lost),
            PageCell::Text(delays.collect::<Vec<_>>().join(", ")),
        ]
    }
}

impl AnalysisFigure {
    fn section(&self, files: &str) -> FigureSection {
        let link =
            |ending: &str, name: &str| (name.to_owned(), format!("{files}{}.{ending}", self.id));
        let mut links = Vec::new();
        if self.figure.is_some() {
            links.extend([
                link("svg", "SVG"),
                link("png", "PNG"),
                link("points.csv", "points (CSV)"),
            ]);
        }
        if !self.tables.is_empty() {
            links.push(link("csv", "table (CSV)"));
        }
        links.push(("runs (Parquet)".to_owned(), format!("{files}runs.parquet")));
        FigureSection {
            id: self.id.to_owned(),
            title: self.title.clone(),
            source: self.comparable.clone(),
            figure: self.figure.clone(),
            sentence: self.sentence.clone(),
            notes: self.notes.clone(),
            tables: self.tables.iter().map(DataTable::page_table).collect(),
            query: self.query.clone(),
            files: links,
        }
    }
}
