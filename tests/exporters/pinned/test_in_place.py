"""How it writes in place, as a library preloaded beside it sees it and spoils it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exporters.pinned.built import ALLOC, Built, counts, files, only, only_path, run, running, until
from ufwatch.sources.textfile import read_directory


def _spied(built: Built, exports: Path, monkeypatch: pytest.MonkeyPatch, fail: str, size: str) -> list[list[str]]:
    """The writes in place of a program that counts three times, as spy.c tells them."""
    log = exports.with_name("log")
    for name, value in (("SPY_LOG", str(log)), ("SPY_FAIL", fail), ("SPY_SIZE", size)):
        monkeypatch.setenv(name, value)
    spy = built.compile("spy.so", "-fPIC", "-shared", Path(__file__).with_name("spy.c"))
    does = (*ALLOC, "wait", *ALLOC, "wait", *ALLOC)
    with running(built.program(), *does, library=f"{built.library()}:{spy}", directory=exports) as program:
        program.waiting()
        until(lambda: bool(files(exports)))
        program.go_on()
        program.waiting()
        until(lambda: any(counts(file)["attempts"] == 2 for file in read_directory(exports).files.values()))
        program.go_on()
        assert program.end() == 0
    assert only(exports)["attempts"] == 3
    return [line.split() for line in log.read_text().splitlines()]


def test_the_number_is_odd_before_and_even_after_each_write(
    built: Built, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = _spied(built, exports, monkeypatch, "", "0")
    size = only_path(exports).stat().st_size
    assert len(writes) >= 6
    assert len(writes) % 3 == 0
    last = 0
    for before, body, after in zip(writes[::3], writes[1::3], writes[2::3], strict=True):
        assert [before[0], body[0], after[0]] == ["20", str(size), "20"]
        assert (before[1], body[1]) == (after[1], "0")
        odd, within, even = int(before[2]), int(body[2]), int(after[2])
        assert odd % 2 == 1
        assert (odd, even) == (within, odd + 1)
        assert odd > last
        last = even


@pytest.mark.parametrize("fail", ["f", "s", "sf"])
@pytest.mark.parametrize("what", ["number", "body"])
def test_a_write_that_fails_is_made_up_for(
    built: Built, exports: Path, monkeypatch: pytest.MonkeyPatch, fail: str, what: str
) -> None:
    """Of the body or of a number: whatever was left behind, the next turn's write puts it right."""
    run(built.program(), *ALLOC, library=built.library(), directory=exports)
    size = only_path(exports).stat().st_size
    only_path(exports).unlink()
    writes = _spied(built, exports, monkeypatch, fail, "20" if what == "number" else str(size))
    assert sum(int(result) != int(wanted) for wanted, _, _, result in writes) == len(fail)
    assert all(int(number) % 2 for wanted, _, number, _ in writes if wanted != "20")
