//! Requests of a flow that a Python object schedules.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use towpath_net::Instant;
use towpath_run::traffic::{FlowRole, Request, RequestGenerator};
use towpath_sim::RequestsFactory;

use super::scheduler::not_a_subclass;
use super::{Component, Failure, instant};

/// Returns a factory that calls `class` with `"up"` or `"down"`, the direction of the requests.
pub(super) fn factory(py: Python<'_>, class: Py<PyAny>, failure: Failure) -> RequestsFactory {
    let name = class.bind(py).getattr("__name__").and_then(|name| name.extract());
    let name = name.unwrap_or_else(|_| "a Python object".to_owned());
    RequestsFactory::new(name, move |role| {
        let direction = match role {
            FlowRole::Client => "up",
            FlowRole::Server => "down",
        };
        let construct = |py: Python<'_>| {
            let object = class.call1(py, (direction,))?;
            let base = py.import("towpath.components")?.getattr("Traffic")?;
            if object.bind(py).is_instance(&base)? {
                Ok(object)
            } else {
                Err(not_a_subclass(object.bind(py), "Traffic"))
            }
        };
        let component = Component::new(failure.clone(), construct);
        Box::new(PythonTraffic { component, outlook: RefCell::default() })
    })
}

/// Request with the attributes of `towpath.components.Request`.
#[derive(FromPyObject)]
struct PyRequest {
    due: f64,
    request_bytes: u32,
    reply_bytes: u32,
    ack: bool,
    warm_up: bool,
}

/// Requests that a Python object schedules.
#[derive(Debug)]
struct PythonTraffic {
    component: Component,
    /// By stream: the next due time and whether the stream is done, since the last change.
    outlook: RefCell<BTreeMap<u32, (Option<Instant>, bool)>>,
}

impl PythonTraffic {
    /// Returns the next due time, and true if there are no more requests. A failed object is done.
    fn outlook(&self, stream: u32) -> (Option<Instant>, bool) {
        if let Some(&known) = self.outlook.borrow().get(&stream) {
            return known;
        }
        let asked = self.component.call(|object| {
            let py = object.py();
            let due: Option<f64> =
                object.call_method1(intern!(py, "next_due"), (stream,))?.extract()?;
            let is_done = object.call_method1(intern!(py, "is_done"), (stream,))?.extract()?;
            Ok((due.map(instant).transpose()?, is_done))
        });
        let outlook = asked.unwrap_or((None, true));
        self.outlook.borrow_mut().insert(stream, outlook);
        outlook
    }
}

impl RequestGenerator for PythonTraffic {
    fn begin(&mut self, now: Instant) {
        self.outlook.take();
        let _ = self.component.call(|object| {
            object.call_method1(intern!(object.py(), "begin"), (now.as_secs_f64(),)).map(drop)
        });
    }

    fn poll(&mut self, now: Instant, stream: u32) -> Option<Request> {
        self.outlook.take();
        self.component.count_call(now);
        let polled = self.component.call(|object| {
            let arguments = (now.as_secs_f64(), stream);
            let returned = object.call_method1(intern!(object.py(), "poll"), arguments)?;
            returned.extract::<Option<PyRequest>>()?.map(request).transpose()
        });
        polled.flatten()
    }

    fn on_reply(&mut self, now: Instant, stream: u32) {
        self.outlook.take();
        let _ = self.component.call(|object| {
            let arguments = (now.as_secs_f64(), stream);
            object.call_method1(intern!(object.py(), "on_reply"), arguments).map(drop)
        });
    }

    fn next_due(&self, stream: u32) -> Option<Instant> {
        self.outlook(stream).0
    }

    fn is_done(&self, stream: u32) -> bool {
        self.outlook(stream).1
    }
}

fn request(request: PyRequest) -> PyResult<Request> {
    let PyRequest { due, request_bytes, reply_bytes, ack, warm_up } = request;
    if request_bytes == 0 {
        return Err(PyValueError::new_err("`request_bytes` is 0: expected at least 1"));
    }
    Ok(Request { due: instant(due)?, request_bytes, reply_bytes, ack, warm_up })
}
