"""Structure of the charts: labels, units, lines and colours, not pixels."""

import subprocess
import sys

import pytest

import towpath
from towpath import plot
from towpath.errors import UnavailableError

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402

PLAN = {
    "name": "delays",
    "scenario": "builtin:two-links",
    "seeds": 3,
    "variants": [
        {"name": "one path", "transport": "tcp", "set": {"flows.0.duration": "200 ms"}},
        {"name": "two paths", "transport": "mptcp", "set": {"flows.0.duration": "200 ms"}},
    ],
    "axes": [
        {"name": "delay", "keys": ["paths.second.delay"], "values": ["10 ms", "40 ms", "80 ms"]},
        {"name": "kind", "keys": ["flows.0.pattern"], "values": ["iperf", "bulk"]},
    ],
}


@pytest.fixture(scope="module")
def handover():
    """Two repetitions over TCP and Multipath TCP; Wi-Fi goes down after one second."""
    scenario = towpath.Scenario("wifi-cellular-handover").replace(
        {"flows.0.duration": "3 s", "timeline.0.at": "1 s"}
    )
    return towpath.run(scenario, transports=["mptcp", "tcp"], seeds=2)


@pytest.fixture(scope="module")
def requests():
    scenario = towpath.Scenario("interactive-handover").replace(
        {"flows.0.duration": "3 s", "timeline.0.at": "1 s", "timeline.1.at": "2 s"}
    )
    return towpath.run(scenario, transports=["tcp", "mptcp"], seeds=1)


@pytest.fixture(scope="module")
def sweep_table(tmp_path_factory):
    return towpath.sweep(PLAN, tmp_path_factory.mktemp("sweep")).table()


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Checks that no chart shows a figure or changes global settings."""
    before = dict(matplotlib.rcParams)
    monkeypatch.setattr(pyplot, "show", lambda *_: pytest.fail("a chart was shown"))
    yield
    assert dict(matplotlib.rcParams) == before
    pyplot.close("all")


def run_of(result, transport):
    return next(run for run in result if run.metas[0]["transport"] == transport)


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def lines(ax):
    """Returns the labelled lines by label."""
    return {
        line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")
    }


def colour(artist):
    return to_hex(artist.get_color())


def test_importing_towpath_does_not_import_matplotlib():
    code = "import sys, towpath; sys.exit('matplotlib' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnavailableError) as caught:
        plot.cdf({"a": [1.0]})
    assert caught.value.hint == "pip install 'towpath[plot]'"


def test_goodput_has_a_line_and_a_band_for_each_transport(handover):
    ax = plot.goodput(handover)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (s)", "goodput (Mbit/s)")
    assert ax.get_title(loc="left") == "wifi-cellular-handover (sim)"
    assert legend(ax) == ["tcp", "mptcp"]
    assert len(ax.collections) == 2
    assert len({(colour(line), line.get_linestyle()) for line in lines(ax).values()}) == 2


def test_goodput_of_one_run_has_no_band_and_sums_up_to_its_bytes(handover):
    run = run_of(handover, "mptcp")
    ax = plot.goodput(run)
    assert not ax.collections
    (line,) = lines(ax).values()
    step = run.metas[0]["sample_ns"] / 1e9
    drawn = sum(line.get_ydata()) * 1e6 * step / 8
    assert drawn == pytest.approx(sum(run.intervals.column("bytes")), rel=0.02)


def test_the_events_of_the_timeline_are_labelled_lines(handover):
    ax = plot.goodput(handover)
    assert [text.get_text() for text in ax.texts] == ["wifi down"]
    assert [tuple(line.get_xdata()) for line in ax.get_lines()].count((1.0, 1.0)) == 1


def test_many_close_events_are_one_area():
    scenario = towpath.Scenario("fading-wifi")
    ax = plot.goodput(towpath.run(scenario, transports="tcp", seeds=1))
    assert ax.texts
    assert all("changes" in text.get_text() for text in ax.texts)
    assert len(ax.get_lines()) == 1


def test_charts_are_drawn_on_the_given_axes(handover, requests, sweep_table):
    _, axes = pyplot.subplots(7)
    assert plot.goodput(handover, axes[0]) is axes[0]
    assert plot.subflows(handover[0], axes[1]) is axes[1]
    assert plot.rtt(handover, axes[2]) is axes[2]
    assert plot.delays(requests, axes[3]) is axes[3]
    assert plot.cdf({"a": [1]}, axes[4]) is axes[4]
    assert plot.bars(handover, "goodput", axes[5]) is axes[5]
    assert plot.sweep(sweep_table, "delay", "goodput", ax=axes[6]) is axes[6]
    assert len(pyplot.get_fignums()) == 1


def test_a_second_chart_on_the_same_axes_keeps_their_unit(handover):
    ax = plot.cdf({"a": [0.002, 0.003]}, unit="s")
    plot.cdf({"b": [4.0]}, ax, unit="s")
    assert ax.get_xlabel() == "value (ms)"
    assert max(lines(ax)["b"].get_xdata()) == 4000


def test_a_transport_has_one_colour_and_line_in_every_chart(handover, requests):
    charts = [plot.goodput(handover), plot.delays(requests), plot.cdf({"tcp": [1], "mptcp": [2]})]
    for transport in ("tcp", "mptcp"):
        styles = {
            (colour(lines(ax)[transport]), lines(ax)[transport].get_linestyle()) for ax in charts
        }
        assert len(styles) == 1
        (style,) = styles
        assert style[0] == plot.TRANSPORT_COLOURS[transport]


def test_subflows_has_an_area_for_each_path_and_a_line_for_the_goodput(handover):
    ax = plot.subflows(run_of(handover, "mptcp"))
    assert legend(ax) == ["wifi", "cellular", "goodput"]
    assert ax.get_ylabel() == "arrived on each path (Mbit/s)"
    assert len(ax.collections) == 2


def test_subflows_of_several_runs_are_refused(handover):
    with pytest.raises(ValueError, match=r"4 runs, expected one: .*result\[0\]"):
        plot.subflows(handover)


def test_round_trip_times_of_one_transport_have_a_line_for_each_path(handover):
    ax = plot.rtt(run_of(handover, "mptcp"))
    assert list(lines(ax)) == ["wifi", "cellular"]
    assert ax.get_ylabel() == "smoothed round-trip time (ms)"
    assert len({line.get_linestyle() for line in lines(ax).values()}) == 2
    # The one-way delays are 15 and 40 ms.
    assert min(lines(ax)["wifi"].get_ydata()) >= 30
    assert min(y for y in lines(ax)["cellular"].get_ydata() if y == y) >= 80


def test_the_round_trip_time_of_a_dead_path_ends(handover):
    ax = plot.rtt(run_of(handover, "mptcp"))
    wifi, cellular = (max(lines(ax)[path].get_xdata()) for path in ("wifi", "cellular"))
    assert 1.0 < wifi < 2.2 < cellular


def test_round_trip_times_of_several_transports_have_their_colours(handover):
    ax = plot.rtt(handover)
    assert list(lines(ax)) == ["tcp, wifi", "mptcp, wifi", "mptcp, cellular"]
    colours = [colour(line) for line in lines(ax).values()]
    mptcp = plot.TRANSPORT_COLOURS["mptcp"]
    assert colours == [plot.TRANSPORT_COLOURS["tcp"], mptcp, mptcp]


def test_delays_are_distributions_of_all_requests(requests):
    ax = plot.delays(requests)
    assert legend(ax) == ["tcp", "mptcp"]
    assert ax.get_xlabel() in ("delay of requests (ms)", "delay of requests (s)")
    shares = lines(ax)["mptcp"].get_ydata()
    assert list(shares) == sorted(shares)
    assert 90 < shares[-1] <= 100


def test_delays_without_requests_are_refused(handover):
    with pytest.raises(ValueError, match="no requests"):
        plot.delays(handover)


def test_a_distribution_with_missing_values_ends_below_the_top():
    ax = plot.cdf({"a": [1e6, 2e6, None, float("inf")], "b": [3e6]}, name="delay", unit="ns")
    assert ax.get_xlabel() == "delay (ms)"
    assert list(lines(ax)["a"].get_xdata()) == [1, 1, 2, 3]
    assert list(lines(ax)["a"].get_ydata()) == [0, 25, 50, 50]


def test_values_of_a_wide_range_have_a_logarithmic_axis():
    assert plot.cdf({"a": [1, 200]}).get_xscale() == "log"
    assert plot.cdf({"a": [100, 200]}).get_xscale() == "linear"


def test_bars_have_a_dot_for_each_run(handover):
    ax = plot.bars(handover, "goodput")
    assert ax.get_ylabel() == "goodput (Mbit/s)"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["tcp\nn = 2", "mptcp\nn = 2"]
    assert [len(dots.get_offsets()) for dots in ax.collections] == [2, 2]
    tcp = sorted(run.runs.column("goodput")[0] / 1e6 for run in handover if _is_tcp(run))
    assert ax.patches[0].get_height() == pytest.approx(sum(tcp) / 2)


def _is_tcp(run):
    return run.metas[0]["transport"] == "tcp"


def test_bars_count_runs_in_which_an_event_never_happened(handover):
    recovery = handover.runs.column("recovery")
    assert any(value is None or value == float("inf") for value in recovery)
    ax = plot.bars(handover, "recovery")
    assert "none" in [text.get_text() for text in ax.texts]
    assert len(ax.patches) == 1


def test_an_unknown_metric_is_refused_with_the_known_ones(handover):
    with pytest.raises(ValueError, match=r"no column `godput`, expected one of: .*goodput"):
        plot.bars(handover, "godput")


def test_a_sweep_has_a_curve_for_each_variant(sweep_table):
    ax = plot.sweep(sweep_table, "delay", "goodput")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("delay (ms)", "goodput (Mbit/s)")
    assert legend(ax) == ["one path", "two paths"]
    curve = ax.containers[0].lines[0]
    assert list(curve.get_xdata()) == pytest.approx([10, 40, 80])
    rows = sweep_table.rows()
    values = sorted(
        row["goodput"] for row in rows if (row["variant"], row["delay"]) == ("one path", "10 ms")
    )
    assert curve.get_ydata()[0] * 1e6 == pytest.approx((values[2] + values[3]) / 2)


def test_a_sweep_over_texts_has_their_names_as_ticks(sweep_table):
    ax = plot.sweep(sweep_table, "kind", "stall.longest", by="delay")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["iperf", "bulk"]
    assert legend(ax) == ["10 ms", "40 ms", "80 ms"]


def test_curves_with_one_transport_each_have_its_colour(sweep_table):
    ax = plot.sweep(sweep_table, "delay", "goodput")
    colours = [colour(container.lines[0]) for container in ax.containers]
    assert colours == [plot.TRANSPORT_COLOURS[name] for name in ("tcp", "mptcp")]


def test_an_unknown_parameter_is_refused(sweep_table):
    with pytest.raises(ValueError, match="no column `rate`"):
        plot.sweep(sweep_table, "rate", "goodput")
