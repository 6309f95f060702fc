//! `towpath run --explain`: simulates the run with one setting changed at a time.

use std::io::Write;
use std::sync::Arc;

use towpath_os::batch;
use towpath_os::interrupt;
use towpath_result::Summary;
use towpath_result::format;
use towpath_result::store::StoredRun;
use towpath_scenario::{Scenario, World};
use towpath_sim::explain::{REPETITIONS, Trial, goodput, trials};
use towpath_sim::{Components, SimJob};

use crate::error::CliError;
use crate::ui::Ui;

/// Lower bound of a gain worth advice, as a ratio of goodputs.
const MIN_GAIN: f64 = 1.02;

/// Explains the first simulated run over each transport.
pub(crate) fn explain(
    scenario: &Scenario,
    runs: &[StoredRun],
    threads: usize,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let is_first_repeat = |run: &&StoredRun| run.meta.world == World::Sim && run.meta.repeat == 1;
    for run in runs.iter().filter(is_first_repeat) {
        let Some(summary) = &run.summary else { continue };
        explain_run(scenario, run, summary, threads, ui)?;
    }
    Ok(())
}

fn explain_run(
    scenario: &Scenario,
    run: &StoredRun,
    summary: &Summary,
    threads: usize,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let transport = run.meta.transport;
    let mut scenario = scenario.clone();
    scenario.run.seed = run.meta.seed;
    let account = summary.account.as_deref();
    let candidates = account.map_or_else(Vec::new, |account| trials(&scenario, transport, account));
    let job = SimJob {
        scenario: Arc::new(scenario),
        transport,
        repeat: 1,
        trace: false,
        components: Components::default(),
    };
    let (mut goodputs, mut first_error) = (Vec::new(), None);
    let sim_error = |error: towpath_sim::SimError| CliError::Sim(error.to_string());
    let before = goodput(&job).map_err(sim_error)?;
    writeln!(
        ui.out,
        "{transport}: effect of changing one setting at a time (means of {REPETITIONS} seeds)"
    )?;
    batch::in_order(
        candidates.len(),
        threads,
        |index| candidates.get(index).map(|trial| trial.goodput(&job)),
        |index, result| {
            match (candidates.get(index), result) {
                (Some(trial), Some(Ok(goodput))) => goodputs.push((trial, goodput)),
                (_, Some(Err(error))) => first_error = Some(sim_error(error)),
                _ => {}
            }
            first_error.is_none() && !interrupt::is_interrupted()
        },
    );
    if let Some(error) = first_error {
        return Err(error);
    }
    goodputs.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    writeln!(ui.out, "  unchanged: {}", format::rate(before))?;
    for (trial, after) in &goodputs {
        let gain_percent = (after / before.max(1.0) - 1.0) * 100.0;
        writeln!(ui.out, "  {}: {} ({gain_percent:+.0} %)", trial.text, format::rate(*after))?;
    }
    advise(goodputs.first().copied(), before, ui)
}

fn advise(best: Option<(&Trial, f64)>, before: f64, ui: &mut Ui) -> Result<(), CliError> {
    match best.filter(|(_, after)| *after > before * MIN_GAIN) {
        Some((trial, after)) => {
            let gain_percent = (after / before.max(1.0) - 1.0) * 100.0;
            writeln!(ui.out, "  best: {} (+{gain_percent:.0} %)", trial.key)?;
        }
        None => writeln!(ui.out, "  no change that was tried brings more")?,
    }
    Ok(())
}
