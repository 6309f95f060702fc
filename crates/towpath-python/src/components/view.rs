//! Views of connections, paths and acknowledgements for Python. Times are seconds.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use towpath_multipath::congestion::{AckSample, Sibling};
use towpath_multipath::{ConnectionView, DataRange, PathId, PathSet, PathView, RecoveryPhase};

/// First byte and number of bytes of a range.
type RangePair = (u64, u64);

fn range_pair(range: DataRange) -> RangePair {
    (range.start, range.bytes)
}

/// One path, as a scheduler sees it.
#[pyclass(frozen, name = "PathView", module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct PyPathView(pub(crate) PathView);

#[pymethods]
impl PyPathView {
    #[getter]
    fn id(&self) -> u8 {
        self.0.id.0
    }

    #[getter]
    fn backup(&self) -> bool {
        self.0.backup
    }

    #[getter]
    fn stale(&self) -> bool {
        self.0.stale
    }

    #[getter]
    fn silent_rounds(&self) -> u32 {
        self.0.silent_rounds
    }

    #[getter]
    fn phase(&self) -> &'static str {
        match self.0.phase {
            RecoveryPhase::Open => "open",
            RecoveryPhase::Recovery => "recovery",
            RecoveryPhase::Loss => "loss",
        }
    }

    #[getter]
    fn slow_start(&self) -> bool {
        self.0.slow_start
    }

    #[getter]
    fn srtt(&self) -> f64 {
        self.0.srtt.as_secs_f64()
    }

    #[getter]
    fn rttvar(&self) -> f64 {
        self.0.rttvar.as_secs_f64()
    }

    #[getter]
    fn min_rtt(&self) -> f64 {
        self.0.min_rtt.as_secs_f64()
    }

    #[getter]
    fn rto(&self) -> f64 {
        self.0.rto.as_secs_f64()
    }

    #[getter]
    fn timeouts(&self) -> u32 {
        self.0.timeouts
    }

    #[getter]
    fn mss_bytes(&self) -> u32 {
        self.0.mss_bytes
    }

    #[getter]
    fn cwnd_bytes(&self) -> u64 {
        self.0.cwnd_bytes
    }

    #[getter]
    fn in_flight_bytes(&self) -> u64 {
        self.0.in_flight_bytes
    }

    #[getter]
    fn queued_bytes(&self) -> u64 {
        self.0.queued_bytes
    }

    #[getter]
    fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    #[getter]
    fn pacing_rate(&self) -> u64 {
        self.0.pacing_rate
    }

    #[getter]
    fn room_bytes(&self) -> u64 {
        self.0.room_bytes
    }

    fn __repr__(&self) -> String {
        let PathView { id, srtt, room_bytes, .. } = self.0;
        format!("<PathView {}: srtt {} s, room {room_bytes} bytes>", id.0, srtt.as_secs_f64())
    }
}

/// A connection, as a scheduler sees it.
#[pyclass(frozen, name = "ConnectionView", module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct PyConnectionView {
    now: f64,
    paths: Py<PyList>,
    unsent_bytes: u64,
    unsent_from: u64,
    window_bytes: u64,
    unacked_bytes: u64,
    send_buffer_full: bool,
    head: Option<(DataRange, PathSet)>,
    /// First range that each path has not sent, for schedulers that duplicate data.
    unsent_on: Option<Vec<(PathId, Option<DataRange>)>>,
}

impl PyConnectionView {
    /// Copies a view.
    pub(super) fn new(
        py: Python<'_>,
        view: &ConnectionView<'_>,
        duplicates_data: bool,
    ) -> PyResult<Self> {
        let paths = view.paths.iter().map(|path| Py::new(py, PyPathView(*path)));
        let paths = PyList::new(py, paths.collect::<PyResult<Vec<_>>>()?)?.unbind();
        let ids = view.paths.iter().map(|path| path.id);
        let unsent_on =
            duplicates_data.then(|| ids.map(|id| (id, view.unsent.first_unsent_on(id))).collect());
        Ok(Self {
            now: view.now.as_secs_f64(),
            paths,
            unsent_bytes: view.unsent_bytes,
            unsent_from: view.unsent_from,
            window_bytes: view.window_bytes,
            unacked_bytes: view.unacked_bytes,
            send_buffer_full: view.send_buffer_full,
            head: view.head,
            unsent_on,
        })
    }
}

#[pymethods]
impl PyConnectionView {
    #[getter]
    fn now(&self) -> f64 {
        self.now
    }

    #[getter]
    fn paths(&self, py: Python<'_>) -> Py<PyList> {
        self.paths.clone_ref(py)
    }

    #[getter]
    fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    #[getter]
    fn unsent_from(&self) -> u64 {
        self.unsent_from
    }

    #[getter]
    fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    #[getter]
    fn unacked_bytes(&self) -> u64 {
        self.unacked_bytes
    }

    #[getter]
    fn send_buffer_full(&self) -> bool {
        self.send_buffer_full
    }

    #[getter]
    fn head(&self) -> Option<(RangePair, Vec<u8>)> {
        self.head.map(|(range, paths)| (range_pair(range), ids(paths)))
    }

    fn first_unsent_on(&self, path: PathArgument<'_>) -> PyResult<Option<RangePair>> {
        let Some(unsent_on) = &self.unsent_on else {
            let message = "`first_unsent_on` needs `duplicates_data = True` in the class";
            return Err(PyRuntimeError::new_err(message));
        };
        let found = unsent_on.iter().find(|(id, _)| *id == path.id());
        Ok(found.and_then(|(_, range)| range.map(range_pair)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let paths = self.paths.bind(py).repr()?;
        Ok(format!("<ConnectionView at {} s: {paths}>", self.now))
    }
}

/// A path in an argument: its view or its number.
#[derive(FromPyObject)]
pub(super) enum PathArgument<'py> {
    View(PyRef<'py, PyPathView>),
    Id(u8),
}

impl PathArgument<'_> {
    /// Returns the number of the path.
    pub(super) fn id(&self) -> PathId {
        match self {
            Self::View(view) => view.0.id,
            Self::Id(id) => PathId(*id),
        }
    }
}

/// Returns the numbers of some paths.
pub(super) fn ids(paths: PathSet) -> Vec<u8> {
    paths.iter().map(|path| path.0).collect()
}

/// Acknowledgement of new data on a path.
#[pyclass(frozen, name = "AckSample", module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct PyAckSample(pub(super) AckSample);

#[pymethods]
impl PyAckSample {
    #[getter]
    fn now(&self) -> f64 {
        self.0.now.as_secs_f64()
    }

    #[getter]
    fn acked_bytes(&self) -> u64 {
        self.0.acked_bytes
    }

    #[getter]
    fn in_flight_bytes(&self) -> u64 {
        self.0.in_flight_bytes
    }

    #[getter]
    fn rtt(&self) -> Option<f64> {
        self.0.rtt.map(|rtt| rtt.as_secs_f64())
    }

    #[getter]
    fn srtt(&self) -> f64 {
        self.0.srtt.as_secs_f64()
    }

    #[getter]
    fn min_rtt(&self) -> f64 {
        self.0.min_rtt.as_secs_f64()
    }

    #[getter]
    fn cwnd_limited(&self) -> bool {
        self.0.cwnd_limited
    }

    #[getter]
    fn round_ended(&self) -> bool {
        self.0.round_ended
    }

    #[getter]
    fn in_recovery(&self) -> bool {
        self.0.in_recovery
    }
}

/// Path of the same connection, for coupled congestion controls.
#[pyclass(frozen, name = "Sibling", module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct PySibling(pub(super) Sibling);

#[pymethods]
impl PySibling {
    #[getter]
    fn id(&self) -> u8 {
        self.0.id.0
    }

    #[getter]
    fn cwnd_bytes(&self) -> u64 {
        self.0.cwnd_bytes
    }

    #[getter]
    fn srtt(&self) -> f64 {
        self.0.srtt.as_secs_f64()
    }

    #[getter]
    fn between_losses(&self) -> (u64, u64) {
        self.0.between_losses
    }

    #[getter]
    fn mss_bytes(&self) -> u32 {
        self.0.mss_bytes
    }

    #[getter]
    fn slow_start(&self) -> bool {
        self.0.slow_start
    }
}
