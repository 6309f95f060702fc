//! Congestion controls in Python.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use towpath_multipath::PathId;
use towpath_multipath::congestion::{
    AckSample, CongestionConfig, CongestionControl, CongestionControlFactory, Sibling,
};
use towpath_net::Instant;

use super::scheduler::not_a_subclass;
use super::{Component, Failure, PyAckSample, PySibling};

/// Returns a factory that calls `class` with packet size and initial packets for each path.
pub(super) fn factory(
    name: &'static str,
    class: Py<PyAny>,
    failure: Failure,
) -> CongestionControlFactory {
    CongestionControlFactory::new(move |config| {
        let CongestionConfig { mss_bytes, initial_packets, .. } = config;
        let construct = |py: Python<'_>| {
            let object = class.call1(py, (mss_bytes, initial_packets))?;
            let base = py.import("towpath.components")?.getattr("CongestionControl")?;
            if object.bind(py).is_instance(&base)? {
                Ok(object)
            } else {
                Err(not_a_subclass(object.bind(py), "CongestionControl"))
            }
        };
        let component = Component::new(failure.clone(), construct);
        let state = ControlState {
            cwnd_bytes: u64::from(mss_bytes) * u64::from(initial_packets),
            ssthresh_bytes: u64::MAX,
            between_losses: (0, 0),
            pacing_percent: None,
        };
        let mut control = PythonControl { name, component, is_coupled: false, state };
        let coupled =
            control.component.call(|object| object.getattr("is_coupled")?.extract::<bool>());
        control.is_coupled = coupled.unwrap_or(false);
        control.update(|_| Ok(()));
        Box::new(control)
    })
}

/// Attributes of the object after the last call.
#[derive(Debug)]
struct ControlState {
    cwnd_bytes: u64,
    ssthresh_bytes: u64,
    between_losses: (u64, u64),
    pacing_percent: Option<u32>,
}

impl ControlState {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let cwnd: f64 = object.getattr(intern!(py, "cwnd_bytes"))?.extract()?;
        let ssthresh: f64 = object.getattr(intern!(py, "ssthresh_bytes"))?.extract()?;
        if cwnd.is_nan() || cwnd < 1.0 || cwnd.is_infinite() {
            let message = format!("`cwnd_bytes` is {cwnd}: expected at least one byte");
            return Err(PyValueError::new_err(message));
        }
        if ssthresh.is_nan() || ssthresh < 0.0 {
            let message = format!("`ssthresh_bytes` is {ssthresh}: expected bytes or infinity");
            return Err(PyValueError::new_err(message));
        }
        Ok(Self {
            cwnd_bytes: cwnd as u64,
            ssthresh_bytes: ssthresh as u64, // infinity becomes the largest number
            between_losses: object.getattr(intern!(py, "between_losses"))?.extract()?,
            pacing_percent: object.getattr(intern!(py, "pacing_percent"))?.extract()?,
        })
    }
}

/// A congestion control that calls a Python object.
#[derive(Debug)]
struct PythonControl {
    name: &'static str,
    component: Component,
    is_coupled: bool,
    state: ControlState,
}

impl PythonControl {
    /// Calls the object, then reads its attributes.
    fn update(&mut self, action: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) {
        let state = self.component.call(|object| {
            action(object)?;
            ControlState::of(object)
        });
        if let Some(state) = state {
            self.state = state;
        }
    }
}

/// Copies the paths of a connection.
fn copied<'py>(py: Python<'py>, group: &[Sibling]) -> PyResult<Bound<'py, PyList>> {
    let siblings = group.iter().map(|sibling| Py::new(py, PySibling(*sibling)));
    PyList::new(py, siblings.collect::<PyResult<Vec<_>>>()?)
}

impl CongestionControl for PythonControl {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cwnd_bytes(&self) -> u64 {
        self.state.cwnd_bytes
    }

    fn ssthresh_bytes(&self) -> u64 {
        self.state.ssthresh_bytes
    }

    fn on_ack(&mut self, sample: &AckSample, own: PathId, group: &[Sibling]) {
        self.update(|object| {
            let py = object.py();
            let ack = Py::new(py, PyAckSample(*sample))?;
            let arguments = (ack, own.0, copied(py, group)?);
            object.call_method1(intern!(py, "on_ack"), arguments).map(drop)
        });
    }

    fn on_congestion(
        &mut self,
        now: Instant,
        in_flight_bytes: u64,
        own: PathId,
        group: &[Sibling],
    ) {
        self.update(|object| {
            let py = object.py();
            let arguments = (now.as_secs_f64(), in_flight_bytes, own.0, copied(py, group)?);
            object.call_method1(intern!(py, "on_congestion"), arguments).map(drop)
        });
    }

    fn on_recovered(&mut self, now: Instant, cwnd_bytes: u64) {
        self.update(|object| {
            let name = intern!(object.py(), "on_recovered");
            object.call_method1(name, (now.as_secs_f64(), cwnd_bytes)).map(drop)
        });
    }

    fn on_timeout(&mut self, now: Instant, in_flight_bytes: u64) {
        self.update(|object| {
            let name = intern!(object.py(), "on_timeout");
            object.call_method1(name, (now.as_secs_f64(), in_flight_bytes)).map(drop)
        });
    }

    fn on_further_timeout(&mut self) {
        self.update(|object| {
            object.call_method0(intern!(object.py(), "on_further_timeout")).map(drop)
        });
    }

    fn undo(&mut self, now: Instant) {
        self.update(|object| {
            object.call_method1(intern!(object.py(), "undo"), (now.as_secs_f64(),)).map(drop)
        });
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.update(|object| {
            let arguments = (now.as_secs_f64(), idle.as_secs_f64(), rto.as_secs_f64());
            object.call_method1(intern!(object.py(), "on_idle"), arguments).map(drop)
        });
    }

    fn on_start(&mut self, idle: Duration) {
        self.update(|object| {
            let name = intern!(object.py(), "on_start");
            object.call_method1(name, (idle.as_secs_f64(),)).map(drop)
        });
    }

    fn penalise(&mut self, now: Instant, ends_slow_start: bool) {
        self.update(|object| {
            let name = intern!(object.py(), "penalise");
            object.call_method1(name, (now.as_secs_f64(), ends_slow_start)).map(drop)
        });
    }

    fn set_mss(&mut self, mss_bytes: u32) {
        self.update(|object| {
            object.call_method1(intern!(object.py(), "set_mss"), (mss_bytes,)).map(drop)
        });
    }

    fn between_losses(&self) -> (u64, u64) {
        self.state.between_losses
    }

    fn is_coupled(&self) -> bool {
        self.is_coupled
    }

    fn pacing_percent(&self) -> u32 {
        let below_half = self.state.cwnd_bytes < self.state.ssthresh_bytes / 2;
        self.state.pacing_percent.unwrap_or(if below_half { 200 } else { 120 })
    }
}
