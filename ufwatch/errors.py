"""Every error that may reach a user: one line that says what failed, where, and what to do. Exit code 2."""

from __future__ import annotations

from collections.abc import Sequence


class UfwatchError(Exception):
    """Root of the tree; ``str()`` is the line shown, without a traceback."""


class ConfigError(UfwatchError):
    """All mistakes of a configuration at once, each as ``path: what is wrong; what to do``."""

    def __init__(self, where: str, mistakes: Sequence[str]) -> None:
        self.where = where
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{where}: {mistake}" for mistake in self.mistakes))


class ListenError(UfwatchError):
    """The address we should serve on cannot be bound."""


class SourceError(UfwatchError):
    """A source cannot be set up at all (a missing extra, an unreadable file), as opposed to failing for a while."""
