"""Schedulers, congestion controls and traffic written in Python, for simulated runs.

A subclass is given to :func:`towpath.run` under a name that the scenario uses. The simulator
creates an object for each connection, path or flow, and calls it in virtual time. Times are
seconds since the run began.

    >>> import towpath
    >>> from towpath.components import Scheduler
    >>> class Shortest(Scheduler):
    ...     def next(self, view):
    ...         free = [path for path in view.paths if path.room_bytes > 0]
    ...         return min(free, key=lambda path: path.srtt, default=None)
    >>> scenario = towpath.Scenario("two-links").replace({"run.scheduler": "shortest"})
    >>> result = towpath.run(scenario, transports="mptcp", schedulers={"shortest": Shortest})
    >>> result.metas[0]["conditions"]["added schedulers"]
    'shortest'
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from towpath._native import AckSample, ConnectionView, Decision, PathView, Sibling

__all__ = [
    "AckSample",
    "CongestionControl",
    "ConnectionView",
    "Decision",
    "PathView",
    "Request",
    "Scheduler",
    "Sibling",
    "Traffic",
]


def _interrupt(threads: Sequence[int]) -> None:
    """Raise KeyboardInterrupt in the Python code of some threads."""
    import ctypes

    for thread in threads:
        exception = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


class Scheduler:
    """Chooses the path for the next bytes of a connection. Created without arguments.

    With a single path, the stack sends on it without a call.
    """

    duplicates_data: bool = False
    """Set if the scheduler sends data again by itself, as `redundant` does. It is then also called
    without new data, and :meth:`ConnectionView.first_unsent_on` works."""

    needs_room: bool = False
    """Set if a call has no effect while no path has room. The stack then omits such calls."""

    fills_subflow_queues: bool = False
    """Set if paths get more than their windows have room for, as in Linux. ``room_bytes`` is then
    the room in the path's own queue."""

    switch_reason: str | None = None
    """Reason why the last decision left the preferred path: ``rtt-threshold``, ``rto``,
    ``rto-threshold`` or ``gone``. Appears in results."""

    def next(self, view: ConnectionView) -> Decision | PathView | None:
        """Decide what to send next.

        A path means: send new data on it, as much as it has room for. ``None`` sends nothing. The
        method is called again after each decision that sent something.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `next`")

    def reinject(
        self, view: ConnectionView, range: tuple[int, int], sent_on: Sequence[int]
    ) -> PathView | int | None:
        """Choose a path for data whose path may have failed.

        ``range`` is its first byte and its length, ``sent_on`` the paths that sent it so far. By
        default, the path with the lowest srtt among those with room that have not sent it.
        """
        raise NotImplementedError

    def on_event(self, event: str, path: int | None, bytes: int | None) -> None:
        """Record an event: ``sent``, ``acked``, ``lost``, ``timeout``, ``window-blocked``,
        ``opened`` or ``closed``."""


class CongestionControl:
    """Congestion control of one path. By default, Reno without HyStart.

    A subclass often overrides only :meth:`increase` and :meth:`decrease`. Overriding the other
    methods replaces slow start, the reaction to timeouts, and restarts after idle times. The stack
    reads the attributes after each call. Loss detection and recovery are the stack's.
    """

    is_coupled: bool = False
    """Set if ``group`` must hold the connection's other paths. Otherwise it may be empty."""

    pacing_percent: int | None = None
    """Pacing rate in percent of the window per round trip; ``None``: 200 in slow start, else 120."""

    cwnd_bytes: float
    """Congestion window. The stack ignores a fraction."""

    ssthresh_bytes: float
    """Slow start threshold, infinite at first."""

    between_losses: tuple[int, int]
    """Bytes acknowledged since the last loss, and between the last two losses."""

    def __init__(self, mss_bytes: int, initial_packets: int) -> None:
        self.mss_bytes: int = mss_bytes
        self.initial_bytes: int = mss_bytes * initial_packets
        self.cwnd_bytes = self.initial_bytes
        self.ssthresh_bytes = math.inf
        self.between_losses = (0, 0)
        self._fraction = 0.0
        self._before_loss: dict[str, Any] | None = None

    def increase(self, ack: AckSample, acked_bytes: int, own: int, group: Sequence[Sibling]) -> float:
        """Return the bytes by which the window grows in congestion avoidance.

        ``acked_bytes`` excludes bytes that were used up by slow start. ``own`` is the id of the
        path.
        """
        return acked_bytes * self.mss_bytes / self.cwnd_bytes

    def decrease(self, now: float, own: int, group: Sequence[Sibling]) -> float:
        """Return the window after loss or an ECN mark."""
        return self.cwnd_bytes / 2

    def on_ack(self, ack: AckSample, own: int, group: Sequence[Sibling]) -> None:
        """Record that new data was acknowledged."""
        since, before = self.between_losses
        self.between_losses = (since + ack.acked_bytes, before)
        if ack.in_recovery or not ack.cwnd_limited:
            return
        rest = ack.acked_bytes
        if self.cwnd_bytes < self.ssthresh_bytes:
            growth = min(rest, self.ssthresh_bytes - self.cwnd_bytes)
            self.cwnd_bytes += growth
            if self.cwnd_bytes < self.ssthresh_bytes:
                return
            rest -= int(growth)
        if rest > 0:
            growth = self._fraction + self.increase(ack, rest, own, group)
            whole_bytes = math.floor(growth)
            self._fraction = growth - whole_bytes
            self.cwnd_bytes = max(self.cwnd_bytes + whole_bytes, self.mss_bytes)

    def on_congestion(
        self, now: float, in_flight_bytes: int, own: int, group: Sequence[Sibling]
    ) -> None:
        """Set threshold and window after loss or an ECN mark; called once per window."""
        self._reduce(now, own, group)
        self.cwnd_bytes = self.ssthresh_bytes

    def on_recovered(self, now: float, cwnd_bytes: int) -> None:
        """End recovery: the window becomes ``cwnd_bytes``."""
        self.cwnd_bytes = max(cwnd_bytes, self.mss_bytes)
        self._fraction = 0.0

    def on_timeout(self, now: float, in_flight_bytes: int) -> None:
        """Reset the window to one packet after a retransmission timeout."""
        self._reduce(now, 0, ())
        self.cwnd_bytes = self.mss_bytes
        self.on_further_timeout()

    def on_further_timeout(self) -> None:
        """Discard knowledge of the path after another timeout of the same data."""

    def undo(self, now: float) -> None:
        """Restore the state before the last loss or timeout, which was spurious."""
        if self._before_loss is None:
            return
        cwnd, (since, _) = self.cwnd_bytes, self.between_losses
        self.__dict__.update(self._before_loss)
        self._before_loss = None
        # Acknowledgements in the meantime may have opened the window further.
        self.cwnd_bytes = max(cwnd, self.cwnd_bytes)
        self.ssthresh_bytes = max(self.ssthresh_bytes, 2 * self.mss_bytes)
        self.between_losses = (self.between_losses[0] + since, self.between_losses[1])

    def on_idle(self, now: float, idle: float, rto: float) -> None:
        """Record that nothing was sent for ``idle``: halve the window for each timeout that passed."""
        if rto <= 0 or idle < rto:
            return
        if not math.isinf(self.ssthresh_bytes):
            self.ssthresh_bytes = max(self.ssthresh_bytes, self.cwnd_bytes // 4 * 3)
        halvings = min(int(idle / rto), 63)
        floor = min(self.initial_bytes, int(self.cwnd_bytes))
        self.cwnd_bytes = max(int(self.cwnd_bytes) >> halvings, floor)
        self._fraction = 0.0

    def on_start(self, idle: float) -> None:
        """Record that sending resumes with nothing in flight after ``idle``, however short."""

    def penalise(self, now: float, ends_slow_start: bool) -> None:
        """Halve the window of a path that blocks the connection (M2)."""
        slow_start = self.cwnd_bytes < self.ssthresh_bytes
        self._fraction = 0.0
        self.cwnd_bytes = max(int(self.cwnd_bytes) // 2, self.mss_bytes)
        if ends_slow_start:
            self.ssthresh_bytes = max(self.cwnd_bytes, 2 * self.mss_bytes)
        elif not slow_start:
            self.ssthresh_bytes = max(self.ssthresh_bytes // 2, 2 * self.mss_bytes)

    def set_mss(self, mss_bytes: int) -> None:
        """Set a new packet size."""
        initial = self.initial_bytes // self.mss_bytes * mss_bytes
        if self.cwnd_bytes == self.initial_bytes:
            self.cwnd_bytes = initial
        elif mss_bytes < self.mss_bytes:
            self.cwnd_bytes = int(self.cwnd_bytes) * mss_bytes // self.mss_bytes
        self.initial_bytes = initial
        self.mss_bytes = mss_bytes
        self.cwnd_bytes = max(self.cwnd_bytes, mss_bytes)
        self.ssthresh_bytes = max(self.ssthresh_bytes, 2 * mss_bytes)

    def _reduce(self, now: float, own: int, group: Sequence[Sibling]) -> None:
        """Keep the state for :meth:`undo` and set the threshold."""
        self._before_loss = None
        self._before_loss = copy.deepcopy(self.__dict__)
        reduced = min(self.decrease(now, own, group), self.cwnd_bytes)
        self.ssthresh_bytes = max(int(reduced), 2 * self.mss_bytes)
        self.between_losses = (0, self.between_losses[0])
        self._fraction = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a flow. Its delay counts from ``due``, even if it is written later."""

    due: float
    request_bytes: int
    reply_bytes: int = 0
    ack: bool = False
    warm_up: bool = False


class Traffic:
    """Requests of one end of a flow. Created with ``"up"`` or ``"down"``, their direction.

    Replaces the schedule of a request pattern such as ``reqres``. The pattern's duration, direction
    and timeout for replies still apply.
    """

    def __init__(self, direction: str) -> None:
        self.direction = direction

    def begin(self, now: float) -> None:
        """Start: all connections of the flow are open."""

    def poll(self, now: float, stream: int) -> Request | None:
        """Return the next request if one is due. Called until it returns ``None``."""
        raise NotImplementedError(f"{type(self).__name__} has no method `poll`")

    def on_reply(self, now: float, stream: int) -> None:
        """Record that a request got its complete reply."""

    def next_due(self, stream: int) -> float | None:
        """Return the time at which :meth:`poll` has a request, if known already."""
        raise NotImplementedError(f"{type(self).__name__} has no method `next_due`")

    def is_done(self, stream: int) -> bool:
        """Return true if there will be no more requests."""
        raise NotImplementedError(f"{type(self).__name__} has no method `is_done`")
