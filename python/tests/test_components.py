"""Schedulers, congestion controls and traffic in Python behave as those of the stack."""

import signal
import subprocess
import sys

import pytest

import towpath
from towpath import errors
from towpath.components import (
    CongestionControl,
    ConnectionView,
    Decision,
    PathView,
    Request,
    Scheduler,
    Traffic,
)

TIMED = {"flows.0.duration": "2 s"}
"""Changes that shorten the runs of a scenario."""


def eligible(view: ConnectionView) -> list[PathView]:
    """Paths that may get new data: not stale, and backups only if no other path is alive."""

    def is_alive(path: PathView) -> bool:
        return not path.stale and path.phase != "loss"

    alive = [path for path in view.paths if is_alive(path)]
    regular = [path for path in alive if not path.backup]
    return regular or alive or list(view.paths)


def by_srtt(paths: list[PathView]) -> list[PathView]:
    return sorted(paths, key=lambda path: (path.srtt, path.id))


class LowestSrtt(Scheduler):
    needs_room = True

    def next(self, view):
        return next(iter(by_srtt([path for path in eligible(view) if path.room_bytes > 0])), None)


class EveryPath(Scheduler):
    duplicates_data = True

    def next(self, view):
        for path in by_srtt([path for path in eligible(view) if path.room_bytes > 0]):
            unsent = view.first_unsent_on(path)
            if unsent is None:
                continue
            start, length = unsent
            already_sent = 0
            if view.head is not None:
                (head, _), _ = view.head
                already_sent = max(view.unacked_bytes - (start - head), 0)
            if already_sent == 0:
                return Decision.send(path, path.room_bytes)
            return Decision.reinject(path, (start, min(length, already_sent, path.room_bytes)))
        return Decision.idle()


class Lia(CongestionControl):
    is_coupled = True

    def increase(self, ack, acked_bytes, own, group):
        own_path = (max(self.cwnd_bytes, 1), max(ack.srtt, 1e-6))
        others = [
            (max(path.cwnd_bytes, 1), max(path.srtt, 1e-6)) for path in group if path.id != own
        ]
        paths = [own_path, *others]
        best = own_path
        for cwnd, rtt in paths:
            if cwnd / (rtt * rtt) > best[0] / (best[1] * best[1]):
                best = (cwnd, rtt)
        best_rate = best[0] / best[1]
        rates = 0.0
        for cwnd, rtt in paths:
            rates += cwnd / rtt / best_rate
        coupled = best[0] * rates * rates
        return acked_bytes * self.mss_bytes / max(coupled, self.cwnd_bytes)


class EveryPeriod(Traffic):
    """A request of 400 bytes every 50 ms, as the scenario's own schedule has."""

    def begin(self, now):
        self.start, self.sent = now, 0

    def due(self):
        # Nanoseconds, so that the times are exactly those of the scenario.
        return round(self.start * 1e9 + self.sent * 50_000_000) / 1e9

    def poll(self, now, stream):
        if self.is_done(stream) or self.due() > now:
            return None
        request = Request(self.due(), request_bytes=400, reply_bytes=2_000)
        self.sent += 1
        return request

    def next_due(self, stream):
        return None if self.is_done(stream) else self.due()

    def is_done(self, stream):
        return getattr(self, "sent", 0) >= 40


class ClosedLoop(Traffic):
    """A request 30 ms after each reply."""

    def begin(self, now):
        self.due, self.sent = now, 0

    def poll(self, now, stream):
        if self.due is None or self.due > now or self.is_done(stream):
            return None
        request, self.due = Request(self.due, 300, reply_bytes=20_000), None
        self.sent += 1
        return request

    def on_reply(self, now, stream):
        self.due = now + 0.03

    def next_due(self, stream):
        return getattr(self, "due", None)

    def is_done(self, stream):
        return getattr(self, "sent", 0) == 10


def records(result: towpath.Result) -> list[str]:
    """Records of the run after the first, which has the names of the components."""
    return result._inner.lines(0)[1:]


def run_pair(name, key, ours, theirs, changes, **component):
    base = towpath.Scenario(name).replace({**changes, key: theirs})
    with_python = base.replace({key: ours})
    expected = records(towpath.run(base, transports="mptcp"))
    actual = records(towpath.run(with_python, transports="mptcp", **component))
    renamed = [line.replace(f'"{ours}"', f'"{theirs}"') for line in actual]
    return renamed, expected


LOSSY = {"paths.second.loss": "1 %", "paths.second.delay": "30 ms", **TIMED}


@pytest.mark.parametrize(
    ("name", "changes"),
    [("two-links", LOSSY), ("wifi-cellular-handover", {}), ("two-links", TIMED)],
)
def test_a_scheduler_in_python_decides_as_the_same_one_of_the_stack(name, changes):
    classes = {"lowest": LowestSrtt}
    actual, expected = run_pair(
        name, "run.scheduler", "lowest", "min-rtt", changes, schedulers=classes
    )
    assert actual == expected
    classes = {"all": EveryPath}
    actual, expected = run_pair(
        name, "run.scheduler", "all", "redundant", changes, schedulers=classes
    )
    assert actual == expected


@pytest.mark.parametrize(
    ("name", "changes"),
    [("two-links", LOSSY), ("wifi-cellular-handover", {}), ("two-links", TIMED)],
)
@pytest.mark.parametrize(("theirs", "control"), [("reno", CongestionControl), ("lia", Lia)])
def test_a_congestion_control_in_python_acts_as_the_same_one_of_the_stack(
    name, changes, theirs, control
):
    key, classes = "run.congestion-control", {"own": control}
    actual, expected = run_pair(name, key, "own", theirs, changes, congestion_controls=classes)
    assert actual == expected


REQUESTS = towpath.Scenario("two-links").replace(
    {
        "flows.0.pattern": "reqres",
        "flows.0.period": "50 ms",
        "flows.0.request": "400 B",
        "flows.0.reply": "2000 B",
        "flows.0.duration": "2 s",
    }
)


def test_traffic_in_python_sends_as_the_same_schedule_of_the_scenario():
    expected = towpath.run(REQUESTS, transports="mptcp")
    actual = towpath.run(REQUESTS, transports="mptcp", traffic={0: EveryPeriod})
    assert len(expected.messages) == 40
    assert records(actual) == records(expected)
    assert actual.metas[0]["conditions"]["requests of flow 0"] == "EveryPeriod"


def test_traffic_in_python_can_wait_for_replies():
    result = towpath.run(REQUESTS, transports=["tcp", "mptcp", "quic"], traffic={0: ClosedLoop})
    for run in result:
        dues = run.messages.column("due_ns")
        replied = run.messages.column("answered_ns")
        assert len(dues) == 10
        for reply, due in zip(replied, dues[1:], strict=False):
            # A time is rounded up to the next nanosecond.
            assert 0 <= due - (reply + 30_000_000) <= 1


def test_runs_with_components_are_equal_with_any_number_of_threads():
    scenario = towpath.Scenario("two-links").replace({**LOSSY, "run.scheduler": "lowest"})
    options = {"transports": "mptcp", "seeds": 3, "schedulers": {"lowest": LowestSrtt}}
    one, two = (towpath.run(scenario, workers=workers, **options) for workers in (1, 2))
    assert [one._inner.lines(index) for index in range(3)] == [
        two._inner.lines(index) for index in range(3)
    ]


def test_a_callable_can_give_a_component_its_parameters():
    class Prefers(Scheduler):
        def __init__(self, path):
            self.path = path

        def next(self, view):
            chosen = [path for path in view.paths if path.id == self.path and path.room_bytes]
            return chosen[0] if chosen else Decision.wait(view.now + 0.01)

    scenario = towpath.Scenario("two-links").replace({**TIMED, "run.scheduler": "one"})
    shares = [
        towpath.run(scenario, transports="mptcp", schedulers={"one": lambda: Prefers(path)})
        .runs.rows()[0]["share.second"]
        for path in (0, 1)
    ]
    assert shares[0] < 0.1 and shares[1] > 0.9


def test_events_reach_a_scheduler():
    seen = set()

    class Observer(LowestSrtt):
        def on_event(self, event, path, bytes):
            seen.add(event)
            assert (bytes is None) == (event not in ("sent", "acked"))

    scenario = towpath.Scenario("wifi-cellular-handover").replace({"run.scheduler": "seen"})
    towpath.run(scenario, transports="mptcp", schedulers={"seen": Observer})
    assert {"sent", "acked", "opened", "timeout"} <= seen


def failing(method):
    class Failing(Scheduler):
        pass

    Failing.next = method
    scenario = towpath.Scenario("two-links").replace({**TIMED, "run.scheduler": "bad"})
    towpath.run(scenario, transports="mptcp", seeds=4, schedulers={"bad": Failing})


def test_an_exception_of_a_component_ends_the_runs_and_is_raised():
    def divide(self, view):
        return 1 // (view.now < 0)

    with pytest.raises(ZeroDivisionError) as raised:
        failing(divide)
    assert raised.traceback[-1].name == "divide"


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (7, TypeError, "`next` returned <class 'int'>: expected a Decision, a PathView or None"),
        (Decision.send(9), ValueError, r"there is no path 9: the view has \[0, 1\]"),
        (Decision.duplicate([0, 63]), ValueError, "there is no path 63"),
    ],
)
def test_a_wrong_decision_is_an_error(returned, error, message):
    with pytest.raises(error, match=message):
        failing(lambda self, view: returned if len(view.paths) > 1 else None)


def test_a_wrong_class_is_an_error():
    scenario = towpath.Scenario("two-links").replace({"run.scheduler": "bad"})
    with pytest.raises(TypeError, match="is not a subclass of `towpath.components.Scheduler`"):
        towpath.run(scenario, transports="mptcp", schedulers={"bad": dict})
    scenario = towpath.Scenario("two-links").replace({"run.congestion-control": "bad"})
    with pytest.raises(TypeError, match="takes no arguments|takes at most|expected at most"):
        towpath.run(scenario, transports="mptcp", congestion_controls={"bad": Scheduler})


@pytest.mark.parametrize("window", [0, -1, float("nan"), float("inf")])
def test_a_window_that_is_no_number_of_bytes_is_an_error(window):
    class Bad(CongestionControl):
        def on_ack(self, ack, own, group):
            self.cwnd_bytes = window

    scenario = towpath.Scenario("two-links").replace({"run.congestion-control": "bad"})
    with pytest.raises(ValueError, match="`cwnd_bytes` is .*: expected at least one byte"):
        towpath.run(scenario, transports="tcp", congestion_controls={"bad": Bad})


def test_a_component_that_stops_virtual_time_is_an_error():
    class Stuck(Traffic):
        def poll(self, now, stream):
            return None

        def next_due(self, stream):
            return 0.0

        def is_done(self, stream):
            return False

    with pytest.raises(RuntimeError, match="the component never waits"):
        towpath.run(REQUESTS, transports="tcp", traffic={0: Stuck})


def test_components_that_have_no_effect_are_refused():
    with pytest.raises(errors.UnavailableError, match="no host uses the scheduler `mine`") as refused:
        towpath.run("two-links", schedulers={"mine": LowestSrtt})
    assert refused.value.hint == 'set `run.scheduler` or that of a host to "mine"'
    with pytest.raises(errors.UnavailableError, match="no host uses the congestion control `own`"):
        towpath.run("two-links", congestion_controls={"own": Lia})
    with pytest.raises(errors.UnavailableError, match="flow 0 has the pattern `.*`, which has no"):
        towpath.run("two-links", traffic={0: EveryPeriod})
    with pytest.raises(errors.UnavailableError, match="flow 5 has the pattern `none`"):
        towpath.run(REQUESTS, traffic={5: EveryPeriod})


def test_the_emulated_world_refuses_components_with_the_reason():
    with pytest.raises(errors.UnavailableError, match="its hosts use kernels") as refused:
        towpath.run("two-links", world="emu", schedulers={"mine": LowestSrtt})
    assert refused.value.hint == 'use `world="sim"`'


def test_times_that_a_component_computes_are_reached():
    """A wait until a time that is no whole number of nanoseconds ends at or after that time."""
    late = []

    class Fractions(Traffic):
        def begin(self, now):
            self.times = iter([now + number / 3 * 0.0701 for number in range(25)])
            self.due = next(self.times)

        def poll(self, now, stream):
            if self.due is None or self.due > now:
                return None
            late.append(now - self.due)
            request, self.due = Request(self.due, 100, 100), next(self.times, None)
            return request

        def next_due(self, stream):
            return getattr(self, "due", None)

        def is_done(self, stream):
            return getattr(self, "due", 0) is None

    towpath.run(REQUESTS, transports="tcp", traffic={0: Fractions})
    assert len(late) == 25 and all(0 <= delay < 2e-9 for delay in late)


def test_ctrl_c_ends_an_endless_loop_of_a_component():
    script = """
import os
import towpath
from towpath.components import Scheduler
class Endless(Scheduler):
    def next(self, view):
        os.write(1, b"begun\\n")
        while True:
            pass
scenario = towpath.Scenario("two-links").replace({"run.scheduler": "endless"})
towpath.run(scenario, transports="mptcp", seeds=4, schedulers={"endless": Endless})
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors


def test_views_show_themselves():
    shown = []

    class Shows(LowestSrtt):
        def next(self, view):
            if not shown and len(view.paths) == 2:
                shown.extend([repr(view), repr(view.paths[0]), repr(Decision.send(1, 5))])
            return super().next(view)

    scenario = towpath.Scenario("two-links").replace({**TIMED, "run.scheduler": "shows"})
    towpath.run(scenario, transports="mptcp", schedulers={"shows": Shows})
    assert shown[0].startswith("<ConnectionView at 0.")
    assert shown[1].startswith("<PathView 0: srtt 0.")
    assert shown[2] == "<Decision: send 5 bytes on path 1>"
