//! Schedulers, congestion controls and traffic that Python classes implement.
//!
//! An adapter of each kind implements the trait of the stack and calls the methods of a Python
//! object. The first exception of a run is kept, and the run ends with it.

mod congestion;
mod scheduler;
mod traffic;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use towpath_net::Instant;
use towpath_sim::Components;

pub(crate) use scheduler::PyDecision;
pub(crate) use view::{PyAckSample, PyConnectionView, PyPathView, PySibling};

/// Calls at the same virtual time after which a component counts as stuck.
const MAX_CALLS_AT_ONE_TIME: u32 = 1_000_000;

/// First exception that a component of a run has raised.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure(Arc<FailureState>);

#[derive(Debug, Default)]
struct FailureState {
    is_set: AtomicBool,
    exception: Mutex<Option<PyErr>>,
}

impl Failure {
    /// Keeps the exception, unless there is one already.
    pub(crate) fn set(&self, exception: PyErr) {
        let mut first = self.0.exception.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(exception);
        self.0.is_set.store(true, Ordering::Relaxed);
    }

    /// Returns true after an exception.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Returns the exception, once.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.exception.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Classes of components by name, or by number of the flow, from Python.
#[derive(FromPyObject, Default)]
#[pyo3(from_item_all)]
pub(crate) struct ComponentClasses {
    schedulers: BTreeMap<String, Py<PyAny>>,
    congestion_controls: BTreeMap<String, Py<PyAny>>,
    traffic: BTreeMap<usize, Py<PyAny>>,
}

impl ComponentClasses {
    /// Returns constructors for the simulator. Exceptions of the objects go to `failure`.
    pub(crate) fn factories(self, py: Python<'_>, failure: &Failure) -> Components {
        let mut components = Components::default();
        for (name, class) in self.schedulers {
            let factory = scheduler::factory(class, failure.clone());
            components.schedulers.insert(name, factory);
        }
        for (name, class) in self.congestion_controls {
            let factory = congestion::factory(interned(&name), class, failure.clone());
            components.congestion_controls.insert(name, factory);
        }
        for (flow, class) in self.traffic {
            let factory = traffic::factory(py, class, failure.clone());
            components.requests.insert(flow, factory);
        }
        components
    }
}

/// Returns the name with the lifetime of the program. Equal names share their memory.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let leaked: &'static str = Box::leak(name.into());
    names.insert(leaked);
    leaked
}

/// Python object of a component. After a failure it is called no more.
#[derive(Debug)]
struct Component {
    /// `None` if its construction failed.
    object: Option<Py<PyAny>>,
    failure: Failure,
    /// Time of the last call, and number of calls at this time.
    calls: (Instant, u32),
}

impl Component {
    /// Creates an object with the result of `construct`.
    fn new(failure: Failure, construct: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>) -> Self {
        let object =
            Python::attach(|py| construct(py).map_err(|exception| failure.set(exception)).ok());
        Self { object, failure, calls: (Instant::ZERO, 0) }
    }

    /// Calls `action` with the object; returns `None` after a failure, of this call or earlier.
    fn call<T>(&self, action: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Option<T> {
        let object = self.object.as_ref().filter(|_| !self.failure.is_set())?;
        Python::attach(|py| {
            action(object.bind(py)).map_err(|exception| self.failure.set(exception)).ok()
        })
    }

    /// Fails if there are too many calls at the same time: virtual time would never go on.
    fn count_call(&mut self, now: Instant) {
        if self.calls.0 != now {
            self.calls = (now, 0);
        }
        self.calls.1 += 1;
        if self.calls.1 > MAX_CALLS_AT_ONE_TIME {
            self.failure.set(PyRuntimeError::new_err(format!(
                "{MAX_CALLS_AT_ONE_TIME} calls at {} s: the component never waits",
                now.as_secs_f64()
            )));
        }
    }
}

/// Returns the first time that is not before `seconds`, as a view shows times.
fn instant(seconds: f64) -> PyResult<Instant> {
    if !(0.0..=1e9).contains(&seconds) {
        let message = format!("{seconds} is not a time: expected seconds since the run began");
        return Err(PyValueError::new_err(message));
    }
    let nanos = (seconds * 1e9).floor() as u64;
    let candidates = [nanos, nanos.saturating_add(1)].map(Instant::from_nanos);
    let reached = candidates.into_iter().find(|time| time.as_secs_f64() >= seconds);
    Ok(reached.unwrap_or(Instant::from_nanos(nanos.saturating_add(2))))
}
