"""Charts of results, drawn with Matplotlib.

Every function draws on ``ax``, or on a new figure, and returns the axes. It never shows a figure,
and never changes Matplotlib's global settings. Matplotlib is imported when the first chart is
drawn.

A transport has the same colour and the same kind of line in every chart. The colours can be told
apart with every common kind of colour blindness (palettes of Okabe and Ito, and of Tol). Units
follow from the data: 26 Mbit/s, 12 ms, 3.4 MB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from towpath.errors import UnavailableError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from towpath._api import Result, Table

__all__ = ["bars", "cdf", "delays", "goodput", "rtt", "subflows", "sweep"]

TRANSPORT_COLOURS = {
    "tcp": "#d55e00",
    "mptcp": "#0072b2",
    "quic": "#e69f00",
    "mpquic": "#009e73",
}
"""Colour of each transport."""

TRANSPORT_LINES = {"tcp": "--", "mptcp": "-", "quic": ":", "mpquic": "-."}
"""Line style of each transport."""

PATH_COLOURS = (
    "#332288", "#cc6677", "#44aa99", "#ddcc77", "#88ccee", "#882255", "#117733", "#aa4499",
)  # fmt: skip
"""Colours of paths, and of curves that belong to no transport."""

_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_TEXT = "#1a1d21"
_MUTED = "#6b747d"
_GRID = "#dfe3e8"
_NANOSECONDS = 1_000_000_000
# Events closer than this share of the time axis have one label.
_LABEL_DISTANCE = 0.035
# From this number of close events on, such as the steps of a fade, an area shows them.
_MANY_EVENTS = 4
# A round-trip time counts until this time after the last acknowledgement of its subflow.
_MAX_RTT_AGE_NS = 1_000_000_000
# A legend with more entries is drawn to the right of the chart.
_MAX_INNER_LEGEND = 4
# From this ratio of the largest to the smallest value on, an axis is logarithmic.
_LOG_RATIO = 50

_SCALES = {
    "bit/s": (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)),
    "s": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)),
    "bytes": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0)),
}
# Names of units in tables and in the ends of column names: the base unit, and its factor.
_UNITS = {
    "bit/s": ("bit/s", 1.0),
    "bps": ("bit/s", 1.0),
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "µs": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "bytes": ("bytes", 1.0),
    "byte": ("bytes", 1.0),
    "B": ("bytes", 1.0),
}
# Units of metrics, if the table does not name them.
_METRIC_UNITS = (
    (re.compile(r"(.*\.)?(goodput|throughput)"), "bit/s"),
    (re.compile(r"stall\..*|recovery|connect|window_blocked|cpu_per_gb|.*delay\..*"), "s"),
    (re.compile(r"video\.(startup|rebuffer)|web\.load|udping\.(p50|p99|max|silence)\..*"), "s"),
    (re.compile(r"deficit|reinjected|discarded|reorder_peak"), "bytes"),
)
# Units that values of a plan can have, such as `50 KB` and `20 Mbit/s`: only the kind counts.
_TYPED_UNITS = (
    (re.compile(r"[kMGT]?bit/s$"), "bit/s"),
    (re.compile(r"(ns|us|µs|ms|s|min|h)$"), "s"),
    (re.compile(r"([kKMGT]i?)?B$"), "bytes"),
)


def goodput(result: Result, ax: Axes | None = None) -> Axes:
    """Draw goodput over time: a line for each transport, and the events of the timeline.

    Goodput is the data that receivers read, of all flows in both directions. With repetitions, the
    line is their median, and the band reaches from the first to the third quartile.

    >>> import towpath
    >>> ax = goodput(towpath.run("wifi-cellular-handover", transports=["tcp", "mptcp"]))
    >>> [line.get_label() for line in ax.get_lines()[:2]], ax.get_ylabel()
    (['tcp', 'mptcp'], 'goodput (Mbit/s)')
    """
    groups = _groups(result)
    series = [
        (group, _summary([_goodput_rates(run) for run in group.runs(result)], group.step))
        for group in groups
    ]
    if not any(line.times for _, line in series):
        raise ValueError("the result has no intervals, expected a run with traffic")
    ax = _axes(ax)
    scale = _scale("bit/s", [value for _, line in series for value in line.middle], ax, "y")
    for group, line in series:
        _draw_line(ax, line, scale, group)
    _label(ax, "y", "goodput", scale)
    _finish_over_time(ax, result, groups)
    return ax


def subflows(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the data that arrived on each path of one run, stacked, and its goodput as a line.

    An area above the line is data that waits for earlier data, or that arrived twice. Raises
    ``ValueError`` if the result has several runs.
    """
    if len(result) != 1:
        raise ValueError(
            f"the result has {len(result)} runs, expected one: choose it with `result[0]`"
        )
    (group,) = _groups(result)
    table = result.subflows
    meta = result.metas[0]
    rates_by_path = {}
    sides = _column(table, "side")
    side = "receiver" if "receiver" in sides else "sender"
    ends, spans, sizes, paths = (_column(table, n) for n in ("t_ns", "span_ns", "bytes", "path"))
    for path in _path_names(meta, paths):
        rows = [
            row[:3]
            for row in zip(ends, spans, sizes, paths, sides, strict=True)
            if row[3:] == (path, side)
        ]
        if rows:
            rates_by_path[path] = _rates(rows, meta["sample_ns"])
    if not rates_by_path:
        raise ValueError("the result has no subflows, expected a run with traffic")
    ax = _axes(ax)
    total = _goodput_rates(result)
    length = max(len(rates) for rates in [total, *rates_by_path.values()])
    stacked = [rates + [0.0] * (length - len(rates)) for rates in rates_by_path.values()]
    step = meta["sample_ns"] / _NANOSECONDS
    sums = [sum(values) for values in zip(*stacked, strict=True)]
    scale = _scale("bit/s", [*sums, *total], ax, "y")
    areas = ax.stackplot(
        [(i + 0.5) * step for i in range(length)],
        [[value / scale.factor for value in values] for values in stacked],
        labels=list(rates_by_path),
        colors=list(islice(cycle(PATH_COLOURS), len(stacked))),
        alpha=0.75,
        linewidth=0,
    )
    for area, hatch in zip(areas, cycle(("", "////", "....", "xxxx")), strict=False):
        area.set(hatch=hatch, edgecolor=(1, 1, 1, 0.55))
    line = _summary([total], step)
    _draw_line(ax, line, scale, group, color=_TEXT, linestyle="-", label="goodput", linewidth=1.4)
    _label(ax, "y", "arrived on each path", scale)
    _finish_over_time(ax, result, [group])
    return ax


def rtt(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the smoothed round-trip time of each path over time, as the sender measured it.

    With several transports, the colour shows the transport, and the kind of line shows the path.
    With repetitions, the line is their median, and the band reaches from the first to the third
    quartile.
    """
    groups = _groups(result)
    names = _path_names(result.metas[0], _column(result.subflows, "path"))
    lines = []
    for group in groups:
        by_path = [_round_trips(run) for run in group.runs(result)]
        for number, path in enumerate(names):
            line = _summary([found.get(path, []) for found in by_path], group.step)
            if any(not math.isnan(value) for value in line.middle):
                lines.append((group, number, path, line))
    if not lines:
        raise ValueError("the result has no round-trip times, expected a run with subflows")
    ax = _axes(ax)
    scale = _scale("s", [value for *_, line in lines for value in line.middle], ax, "y")
    is_only_group = len(groups) == 1
    for group, number, path, line in lines:
        style = {
            "color": PATH_COLOURS[number % len(PATH_COLOURS)] if is_only_group else group.colour,
            "linestyle": _LINES[number % len(_LINES)],
            "label": path if is_only_group else f"{group.label}, {path}",
            "marker": None if is_only_group else _MARKERS[groups.index(group) % len(_MARKERS)],
        }
        _draw_line(ax, line, scale, group, **style)
    _label(ax, "y", "smoothed round-trip time", scale)
    _finish_over_time(ax, result, groups)
    return ax


def delays(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the distribution of the delays of requests: from the time due to the reply.

    A line that ends below 100 % belongs to a transport with unanswered requests. Requests of a
    warm-up do not count.
    """
    values_by_group = [(group, _message_delays(group.runs(result))) for group in _groups(result)]
    values_by_group = [(group, values) for group, values in values_by_group if values]
    if not values_by_group:
        raise ValueError("the result has no requests, expected a flow of messages")
    ax = _axes(ax)
    _draw_cdf(ax, values_by_group, "delay of requests", "s")
    ax.set_ylabel("requests answered (%)")
    _title(ax, result)
    return ax


def cdf(
    values_by_label: Mapping[str, Iterable[float | None]],
    ax: Axes | None = None,
    *,
    name: str = "value",
    unit: str = "",
) -> Axes:
    """Draw the distribution of values: the share of them that is at most the value on the x axis.

    ``unit`` is that of the values, such as ``bit/s``, ``s``, ``ns`` or ``bytes``, and ``name``
    labels the axis. ``None`` and infinity count as *never*: the line then ends below 100 %. A label
    that is a transport's name gets the transport's colour.

    >>> ax = cdf({"tcp": [0.012, 0.015, None]}, name="load time", unit="s")
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('load time (ms)', 'share (%)')
    """
    base, factor = _UNITS.get(unit, (unit, 1.0))
    values_by_group = [
        (group, [math.inf if v is None else float(v) * factor for v in values])
        for group, values in zip(
            _styled(list(values_by_label), list(values_by_label)),
            values_by_label.values(),
            strict=True,
        )
    ]
    values_by_group = [(group, values) for group, values in values_by_group if values]
    if not values_by_group:
        raise ValueError("`values_by_label` has no values, expected at least one")
    ax = _axes(ax)
    _draw_cdf(ax, values_by_group, name, base)
    ax.set_ylabel("share (%)")
    return ax


def bars(result: Result, metric: str, ax: Axes | None = None) -> Axes:
    """Draw a metric of ``result.runs``: a bar up to the median, and a dot for each run.

    ``metric`` is a column of ``result.runs``, such as ``goodput``. Runs in which it is missing or
    infinite are counted above the bar as *none*. Raises ``ValueError`` for an unknown metric.
    """
    table = result.runs
    column = _metric_column(table, metric)
    unit, factor = _unit(table, column)
    groups = _groups(result)
    values = [_number(value, factor) for value in table.column(column)]
    values_by_group = [[values[index] for index in group.indices] for group in groups]
    finite = [v for values in values_by_group for v in values if math.isfinite(v)]
    if not finite:
        raise ValueError(f"`{metric}` is missing in every run, expected a measured metric")
    ax = _axes(ax)
    scale = _scale(unit, finite, ax, "y")
    top = max(finite) / scale.factor
    for position, (group, values) in enumerate(zip(groups, values_by_group, strict=True)):
        _draw_bar(ax, position, group, [value / scale.factor for value in values], top)
    ax.set_xticks(
        range(len(groups)),
        [f"{group.label}\nn = {len(group.indices)}" for group in groups],
    )
    ax.set_xlim(-0.6, len(groups) - 0.4)
    ax.tick_params(axis="x", length=0)
    ax.grid(visible=False, axis="x")
    if min(finite) >= 0:
        ax.set_ylim(bottom=0)
    _label(ax, "y", _words(metric), scale)
    _title(ax, result)
    return ax


def sweep(sweep_table: Table, x: str, y: str, by: str = "variant", ax: Axes | None = None) -> Axes:
    """Draw a metric of a sweep against a parameter: medians, with bars between the quartiles.

    ``x`` is the name of a parameter. If the table has a column ``NAME (number)``, that is used.
    ``y`` is a metric. Each value of the column ``by`` is a curve. Raises ``ValueError`` for an
    unknown column.
    """
    y_column = _metric_column(sweep_table, y)
    ticks, positions, x_unit = _parameter(sweep_table, x)
    y_unit, factor = _unit(sweep_table, y_column)
    labels = [str(value) for value in _existing(sweep_table, by)]
    points: dict[str, dict[float, list[float]]] = {}
    for label, position, value in zip(labels, positions, sweep_table.column(y_column), strict=True):
        if position is not None and (number := _number(value, factor)) == number:
            points.setdefault(label, {}).setdefault(position, []).append(number)
    medians = [_quantile(v, 0.5) for curve in points.values() for v in curve.values()]
    if not any(math.isfinite(value) for value in medians):
        raise ValueError(f"`{y}` has no values, expected a measured metric")
    ax = _axes(ax)
    xs = sorted({position for curve in points.values() for position in curve})
    x_scale = _Scale("", 1.0) if ticks else _scale(x_unit, xs, ax, "x")
    y_scale = _scale(y_unit, medians, ax, "y")
    for number, (group, curve) in enumerate(
        zip(_curve_groups(sweep_table, labels, list(points)), points.values(), strict=True)
    ):
        _draw_curve(ax, group, number, curve, x_scale, y_scale)
    if ticks:
        ax.set_xticks(range(len(ticks)), ticks)
        ax.margins(x=0.08)
    elif xs[0] > 0 and xs[-1] / xs[0] >= _LOG_RATIO:
        _use_log_axis(ax, [position / x_scale.factor for position in xs])
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    _label(ax, "x", x, x_scale)
    _label(ax, "y", _words(y), y_scale)
    _draw_legend(ax)
    return ax


# Axes, units and labels


class _Scale(NamedTuple):
    """Unit of an axis: values are divided by ``factor``."""

    unit: str
    factor: float


def _axes(ax: Axes | None) -> Axes:
    """Return ``ax`` or the axes of a new figure, with a light grid."""
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise UnavailableError(
                "charts need Matplotlib", "pip install 'towpath[plot]'"
            ) from error
        _, ax = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    ax.grid(visible=True, color=_GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _scale(unit: str, values: Iterable[float], ax: Axes, axis: str) -> _Scale:
    """Return the unit in which the largest value is at least 1.

    If the axis already has a unit of the same kind, because something was drawn on it before, that
    unit remains.
    """
    choices = _SCALES.get(unit)
    if choices is None:
        return _Scale(unit, 1.0)
    label = ax.get_xlabel() if axis == "x" else ax.get_ylabel()
    for name, factor in choices:
        if ax.has_data() and label.endswith(f"({name})"):
            return _Scale(name, factor)
    top = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    for name, factor in choices:
        if top >= factor:
            return _Scale(name, factor)
    return _Scale(*choices[0 if top == 0 and unit == "s" else -1])


def _label(ax: Axes, axis: str, name: str, scale: _Scale) -> None:
    text = f"{name} ({scale.unit})" if scale.unit else name
    ax.set_xlabel(text) if axis == "x" else ax.set_ylabel(text)


def _words(metric: str) -> str:
    """Return a metric without its unit and with spaces: ``reorder peak``."""
    name = re.sub(r"_(bps|ns|us|bytes)$", "", metric)
    return name.replace("_", " ")


def _unit(table: Table, column: str) -> tuple[str, float]:
    """Return the base unit of a column, and the factor from its values to that unit."""
    unit = table.units.get(column)
    if unit is None:
        known = [unit for pattern, unit in _METRIC_UNITS if pattern.fullmatch(column)]
        unit = known[0] if known else ""
    return _UNITS.get(unit, (unit, 1.0))


def _title(ax: Axes, result: Result) -> None:
    """Name scenario and world, if all runs have the same ones."""
    names = {f"{meta['scenario']} ({meta['world']})" for meta in result.metas}
    if len(names) == 1 and not ax.get_title(loc="left"):
        ax.set_title(names.pop(), loc="left", fontsize="medium", color=_TEXT)


def _draw_legend(ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return
    outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    place = outside if len(labels) > _MAX_INNER_LEGEND else {}
    ax.legend(frameon=True, framealpha=0.85, edgecolor="none", handlelength=2.8, **place)


def _use_log_axis(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    decades = math.log10(values[-1] / values[0])
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


# Groups of runs


@dataclass(frozen=True)
class _Group:
    """Runs that differ only in their repetition, and their style."""

    label: str
    colour: str
    line: Any
    marker: str | None
    indices: tuple[int, ...] = ()
    step: float = 0.0
    """Sampling period in seconds."""

    def runs(self, result: Result) -> Iterator[Result]:
        """Return the runs one by one, so that only one is copied at a time."""
        return (result[index] for index in self.indices)


def _groups(result: Result) -> list[_Group]:
    """Group the runs by transport, world and scenario: tcp, mptcp, quic, mpquic."""
    if len(result) == 0:
        raise ValueError("the result has no runs, expected at least one")
    runs_by_key: dict[tuple[str, ...], list[int]] = {}
    metas = result.metas
    order = list(TRANSPORT_COLOURS)
    indices = sorted(range(len(metas)), key=lambda index: order.index(metas[index]["transport"]))
    for index in indices:
        meta = metas[index]
        key = tuple(meta[name] for name in ("transport", "world", "scenario", "scenario_toml"))
        runs_by_key.setdefault(key, []).append(index)
    several_worlds = len({meta["world"] for meta in metas}) > 1
    several_scenarios = len({meta["scenario"] for meta in metas}) > 1
    labels = []
    for transport, world, scenario, _ in runs_by_key:
        parts = [transport]
        parts += [world] if several_worlds else []
        parts += [scenario] if several_scenarios else []
        labels.append(", ".join(parts))
    # Scenarios of one name with different settings: only the results' labels tell them apart.
    for number, indices in enumerate(runs_by_key.values()):
        if labels.count(labels[number]) > 1:
            own = result.labels[indices[0]]
            labels[number] = own if own not in labels else f"{own} ({number + 1})"
    groups = _styled(labels, [key[0] for key in runs_by_key])
    return [
        replace(group, indices=tuple(indices), step=metas[indices[0]]["sample_ns"] / _NANOSECONDS)
        for group, indices in zip(groups, runs_by_key.values(), strict=True)
    ]


def _curve_groups(table: Table, labels: list[str], curves: list[str]) -> list[_Group]:
    """Return the style of each curve: that of its transport, if no other curve has the same."""
    transports = _column(table, "transport")
    found = [{t for t, label in zip(transports, labels, strict=True) if label == c} for c in curves]
    names = [next(iter(names)) if len(names) == 1 else "" for names in found]
    is_clear = len(set(names)) == len(names)
    return _styled(curves, names if is_clear else [""] * len(curves))


def _styled(labels: Sequence[str], transports: Sequence[str]) -> list[_Group]:
    """Return the style of each label. An unknown transport gets a colour of its own."""
    groups = []
    for number, (label, transport) in enumerate(zip(labels, transports, strict=True)):
        # Further groups of one transport keep its colour and get markers.
        earlier = transports[:number].count(transport)
        line: Any
        if transport in TRANSPORT_COLOURS:
            colour, line = TRANSPORT_COLOURS[transport], TRANSPORT_LINES[transport]
            marker = _MARKERS[(earlier - 1) % len(_MARKERS)] if earlier else None
        else:
            colour = PATH_COLOURS[number % len(PATH_COLOURS)]
            line, marker = _LINES[number % len(_LINES)], None
        groups.append(_Group(label, colour, line, marker))
    return groups


# Tables


def _column(table: Table, name: str) -> list[Any]:
    """Return a column; ``None`` for every row if the table does not have it."""
    return table.column(name) if name in table.columns else [None] * len(table)


def _existing(table: Table, name: str) -> list[Any]:
    if name not in table.columns:
        raise ValueError(f"no column `{name}`, expected one of: {', '.join(table.columns)}")
    return table.column(name)


def _metric_column(table: Table, metric: str) -> str:
    """Return the column of a metric, with or without its unit at the end."""
    choices = [metric, *(f"{metric}_{unit}" for unit in ("bps", "ns", "us", "bytes"))]
    for choice in [*choices, f"{metric} (figure)"]:
        if choice in table.columns:
            return choice
    _existing(table, metric)
    raise AssertionError("unreachable: the column does not exist")


def _number(value: Any, factor: float) -> float:
    """Return a number, or NaN for a missing one."""
    return math.nan if value is None else float(value) * factor


def _parameter(table: Table, name: str) -> tuple[list[str], list[float | None], str]:
    """Return labels (empty for numbers), the value of each row, and the unit of a parameter."""
    number = f"{name} (number)"
    texts = _existing(table, name) if name in table.columns or number not in table.columns else []
    if number in table.columns:
        numbers = table.column(number)
        unit = table.units.get(number, "")
        typed = [str(text).strip() for text in texts if text is not None]
        for pattern, kind in _TYPED_UNITS:
            if not unit and typed and all(pattern.search(text) for text in typed):
                unit = kind
        base, factor = _UNITS.get(unit, (unit, 1.0))
        return [], [None if n is None else n * factor for n in numbers], base
    if all(isinstance(value, int | float | None) for value in texts):
        return [], [None if v is None else float(v) for v in texts], _unit(table, name)[0]
    labels = list(dict.fromkeys(str(text) for text in texts if text is not None))
    return labels, [None if t is None else float(labels.index(str(t))) for t in texts], ""


def _path_names(meta: Mapping[str, Any], found: Iterable[str]) -> list[str]:
    """Return the paths with data: in the scenario's order, then others."""
    existing = dict.fromkeys(found)
    configured = [path["name"] for path in meta["paths"] if path["name"] in existing]
    return list(dict.fromkeys([*configured, *existing]))


# Series


@dataclass(frozen=True)
class _Summary:
    """Median and quartiles over time; NaN where no run has a value."""

    times: list[float]
    low: list[float]
    middle: list[float]
    high: list[float]
    runs: int


def _rates(rows: Iterable[tuple[int, int, int]], step_ns: int) -> list[float]:
    """Return the rate in bit/s in each step, from the end, length and bytes of periods.

    Bytes are spread evenly over their period.
    """
    rows = [(end, max(span, 1), size) for end, span, size in rows]
    last = max((end for end, _, _ in rows), default=0)
    totals = [0.0] * math.ceil(last / step_ns)
    for end, span, size in rows:
        begin = max(end - span, 0)
        for index in range(begin // step_ns, math.ceil(end / step_ns)):
            overlap = min(end, (index + 1) * step_ns) - max(begin, index * step_ns)
            totals[index] += size * overlap / span
    rates = [total * 8 * _NANOSECONDS / step_ns for total in totals]
    # The last step may be cut off by the end of the run.
    cut = last - (len(totals) - 1) * step_ns
    if totals and 0 < cut < step_ns:
        rates[-1] *= step_ns / cut
        if cut < step_ns / 2:
            rates.pop()
    return rates


def _goodput_rates(run: Result) -> list[float]:
    table = run.intervals
    rows = zip(*(table.column(name) for name in ("t_ns", "span_ns", "bytes")), strict=True)
    return _rates(rows, run.metas[0]["sample_ns"])


def _round_trips(run: Result) -> dict[str, list[float]]:
    """Return the mean smoothed round-trip time in each step by path, in seconds.

    NaN while no acknowledgement arrives.
    """
    step_ns = run.metas[0]["sample_ns"]
    table = run.subflows
    found: dict[str, dict[int, list[float]]] = {}
    last_acks: dict[tuple[Any, ...], int] = {}
    names = ("flow", "stream", "direction", "subflow", "path", "t_ns", "side", "bytes", "srtt_us")
    for *key, end, side, size, srtt in zip(*(_column(table, n) for n in names), strict=True):
        if side != "sender" or not srtt:
            continue
        if size:
            last_acks[tuple(key)] = end
        # The stack keeps the last value of a path that no longer answers.
        if end - last_acks.get(tuple(key), -_MAX_RTT_AGE_NS) < _MAX_RTT_AGE_NS:
            steps = found.setdefault(key[-1], {})
            steps.setdefault(max(end - 1, 0) // step_ns, []).append(srtt / 1e6)
    return {
        path: [
            sum(steps[i]) / len(steps[i]) if i in steps else math.nan for i in range(max(steps) + 1)
        ]
        for path, steps in found.items()
    }


def _message_delays(runs: Iterable[Result]) -> list[float]:
    """Return the delays of all requests in seconds; infinite without a reply."""
    values = []
    for run in runs:
        table = run.messages
        columns = [_column(table, name) for name in ("due_ns", "answered_ns", "warm_up")]
        for due, answered, warm_up in zip(*columns, strict=True):
            if not warm_up:
                values.append(math.inf if answered is None else (answered - due) / 1e9)
    return values


def _summary(series: Sequence[Sequence[float]], step: float) -> _Summary:
    """Return median and quartiles of several series, step by step."""
    length = max((len(values) for values in series), default=0)
    columns = [
        [values[i] for values in series if i < len(values) and not math.isnan(values[i])]
        for i in range(length)
    ]
    low, middle, high = (
        [_quantile(column, share) for column in columns] for share in (0.25, 0.5, 0.75)
    )
    times = [(i + 0.5) * step for i in range(length)]
    return _Summary(times, low, middle, high, len(series))


def _quantile(values: Iterable[float], share: float) -> float:
    """Return a quantile with linear interpolation (definition 7 of Hyndman and Fan).

    NaN without values; infinite between a finite and an infinite value.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    rest = position - below
    if rest == 0:
        return ordered[below]
    if math.isinf(ordered[below + 1]):
        return ordered[below + 1]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * rest


# Drawing


def _draw_line(ax: Axes, line: _Summary, scale: _Scale, group: _Group, **style: Any) -> None:
    """Draw a median over time, with a band between the quartiles of several runs."""
    defaults = {
        "color": group.colour,
        "linestyle": group.line,
        "label": group.label,
        "linewidth": 1.8,
        "marker": group.marker,
        "markevery": 0.1,
        "markersize": 5,
    }
    style = {**defaults, **style}
    ax.plot(line.times, [value / scale.factor for value in line.middle], **style)
    if line.runs > 1:
        low, high = ([v / scale.factor for v in values] for values in (line.low, line.high))
        ax.fill_between(line.times, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _draw_cdf(
    ax: Axes, values_by_group: list[tuple[_Group, list[float]]], name: str, unit: str
) -> None:
    finite = sorted(v for _, values in values_by_group for v in values if math.isfinite(v))
    scale = _scale(unit, [_quantile(finite, 0.9)] if finite else [], ax, "x")
    right = finite[-1] / scale.factor if finite else 1.0
    for group, values in values_by_group:
        xs = sorted(value / scale.factor for value in values if math.isfinite(value))
        if not xs:
            ax.plot([], [], color=group.colour, linestyle=group.line, label=group.label)
            continue
        shares = [100 * count / len(values) for count in range(len(xs) + 1)]
        ax.step(
            [xs[0], *xs, right],
            [*shares, shares[-1]],
            where="post",
            color=group.colour,
            linestyle=group.line,
            label=group.label,
            linewidth=1.8,
            marker=group.marker,
            markevery=0.1,
        )
    if finite and finite[0] > 0 and finite[-1] / finite[0] >= _LOG_RATIO:
        _use_log_axis(ax, [value / scale.factor for value in (finite[0], finite[-1])])
    ax.set_ylim(0, 102)
    _label(ax, "x", name, scale)
    _draw_legend(ax)


def _draw_bar(ax: Axes, position: int, group: _Group, values: list[float], top: float) -> None:
    """Draw the median of a group as a bar, and each run as a dot."""
    finite = [value for value in values if math.isfinite(value)]
    missing = len(values) - len(finite)
    # A missing value is larger than every other one.
    median = _quantile([*finite, *[math.inf] * missing], 0.5)
    if math.isfinite(median):
        ax.bar(position, median, width=0.62, color=group.colour, alpha=0.3, linewidth=0)
        half = 0.31
        ax.plot(
            [position - half, position + half], [median] * 2, color=group.colour, linewidth=2.4,
            solid_capstyle="butt",
        )  # fmt: skip
    spread = 0.4 * (len(finite) - 1) / max(len(finite), 4)
    offsets = [
        spread * (i / (len(finite) - 1) - 0.5) if len(finite) > 1 else 0.0
        for i in range(len(finite))
    ]
    ax.scatter(
        [position + offset for offset in offsets], finite, s=26, color=group.colour,
        edgecolors="white", linewidths=0.7, zorder=3,
    )  # fmt: skip
    if missing:
        text = "none" if missing == len(values) else f"none in {missing} of {len(values)}"
        height = max(finite, default=0.0) + 0.03 * top
        ax.annotate(text, (position, height), ha="center", va="bottom", color=_MUTED)


def _draw_curve(
    ax: Axes, group: _Group, number: int, curve: dict[float, list[float]], x: _Scale, y: _Scale
) -> None:
    """Draw medians with bars between the quartiles."""
    xs = sorted(curve)
    quartiles = [[_quantile(curve[v], s) / y.factor for v in xs] for s in (0.25, 0.5, 0.75)]
    # A median that is infinite interrupts the curve.
    low, middle, high = ([v if math.isfinite(v) else math.nan for v in row] for row in quartiles)
    lower = [m - v for m, v in zip(middle, low, strict=True)]
    upper = [v - m for m, v in zip(middle, high, strict=True)]
    ax.errorbar(
        [value / x.factor for value in xs],
        middle,
        yerr=[lower, upper],
        color=group.colour,
        linestyle=group.line,
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=5.5,
        linewidth=1.8,
        elinewidth=1.1,
        capsize=3,
        label=group.label,
    )


def _finish_over_time(ax: Axes, result: Result, groups: list[_Group]) -> None:
    """Add the time axis, the events and the legend."""
    ends = [meta["duration_ns"] / _NANOSECONDS for meta in result.metas]
    ax.set_xlim(0, max([*ends, ax.dataLim.x1]))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("time (s)")
    _draw_events(ax, result.metas)
    _title(ax, result)
    _draw_legend(ax)


def _draw_events(ax: Axes, metas: Sequence[Mapping[str, Any]]) -> None:
    """Draw the timeline's events as vertical lines, or many close ones as an area.

    Close events share a label.
    """
    events = {
        (event["at_ns"] / _NANOSECONDS, event["target"], event["text"])
        for meta in metas
        for event in meta["timeline"]
    }
    end = ax.get_xlim()[1]
    clusters: list[list[tuple[float, str, str]]] = []
    for event in sorted(event for event in events if event[0] <= end):
        if clusters and event[0] - clusters[-1][-1][0] < _LABEL_DISTANCE * end:
            clusters[-1].append(event)
        else:
            clusters.append([event])
    for cluster in clusters:
        text = ", ".join(f"{target} {change}" for _, target, change in cluster)
        if len(cluster) < _MANY_EVENTS:
            for time, *_ in cluster:
                ax.axvline(time, color=_MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        else:
            targets = ", ".join(dict.fromkeys(target for _, target, _ in cluster))
            text = f"{targets}: {len(cluster)} changes"
            ax.axvspan(
                cluster[0][0], cluster[-1][0], facecolor=_MUTED, alpha=0.13, linewidth=0, zorder=0
            )
        ax.annotate(
            text, (cluster[0][0], 0.98), xycoords=ax.get_xaxis_transform(), xytext=(2, 0),
            textcoords="offset points", rotation=90, ha="left", va="top", fontsize="small",
            color=_TEXT, zorder=4,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.75, "lw": 0},
        )  # fmt: skip
