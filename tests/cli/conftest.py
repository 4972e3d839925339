"""What the tests of the verbs share: they run in this process, on simulated servers in a thread beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulators import BUSY, Simulators
from ufwatch import configfile
from ufwatch.cli.main import main
from ufwatch.configschema import seconds
from ufwatch.sim.server import SimServer

SHORT = "300ms"
Verb = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="package")
def simulators() -> Iterator[Simulators]:
    with Simulators() as running:
        yield running


@pytest.fixture(scope="package")
def server(simulators: Simulators) -> SimServer:
    """A steady server that nobody does anything to."""
    return simulators.start(BUSY)


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Runs a verb with an empty environment; exit code, output and complaints.

    Intervals under the second that users may go down to are allowed, or these tests would mostly wait.
    """
    monkeypatch.setattr(configfile, "interval", seconds(0.1, 60))

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words, {})
        except SystemExit as error:
            code = int(error.code or 0)
        out, complaints = capsys.readouterr()
        return code, out, complaints

    return run


@pytest.fixture
def verb_json(verb: Verb) -> Callable[..., tuple[int, Any]]:
    """Runs a verb with ``--json`` over a short time; exit code and document."""

    def run(*words: str) -> tuple[int, Any]:
        code, out, complaints = verb(*words, "--interval", SHORT, "--json")
        assert complaints == ""
        return code, json.loads(out)

    return run
