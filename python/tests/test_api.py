"""Tests of scenarios, runs, results and tables."""

import http.server
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import towpath
from towpath import errors

SHORT = towpath.Scenario("two-links").replace({"flows.duration": "1 s"})
"""A scenario whose runs take little time."""


def run_command(arguments: list[str], folder: Path) -> None:
    ended = subprocess.run([towpath.command(), *arguments], cwd=folder, capture_output=True)
    # 1 means that an expectation was missed: the scenario's own are for longer runs.
    assert ended.returncode in (0, 1), ended.stderr.decode()


@pytest.fixture(scope="module")
def result() -> towpath.Result:
    return towpath.run(SHORT, transports=["tcp", "mptcp"], seeds=2)


def test_equal_scenarios_are_equal_and_hash_equally():
    first, second = towpath.Scenario("two-links"), towpath.Scenario("two-links")
    assert first == second and hash(first) == hash(second)
    assert len({first, second, SHORT}) == 2
    assert first != "two-links"


def test_a_scenario_from_a_dictionary_a_file_and_its_text_are_the_same(tmp_path: Path):
    description = {
        "name": "pair",
        "hosts": {"client": {}, "server": {}},
        "paths": {"wire": {"between": ["client", "server"], "rate": "10 Mbit/s"}},
        "flows": [{"from": "client", "to": "server", "pattern": "bulk", "duration": "1 s"}],
    }
    of_dictionary = towpath.Scenario(description)
    file = tmp_path / "pair.toml"
    file.write_text(of_dictionary.toml)
    assert towpath.Scenario(file) == of_dictionary == towpath.Scenario.from_toml(of_dictionary.toml)
    assert of_dictionary.paths == ["wire"] and of_dictionary.hosts == ["client", "server"]
    assert of_dictionary.duration == 1.0


def test_traces_beside_a_scenario_travel_with_it(tmp_path: Path):
    (tmp_path / "down.trace").write_text("1\n2\n3\n")
    text = SHORT.toml.replace('rate = "100 Mbit/s"', 'rate = { trace = "down.trace" }', 1)
    (tmp_path / "traced.toml").write_text(text)
    scenario = towpath.Scenario(tmp_path / "traced.toml")
    assert list(scenario.files) == ["down.trace"]
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_replace_returns_a_changed_copy():
    changed = SHORT.replace({"paths.first.rate": "10 Mbit/s"}, run__seed=7)
    assert changed.seed == 7 and 'rate = "10 Mbit/s"' in changed.toml
    assert SHORT.seed == 1, "the original is unchanged"


def test_mistakes_are_reported_with_line_and_column():
    with pytest.raises(errors.ScenarioError) as caught:
        SHORT.replace({"paths.first.rate": "10 Mbit"})
    (problem,) = caught.value.problems
    assert SHORT.toml.splitlines()[problem.line - 1].startswith("rate")
    assert problem.column == 8 and "Mbit/s" in problem.hint
    with pytest.raises(errors.ScenarioError, match="did you mean `paths.first`"):
        SHORT.replace({"paths.furst.rate": "10 Mbit/s"})
    with pytest.raises(errors.ScenarioError, match="unknown key `pathz`"):
        towpath.Scenario({"name": "x", "pathz": 1})
    with pytest.raises(errors.ReadError, match="did you mean `two-links`"):
        towpath.Scenario("two-link")
    with pytest.raises(errors.ReadError, match="no such file"):
        towpath.Scenario("missing.toml")


@pytest.mark.parametrize(
    "error",
    [
        errors.ScenarioError("wrong", "change it", [(1, 2, "wrong", None)]),
        errors.RunError("failed"),
        errors.UnavailableError("not here", "there"),
    ],
)
def test_errors_survive_pickling(error: towpath.Error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
    assert getattr(copy, "problems", None) == getattr(error, "problems", None)


def test_a_run_gives_the_records_that_the_command_writes(result: towpath.Result, tmp_path: Path):
    (tmp_path / "scenario.toml").write_text(SHORT.toml)
    arguments = [
        "run",
        "scenario.toml",
        "--world",
        "sim",
        "-T",
        "tcp,mptcp",
        "-r",
        "2",
        "--out",
        "out",
    ]
    run_command(arguments, tmp_path)
    of_command = towpath.read(tmp_path / "out")
    assert sorted(of_command.labels) == sorted(result.labels)
    by_label = dict(zip(of_command.labels, of_command, strict=True))
    for label, run in zip(result.labels, result, strict=True):
        stored = by_label[label]
        assert run.intervals.rows() == stored.intervals.rows()
        assert run.subflows.rows() == stored.subflows.rows()
        assert run.summaries == stored.summaries


def test_results_do_not_depend_on_the_number_of_workers(result: towpath.Result):
    again = towpath.run(SHORT, transports=["tcp", "mptcp"], seeds=2, workers=1)
    assert pickle.dumps(again) == pickle.dumps(result)


def test_seeds_are_a_number_or_a_list():
    chosen = towpath.run(SHORT, transports="tcp", seeds=[9, 4])
    assert [meta["seed"] for meta in chosen.metas] == [9, 4]
    assert [meta["repeat"] for meta in chosen.metas] == [1, 2]
    for wrong in (0, []):
        with pytest.raises(errors.UnavailableError, match="seeds"):
            towpath.run(SHORT, seeds=wrong)


def test_a_run_that_cannot_be_made_says_why():
    with pytest.raises(errors.UnavailableError, match="`tcp`, `mptcp`, `quic`, `mpquic`"):
        towpath.run(SHORT, transports="sctp")
    with pytest.raises(errors.UnavailableError, match="there is no world"):
        towpath.run(SHORT, world="live")
    unknown = SHORT.replace({"run.scheduler": "fastest"})
    with pytest.raises(errors.UnavailableError, match="no scheduler `fastest`"):
        towpath.run(unknown, transports="mptcp")


def test_results_behave_like_a_sequence(result: towpath.Result):
    assert len(result) == 4 and len(result[1:3]) == 2 and len(result[-1]) == 1
    assert [one.labels for one in result] == [[label] for label in result.labels]
    assert (result[:2] + result[2:]).labels == result.labels
    with pytest.raises(IndexError):
        result[4]


def test_saved_results_are_read_back(result: towpath.Result, tmp_path: Path):
    files = result.save(tmp_path)
    assert len(set(files)) == len(result)
    assert sorted(towpath.read(tmp_path).labels) == sorted(result.labels)
    (tmp_path / "broken.jsonl").write_text("{}\n")
    with pytest.raises(errors.ReadError, match="broken.jsonl"):
        towpath.read(tmp_path)


def test_progress_counts_the_runs():
    seen = []
    towpath.run(SHORT, transports=["tcp", "quic"], progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (2, 2)

    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        towpath.run(SHORT, progress=fail)


def test_ctrl_c_stops_a_long_run():
    code = "import towpath; print('ready', flush=True); towpath.run('two-links', seeds=500)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT and b"KeyboardInterrupt" in stderr


def test_the_lock_of_the_interpreter_is_free_during_a_run():
    # A thread of Python makes progress while a run is simulated.
    counted, stop = [], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted.append(time.monotonic())

    thread = threading.Thread(target=count)
    thread.start()
    towpath.run(SHORT, transports="mptcp", workers=1)
    stop.set()
    thread.join()
    assert len(counted) > 1000


def test_tables_have_typed_columns_with_units(result: towpath.Result):
    assert result.intervals.units["t_ns"] == "ns" and result.intervals.units["bytes"] == "byte"
    received = sum(result[0].intervals.column("bytes"))
    assert received == result[0].summaries[0]["flows"][0]["bytes"]
    for name in result.table_names:
        table = result.table(name)
        assert len(table) == len(table.column("run"))
    with pytest.raises(errors.UnavailableError, match="intervals"):
        result.table("interval")
    with pytest.raises(KeyError, match="there are run, "):
        result.runs.column("x")


def test_pandas_polars_and_pyarrow_see_the_same_rows(result: towpath.Result):
    table = result.subflows
    names = table.columns
    expected = table.rows()
    assert table.to_pyarrow().to_pylist() == expected
    assert table.to_polars().select(names).to_dicts() == expected
    frame = table.to_pandas()
    assert list(frame.columns) == names and len(frame) == len(expected)
    assert frame["t_ns"].tolist() == table.column("t_ns")
    assert table.to_pyarrow().schema.field("t_ns").metadata == {b"unit": b"ns"}


def test_columns_reach_other_libraries_without_a_copy(result: towpath.Result):
    import polars
    import pyarrow

    table = result.subflows
    first, second = (pyarrow.table(table).column("t_ns").chunk(0) for _ in range(2))
    address = first.buffers()[1].address
    assert address == second.buffers()[1].address, "two exports share the memory"
    series = polars.DataFrame(table)["t_ns"]
    assert series.to_arrow().buffers()[1].address == address
    frame = table.to_pandas()
    of_frame = frame["t_ns"].array.__arrow_array__().chunk(0)
    assert of_frame.buffers()[1].address == address


def test_tables_can_be_joined(result: towpath.Result):
    both = result[0].intervals.concat(result[1].intervals)
    assert len(both) == len(result[0].intervals) + len(result[1].intervals)
    with pytest.raises(ValueError, match="different columns"):
        result.intervals.concat(result.links)


def test_pages_are_framed_for_notebooks(result: towpath.Result):
    page = result._repr_html_()
    assert page.startswith('<iframe sandbox="allow-scripts" srcdoc="&lt;!doctype html')
    assert result.html() in towpath.run(SHORT, transports=["tcp", "mptcp"], seeds=2).html()
    assert "<th>scenario</th>" in result.runs._repr_html_()
    assert "two-links" in str(result)


def test_a_comparison_has_intervals_and_ratios(result: towpath.Result):
    comparison = towpath.compare(result)
    assert "mptcp ÷ tcp" in comparison.text()
    assert json.dumps(comparison.json())
    assert comparison.html().startswith("<!doctype html")


def test_a_capture_is_analysed(tmp_path: Path):
    (tmp_path / "scenario.toml").write_text(SHORT.toml)
    arguments = [
        "run",
        "scenario.toml",
        "--world",
        "sim",
        "-T",
        "mptcp",
        "--out",
        "out",
        "--pcap",
        "pcap",
    ]
    run_command(arguments, tmp_path)
    captures = sorted((tmp_path / "pcap").iterdir())
    one = towpath.trace(captures[0])
    assert one.metas[0]["transport"] == "mptcp"
    assert len(towpath.trace(*captures[:2]).subflows) > 0
    with pytest.raises(errors.ReadError):
        towpath.trace(tmp_path / "scenario.toml")


@pytest.mark.skipif(sys.platform != "linux", reason="emulated runs need Linux")
def test_an_emulated_run_uses_the_kernel():
    emulated = towpath.run(SHORT, world="emu", transports="mptcp", seeds=1)
    (meta,) = emulated.metas
    assert meta["world"] == "emu" and meta["kernel"] == os.uname().release


def test_a_published_figure_is_repeated(tmp_path: Path):
    made = towpath.reproduce("barre2011-buffer-rule", quick=True, out=tmp_path)
    assert made.claims and all(claim["holds"] == claim["expected"] for claim in made.claims)
    assert made.figure.read_text().startswith("<svg") and made.data.stat().st_size > 0
    assert made._repr_svg_().startswith("<svg") and "claims hold" in repr(made)
    with pytest.raises(errors.RunError, match="no reproduction is called"):
        towpath.reproduce("nothing", out=tmp_path)


class Collector(http.server.BaseHTTPRequestHandler):
    """Answers like a collector that is not public."""

    results: dict[str, bytes] = {}

    def do_GET(self) -> None:
        authorized = self.headers.get("Authorization") == "Bearer secret"
        content = self.results.get(self.path) if authorized else None
        self.send_response(200 if content else 404)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


def test_a_run_is_read_from_a_collector(result: towpath.Result, tmp_path: Path, monkeypatch):
    (file,) = result[0].save(tmp_path)
    Collector.results["/api/v1/runs/0a1b/records"] = file.read_bytes()
    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("TOWPATH_TOKEN", "secret")
        for page in ("/runs/0a1b", "/runs/0a1b/", "/api/v1/runs/0a1b/records"):
            assert towpath.read(address + page).labels == result[0].labels
        with pytest.raises(errors.ReadError, match="404"):
            towpath.read(address + "/runs/ffff")
        with pytest.raises(errors.ReadError, match="not the address of a run"):
            towpath.read(address + "/about")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_folder_of_a_sweep_is_named_as_such(tmp_path: Path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(errors.ReadError, match="towpath.Sweep.open"):
        towpath.read(tmp_path)
