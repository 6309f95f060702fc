//! Schedulers in Python.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use towpath_multipath::scheduler::{
    Decision, Scheduler, SchedulerEvent, SchedulerFactory, SwitchReason, min_rtt,
};
use towpath_multipath::{ConnectionView, DataRange, PathId, PathSet};
use towpath_net::Instant;

use super::view::{PathArgument, ids};
use super::{Component, Failure, PyConnectionView, PyPathView, instant};

/// Decision of a scheduler.
#[pyclass(frozen, eq, name = "Decision", module = "towpath._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyDecision(Decision);

#[pymethods]
impl PyDecision {
    /// Sends new data on a path, by default as much as it has room for.
    #[staticmethod]
    #[pyo3(signature = (path, max_bytes = None))]
    fn send(path: PathArgument<'_>, max_bytes: Option<u64>) -> Self {
        Self(Decision::Send { path: path.id(), max_bytes: max_bytes.unwrap_or(u64::MAX) })
    }

    /// Sends the same new data on several paths.
    #[staticmethod]
    #[pyo3(signature = (paths, max_bytes = None))]
    fn duplicate(paths: Vec<PathArgument<'_>>, max_bytes: Option<u64>) -> Self {
        let paths: PathSet = paths.iter().map(PathArgument::id).collect();
        Self(Decision::Duplicate { paths, max_bytes: max_bytes.unwrap_or(u64::MAX) })
    }

    /// Sends data again that another path has sent.
    #[staticmethod]
    fn reinject(path: PathArgument<'_>, range: (u64, u64)) -> Self {
        let range = DataRange { start: range.0, bytes: range.1 };
        Self(Decision::Reinject { path: path.id(), range })
    }

    /// Waits for an acknowledgement, at most until this time in seconds.
    #[staticmethod]
    #[pyo3(signature = (until = None))]
    fn wait(until: Option<f64>) -> PyResult<Self> {
        Ok(Self(Decision::Wait { until: until.map(instant).transpose()? }))
    }

    /// Sends nothing now.
    #[staticmethod]
    fn idle() -> Self {
        Self(Decision::Idle)
    }

    fn __repr__(&self) -> String {
        let seconds = |time: Instant| format!("until {} s", time.as_secs_f64());
        match self.0 {
            Decision::Send { path, max_bytes } => {
                format!("<Decision: send {max_bytes} bytes on path {}>", path.0)
            }
            Decision::Duplicate { paths, max_bytes } => {
                format!("<Decision: send {max_bytes} bytes on paths {:?}>", ids(paths))
            }
            Decision::Reinject { path, range } => {
                format!("<Decision: reinject {} bytes on path {}>", range.bytes, path.0)
            }
            Decision::Wait { until } => {
                format!("<Decision: wait {}>", until.map_or_else(String::new, seconds))
            }
            Decision::Idle => "<Decision: idle>".to_owned(),
        }
    }
}

/// Returns a factory that calls `class` without arguments for each connection.
pub(super) fn factory(class: Py<PyAny>, failure: Failure) -> SchedulerFactory {
    SchedulerFactory::new(move || {
        let component = Component::new(failure.clone(), |py| class.call0(py));
        let switches = component.call(Switches::of).unwrap_or_default();
        Box::new(PythonScheduler { component, switches, switch_reason: None })
    })
}

/// Constant answers of a scheduler.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent answers")]
struct Switches {
    duplicates_data: bool,
    needs_room: bool,
    fills_subflow_queues: bool,
    /// True if the class has its own choice for reinjections.
    reinjects: bool,
    /// True if the class wants events.
    observes: bool,
}

impl Switches {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let base = object.py().import("towpath.components")?.getattr("Scheduler")?;
        let overrides = |name: &str| -> PyResult<bool> {
            let own = object.get_type().getattr(name)?;
            Ok(!own.is(&base.getattr(name)?))
        };
        if !object.is_instance(&base)? {
            return Err(not_a_subclass(object, "Scheduler"));
        }
        Ok(Self {
            duplicates_data: object.getattr("duplicates_data")?.extract()?,
            needs_room: object.getattr("needs_room")?.extract()?,
            fills_subflow_queues: object.getattr("fills_subflow_queues")?.extract()?,
            reinjects: overrides("reinject")?,
            observes: overrides("on_event")?,
        })
    }
}

/// Creates the error for an object of another class.
pub(super) fn not_a_subclass(object: &Bound<'_, PyAny>, base: &str) -> PyErr {
    let class = object.get_type();
    PyTypeError::new_err(format!("{class} is not a subclass of `towpath.components.{base}`"))
}

/// A scheduler that calls a Python object.
#[derive(Debug)]
struct PythonScheduler {
    component: Component,
    switches: Switches,
    switch_reason: Option<SwitchReason>,
}

impl Scheduler for PythonScheduler {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        self.component.count_call(view.now);
        let duplicates_data = self.switches.duplicates_data;
        let decided = self.component.call(|object| {
            let py = object.py();
            let copied = Py::new(py, PyConnectionView::new(py, view, duplicates_data)?)?;
            let returned = object.call_method1(intern!(py, "next"), (copied,))?;
            let reason: Option<String> = object.getattr(intern!(py, "switch_reason"))?.extract()?;
            let reason = reason.as_deref().map(switch_reason).transpose()?;
            Ok((decision(&returned, view)?, reason))
        });
        let (decision, reason) = decided.unwrap_or((Decision::Idle, None));
        self.switch_reason = reason;
        decision
    }

    fn reinject(
        &mut self,
        view: &ConnectionView<'_>,
        range: DataRange,
        sent_on: PathSet,
    ) -> Option<PathId> {
        if !self.switches.reinjects {
            return min_rtt::lowest_srtt(view, |path| !sent_on.contains(path.id));
        }
        let duplicates_data = self.switches.duplicates_data;
        let chosen = self.component.call(|object| {
            let py = object.py();
            let copied = Py::new(py, PyConnectionView::new(py, view, duplicates_data)?)?;
            let arguments = (copied, (range.start, range.bytes), ids(sent_on));
            let returned = object.call_method1(intern!(py, "reinject"), arguments)?;
            if returned.is_none() {
                return Ok(None);
            }
            let path = returned.extract::<PathArgument<'_>>()?.id();
            check_path(view, path).map(Some)
        });
        chosen.flatten()
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        if self.switches.observes {
            let (kind, path, bytes) = described(event);
            let _ = self.component.call(|object| {
                let name = intern!(object.py(), "on_event");
                object.call_method1(name, (kind, path.map(|path| path.0), bytes)).map(drop)
            });
        }
    }

    fn switch_reason(&self) -> Option<SwitchReason> {
        self.switch_reason
    }

    fn duplicates_data(&self) -> bool {
        self.switches.duplicates_data
    }

    fn needs_room(&self) -> bool {
        self.switches.needs_room
    }

    fn fills_subflow_queues(&self) -> bool {
        self.switches.fills_subflow_queues
    }
}

/// Converts what `next` returned: a decision, a path to send on, or `None` for idle.
fn decision(returned: &Bound<'_, PyAny>, view: &ConnectionView<'_>) -> PyResult<Decision> {
    if returned.is_none() {
        return Ok(Decision::Idle);
    }
    if let Ok(path) = returned.cast::<PyPathView>() {
        let path = check_path(view, path.get().0.id)?;
        return Ok(Decision::Send { path, max_bytes: u64::MAX });
    }
    let Ok(decision) = returned.cast::<PyDecision>() else {
        let class = returned.get_type();
        let message = format!("`next` returned {class}: expected a Decision, a PathView or None");
        return Err(PyTypeError::new_err(message));
    };
    let decision = decision.get().0;
    match decision {
        Decision::Send { path, .. } | Decision::Reinject { path, .. } => {
            check_path(view, path)?;
        }
        Decision::Duplicate { paths, .. } => {
            for path in paths.iter() {
                check_path(view, path)?;
            }
        }
        Decision::Wait { .. } | Decision::Idle => {}
    }
    Ok(decision)
}

fn check_path(view: &ConnectionView<'_>, path: PathId) -> PyResult<PathId> {
    if view.path(path).is_some() {
        return Ok(path);
    }
    let known: Vec<_> = view.paths.iter().map(|path| path.id.0).collect();
    let message = format!("there is no path {}: the view has {known:?}", path.0);
    Err(PyValueError::new_err(message))
}

fn switch_reason(name: &str) -> PyResult<SwitchReason> {
    const REASONS: [SwitchReason; 4] = [
        SwitchReason::SlowRoundTrip,
        SwitchReason::Timeout,
        SwitchReason::LongTimeout,
        SwitchReason::Gone,
    ];
    REASONS.into_iter().find(|reason| reason.name() == name).ok_or_else(|| {
        let names = REASONS.map(SwitchReason::name).join(", ");
        PyValueError::new_err(format!("`switch_reason` is `{name}`: expected one of {names}"))
    })
}

/// Returns the name of an event, its path and its bytes.
fn described(event: SchedulerEvent) -> (&'static str, Option<PathId>, Option<u64>) {
    match event {
        SchedulerEvent::Sent { path, bytes } => ("sent", Some(path), Some(bytes)),
        SchedulerEvent::Acked { path, bytes } => ("acked", Some(path), Some(bytes)),
        SchedulerEvent::Lost { path } => ("lost", Some(path), None),
        SchedulerEvent::Timeout { path } => ("timeout", Some(path), None),
        SchedulerEvent::WindowBlocked => ("window-blocked", None, None),
        SchedulerEvent::Opened { path } => ("opened", Some(path), None),
        SchedulerEvent::Closed { path } => ("closed", Some(path), None),
    }
}
