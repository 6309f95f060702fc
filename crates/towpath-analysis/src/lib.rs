//! Analysis of a campaign: figures and tables of De Coninck and Bonaventure's `MultipathTester`
//! (TMA 2019), from the results of any devices.
//!
//! Reading order: [`RunFacts`] are one flat row for each run, computed from its records. [`cause`]
//! has the rules for the causes of delays. [`Analysis`] selects rows, and makes one
//! [`AnalysisFigure`] for each figure or table. [`output`] writes them as files, and
//! [`Analysis::page`] as a page. [`folder`] reads results without a collector. Equal rows give
//! equal bytes: nothing depends on the order of the rows or on the time.

mod analysis;
pub mod cause;
mod facts;
mod figures;
pub mod folder;
pub mod output;
mod page;
mod population;
mod rules;
mod settings;

pub use analysis::{Analysis, MobileRound};
pub use facts::{FACTS_VERSION, RunFacts};
pub use figures::{AnalysisFigure, Cell, DataTable};
pub use page::PageAddresses;
pub use population::{AbsentRun, AnalysisFilter, CampaignData};
pub use rules::rules_markdown;
pub use settings::AnalysisSettings;
