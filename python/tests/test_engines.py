"""Sweeps on every engine: equal files, exactly once, whatever fails."""

import multiprocessing
import os
import pickle
import sys
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures import ThreadPoolExecutor as Threads
from pathlib import Path

import pytest

import towpath
from towpath import Sweep, engines
from towpath.errors import ScenarioError, SweepError, UnavailableError

PLAN = """
name = "tiny"
scenario = "builtin:two-links"
seeds = 3
quick-seeds = 1

[[variants]]
name = "TCP"
transport = "tcp"
set = { "flows.0.duration" = "100 ms" }

[[variants]]
name = "MPTCP"
transport = "mptcp"
set = { "flows.0.duration" = "100 ms" }

[[axes]]
name = "delay"
keys = ["paths.second.delay"]
values = ["10 ms", "40 ms"]
"""
CHUNKS = 6


def parts(folder):
    """Returns the files with rows: their names and contents."""
    return {path.name: path.read_bytes() for path in Path(folder).glob("part-*.parquet")}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    towpath.sweep(PLAN, folder, chunk=2)
    found = parts(folder)
    assert len(found) == CHUNKS
    return found


def assert_complete(sweep, expected):
    assert sweep.pending() == []
    assert parts(sweep.location) == expected
    keys = sweep.table().column("key")
    assert len(keys) == len(set(keys)) == sweep.runs == 12


def test_threads_of_this_process_run_a_sweep(tmp_path, expected):
    sweep = towpath.sweep(PLAN, tmp_path, chunk=2, workers=1)
    assert_complete(sweep, expected)


def test_an_executor_of_threads_runs_a_sweep_and_stays_open(tmp_path, expected):
    with Threads(2) as executor:
        assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=executor), expected)
        assert executor.submit(int, "7").result() == 7


def test_an_executor_of_processes_runs_a_sweep(tmp_path, expected):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=executor), expected)


def test_a_function_like_map_runs_a_sweep(tmp_path, expected):
    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=map), expected)


def test_a_pool_of_processes_runs_a_sweep_in_any_order(tmp_path, expected):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        engine = pool.imap_unordered
        assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=engine), expected)


def test_ray_runs_a_sweep_and_the_users_cluster_remains(tmp_path, expected):
    ray = pytest.importorskip("ray", reason="the package ray is not installed")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="WARNING")
    try:
        assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine="ray"), expected)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_an_own_ray_cluster_is_ended(tmp_path, expected):
    ray = pytest.importorskip("ray", reason="the package ray is not installed")
    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine="ray", workers=2), expected)
    assert not ray.is_initialized()


def test_dask_runs_a_sweep_and_the_users_client_stays_open(tmp_path, expected):
    distributed = pytest.importorskip("distributed", reason="the package dask is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=client), expected)
        assert client.submit(int, "7").result() == 7


def test_an_own_dask_cluster_is_ended(tmp_path, expected):
    distributed = pytest.importorskip("distributed", reason="the package dask is not installed")
    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine="dask", workers=2), expected)
    with pytest.raises(ValueError, match="No global client|No clients"):
        distributed.get_client()


def test_a_stored_sweep_is_not_run_again(tmp_path, expected):
    towpath.sweep(PLAN, tmp_path, chunk=2)
    sweep = towpath.sweep(PLAN, tmp_path, engine=lambda *_: pytest.fail("a chunk was run"))
    assert_complete(sweep, expected)


def test_an_interrupted_sweep_continues(tmp_path, expected):
    def interrupted(task, chunks):
        yield task(chunks[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        towpath.sweep(PLAN, tmp_path, chunk=2, engine=interrupted)
    assert Sweep.open(tmp_path).status() == (12, CHUNKS, 1)
    reports = []
    sweep = towpath.sweep(PLAN, tmp_path, progress=lambda *numbers: reports.append(numbers))
    # A report is left out if the next one is there before the callback is called.
    assert reports == sorted(reports) and reports[-1] == (CHUNKS, CHUNKS)
    assert_complete(sweep, expected)


@pytest.mark.parametrize("size", [0, 4, 300])
def test_a_damaged_chunk_is_run_again(tmp_path, expected, size):
    towpath.sweep(PLAN, tmp_path, chunk=2)
    damaged = tmp_path / sorted(expected)[3]
    os.truncate(damaged, size)
    assert Sweep.open(tmp_path).pending() == [3]
    assert_complete(towpath.sweep(PLAN, tmp_path), expected)


def test_chunks_that_an_engine_did_not_run_are_run_again(tmp_path, expected):
    rounds = []

    def lossy(task, chunks):
        rounds.append(list(chunks))
        return [task(index) if index % 2 or len(rounds) > 1 else (index, "") for index in chunks]

    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=lossy), expected)
    assert rounds == [[0, 1, 2, 3, 4, 5], [0, 2, 4]]


def test_a_chunk_that_fails_twice_is_run_a_third_time(tmp_path, expected):
    failures = []

    def flaky(task, chunks):
        for index in chunks:
            if index == 4 and len(failures) < 2:
                failures.append(index)
                yield index, "error: OSError: no space left on device"
            else:
                yield task(index)

    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=flaky), expected)
    assert failures == [4, 4]


def test_an_error_names_the_chunk_and_the_reason_after_all_others(tmp_path):
    attempts = []

    def failing(task, chunks):
        for index in chunks:
            if index == 4:
                attempts.append(index)
            yield (index, "error: OSError: disk full") if index == 4 else task(index)

    with pytest.raises(SweepError, match="chunk 4 of .* failed: OSError: disk full"):
        towpath.sweep(PLAN, tmp_path, chunk=2, engine=failing)
    assert len(attempts) == 3
    assert Sweep.open(tmp_path).pending() == [4]


def test_an_engine_that_raises_is_used_again(tmp_path, expected):
    rounds = []

    def breaking(task, chunks):
        rounds.append(list(chunks))
        yield task(chunks[0])
        if len(rounds) < 3:
            raise RuntimeError("a worker was lost")
        yield from map(task, chunks[1:])

    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=breaking), expected)
    assert [len(chunks) for chunks in rounds] == [6, 5, 4]


def test_a_sweep_in_which_every_chunk_fails_ends_early(tmp_path):
    started = []

    def failing(task, chunks):
        for index in chunks:
            started.append(index)
            yield index, "error: ModuleNotFoundError: towpath"

    with pytest.raises(SweepError, match=r"chunk 0 .* ModuleNotFoundError: towpath \(9 more"):
        towpath.sweep(PLAN, tmp_path, chunk=1, engine=failing)
    assert len(started) == 10


def test_a_task_returns_only_the_chunk_and_a_short_text(tmp_path):
    sweep = Sweep.begin(PLAN, tmp_path, chunk=2)
    index, outcome = engines.run_chunk(sweep.location, 5)
    assert (index, type(outcome)) == (5, str)
    index, outcome = engines.run_chunk(str(tmp_path / "missing"), 1)
    assert index == 1
    assert outcome.startswith("error: SweepError: ")
    assert len(outcome) < 400


def test_a_process_runs_chunks_of_another_sweep_in_the_same_folder(tmp_path):
    with Threads(1) as executor:
        towpath.sweep(PLAN, tmp_path, chunk=2, engine=executor)
        for path in tmp_path.iterdir():
            path.unlink()
        sweep = towpath.sweep(PLAN.replace("40 ms", "50 ms"), tmp_path, engine=executor)
    assert set(sweep.table().column("delay")) == {"10 ms", "50 ms"}


class CountingExecutor(Executor):
    """Counts the tasks that have been submitted and have not ended."""

    def __init__(self):
        self.inner = Threads(2)
        self.lock = threading.Lock()
        self.active = self.most = 0

    def submit(self, function, /, *arguments, **options):
        with self.lock:
            self.active += 1
            self.most = max(self.most, self.active)
        future = self.inner.submit(function, *arguments, **options)
        future.add_done_callback(self.end)
        return future

    def end(self, _):
        with self.lock:
            self.active -= 1


def test_at_most_two_tasks_for_each_worker_are_submitted(tmp_path, expected):
    executor = CountingExecutor()
    assert_complete(towpath.sweep(PLAN, tmp_path, chunk=2, engine=executor, workers=2), expected)
    assert executor.most == 4


class LossyExecutor(Executor):
    """Loses the first task of every chunk."""

    def __init__(self):
        self.seen = set()

    def submit(self, function, /, location, index, session):
        future = Future()
        if index in self.seen:
            future.set_result(function(location, index, session))
        else:
            self.seen.add(index)
            future.set_exception(RuntimeError("the worker was lost"))
        return future


def test_lost_tasks_are_submitted_again(tmp_path, expected, caplog):
    sweep = towpath.sweep(PLAN, tmp_path, chunk=2, engine=LossyExecutor(), workers=1)
    assert_complete(sweep, expected)
    assert "chunk 3 is run again: RuntimeError: the worker was lost" in caplog.text


class BrokenAfterOne(LossyExecutor):
    def submit(self, function, /, location, index, session):
        if self.seen:
            raise BrokenExecutor("a process ended abruptly")
        self.seen.add(index)
        return super().submit(function, location, index, session)


def test_a_broken_executor_is_an_error_and_the_sweep_can_continue(tmp_path, expected):
    with pytest.raises(SweepError, match="a process ended abruptly") as caught:
        towpath.sweep(PLAN, tmp_path, chunk=2, engine=BrokenAfterOne())
    assert "new executor" in caught.value.hint
    assert_complete(towpath.sweep(PLAN, tmp_path), expected)


@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, {"ray": "ray", "dask": "distributed"}[name], None)
    with pytest.raises(UnavailableError) as caught:
        towpath.sweep(PLAN, tmp_path, engine=name)
    assert caught.value.hint == f"pip install 'towpath[{name}]'"


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(SweepError, match="no engine `spark`"):
        towpath.sweep(PLAN, tmp_path, engine="spark")


def test_zero_workers_are_refused(tmp_path):
    with pytest.raises(SweepError, match="`workers` is 0, expected at least 1"):
        towpath.sweep(PLAN, tmp_path, workers=0)


def test_a_plan_is_a_path_a_text_or_a_dictionary(tmp_path, expected):
    import tomllib

    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    for number, plan in enumerate([path, str(path), tomllib.loads(PLAN)]):
        keys = towpath.sweep(plan, tmp_path / str(number), chunk=2).table().column("key")
        assert len(set(keys)) == 12
    assert parts(tmp_path / "0") == parts(tmp_path / "1") == expected


def test_a_plan_in_python_can_contain_a_scenario(tmp_path):
    scenario = towpath.Scenario("two-links").replace({"flows.0.duration": "100 ms"})
    plan = {
        "name": "own",
        "scenario": scenario,
        "seeds": 1,
        "variants": [{"name": "MPTCP", "transport": "mptcp"}],
    }
    assert len(towpath.sweep(plan, tmp_path).table()) == 1


def test_files_of_a_plan_are_read_from_its_folder(tmp_path, monkeypatch):
    scenario = towpath.Scenario("two-links").replace({"flows.0.duration": "100 ms"})
    (tmp_path / "own.toml").write_text(scenario.toml)
    (tmp_path / "plan.toml").write_text(PLAN.replace("builtin:two-links", "own.toml"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    sweep = towpath.sweep("../plan.toml", "out", quick=True)
    assert sweep.location == str(elsewhere / "out")
    assert len(sweep.table()) == 4


def test_a_mistake_in_a_plan_is_reported_before_any_run(tmp_path):
    with pytest.raises(ScenarioError, match="sedes"):
        towpath.sweep(PLAN.replace("seeds = 3", "sedes = 3"), tmp_path)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(SweepError, match="cannot read the plan `missing.toml`"):
        towpath.sweep("missing.toml", tmp_path)


def test_a_folder_of_another_plan_is_refused(tmp_path):
    Sweep.begin(PLAN, tmp_path)
    with pytest.raises(SweepError, match="another sweep"):
        towpath.sweep(PLAN.replace("40 ms", "50 ms"), tmp_path)


def test_a_sweep_has_a_status_a_table_and_numbered_chunks(tmp_path):
    sweep = Sweep.begin(PLAN, tmp_path, chunk=5)
    assert list(sweep) == [0, 1, 2]
    assert len(sweep) == sweep.chunks == 3
    assert sweep.status() == (12, 3, 0)
    assert len(sweep.table()) == 0
    sweep.run_chunk(2)
    assert sweep.status() == (12, 3, 1)
    assert not sweep.status().is_done
    assert len(sweep.table()) == 2
    assert repr(sweep) == "<Sweep 'tiny': 12 runs in 3 chunks>"


def test_a_sweep_can_be_pickled(tmp_path):
    sweep = Sweep.begin(PLAN, tmp_path)
    assert pickle.loads(pickle.dumps(sweep)).location == sweep.location


def test_repeated_runs_have_the_same_rows(tmp_path):
    sweep = towpath.sweep(PLAN, tmp_path, quick=True)
    assert sweep.verify(3, workers=1) == []
