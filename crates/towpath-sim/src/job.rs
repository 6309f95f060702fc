//! Input of a run.

use std::sync::Arc;

use towpath_scenario::{Scenario, Transport};

use crate::components::Components;

/// Input of a run: scenario, transport and repetition.
#[derive(Debug, Clone)]
pub struct SimJob {
    /// Scenario that the run executes.
    pub scenario: Arc<Scenario>,
    /// Transport that the flows use.
    pub transport: Transport,
    /// Number of the repetition, from 1. The run's seed is the scenario's plus `repeat` − 1.
    pub repeat: u32,
    /// Set when scheduler decisions are recorded, summed up for each sample.
    pub trace: bool,
    /// Components in addition to those of the stack.
    pub components: Components,
}
