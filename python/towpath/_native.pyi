"""Types of the compiled part of the package."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

__all__ = [
    "AckSample",
    "ConnectionView",
    "Decision",
    "PathView",
    "Runs",
    "Scenario",
    "Sibling",
    "Sweep",
    "Table",
    "__version__",
    "analyse_capture",
    "builtin_names",
    "simulate",
    "toml_from_json",
]

__version__: str

@final
class Scenario:
    """A checked scenario."""

    @staticmethod
    def from_toml(text: str, *, name: str = ..., files: dict[str, str] | None = ...) -> Scenario: ...
    @staticmethod
    def from_file(path: str) -> Scenario: ...
    @staticmethod
    def builtin(name: str) -> Scenario: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def toml(self) -> str: ...
    @property
    def files(self) -> dict[str, str]: ...
    @property
    def hosts(self) -> list[str]: ...
    @property
    def paths(self) -> list[str]: ...
    @property
    def transports(self) -> list[str]: ...
    @property
    def seed(self) -> int: ...
    @property
    def duration(self) -> float: ...
    def changed(self, changes: Sequence[tuple[str, str]]) -> Scenario: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Table:
    """A table with typed columns, shared with other libraries without a copy."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def units(self) -> dict[str, str]: ...
    def column(self, name: str) -> list[Any]: ...
    def concat(self, others: Sequence[Table]) -> Table: ...
    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = ...) -> object: ...

@final
class Runs:
    """Results of some runs."""

    @staticmethod
    def read(paths: Sequence[str]) -> Runs: ...
    @staticmethod
    def from_lines(lines: Sequence[tuple[str, bytes]]) -> Runs: ...
    @property
    def labels(self) -> list[str]: ...
    @staticmethod
    def table_names() -> list[str]: ...
    def table(self, name: str) -> Table: ...
    def meta(self, index: int) -> str: ...
    def summary(self, index: int) -> str | None: ...
    def lines(self, index: int) -> list[str]: ...
    def text(self, width: int = ...) -> str: ...
    def html(self) -> str: ...
    def warnings(self) -> list[tuple[str, str | None]]: ...
    def comparison_json(self, seed: int = ...) -> str: ...
    def comparison_text(self, seed: int = ..., width: int = ...) -> str: ...
    def comparison_html(self, seed: int = ...) -> str: ...
    def select(self, indices: Sequence[int]) -> Runs: ...
    def joined(self, other: Runs) -> Runs: ...
    def __len__(self) -> int: ...

@final
class Sweep:
    """A sweep: the runs of a plan, stored as chunks."""

    @staticmethod
    def begin(
        plan: str,
        location: str,
        *,
        files: dict[str, str] | None = ...,
        folder: str | None = ...,
        quick: bool = ...,
        seeds: int | None = ...,
        chunk: int | None = ...,
    ) -> Sweep: ...
    @staticmethod
    def open(location: str) -> Sweep: ...
    @property
    def name(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def chunks(self) -> int: ...
    @property
    def runs(self) -> int: ...
    @property
    def done(self) -> int: ...
    def pending(self) -> list[int]: ...
    def run_chunk(
        self, index: int, workers: int = ..., progress: Callable[[int, int], object] | None = ...
    ) -> str: ...
    def work(
        self, workers: int, progress: Callable[[int, int], object] | None = ...
    ) -> None: ...
    def table(self) -> Table: ...
    def verify(self, runs: int, seed: int, workers: int) -> list[str]: ...

@final
class PathView:
    """One path, as a scheduler sees it. Only paths that may carry data have a view."""

    @property
    def id(self) -> int:
        """Number of the path within its connection."""
    @property
    def backup(self) -> bool:
        """True if either end set the backup flag: use only when no other path works."""
    @property
    def stale(self) -> bool:
        """True if nothing was acknowledged for several retransmission timeouts."""
    @property
    def silent_rounds(self) -> int:
        """Consecutive timeouts of the connection with data outstanding and nothing received."""
    @property
    def phase(self) -> str:
        """Phase of loss recovery: ``open``, ``recovery`` or, after a timeout, ``loss``."""
    @property
    def slow_start(self) -> bool:
        """True if the congestion window is below the threshold."""
    @property
    def srtt(self) -> float:
        """Smoothed round-trip time."""
    @property
    def rttvar(self) -> float:
        """Mean deviation of the round-trip time."""
    @property
    def min_rtt(self) -> float:
        """Smallest round-trip time."""
    @property
    def rto(self) -> float:
        """Retransmission timeout, without back-off."""
    @property
    def timeouts(self) -> int:
        """Consecutive retransmission timeouts."""
    @property
    def mss_bytes(self) -> int:
        """Payload of a full packet."""
    @property
    def cwnd_bytes(self) -> int:
        """Congestion window."""
    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and neither acknowledged nor lost."""
    @property
    def queued_bytes(self) -> int:
        """Bytes assigned to the path and not yet sent."""
    @property
    def memory_bytes(self) -> int:
        """Sender memory of data sent or waiting."""
    @property
    def pacing_rate(self) -> int:
        """Pacing rate in bytes per second."""
    @property
    def room_bytes(self) -> int:
        """Bytes of new data that the path would take now."""

@final
class ConnectionView:
    """A connection, as a scheduler sees it."""

    @property
    def now(self) -> float:
        """Time of the view."""
    @property
    def paths(self) -> list[PathView]:
        """Paths that may carry data, by id."""
    @property
    def unsent_bytes(self) -> int:
        """Bytes in the send buffer that were never sent."""
    @property
    def unsent_from(self) -> int:
        """Data sequence number of the first unsent byte."""
    @property
    def window_bytes(self) -> int:
        """Remaining bytes in the peer's window of the connection."""
    @property
    def unacked_bytes(self) -> int:
        """Bytes sent and not acknowledged by the peer's connection."""
    @property
    def send_buffer_full(self) -> bool:
        """True if the application waits for room in the send buffer."""
    @property
    def head(self) -> tuple[tuple[int, int], list[int]] | None:
        """Oldest unacknowledged data (first byte, length), and the paths that sent it."""
    def first_unsent_on(self, path: PathView | int) -> tuple[int, int] | None:
        """Return the first range that the path has not sent; needs ``duplicates_data``."""

@final
class Decision:
    """Decision of a scheduler."""

    @staticmethod
    def send(path: PathView | int, max_bytes: int | None = ...) -> Decision:
        """Send new data on a path."""
    @staticmethod
    def duplicate(paths: Sequence[PathView | int], max_bytes: int | None = ...) -> Decision:
        """Send the same new data on several paths."""
    @staticmethod
    def reinject(path: PathView | int, range: tuple[int, int]) -> Decision:
        """Send data again that another path has sent."""
    @staticmethod
    def wait(until: float | None = ...) -> Decision:
        """Wait for an acknowledgement, at most until this time."""
    @staticmethod
    def idle() -> Decision:
        """Send nothing now."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class AckSample:
    """Acknowledgement of new data on a path."""

    @property
    def now(self) -> float:
        """Time of the acknowledgement."""
    @property
    def acked_bytes(self) -> int:
        """Bytes newly acknowledged."""
    @property
    def in_flight_bytes(self) -> int:
        """Bytes in flight before this acknowledgement."""
    @property
    def rtt(self) -> float | None:
        """Round-trip time measured by this acknowledgement."""
    @property
    def srtt(self) -> float:
        """Smoothed round-trip time."""
    @property
    def min_rtt(self) -> float:
        """Smallest round-trip time."""
    @property
    def cwnd_limited(self) -> bool:
        """True if the window, not the application, limited sending in the last round trip."""
    @property
    def round_ended(self) -> bool:
        """True if this acknowledgement ends a round trip."""
    @property
    def in_recovery(self) -> bool:
        """True during fast recovery, when windows do not grow."""

@final
class Sibling:
    """A path of the connection, for coupled congestion controls."""

    @property
    def id(self) -> int:
        """Number of the path."""
    @property
    def cwnd_bytes(self) -> int:
        """Congestion window."""
    @property
    def srtt(self) -> float:
        """Smoothed round-trip time."""
    @property
    def between_losses(self) -> tuple[int, int]:
        """Bytes acknowledged since the last loss, and between the last two losses."""
    @property
    def mss_bytes(self) -> int:
        """Payload of a full packet."""
    @property
    def slow_start(self) -> bool:
        """True if the path is in slow start."""

def builtin_names() -> list[str]: ...
def simulate(
    scenario: Scenario,
    transports: Sequence[str],
    seeds: Sequence[int],
    workers: int,
    progress: Callable[[int, int], object] | None = ...,
    components: Mapping[str, Mapping[Any, Callable[..., object]]] | None = ...,
) -> Runs: ...
def analyse_capture(path: str, other: str | None, top: int) -> Runs: ...
def toml_from_json(json: str) -> str: ...
