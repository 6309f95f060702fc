//! Scenarios as immutable Python objects.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use towpath_result::input::{self, DEFAULT_TEXT_LIMIT, ReadBudget};
use towpath_scenario::document::nearest;
use towpath_scenario::{Scenario, builtin, change};

use crate::error::{ErrorClass, scenario_error};

/// A checked scenario with its text and the files that it names.
#[pyclass(frozen, eq, hash, name = "Scenario", module = "towpath._native")]
#[derive(Debug, Clone)]
pub(crate) struct PyScenario {
    pub(crate) scenario: Arc<Scenario>,
    /// Name in messages.
    shown_name: String,
    files: BTreeMap<String, String>,
}

impl PartialEq for PyScenario {
    fn eq(&self, other: &Self) -> bool {
        self.scenario.source == other.scenario.source && self.files == other.files
    }
}

impl Hash for PyScenario {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.scenario.source.hash(state);
        self.files.hash(state);
    }
}

impl PyScenario {
    /// Parses a scenario and keeps the files that it names.
    fn parse(
        shown_name: &str,
        text: &str,
        load: &dyn Fn(&str) -> io::Result<String>,
    ) -> PyResult<Self> {
        let files = RefCell::new(BTreeMap::new());
        let recording_load = |name: &str| {
            let text = load(name)?;
            files.borrow_mut().insert(name.to_owned(), text.clone());
            Ok(text)
        };
        let scenario = Scenario::parse(shown_name, text, &recording_load);
        let scenario = Arc::new(scenario.map_err(|errors| scenario_error(&errors))?);
        Ok(Self { scenario, shown_name: shown_name.to_owned(), files: files.into_inner() })
    }
}

#[pymethods]
impl PyScenario {
    /// Reads a scenario from TOML; `files` are the texts of the files that it names.
    #[staticmethod]
    #[pyo3(signature = (text, *, name = "the scenario", files = None))]
    fn from_toml(
        text: &str,
        name: &str,
        files: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let files = files.unwrap_or_default();
        let load = |name: &str| {
            files.get(name).cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        Self::parse(name, text, &load)
    }

    /// Reads a scenario file and the files in its folder that it names.
    #[staticmethod]
    fn from_file(path: &str) -> PyResult<Self> {
        let file = Path::new(path);
        let text = ReadBudget::new(DEFAULT_TEXT_LIMIT).and_then(|budget| budget.read_text(file));
        let text = text.map_err(|error| {
            let reason = towpath_scenario::unreadable(&error);
            ErrorClass::Read.exception(format!("cannot read `{path}`: {reason}"), None)
        })?;
        let siblings = input::sibling_files(file.parent().unwrap_or(Path::new("")));
        Self::parse(path, &text, &siblings)
    }

    /// Returns a scenario that is part of the package.
    #[staticmethod]
    fn builtin(name: &str) -> PyResult<Self> {
        let Some(scenario) = builtin().iter().find(|builtin| builtin.name == name) else {
            let hint = match nearest(name, builtin().iter().map(|builtin| builtin.name)) {
                Some(suggestion) => format!("did you mean `{suggestion}`?"),
                None => "`towpath.scenarios()` lists the built-in ones".to_owned(),
            };
            return Err(
                ErrorClass::Read.exception(format!("there is no scenario `{name}`"), Some(hint))
            );
        };
        Self::parse(name, scenario.text, &towpath_scenario::no_files)
    }

    /// Returns the scenario with some keys set, such as `("paths.wifi.delay", "50 ms")`.
    fn changed(&self, changes: Vec<(String, String)>) -> PyResult<Self> {
        let mut text = self.scenario.source.clone();
        for (key, value) in changes {
            text = change::set(&text, &key, &value).map_err(|error| {
                ErrorClass::Scenario.exception(&error, Some(error.hint.clone()))
            })?;
        }
        Self::from_toml(&text, &self.shown_name, Some(self.files.clone()))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.scenario.name
    }

    #[getter]
    fn description(&self) -> &str {
        &self.scenario.description
    }

    #[getter]
    fn toml(&self) -> &str {
        &self.scenario.source
    }

    #[getter]
    fn files(&self) -> BTreeMap<String, String> {
        self.files.clone()
    }

    #[getter]
    fn hosts(&self) -> Vec<&str> {
        self.scenario.hosts.iter().map(|host| host.name.as_str()).collect()
    }

    #[getter]
    fn paths(&self) -> Vec<&str> {
        self.scenario.paths.iter().map(|path| path.name.as_str()).collect()
    }

    #[getter]
    fn transports(&self) -> Vec<String> {
        self.scenario.run.transports.iter().map(ToString::to_string).collect()
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.scenario.run.seed
    }

    /// Seconds until the last flow ends.
    #[getter]
    fn duration(&self) -> f64 {
        let ends = self.scenario.flows.iter().map(|flow| flow.start + flow.pattern.duration());
        ends.max().unwrap_or_default().as_secs_f64()
    }

    fn __repr__(&self) -> String {
        format!("<Scenario {:?}>", self.scenario.name)
    }
}

/// Returns the names of the scenarios that are part of the package.
#[pyfunction]
pub(crate) fn builtin_names() -> Vec<&'static str> {
    builtin().iter().map(|builtin| builtin.name).collect()
}

/// Converts a JSON object to TOML.
#[pyfunction]
pub(crate) fn toml_from_json(json: &str) -> PyResult<String> {
    let value: Result<toml::Value, _> = serde_json::from_str(json);
    let text = value
        .map_err(|error| error.to_string())
        .and_then(|value| toml::to_string(&value).map_err(|error| error.to_string()));
    text.map_err(|reason| {
        let hint = "a value is a text, number, boolean, list or dictionary".to_owned();
        ErrorClass::Scenario
            .exception(format!("the dictionary is not a scenario: {reason}"), Some(hint))
    })
}
