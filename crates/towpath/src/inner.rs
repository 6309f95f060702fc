//! The processes behind a run: this program again, with a job in JSON as its only argument.
//!
//! `outer` enters the namespaces and starts `inner`, which does the job (see
//! [`towpath_linux::sandbox`]). What the inner process prints on standard output is the result.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use towpath_linux::lab::{Lab, LabError, Said};
use towpath_linux::run::Job;
use towpath_linux::sandbox::EmulatorThread;
use towpath_linux::zoo::Opened;
use towpath_linux::{interrupt, sandbox};
use towpath_measure::result::{RunOrder, Warning};
use towpath_measure::scenario::{Scenario, Transport};
use towpath_measure::store::write_record;

use crate::arguments::BackendChoice;
use crate::error::CliError;
use crate::lab;
use crate::load::load;
use crate::stacks::{self, StackChoice};
use crate::ui::Ui;

const OUTER: &str = "__outer";
const INNER: &str = "__inner";

/// Which process this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Outer,
    Inner,
}

impl Stage {
    pub(crate) fn parse(argument: &OsStr) -> Option<Self> {
        match argument.to_str() {
            Some(OUTER) => Some(Self::Outer),
            Some(INNER) => Some(Self::Inner),
            Some(_) | None => None,
        }
    }
}

/// A job as it is handed down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// As given by the user: a file or a name.
    pub(crate) scenario: String,
    pub(crate) seed: Option<u64>,
    pub(crate) stacks: Vec<StackChoice>,
    pub(crate) backend: BackendChoice,
    pub(crate) work: Work,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Work {
    Run {
        transport: Transport,
        repeat: u32,
        order: Option<RunOrder>,
    },
    /// Arguments that are not UTF-8 cannot be handed down, and are refused before.
    Lab {
        host: usize,
        command: Vec<String>,
    },
    /// The scenario is the name of a situation.
    Break {
        command: Vec<String>,
    },
}

impl Order {
    /// The arguments of the outer process.
    pub(crate) fn arguments(&self) -> Result<Vec<OsString>, CliError> {
        let text = serde_json::to_string(self).map_err(|e| CliError::Internal(e.to_string()))?;
        Ok(vec![OUTER.into(), text.into()])
    }

    fn load(&self) -> Result<Arc<Scenario>, CliError> {
        let mut scenario = load(&self.scenario)?;
        scenario.run.seed = self.seed.unwrap_or(scenario.run.seed);
        stacks::choose(&mut scenario, &self.stacks)?;
        Ok(Arc::new(scenario))
    }
}

/// Does what the process is for.
pub(crate) fn stage(
    stage: Stage,
    order: Option<OsString>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let order = order.unwrap_or_default();
    match stage {
        Stage::Outer => {
            interrupt::leave_to_children();
            let status = sandbox::outer(&[INNER.into(), order])?;
            Ok(passed_on(status))
        }
        Stage::Inner => {
            let thread = sandbox::inner()?;
            let text = order.to_str().unwrap_or_default();
            let order: Order =
                serde_json::from_str(text).map_err(|e| CliError::Internal(e.to_string()))?;
            work(&order, thread, ui)
        }
    }
}

fn work(order: &Order, thread: EmulatorThread, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let backend = order.backend.wanted();
    match &order.work {
        Work::Run { transport, repeat, order: turn } => {
            let scenario = order.load()?;
            interrupt::catch();
            interrupt::catch_end_of_input().map_err(CliError::Spawn)?;
            let job =
                Job { scenario, transport: *transport, repeat: *repeat, backend, order: *turn };
            let mut out = io::BufWriter::new(io::stdout());
            towpath_linux::run::run(&job, thread, &mut |record| {
                write_record(&mut out, record)?;
                out.flush()
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Work::Lab { host, command } => {
            let scenario = order.load()?;
            let command = command.iter().map(OsString::from).collect();
            let lab = Lab { scenario, host: *host, command, backend };
            let status = towpath_linux::lab::lab(&lab, thread, &mut |said| match said {
                Said::Map(text) => ui.progress(text),
                Said::Warning(text) => ui.warn(&Warning { text: text.to_owned(), hint: None }),
            })?;
            Ok(passed_on(status))
        }
        Work::Break { command } => {
            let situation = lab::find(&order.scenario)?;
            let opened = Opened::open(situation, thread).map_err(LabError::from)?;
            ui.progress(&lab::introduction(situation));
            let command: Vec<_> = command.iter().map(OsString::from).collect();
            Ok(passed_on(opened.run(&command)?))
        }
    }
}

/// A program's own exit code; 128 and its number when a signal ended it, as shells say it.
pub(crate) fn passed_on(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(2);
    ExitCode::from(u8::try_from(code).unwrap_or(2))
}
