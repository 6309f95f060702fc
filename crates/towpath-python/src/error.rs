//! Exceptions of the package, which `towpath/errors.py` defines.

use std::fmt::Display;

use pyo3::prelude::*;
use towpath_scenario::ScenarioErrors;

/// Class of an exception.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ErrorClass {
    /// A scenario or plan with mistakes.
    Scenario,
    /// A run that has no result.
    Run,
    /// A file that cannot be read.
    Read,
    /// A sweep that cannot go on.
    Sweep,
    /// A request that this package cannot carry out here.
    Unavailable,
}

impl ErrorClass {
    fn name(self) -> &'static str {
        match self {
            Self::Scenario => "ScenarioError",
            Self::Run => "RunError",
            Self::Read => "ReadError",
            Self::Sweep => "SweepError",
            Self::Unavailable => "UnavailableError",
        }
    }

    /// Creates an exception with a message and a hint to the user.
    pub(crate) fn exception(self, message: impl Display, hint: Option<String>) -> PyErr {
        self.with_arguments((message.to_string(), hint))
    }

    fn with_arguments(
        self,
        arguments: impl for<'py> pyo3::call::PyCallArgs<'py> + Send + Sync,
    ) -> PyErr {
        Python::attach(|py| {
            let class = py.import("towpath.errors").and_then(|errors| errors.getattr(self.name()));
            match class.and_then(|class| class.call1(arguments)) {
                Ok(exception) => PyErr::from_value(exception),
                Err(error) => error,
            }
        })
    }
}

/// Converts the mistakes of a scenario, with line and column of each.
pub(crate) fn scenario_error(errors: &ScenarioErrors) -> PyErr {
    let problems: Vec<_> = errors
        .problems()
        .iter()
        .map(|problem| {
            let (line, column) = problem.position.unzip();
            (line, column, problem.message.clone(), problem.hint.clone())
        })
        .collect();
    ErrorClass::Scenario.with_arguments((errors.to_string(), None::<String>, problems))
}
