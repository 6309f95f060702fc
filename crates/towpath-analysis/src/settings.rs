//! Settings of an analysis.

/// Settings that do not select runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnalysisSettings {
    /// Fewest values of a curve or a share. Less are not shown.
    pub min_runs: usize,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Default for AnalysisSettings {
    fn default() -> Self {
        Self { min_runs: 10, seed: 1 }
    }
}
