"""Exceptions of the package: all are subclasses of :class:`Error`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "Error",
    "Problem",
    "ReadError",
    "RunError",
    "ScenarioError",
    "SweepError",
    "UnavailableError",
]


class Problem(NamedTuple):
    """A mistake in a scenario or plan. Line and column count from 1."""

    line: int | None
    column: int | None
    message: str
    hint: str | None


class Error(Exception):
    """Base class of all errors, with a hint for the user if there is one."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ScenarioError(Error):
    """A scenario or a plan has mistakes: see :attr:`problems`."""

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        problems: Sequence[tuple[int | None, int | None, str, str | None]] = (),
    ) -> None:
        super().__init__(message, hint)
        self.problems: list[Problem] = [Problem(*problem) for problem in problems]
        self.args: tuple[Any, ...] = (message, hint, tuple(map(tuple, self.problems)))


class RunError(Error):
    """A run has no result."""


class ReadError(Error):
    """A file cannot be read."""


class SweepError(Error):
    """A sweep cannot go on."""


class UnavailableError(Error):
    """The request cannot be carried out here, for example without Linux or without a package."""
