"""Sweeps, and the engines that run their chunks.

A sweep is cut into chunks of runs. A task gets the location of the sweep and the number of a chunk,
runs it, and stores its rows in a file of its own, which is created once and only when it is
complete. So no row is lost or stored twice, although a task, a worker or the driver may be killed
at any time, and a chunk may run twice. Only the chunk's number and a short text return to the
driver.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, wait
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from towpath import _native
from towpath._api import Scenario, Table
from towpath.errors import SweepError, UnavailableError

__all__ = ["Sweep", "SweepStatus", "run_chunk", "sweep"]

Plan = str | os.PathLike[str] | Mapping[str, Any]
"""A plan: its path, its text (TOML), or a dictionary of the same structure."""

Outcome = tuple[int, str]
"""Number of a chunk, and how it ended: a failure begins with ``error: ``."""

_FAILURE = "error: "
_NO_FILE = "its file is missing or damaged"
_MAX_ATTEMPTS = 3
"""Times that the driver starts a chunk before it gives up."""
_MAX_FIRST_FAILURES = 10
"""Failures before the first success after which the sweep stops: all chunks would fail."""
_MAX_LOST_TASKS = 3
"""Times that Ray and Dask restart a task whose worker was lost."""
_TASKS_PER_WORKER = 2
"""Tasks that are submitted at a time, so that a worker never waits for the driver."""
_MAX_REASON = 300
"""Characters of a reason that are kept."""

_log = logging.getLogger(__name__)


class SweepStatus(NamedTuple):
    """Progress of a sweep."""

    runs: int
    """Number of all runs."""
    chunks: int
    """Number of all chunks."""
    chunks_done: int
    """Number of chunks whose rows are stored."""

    @property
    def is_done(self) -> bool:
        """True if the rows of all runs are stored."""
        return self.chunks_done == self.chunks


class Sweep:
    """A sweep in a folder: the runs of a plan, cut into chunks.

    Iteration gives the numbers of the chunks. A sweep can be pickled: only its location is stored.
    """

    __slots__ = ("_inner",)

    def __init__(self, native: _native.Sweep) -> None:
        self._inner = native

    @classmethod
    def begin(
        cls,
        plan: Plan,
        out: str | os.PathLike[str],
        *,
        quick: bool = False,
        seeds: int | None = None,
        chunk: int | None = None,
    ) -> Sweep:
        """Create the sweep of a plan in the folder ``out``, or open the existing one.

        No run is started. A folder that belongs to another plan is refused.
        """
        text, files, folder = _read_plan(plan)
        native = _native.Sweep.begin(
            text, _absolute(out), files=files, folder=folder, quick=quick, seeds=seeds, chunk=chunk
        )
        return cls(native)

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Sweep:
        """Open an existing sweep."""
        return cls(_native.Sweep.open(_absolute(location)))

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self._inner.name

    @property
    def location(self) -> str:
        """Folder of the sweep, which :meth:`open` accepts."""
        return self._inner.location

    @property
    def runs(self) -> int:
        """Number of all runs."""
        return self._inner.runs

    @property
    def chunks(self) -> int:
        """Number of all chunks."""
        return self._inner.chunks

    def pending(self) -> list[int]:
        """Return the numbers of the chunks whose rows are missing or damaged."""
        return self._inner.pending()

    def status(self) -> SweepStatus:
        """Return the progress, from the files in the folder."""
        return SweepStatus(self.runs, self.chunks, self.chunks - len(self.pending()))

    def run_chunk(
        self,
        index: int,
        workers: int = 1,
        progress: Callable[[int, int], object] | None = None,
    ) -> str:
        """Run a chunk on some threads, and store its rows.

        Return ``stored``, or ``already-stored`` if the rows were there before.
        """
        return self._inner.run_chunk(index, workers, progress)

    def table(self) -> Table:
        """Return the rows of all finished chunks: parameters, seed and metrics of each run."""
        return Table(self._inner.table())

    def verify(self, runs: int = 2, *, seed: int = 1, workers: int | None = None) -> list[str]:
        """Repeat some runs, and return a text for each whose row differs."""
        return self._inner.verify(runs, seed, workers or _processors())

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.chunks))

    def __len__(self) -> int:
        return self.chunks

    def __reduce__(self) -> tuple[Any, ...]:
        return (Sweep.open, (self.location,))

    def __repr__(self) -> str:
        return f"<Sweep {self.name!r}: {self.runs} runs in {self.chunks} chunks>"


def run_chunk(location: str, index: int, session: str = "") -> Outcome:
    """Run one chunk of a sweep in this process, on one thread: the task that engines execute.

    A process opens the sweep once in each session, because it takes a while if there are many runs.
    """
    try:
        return index, _open_once(location, session).run_chunk(index, workers=1)
    except Exception as error:  # The driver decides if it tries the chunk again.
        return index, _FAILURE + _reason(error)


@functools.lru_cache(maxsize=1)
def _open_once(location: str, session: str) -> Sweep:
    """Open a sweep, or return it if the last call had the same arguments.

    The session tells apart sweeps that are stored one after the other in the same folder.
    """
    return Sweep.open(location)


def sweep(
    plan: Plan,
    out: str | os.PathLike[str],
    *,
    engine: str | Executor | Callable[..., Iterable[Outcome]] | Any = "local",
    workers: int | None = None,
    quick: bool = False,
    seeds: int | None = None,
    chunk: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Sweep:
    """Run all runs of a plan that are not yet stored in the folder ``out``.

    ``engine`` is one of these:

    - ``"local"``: threads of this process
    - ``"ray"``: the Ray cluster of this process, or a new one on this computer
    - ``"dask"``, or a ``distributed.Client``: new processes on this computer, or the client's
      cluster
    - a ``concurrent.futures.Executor``
    - a function ``map(task, chunks)`` that returns ``task(chunk)`` of every chunk, in any order

    ``workers`` is the number of threads or processes, by default one for each processor of the
    engine. At most twice as many tasks are submitted at a time. Workers on other computers need the
    same version of towpath, and the folder under the same path. ``quick``, ``seeds`` and
    ``chunk`` are the options of ``towpath sweep``. ``progress`` receives the number of finished
    chunks and of all chunks.

    The same call continues an interrupted sweep. A chunk that fails is run at most twice more; then
    :class:`SweepError` names it and the reason, after all others have ended.

    >>> import tempfile
    >>> plan = {
    ...     "name": "handshakes",
    ...     "scenario": "builtin:two-links",
    ...     "seeds": 2,
    ...     "variants": [{"name": "MPTCP", "transport": "mptcp"}],
    ...     "axes": [{"name": "duration", "keys": ["flows.0.duration"], "values": ["100 ms"]}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sweep(plan, folder).table().column("subflows")
    [2.0, 2.0]
    """
    begun = Sweep.begin(plan, out, quick=quick, seeds=seeds, chunk=chunk)
    if engine == "local":
        _work_locally(begun, _checked(workers), progress)
    elif begun.pending():
        with ExitStack() as stack:
            _complete(begun, _rounds(engine, workers, stack), progress)
    return begun


# Plans


def _read_plan(plan: Plan) -> tuple[str, dict[str, str], str]:
    """Return the text of a plan, files that it needs, and the folder of its other files."""
    if isinstance(plan, Mapping):
        content, files = dict(plan), {}
        scenario = content.get("scenario")
        if isinstance(scenario, Scenario | Mapping):
            checked = Scenario(scenario)
            files = {**checked.files, "scenario.toml": checked.toml}
            content["scenario"] = "scenario.toml"
        return _native.toml_from_json(json.dumps(content, default=os.fspath)), files, os.getcwd()
    if isinstance(plan, str) and "\n" in plan:
        return plan, {}, os.getcwd()
    path = Path(plan)
    try:
        return path.read_text(encoding="utf-8"), {}, str(path.absolute().parent)
    except (OSError, UnicodeDecodeError) as error:
        hint = "give the path of a plan, its text, or a dictionary"
        raise SweepError(f"cannot read the plan `{path}`: {error}", hint) from error


def _absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that is valid in every working directory."""
    text = os.fspath(location)
    return text if "://" in text else os.path.abspath(text)


# Driver

_Rounds = Callable[[Sweep, Sequence[int]], Iterable[Outcome]]
"""Runs each of some chunks once, and gives their outcomes in any order."""


def _complete(
    begun: Sweep, run_all: _Rounds, progress: Callable[[int, int], object] | None
) -> None:
    """Run pending chunks until the rows of all are stored.

    A chunk that an engine reports as done is run again if its file is missing or damaged.
    """
    attempts: Counter[int] = Counter()
    reasons: dict[int, str] = {}
    successes = 0
    while pending := begun.pending():
        chunks = [index for index in pending if attempts[index] < _MAX_ATTEMPTS]
        if not chunks:
            raise _failure(begun, pending, reasons)
        for index in chunks:
            if attempts[index]:
                _log.warning("chunk %d is run again: %s", index, reasons.get(index, _NO_FILE))
        done = begun.chunks - len(pending)
        attempts.update(chunks)
        for index, outcome in run_all(begun, chunks):
            if outcome.startswith(_FAILURE):
                reasons[index] = outcome.removeprefix(_FAILURE)
                if not successes and len(reasons) >= _MAX_FIRST_FAILURES:
                    raise _failure(begun, list(reasons), reasons)
                continue
            reasons.pop(index, None)
            successes += 1
            done += 1
            if progress is not None:
                progress(done, begun.chunks)


def _failure(begun: Sweep, failed: list[int], reasons: Mapping[int, str]) -> SweepError:
    first = failed[0]
    reason = reasons.get(first, _NO_FILE)
    others = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
    return SweepError(
        f"chunk {first} of `{begun.location}` failed: {reason}{others}",
        "the same call runs the missing chunks again",
    )


def _reason(error: BaseException) -> str:
    """Return the type of an error and the start of its text, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = "; ".join(line for line in lines if line)[:_MAX_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


# Engines


def _checked(workers: int | None) -> int | None:
    if workers is not None and workers < 1:
        raise SweepError(f"`workers` is {workers}, expected at least 1")
    return workers


def _rounds(engine: Any, workers: int | None, stack: ExitStack) -> _Rounds:
    """Return the function that runs chunks on an engine. ``stack`` closes what it opens."""
    workers = _checked(workers)
    if engine == "ray":
        return functools.partial(_run_tasks, stack.enter_context(_RayTasks(workers)))
    if engine == "dask" or _is_dask_client(engine):
        client = None if engine == "dask" else engine
        return functools.partial(_run_tasks, stack.enter_context(_DaskTasks(client, workers)))
    if isinstance(engine, Executor):
        return functools.partial(_run_tasks, _ExecutorTasks(engine, workers))
    if callable(engine):
        mapped: Callable[..., Any] = engine
        return functools.partial(_run_mapped, mapped)
    raise SweepError(
        f"no engine `{engine}`",
        'there are "local", "ray", "dask", Dask clients, executors, and functions like `map`',
    )


def _work_locally(
    begun: Sweep, workers: int | None, progress: Callable[[int, int], object] | None
) -> None:
    """Run all pending chunks on threads, which do not wait for the end of each chunk."""
    chunks = begun.chunks
    reported = -1

    def report(done: int, runs: int) -> None:
        nonlocal reported
        finished = done * chunks // runs
        if progress is not None and finished > reported:
            reported = finished
            progress(finished, chunks)

    begun._inner.work(workers or _processors(), report)


def _run_mapped(
    mapped: Callable[..., Iterable[Outcome]], begun: Sweep, chunks: Sequence[int]
) -> Iterator[Outcome]:
    task = functools.partial(run_chunk, begun.location, session=uuid4().hex)
    missing = dict.fromkeys(chunks)
    try:
        for index, outcome in mapped(task, list(chunks)):
            missing.pop(index, None)
            yield index, outcome
    except Exception as error:
        for index in missing:
            yield index, _FAILURE + _reason(error)


class _Tasks(Protocol):
    """Submits tasks to an engine and waits for them."""

    workers: int

    def submit(self, location: str, index: int, session: str) -> Any:
        """Start a task and return its handle, which can be hashed."""

    def wait(self, handles: Sequence[Any]) -> Iterable[Any]:
        """Wait until at least one of the tasks has ended, and return these."""
        ...

    def result(self, handle: Any) -> Outcome:
        """Return the outcome of a task that has ended, or raise the reason for its loss."""
        ...

    def cancel(self, handles: Sequence[Any]) -> None:
        """Drop tasks that have not started."""


def _run_tasks(tasks: _Tasks, begun: Sweep, chunks: Sequence[int]) -> Iterator[Outcome]:
    """Submit the chunks, a few at a time, and give their outcomes as they arrive."""
    queue = deque(chunks)
    active: dict[Any, int] = {}
    session = uuid4().hex
    try:
        while queue or active:
            while queue and len(active) < _TASKS_PER_WORKER * tasks.workers:
                index = queue.popleft()
                active[tasks.submit(begun.location, index, session)] = index
            for handle in tasks.wait(list(active)):
                index = active.pop(handle)
                yield index, _outcome(tasks, handle)
    except BrokenExecutor as error:
        hint = "call `sweep` again with a new executor: finished chunks remain"
        raise SweepError(f"the executor is broken: {_reason(error)}", hint) from error
    finally:
        tasks.cancel(list(active))


def _outcome(tasks: _Tasks, handle: Any) -> str:
    try:
        return tasks.result(handle)[1]
    except BrokenExecutor:
        raise
    except Exception as error:  # Of any engine: the task or its worker was lost.
        return _FAILURE + _reason(error)


class _ExecutorTasks:
    """Tasks of an executor, which remains open."""

    def __init__(self, executor: Executor, workers: int | None) -> None:
        self._executor = executor
        # The standard executors know their size, but have no public name for it.
        self.workers = workers or getattr(executor, "_max_workers", None) or _processors()

    def submit(self, location: str, index: int, session: str) -> Any:
        return self._executor.submit(run_chunk, location, index, session)

    def wait(self, handles: Sequence[Any]) -> Iterable[Any]:
        return wait(handles, return_when=FIRST_COMPLETED).done

    def result(self, handle: Any) -> Outcome:
        return handle.result()

    def cancel(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            handle.cancel()


class _RayTasks(AbstractContextManager["_RayTasks"]):
    """Tasks of Ray. A cluster that was running before remains."""

    def __init__(self, workers: int | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise _unavailable("ray", "Ray") from error
        self._ray = ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            # The number of processors of an existing cluster is not ours to choose.
            is_local = not os.environ.get("RAY_ADDRESS")
            options = {"num_cpus": workers, "include_dashboard": False} if is_local else {}
            ray.init(logging_level=logging.WARNING, **options)
        self.workers = workers or int(ray.cluster_resources().get("CPU", 1)) or 1
        self._task: Any = ray.remote(num_cpus=1, max_retries=_MAX_LOST_TASKS)(run_chunk)

    def submit(self, location: str, index: int, session: str) -> Any:
        return self._task.remote(location, index, session)

    def wait(self, handles: Sequence[Any]) -> Iterable[Any]:
        return self._ray.wait(list(handles), num_returns=1)[0]

    def result(self, handle: Any) -> Outcome:
        return self._ray.get(handle)

    def cancel(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self._ray.cancel(handle)

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            self._ray.shutdown()


class _DaskTasks(AbstractContextManager["_DaskTasks"]):
    """Tasks of Dask. A client that the caller gave remains open."""

    def __init__(self, client: Any, workers: int | None) -> None:
        try:
            import distributed
        except ImportError as error:
            raise _unavailable("dask", "Dask") from error
        self._own = ExitStack()
        if client is None:
            start: Any = distributed.LocalCluster
            cluster = start(
                n_workers=workers or _processors(),
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
            )
            cluster = self._own.enter_context(cluster)
            client = self._own.enter_context(distributed.Client(cluster))
        self._client = client
        self.workers = workers or sum(client.nthreads().values()) or 1
        self._completed = distributed.as_completed()

    def submit(self, location: str, index: int, session: str) -> Any:
        # A chunk may run again, so Dask must not reuse the outcome of an earlier task.
        future = self._client.submit(
            run_chunk, location, index, session, pure=False, retries=_MAX_LOST_TASKS
        )
        self._completed.add(future)
        return future

    def wait(self, handles: Sequence[Any]) -> Iterable[Any]:
        return [next(self._completed)]

    def result(self, handle: Any) -> Outcome:
        return handle.result()

    def cancel(self, handles: Sequence[Any]) -> None:
        if handles:
            self._client.cancel(list(handles))

    def __exit__(self, *_: object) -> None:
        self._own.close()


def _is_dask_client(engine: Any) -> bool:
    """True for a Dask client, without an import of Dask."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(engine).__mro__}
    return "distributed.client.Client" in names


def _unavailable(extra: str, name: str) -> UnavailableError:
    return UnavailableError(f"the engine needs {name}", f"pip install 'towpath[{extra}]'")
