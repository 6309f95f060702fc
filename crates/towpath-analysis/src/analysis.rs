//! The analysis of a campaign: its figures, and the list of its mobile rounds.

use std::collections::BTreeMap;

use crate::facts::RunFacts;
use crate::figures::{self, AnalysisFigure};
use crate::population::{AnalysisFilter, CampaignData, Population};
use crate::settings::AnalysisSettings;

/// Analysis of a campaign.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Name of the campaign; empty for results without one.
    pub campaign: String,
    /// Settings that were used.
    pub settings: AnalysisSettings,
    /// Figures and tables in order.
    pub figures: Vec<AnalysisFigure>,
    /// Mobile rounds, by device and round.
    pub rounds: Vec<MobileRound>,
    pub(crate) population: Population,
}

/// Simultaneous runs of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct MobileRound {
    /// Name of the device.
    pub device: String,
    /// Round of the schedule, from 0.
    pub round: u32,
    /// Identifiers of its runs, in order of their index.
    pub runs: Vec<String>,
    /// Time at which the first network was lost, in seconds; `None` if it was not.
    pub network_lost_s: Option<f64>,
    /// Longest delay of each transport, in seconds.
    pub max_delays_s: Vec<(String, f64)>,
}

impl Analysis {
    /// Analyses the runs that pass a filter.
    pub fn of(data: CampaignData, filter: &AnalysisFilter, settings: AnalysisSettings) -> Self {
        let campaign = data.campaign.clone();
        let population = Population::new(data, filter);
        let figures = figures::all(&population, settings);
        let rounds = rounds(&population);
        Self { campaign, settings, figures, rounds, population }
    }

    /// Returns the figure with an identifier, such as `handover-duration`.
    pub fn figure(&self, id: &str) -> Option<&AnalysisFigure> {
        self.figures.iter().find(|figure| figure.id == id)
    }

    /// Returns the runs of the analysis, invalid ones included.
    pub fn runs(&self) -> &[RunFacts] {
        &self.population.runs
    }
}

fn rounds(population: &Population) -> Vec<MobileRound> {
    let mut rounds: BTreeMap<(&str, u32), Vec<&RunFacts>> = BTreeMap::new();
    for run in population.runs.iter().filter(|run| run.mobile) {
        rounds.entry((&run.device, run.round)).or_default().push(run);
    }
    let round = |((device, round), runs): ((&str, u32), Vec<&RunFacts>)| MobileRound {
        device: device.to_owned(),
        round,
        runs: runs.iter().map(|run| run.run.clone()).collect(),
        network_lost_s: runs.iter().filter_map(|run| run.network_lost_s).reduce(f64::min),
        max_delays_s: runs
            .iter()
            .filter_map(|run| Some((run.transport.clone(), run.max_delay_s()?)))
            .collect(),
    };
    rounds.into_iter().map(round).collect()
}

#[cfg(test)]
mod tests;
