"""Multipath transport experiments: scenarios, runs, results and sweeps.

    >>> import towpath
    >>> result = towpath.run("two-links", transports=["tcp", "mptcp"], seeds=1)
    >>> result.runs.column("transport")
    ['tcp', 'mptcp']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from towpath import errors
from towpath._api import (
    Comparison,
    Reproduction,
    Result,
    Scenario,
    Table,
    command,
    compare,
    read,
    reproduce,
    run,
    scenarios,
    trace,
)
from towpath._native import __version__
from towpath.errors import Error

if TYPE_CHECKING:
    from towpath import components, plot
    from towpath.engines import Sweep, sweep

__all__ = [
    "Comparison",
    "Error",
    "Reproduction",
    "Result",
    "Scenario",
    "Sweep",
    "Table",
    "__version__",
    "command",
    "compare",
    "components",
    "errors",
    "plot",
    "read",
    "reproduce",
    "run",
    "scenarios",
    "sweep",
    "trace",
]

# Imported at first use, so that `import towpath` stays fast.
_LAZY = {"Sweep": "towpath.engines", "sweep": "towpath.engines"}
_LAZY_MODULES = {"components", "plot"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY_MODULES:
        value = importlib.import_module(f"towpath.{name}")
    elif name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module `towpath` has no attribute `{name}`")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
