//! The chunks of a sweep, each a task for any engine.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use towpath_result::Record;
use towpath_result::input;
use towpath_scenario::World;
use towpath_sim::{Components, SimJob};
use towpath_study::plan::Plan;
use towpath_study::runs::{RunSelection, StudyRun};
use towpath_study::sweep::{ChunkOutcome, Shard, Sweep, SweepError, SweepLocation, SweepSpec};
use towpath_study::table;

use crate::background::{self, Monitor};
use crate::error::{ErrorClass, scenario_error};
use crate::simulate;
use crate::table::Table;

/// A sweep in a folder or an object store.
#[pyclass(frozen, name = "Sweep", module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct PySweep {
    sweep: Sweep,
    location: String,
}

fn sweep_error(error: SweepError) -> PyErr {
    let hint = error.hint();
    if let SweepError::Plan(errors) = &error {
        return scenario_error(errors);
    }
    ErrorClass::Sweep.exception(error, hint)
}

fn location_of(text: &str) -> SweepLocation {
    SweepLocation::parse(Path::new(text))
}

#[pymethods]
impl PySweep {
    /// Creates a sweep of a plan, or opens it to continue.
    ///
    /// `plan` is the text of the plan. Files that it names are in `files`, or else in `folder`.
    #[staticmethod]
    #[pyo3(signature = (
        plan, location, *, files = None, folder = None, quick = false, seeds = None, chunk = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn begin(
        py: Python<'_>,
        plan: &str,
        location: &str,
        files: Option<BTreeMap<String, String>>,
        folder: Option<&str>,
        quick: bool,
        seeds: Option<u32>,
        chunk: Option<u32>,
    ) -> PyResult<Self> {
        let files = files.unwrap_or_default();
        let siblings = folder.map(|folder| input::sibling_files(Path::new(folder)));
        let load = |name: &str| match (files.get(name), &siblings) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(siblings)) => siblings(name),
            (None, None) => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let sweep = py.detach(|| {
            let parsed = Plan::parse("the plan", plan, &load).map_err(|e| scenario_error(&e))?;
            if !parsed.worlds.contains(&World::Sim) {
                return Err(ErrorClass::Unavailable.exception(
                    format!("the plan `{}` is not run in the world `sim`", parsed.name),
                    Some("run it with `towpath sweep PLAN --world emu`".to_owned()),
                ));
            }
            let selection = RunSelection { world: World::Sim, quick, seeds };
            let spec = SweepSpec::new(("the plan", plan), selection, chunk, &load);
            let spec = spec.map_err(sweep_error)?;
            Sweep::begin(location_of(location), spec).map_err(sweep_error)
        })?;
        Ok(Self { sweep, location: location.to_owned() })
    }

    /// Opens an existing sweep.
    #[staticmethod]
    fn open(py: Python<'_>, location: &str) -> PyResult<Self> {
        let sweep = py.detach(|| Sweep::open(location_of(location))).map_err(sweep_error)?;
        if sweep.world() != World::Sim {
            let what = format!("the sweep in `{location}` is emulated");
            let hint = "continue it with `towpath sweep PLAN --world emu`".to_owned();
            return Err(ErrorClass::Unavailable.exception(what, Some(hint)));
        }
        Ok(Self { sweep, location: location.to_owned() })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.sweep.plan().name
    }

    #[getter]
    fn location(&self) -> &str {
        &self.location
    }

    /// Number of chunks, which are numbered from 0.
    #[getter]
    fn chunks(&self, py: Python<'_>) -> usize {
        py.detach(|| self.sweep.chunk_count())
    }

    /// Number of runs.
    #[getter]
    fn runs(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.sweep.progress()).map_err(sweep_error)?.runs)
    }

    /// Number of runs whose rows are stored.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.sweep.progress()).map_err(sweep_error)?.done)
    }

    /// Returns the numbers of the chunks that are not stored.
    fn pending(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        py.detach(|| self.sweep.pending()).map_err(sweep_error)
    }

    /// Executes the runs of a chunk and stores their rows, unless they are stored.
    ///
    /// Returns `stored` or `already-stored`.
    #[pyo3(signature = (index, workers = 1, progress = None))]
    fn run_chunk(
        &self,
        py: Python<'_>,
        index: usize,
        workers: usize,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<&'static str> {
        let outcome = background::run(py, progress, |monitor| {
            let execute = |run: &StudyRun| execute(run, monitor);
            self.sweep.work_chunk(index, workers, &execute, &mut |done, total| {
                monitor.report(done, total);
                !monitor.is_stopped()
            })
        })?;
        match outcome.map_err(sweep_error)? {
            ChunkOutcome::Stored => Ok("stored"),
            ChunkOutcome::AlreadyStored => Ok("already-stored"),
            ChunkOutcome::Stopped => {
                Err(ErrorClass::Sweep.exception("the sweep was stopped", None))
            }
        }
    }

    /// Executes all runs that are not stored, on `workers` threads. `progress` counts runs.
    #[pyo3(signature = (workers, progress = None))]
    fn work(
        &self,
        py: Python<'_>,
        workers: usize,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let outcome = background::run(py, progress, |monitor| {
            let execute = |run: &StudyRun| execute(run, monitor);
            self.sweep.work(Shard::WHOLE, workers, &execute, &mut |done, total| {
                monitor.report(done, total);
                !monitor.is_stopped()
            })
        })?;
        outcome.map(drop).map_err(sweep_error)
    }

    /// Returns all stored rows.
    fn table(&self, py: Python<'_>) -> PyResult<Table> {
        let rows = py.detach(|| self.sweep.rows()).map_err(sweep_error)?;
        py.detach(|| Table::of_sweep(table::columns(&rows)))
    }

    /// Repeats some stored runs, drawn with a seed. Returns those whose rows differ.
    fn verify(
        &self,
        py: Python<'_>,
        runs: usize,
        seed: u64,
        workers: usize,
    ) -> PyResult<Vec<String>> {
        let differences = background::run(py, None, |monitor| {
            let execute = |run: &StudyRun| execute(run, monitor);
            let mut go_on = |_, _| !monitor.is_stopped();
            self.sweep.verify((runs, seed), workers, &execute, &mut go_on)
        })?;
        let differences = differences.map_err(sweep_error)?;
        let name = |(old, _): &(towpath_study::row::RunRow, _)| {
            format!("`{}` with seed {}", old.variant, old.seed)
        };
        Ok(differences.iter().map(name).collect())
    }

    fn __repr__(&self) -> String {
        format!("<Sweep {:?} in {:?}>", self.name(), self.location)
    }
}

/// Simulates a run of a plan.
fn execute(run: &StudyRun, monitor: &Monitor) -> Result<Vec<Record>, String> {
    let scenario = run.scenario.clone()?;
    let transport = run.row.transport;
    towpath_sim::check(&scenario, &[transport], &Components::default())
        .map_err(|error| format!("{error} ({})", error.hint()))?;
    let job = SimJob {
        scenario: Arc::new(*scenario),
        transport,
        repeat: 1,
        trace: true,
        components: Components::default(),
    };
    simulate::records(&job, &|| monitor.is_stopped()).map_err(|error| error.to_string())
}
