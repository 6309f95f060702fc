//! Simulated runs on several threads.

use std::io;
use std::sync::Arc;

use pyo3::prelude::*;
use towpath_os::batch;
use towpath_result::Record;
use towpath_result::store::{RunResult, StoredRun};
use towpath_scenario::Transport;
use towpath_sim::SimJob;

use crate::background::{self, Monitor};
use crate::components::{ComponentClasses, Failure};
use crate::error::ErrorClass;
use crate::runs::Runs;
use crate::scenario::PyScenario;

/// Simulates a scenario over each transport with each seed. `components` are classes in Python.
#[pyfunction]
#[pyo3(signature = (scenario, transports, seeds, workers, progress = None, components = None))]
pub(crate) fn simulate(
    py: Python<'_>,
    scenario: &PyScenario,
    transports: Vec<String>,
    seeds: Vec<u64>,
    workers: usize,
    progress: Option<&Bound<'_, PyAny>>,
    components: Option<ComponentClasses>,
) -> PyResult<Runs> {
    let failure = Failure::default();
    let components = components.unwrap_or_default().factories(py, &failure);
    let transports = transports.iter().map(|name| transport(name)).collect::<PyResult<Vec<_>>>()?;
    towpath_sim::check(&scenario.scenario, &transports, &components)
        .map_err(|error| ErrorClass::Unavailable.exception(&error, Some(error.hint())))?;
    let mut jobs = Vec::new();
    for (seed, repeat) in seeds.iter().zip(1_u32..) {
        let mut repetition = scenario.scenario.as_ref().clone();
        // A run's seed is the scenario's plus the number of the repetition, minus 1.
        repetition.run.seed = seed.wrapping_sub(u64::from(repeat - 1));
        let repetition = Arc::new(repetition);
        let job = |&transport| {
            let scenario = Arc::clone(&repetition);
            SimJob { scenario, transport, repeat, trace: true, components: components.clone() }
        };
        jobs.extend(transports.iter().map(job));
    }
    let runs = background::run(py, progress, |monitor| run_all(&jobs, workers, monitor, &failure))?;
    if let Some(exception) = failure.take() {
        return Err(exception);
    }
    runs.map(Runs::new).map_err(|reason| ErrorClass::Run.exception(reason, None))
}

fn transport(name: &str) -> PyResult<Transport> {
    let known = Transport::ALL.into_iter().find(|transport| transport.to_string() == name);
    known.ok_or_else(|| {
        let names: Vec<_> = Transport::ALL.iter().map(|known| format!("`{known}`")).collect();
        let hint = format!("there are {}", names.join(", "));
        ErrorClass::Unavailable.exception(format!("there is no transport `{name}`"), Some(hint))
    })
}

fn run_all(
    jobs: &[SimJob],
    workers: usize,
    monitor: &Monitor,
    failure: &Failure,
) -> Result<Vec<StoredRun>, String> {
    let mut runs = Vec::new();
    let mut first_error = None;
    let is_stopped = || monitor.is_stopped() || failure.is_set();
    let work = |index: usize| {
        let job = jobs.get(index)?;
        if job.components.is_empty() {
            return Some(run_one(job, &is_stopped));
        }
        // The thread stays known to the interpreter, so that each call only takes its lock.
        Python::attach(|py| {
            if let Err(exception) = monitor.register_thread(py) {
                failure.set(exception);
            }
            Some(py.detach(|| run_one(job, &is_stopped)))
        })
    };
    batch::in_order(jobs.len(), workers, work, |index, outcome| {
        match outcome {
            Some(Ok(run)) => runs.push(run),
            Some(Err(reason)) => first_error = Some(reason),
            None => {}
        }
        monitor.report(index + 1, jobs.len());
        first_error.is_none() && !is_stopped()
    });
    first_error.map_or(Ok(runs), Err)
}

fn run_one(job: &SimJob, is_stopped: &(dyn Fn() -> bool + Sync)) -> Result<StoredRun, String> {
    let records = records(job, is_stopped)
        .map_err(|error| format!("{} over {}: {error}", job.scenario.name, job.transport))?;
    let (mut meta, mut summary, mut others) = (None, None, Vec::new());
    for record in records {
        if let Record::Meta(record) = record {
            meta = Some(*record);
        } else if let Record::Summary(record) = record {
            summary = Some(*record);
        } else {
            others.push(record);
        }
    }
    let meta = meta.ok_or("the run has no first record")?;
    let truncated = summary.is_none();
    let result = RunResult { meta, records: others, summary, truncated, skipped: 0 };
    Ok(StoredRun::from(result))
}

/// Simulates a run and returns its records, or an error once `is_stopped` returns true.
pub(crate) fn records(
    job: &SimJob,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<Record>, towpath_sim::SimError> {
    let mut records = Vec::new();
    towpath_sim::run(job, Vec::new(), &mut |record| {
        if is_stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        records.push(record.clone());
        Ok(())
    })?;
    Ok(records)
}
