"""The body by itself: many gzip members, and our credentials in it."""

from __future__ import annotations

import gzip
import json
import os
import time

import pytest

from ufwatch.model import Reason
from ufwatch.sources.body import inflate, redact
from ufwatch.sources.failure import FetchError

EMPTY = gzip.compress(b"", mtime=0)


def test_very_many_members_are_refused_at_once() -> None:
    began = time.process_time()
    with pytest.raises(FetchError, match="more than 64 gzip members") as caught:
        inflate(EMPTY * 80_000, 16 << 20)
    assert caught.value.reason is Reason.CONTENT
    assert time.process_time() - began < 1


def test_some_members_with_padding_are_one_body() -> None:
    body = os.urandom(300_000)  # more than one piece, compressed too
    data = gzip.compress(body, mtime=0) + bytes(100_000) + gzip.compress(b"b", mtime=0) + EMPTY * 62
    assert inflate(data, 300_001) == body + b"b"
    with pytest.raises(FetchError, match="more than 300000 bytes"):
        inflate(data, 300_000)


SECRET = 'ses"ame\\4711 <  key'


@pytest.mark.parametrize(
    "echo",
    [
        SECRET,
        json.dumps({"sent": SECRET}),
        json.dumps(SECRET)[:-4],
        " ".join(SECRET.split()),
        "ses&quot;ame\\4711 &lt; key",
    ],
)
def test_a_secret_is_hidden_in_whatever_form_it_comes_back(echo: str) -> None:
    shown = redact(f"a 401: {echo}", (SECRET,))
    assert "***" in shown
    assert "ame" not in shown
    assert "key" not in shown


def test_the_longest_secret_is_hidden_first() -> None:
    assert redact("a user:pass b", ("pass", "user:pass")) == "a *** b"
