"""``ufwatch VERB``: one line for every mistake, and nothing but what was asked for on a closed pipe or a full disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

import ufwatch
from tests.cli.conftest import Verb
from tests.processes import COMMAND, environment
from ufwatch.cli.main import VERBS

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "VERB"),
        (("rum",), "invalid choice: 'rum'"),
        (("run", "--targets", NOBODY), "--targets"),
        (("run", "--target"), "--target"),
        (("run", "--target", "ftp://x"), '--target: scheme "ftp" is not http or https'),
        (("run", "--target", NOBODY, "--port", "70000"), "--port"),
        (("run", "--target", NOBODY, "--interval", "0"), "--interval"),
        (("run", "--target", NOBODY, "--log-level", "loud"), "--log-level"),
        (("run", "--target", NOBODY, "--web.config.file", "/nonexistent"), "--web.config.file"),
        (("once", "--target", NOBODY, "--port", "1"), "--port"),
        (("demo", "--seconds", "soon"), "--seconds"),
        (("demo", "--seconds", "0"), "--seconds"),
        (("doctor",), "no target; give --target http://HOST:PORT"),
        (("signals",), "no target; give --target http://HOST:PORT"),
        (("once",), "no target; give --target http://HOST:PORT"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(words: tuple[str, ...], part: str, verb: Verb) -> None:
    code, out, complaints = verb(*words)
    assert (code, out, complaints.count("\n")) == (2, "", 1)
    assert complaints.startswith("ufwatch")
    assert part in complaints
    assert "ufwatch: ufwatch" not in complaints


def test_several_mistakes_are_told_at_once(verb: Verb) -> None:
    code, _, complaints = verb("run", "--target", "x", "--interval", "0", "--port", "-1")
    assert code == 2
    assert [line.split(": ")[1] for line in complaints.splitlines()] == ["--target", "--interval", "--port"]


def test_the_version_is_the_packages(verb: Verb) -> None:
    assert verb("--version") == (0, f"ufwatch {ufwatch.__version__}\n", "")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help(name: str, verb: Verb) -> None:
    code, out, complaints = verb(name, "--help")
    assert (code, complaints) == (0, "")
    assert out.startswith(f"usage: ufwatch {name} ")
    assert VERBS[name][1:] in " ".join(out.split())


@contextlib.contextmanager
def _closed_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextlib.contextmanager
def _full_disk() -> Iterator[int]:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        yield full
    finally:
        os.close(full)


def _written_to(descriptor: int, *words: str) -> tuple[int, str]:
    command = [*COMMAND, *words]
    done = subprocess.run(
        command, stdout=descriptor, stderr=subprocess.PIPE, text=True, timeout=30, env=environment(), check=False
    )
    return done.returncode, done.stderr


WRITERS = [
    ("--help",),
    ("run", "--target", NOBODY, "--check-config"),
    ("once", "--target", NOBODY, "--interval", "1s", "--samples", "1", "--json"),
    ("demo", "--seconds", "1", "--port", "0"),
]


@pytest.mark.parametrize("words", WRITERS, ids=lambda words: words[0])
def test_a_reader_that_has_gone_is_met_with_silence(words: tuple[str, ...]) -> None:
    with _closed_pipe() as pipe:
        assert _written_to(pipe, *words) == (0, "")


@pytest.mark.parametrize("words", WRITERS[1:3], ids=lambda words: words[0])
def test_a_full_disk_is_one_line_and_exit_2(words: tuple[str, ...]) -> None:
    with _full_disk() as disk:
        assert _written_to(disk, *words) == (2, "ufwatch: No space left on device\n")
