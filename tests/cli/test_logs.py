"""Our own log: one line per event, whatever is logged, and no secret in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from ufwatch.cli.logs import setup_logging


@pytest.fixture(autouse=True)
def _root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(format: str, message: str, *arguments: object, **fields: object) -> str:
    stream = io.StringIO()
    setup_logging("info", format, stream)
    logging.getLogger("ufwatch.test").info(message, *arguments, extra={"fields": fields})
    return stream.getvalue()


def after_time(line: str) -> str:
    stamp, _, rest = line.partition(" ")
    assert stamp.startswith("ts=20")
    assert stamp.endswith("Z")
    return rest


def test_text_is_logfmt() -> None:
    line = logged(
        "text", "target %s", "down", target="chat-a", reason="connect", after=2.5, tries=3, last=None, ok=False
    )
    assert after_time(line) == (
        'level=info msg="target down" target=chat-a reason=connect after=2.5 tries=3 last=null ok=false\n'
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("", '""'),
        ("a b", '"a b"'),
        ('say "x"', '"say \\"x\\""'),
        ("a=b", '"a=b"'),
        ("a\nlevel=error", '"a\\nlevel=error"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("a\u2028b", '"a\\u2028b"'),
        ("\ud800", '"\\ud800"'),
        ("é", "é"),
        (float("nan"), "nan"),
        ([1, "a"], "\"[1, 'a']\""),
    ],
)
def test_a_value_never_breaks_its_line(value: object, written: str) -> None:
    assert after_time(logged("text", "m", k=value)) == f"level=info msg=m k={written}\n"


def test_a_field_key_never_breaks_its_line() -> None:
    assert after_time(logged("text", "m", **{"a b\n=": 1})) == "level=info msg=m a_b__=1\n"


def test_json_is_one_object_per_line() -> None:
    line = logged("json", "target\ndown", target="é\n", share=float("inf"))
    assert line.count("\n") == 1
    found = json.loads(line, parse_constant=lambda constant: pytest.fail(constant))
    assert found.pop("ts").endswith("Z")
    assert found == {"level": "info", "msg": "target\ndown", "target": "é\n", "share": "inf"}


def test_a_field_cannot_pose_as_the_level() -> None:
    assert json.loads(logged("json", "m", level="error", msg="x"))["level"] == "info"


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_secret_is_written(format: str) -> None:
    line = logged(
        format,
        "GET http://user:hunter2@h:1/x?api_key=hunter2&a=1 with Bearer hunter2hunter2",
        api_key="hunter2",
        Authorization="hunter2",
        url="https://user:hunt@hunter2@h/",
        header="Basic aHVudGVyMmh1bnRlcjI=",
        error=ValueError("http://u:hunter2@h"),
    )
    assert "hunter2" not in line
    assert "aHVudGVyMmh1bnRlcjI" not in line
    assert "a=1" in line


def test_a_traceback_stays_on_the_line_and_is_redacted() -> None:
    stream = io.StringIO()
    setup_logging("info", "text", stream)
    try:
        raise ValueError("http://u:hunter2@h")
    except ValueError:
        logging.getLogger("ufwatch.test").exception("scrape failed")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "logger=ufwatch.test" in line
    assert "ValueError" in line
    assert "hunter2" not in line


def test_the_level_holds_and_a_second_setup_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging("debug", "text", first)
    setup_logging("warning", "json", second)
    logging.getLogger("ufwatch.test").info("quiet")
    logging.getLogger("aiohttp.access").warning("loud")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["msg"] == "loud"
