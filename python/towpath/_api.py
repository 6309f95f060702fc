"""Scenarios, runs and results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towpath import _native
from towpath.errors import ReadError, RunError, UnavailableError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from towpath.components import CongestionControl, Scheduler, Traffic

Progress = Callable[[int, int], object]
"""Receives the number of finished runs and of all runs."""

_URL_TIMEOUT = 30.0
"""Seconds after which a request to a collector fails."""


class Scenario:
    """A checked, immutable scenario.

    The source is the name of a built-in scenario, a file, or a dictionary of the same structure
    as a scenario file. Equal scenarios are equal and have equal hashes.

    >>> scenario = Scenario("two-links")
    >>> scenario.paths
    ['first', 'second']
    >>> slower = scenario.replace({"paths.second.rate": "10 Mbit/s"})
    >>> slower == scenario
    False
    """

    __slots__ = ("_inner",)

    _inner: _native.Scenario

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any] | Scenario) -> None:
        if isinstance(source, Scenario):
            self._inner = source._inner
        elif isinstance(source, _native.Scenario):
            self._inner = source
        elif isinstance(source, Mapping):
            text = _native.toml_from_json(json.dumps(source))
            self._inner = _native.Scenario.from_toml(text)
        elif isinstance(source, str) and not _is_path(source):
            self._inner = _native.Scenario.builtin(source)
        else:
            self._inner = _native.Scenario.from_file(os.fspath(source))

    @classmethod
    def from_toml(cls, text: str, files: Mapping[str, str] | None = None) -> Scenario:
        """Read a scenario from TOML. ``files`` has the texts of the traces that it names."""
        return cls._wrap(_native.Scenario.from_toml(text, files=dict(files or {})))

    @classmethod
    def _wrap(cls, native: _native.Scenario) -> Scenario:
        scenario = cls.__new__(cls)
        scenario._inner = native
        return scenario

    def replace(self, changes: Mapping[str, Any] | None = None, /, **keys: Any) -> Scenario:
        """Return the scenario with some keys set.

        Keys are dotted, such as ``"paths.wifi.delay"`` or ``"flows.0.duration"``. As keyword
        arguments, two underscores replace a dot: ``replace(run__seed=7)``.
        """
        items = dict(changes or {})
        items.update((key.replace("__", ".").replace("_", "-"), value) for key, value in keys.items())
        values = [(key, _toml_value(value)) for key, value in items.items()]
        return self._wrap(self._inner.changed(values))

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return self._inner.name

    @property
    def description(self) -> str:
        """Description of the scenario."""
        return self._inner.description

    @property
    def toml(self) -> str:
        """Text of the scenario."""
        return self._inner.toml

    @property
    def files(self) -> dict[str, str]:
        """Texts of the files that the scenario names."""
        return self._inner.files

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts."""
        return self._inner.hosts

    @property
    def paths(self) -> list[str]:
        """Names of the paths."""
        return self._inner.paths

    @property
    def transports(self) -> list[str]:
        """Transports that the scenario compares."""
        return self._inner.transports

    @property
    def seed(self) -> int:
        """Seed of the first repetition."""
        return self._inner.seed

    @property
    def duration(self) -> float:
        """Seconds until the last flow ends."""
        return self._inner.duration

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scenario):
            return NotImplemented
        return self._inner == other._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Scenario.from_toml, (self.toml, self.files))

    def __repr__(self) -> str:
        return f"<Scenario {self.name!r}: {', '.join(self.paths)}>"

    def _repr_html_(self) -> str:
        text = f'<pre style="font-family:monospace">{_escape(self.toml)}</pre>'
        return f"<details><summary>Scenario {_escape(self.name)}</summary>{text}</details>"


def _is_path(source: str) -> bool:
    return source.endswith(".toml") or "/" in source or os.sep in source or os.path.isfile(source)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(json.dumps(item) for item in value) + "]"
    return str(value)


class Table:
    """A table with typed columns.

    It has the Arrow PyCapsule interface, so pandas, Polars, DuckDB and PyArrow read it without a
    copy. Absent values are null. :attr:`units` has the units of columns.
    """

    __slots__ = ("_inner",)

    def __init__(self, native: _native.Table) -> None:
        self._inner = native

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._inner.name

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._inner.columns

    @property
    def units(self) -> dict[str, str]:
        """Units of the columns that have one, also in the metadata of the Arrow fields."""
        return self._inner.units

    def column(self, name: str) -> list[Any]:
        """Return the values of a column; absent ones are ``None``."""
        return self._inner.column(name)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        names = self.columns
        values = zip(*(self.column(name) for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    def concat(self, *others: Table) -> Table:
        """Return this table followed by the rows of others with equal columns."""
        return Table(self._inner.concat([other._inner for other in others]))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame with Arrow columns, without a copy."""
        arrow_type = _import("pandas", "pandas").ArrowDtype
        frame: pandas.DataFrame = self.to_pyarrow().to_pandas(types_mapper=arrow_type)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Return a Polars data frame. Columns of numbers are not copied."""
        return _import("polars", "polars").DataFrame(self)

    def to_pyarrow(self) -> pyarrow.Table:
        """Return a PyArrow table, without a copy."""
        return _import("pyarrow", "pandas").table(self)

    def __arrow_c_schema__(self) -> object:
        return self._inner.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return f"<Table {self.name!r}: {len(self)} rows, columns {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        shown = self.rows()[:20]
        head = "".join(f"<th>{_escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_escape(_text(value))}</td>" for value in row.values()) + "</tr>"
            for row in shown
        )
        more = f"<p>{len(self)} rows</p>" if len(self) > len(shown) else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _escape(text: str) -> str:
    # Modules that only some functions need are imported there: `import towpath` stays fast.
    import html

    return html.escape(text)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _import(name: str, extra: str) -> Any:
    try:
        return __import__(name)
    except ModuleNotFoundError as error:
        hint = f"pip install 'towpath[{extra}]'"
        raise UnavailableError(f"the package `{error.name}` is not installed", hint) from error


class Result:
    """Results of one or more runs. Indexing and iteration give results of single runs."""

    __slots__ = ("_inner",)

    def __init__(self, native: _native.Runs) -> None:
        self._inner = native

    @property
    def labels(self) -> list[str]:
        """Names of the runs, such as ``two-links-sim-mptcp-1``."""
        return self._inner.labels

    @property
    def metas(self) -> list[dict[str, Any]]:
        """Conditions of each run: the first record of its result."""
        return [json.loads(self._inner.meta(index)) for index in range(len(self))]

    @property
    def summaries(self) -> list[dict[str, Any] | None]:
        """Metrics of each run: the last record of its result. ``None`` if it was interrupted."""
        texts = (self._inner.summary(index) for index in range(len(self)))
        return [None if text is None else json.loads(text) for text in texts]

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the results, each with its hint."""
        return [f"{text} ({hint})" if hint else text for text, hint in self._inner.warnings()]

    @property
    def table_names(self) -> list[str]:
        """Names that :meth:`table` accepts."""
        return self._inner.table_names()

    def table(self, name: str) -> Table:
        """Return a table of all runs. The first columns identify the run of each row."""
        return Table(self._inner.table(name))

    @property
    def runs(self) -> Table:
        """A row for each run with all its metrics, in base units (bit/s, seconds, bytes)."""
        return self.table("runs")

    @property
    def intervals(self) -> Table:
        """Bytes that the receiver of each stream read, in each period."""
        return self.table("intervals")

    @property
    def subflows(self) -> Table:
        """State of each subflow at the end of each period."""
        return self.table("subflows")

    @property
    def links(self) -> Table:
        """State of each link at the end of each period."""
        return self.table("links")

    @property
    def events(self) -> Table:
        """Events of the runs."""
        return self.table("events")

    @property
    def messages(self) -> Table:
        """Requests with their replies."""
        return self.table("messages")

    def text(self, width: int = 100) -> str:
        """Return the summary that ``towpath run`` prints."""
        return self._inner.text(width)

    def html(self) -> str:
        """Return the report as one page that loads nothing."""
        return self._inner.html()

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write a result file for each run, which ``towpath report`` and :func:`read` read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for index, label in enumerate(self.labels):
            path = folder / f"{label}.jsonl"
            if path in paths:
                path = folder / f"{label}-{index}.jsonl"
            path.write_text("\n".join(self._inner.lines(index)) + "\n", encoding="utf-8")
            paths.append(path)
        return paths

    def __add__(self, other: Result) -> Result:
        if not isinstance(other, Result):
            return NotImplemented
        return Result(self._inner.joined(other._inner))

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Result]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int | slice) -> Result:
        if isinstance(index, slice):
            return Result(self._inner.select(range(len(self))[index]))
        return Result(self._inner.select([range(len(self))[index]]))

    def __reduce__(self) -> tuple[Any, ...]:
        lines = [
            (label, ("\n".join(self._inner.lines(index)) + "\n").encode())
            for index, label in enumerate(self.labels)
        ]
        return (_from_lines, (lines,))

    def __repr__(self) -> str:
        return f"<Result: {', '.join(self.labels)}>"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


def _from_lines(lines: list[tuple[str, bytes]]) -> Result:
    return Result(_native.Runs.from_lines(lines))


def _frame(page: str) -> str:
    # The frame has no access to the notebook, and the page's style does not change it.
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{_escape(page)}" '
        'style="width:100%;height:640px;border:0"></iframe>'
    )


class Comparison:
    """Comparison of transports from repeated runs, with confidence intervals."""

    __slots__ = ("result", "seed")

    def __init__(self, result: Result, seed: int = 1) -> None:
        self.result: Result = result
        self.seed: int = seed

    def json(self) -> dict[str, Any]:
        """Return all metrics and ratios."""
        comparison: dict[str, Any] = json.loads(self.result._inner.comparison_json(self.seed))
        return comparison

    def text(self, width: int = 100) -> str:
        """Return the tables that ``towpath compare`` prints."""
        return self.result._inner.comparison_text(self.seed, width)

    def html(self) -> str:
        """Return the comparison as one page."""
        return self.result._inner.comparison_html(self.seed)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.result)} runs>"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


def scenarios() -> list[str]:
    """Return the names of the built-in scenarios."""
    return _native.builtin_names()


def run(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | Scenario,
    *,
    world: str = "sim",
    transports: Sequence[str] | str | None = None,
    seeds: int | Sequence[int] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    schedulers: Mapping[str, Callable[[], Scheduler]] | None = None,
    congestion_controls: Mapping[str, Callable[[int, int], CongestionControl]] | None = None,
    traffic: Mapping[int, Callable[[str], Traffic]] | None = None,
) -> Result:
    """Run a scenario over each transport and return the results.

    ``seeds`` is the number of repetitions, or the seed of each. ``world`` is ``"sim"`` (virtual
    time, any system) or ``"emu"`` (real kernels, Linux). Simulated runs use ``workers`` threads,
    by default one for each processor. ``progress`` receives the numbers of finished and of all
    runs. Ctrl-C stops the runs.

    ``schedulers`` and ``congestion_controls`` are classes of :mod:`towpath.components` by the names
    that hosts of the scenario use. ``traffic`` has classes by the number of a flow. They need
    ``world="sim"``; kernels of emulated hosts do not call Python.

    >>> run("two-links", transports="mptcp", seeds=[7]).metas[0]["seed"]
    7
    """
    checked = Scenario(scenario)
    names = [transports] if isinstance(transports, str) else list(transports or checked.transports)
    seed_list = _seed_list(checked, seeds)
    components = {
        "schedulers": dict(schedulers or {}),
        "congestion_controls": dict(congestion_controls or {}),
        "traffic": dict(traffic or {}),
    }
    if world == "sim":
        threads = workers or os.cpu_count() or 1
        native = _native.simulate(checked._inner, names, seed_list, threads, progress, components)
        return Result(native)
    if world == "emu":
        if any(components.values()):
            message = "components in Python cannot run in the emulated world: its hosts use kernels"
            raise UnavailableError(message, 'use `world="sim"`')
        return _emulate(checked, names, seed_list, progress)
    raise UnavailableError(f"there is no world `{world}`", 'there are "sim" and "emu"')


def _seed_list(scenario: Scenario, seeds: int | Sequence[int] | None) -> list[int]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise UnavailableError("`seeds` is less than 1", "give a number of runs, or a list of seeds")
        return [scenario.seed + number for number in range(seeds)]
    chosen = [scenario.seed] if seeds is None else list(seeds)
    if not chosen:
        raise UnavailableError("`seeds` is empty", "give a number of runs, or a list of seeds")
    return chosen


def _emulate(
    scenario: Scenario, transports: list[str], seeds: list[int], progress: Progress | None
) -> Result:
    import tempfile

    results: Result | None = None
    with tempfile.TemporaryDirectory(prefix="towpath-") as folder:
        for done, seed in enumerate(seeds):
            seeded = scenario.replace({"run.seed": seed})
            place = Path(folder, str(done))
            place.mkdir()
            file = place / "scenario.toml"
            file.write_text(seeded.toml, encoding="utf-8")
            for name, text in seeded.files.items():
                trace = place / name
                trace.parent.mkdir(parents=True, exist_ok=True)
                trace.write_text(text, encoding="utf-8")
            arguments = ["run", str(file), "--world", "emu", "--repeat", "1", "--quiet", "--json"]
            arguments += ["--transport", ",".join(transports), "--out", str(place / "out")]
            # 1 means that an expectation was missed: there is a result.
            _run_command(arguments, accepted=(0, 1))
            part = read(place / "out")
            results = part if results is None else results + part
            if progress is not None:
                progress(done + 1, len(seeds))
    assert results is not None, "there is at least one seed"
    return results


def compare(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | Scenario | Result,
    *,
    seeds: int | Sequence[int] = 6,
    **options: Any,
) -> Comparison:
    """Compare transports from repeated runs: of a result, or of a scenario that is run first.

    ``options`` are those of :func:`run`.
    """
    if isinstance(scenario, Result):
        return Comparison(scenario)
    return Comparison(run(scenario, seeds=seeds, **options))


def read(*sources: str | os.PathLike[str]) -> Result:
    """Read stored results: files, folders of files, or addresses of runs on a collector.

    An address is that of a run's page or of its records, such as
    ``https://collector.example/runs/0a1b…``. The environment variable ``TOWPATH_TOKEN`` has the
    token for a collector that is not public.
    """
    if not sources:
        raise ReadError("there is nothing to read", "name a file, a folder or an address")
    results: Result | None = None
    for source in sources:
        place = os.fspath(source)
        if place.startswith(("http://", "https://")):
            part = _from_lines([(place, _download(place))])
        elif os.path.isfile(os.path.join(place, "sweep.json")):
            hint = f"open it with `towpath.Sweep.open({place!r})`"
            raise ReadError(f"`{place}` is the folder of a sweep", hint)
        else:
            part = Result(_native.Runs.read([place]))
        results = part if results is None else results + part
    assert results is not None
    return results


def _download(address: str) -> bytes:
    import urllib.error
    import urllib.request

    if "/api/" not in address:
        head, _, identifier = address.rstrip("/").rpartition("/runs/")
        if not head:
            raise ReadError(f"`{address}` is not the address of a run", "it ends in `/runs/ID`")
        address = f"{head}/api/v1/runs/{identifier}/records"
    request = urllib.request.Request(address)
    if token := os.environ.get("TOWPATH_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_URL_TIMEOUT) as answer:
            content: bytes = answer.read()
            return content
    except (urllib.error.URLError, TimeoutError) as error:
        raise ReadError(f"cannot read `{address}`: {error}") from error


def trace(
    capture: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    top: int = 10,
) -> Result:
    """Analyse a packet capture: pcap or pcapng, with TCP and Multipath TCP.

    A capture of the other host adds the delay of each direction. ``top`` is the number of
    connections, largest first.
    """
    second = None if other is None else os.fspath(other)
    return Result(_native.analyse_capture(os.fspath(capture), second, top))


class Reproduction:
    """A published figure, drawn from new runs, with the claims that they confirm or contradict."""

    __slots__ = ("folder", "report")

    def __init__(self, report: dict[str, Any], folder: Path) -> None:
        self.report: dict[str, Any] = report
        self.folder: Path = folder

    @property
    def name(self) -> str:
        """Name of the reproduction."""
        return str(self.report["name"])

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Claims of the source: ``text``, ``holds``, ``expected`` and ``measured``."""
        return list(self.report["claims"])

    @property
    def figure(self) -> Path:
        """The figure as SVG."""
        return self._file("svg")

    @property
    def data(self) -> Path:
        """The rows behind the figure as Parquet, one for each run."""
        return self._file("parquet")

    def _file(self, ending: str) -> Path:
        quick = "-quick" if self.report["quick"] else ""
        return self.folder / f"{self.name}{quick}.{ending}"

    def __repr__(self) -> str:
        holding = sum(bool(claim["holds"]) for claim in self.claims)
        return f"<Reproduction {self.name!r}: {holding} of {len(self.claims)} claims hold>"

    def _repr_svg_(self) -> str:
        return self.figure.read_text(encoding="utf-8")


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    world: str | None = None,
    out: str | os.PathLike[str] = "towpath-reproductions",
) -> Reproduction:
    """Repeat a published figure with the program ``towpath``, and check its claims.

    ``name`` is that of a built-in reproduction, or a folder with a ``/``. ``quick`` runs fewer
    points and seeds. An interrupted reproduction goes on where it stopped.
    """
    arguments = ["reproduce", name, "--json", "--out", os.fspath(out)]
    arguments += ["--quick"] if quick else []
    arguments += ["--seeds", str(seeds)] if seeds is not None else []
    arguments += ["--world", world] if world is not None else []
    # 1 means that a claim differs from what is expected.
    printed = _run_command(arguments, accepted=(0, 1))
    return Reproduction(json.loads(printed.splitlines()[-1]), Path(out))


def _run_command(arguments: Sequence[str], accepted: Sequence[int]) -> str:
    """Run the program ``towpath`` and return its output."""
    import subprocess

    ended = subprocess.run([command(), *arguments], capture_output=True, text=True, check=False)
    if ended.returncode not in accepted:
        raise RunError(f"`towpath {arguments[0]}` failed: {ended.stderr.strip()}")
    return ended.stdout


def command() -> str:
    """Return the path of the program ``towpath``, which a wheel contains.

    The environment variable ``TOWPATH`` replaces it.
    """
    import shutil
    import sysconfig

    if chosen := os.environ.get("TOWPATH"):
        return chosen
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    for folder in [*scripts, None]:
        if found := shutil.which("towpath", path=folder):
            return found
    hint = "install the wheel, or set `TOWPATH` to the path of the program"
    raise UnavailableError("the program `towpath` is not installed", hint)
