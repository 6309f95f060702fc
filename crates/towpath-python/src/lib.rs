//! Compiled part of the Python package, `towpath._native`.
//!
//! The package in `python/towpath` wraps these classes and functions, and `_native.pyi` has their
//! types. Reading order:
//!
//! 1. [`scenario`]: scenarios from TOML;
//! 2. [`simulate`]: simulated runs on several threads;
//! 3. [`components`]: schedulers, congestion controls and traffic in Python;
//! 4. [`runs`]: results, and [`table`]: their tables as Arrow streams;
//! 5. [`sweep`]: the chunks of a sweep;
//! 6. [`background`]: work without the interpreter's lock, which Ctrl-C stops.

#![expect(clippy::needless_pass_by_value, reason = "arguments are converted from Python objects")]

mod background;
mod components;
mod error;
mod runs;
mod scenario;
mod simulate;
mod sweep;
mod table;

use pyo3::pymodule;

/// The module `towpath._native`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::components::{PyAckSample, PyConnectionView, PyDecision, PyPathView, PySibling};
    #[pymodule_export]
    use crate::runs::{Runs, analyse_capture};
    #[pymodule_export]
    use crate::scenario::{PyScenario, builtin_names, toml_from_json};
    #[pymodule_export]
    use crate::simulate::simulate;
    #[pymodule_export]
    use crate::sweep::PySweep;
    #[pymodule_export]
    use crate::table::Table;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
