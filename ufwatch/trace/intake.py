"""What happens to each request that arrives, by whichever protocol: counted, offered to the forwarder, then joined.

Nothing here waits. A full queue is no reason to make vLLM try again, which would only fill its own: the request is
taken, and the answer says in ``partial_success`` how many spans are not passed on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from ufwatch.trace.forward import Forwarder
from ufwatch.trace.joins import JoinTable
from ufwatch.trace.server_spans import ServerSpan
from ufwatch.trace.wire import SPANS_AT_A_TIME, answer, count_spans, inflated, known_in_turns, parsed


class Refusal(StrEnum):
    """Why a whole request was not taken."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    """A content type or an encoding that is not spoken here."""


class Received(NamedTuple):
    """Since the start; ``not_forwarded`` counts spans that were joined here but dropped on their way on."""

    requests: int
    spans: int
    not_forwarded: int
    refused: Mapping[Refusal, int]


class Intake:
    """Takes requests for ``joins`` and, where there is one, for ``forwarder``."""

    def __init__(self, joins: JoinTable, forwarder: Forwarder | None, *, cap_bytes: int) -> None:
        self._joins, self._forwarder, self.cap_bytes = joins, forwarder, cap_bytes
        self._requests = self._spans = self._not_forwarded = 0
        self._refused: Counter[Refusal] = Counter(dict.fromkeys(Refusal, 0))

    def take(self, body: bytes) -> bytes:
        """Takes a request, unpacked, and returns the response's bytes. Raises MalformedError."""
        request = parsed(body)
        spans = count_spans(request)
        self._requests += 1
        self._spans += spans
        # Joined once the answer is out.
        asyncio.get_running_loop().call_soon(self._join, known_in_turns(request))
        dropped = 0 if self._forwarder is None else self._forwarder.offer(body, spans)
        self._not_forwarded += dropped
        return answer(dropped, "ufwatch's queue to the trace backend is full: these spans are not passed on")

    def unpacked(self, body: bytes) -> bytes:
        """The content of a compressed body. Raises MalformedError and TooLargeError."""
        return inflated(body, self.cap_bytes)

    def refuse(self, why: Refusal) -> None:
        """Counts a request that was not taken."""
        self._refused[why] += 1

    @property
    def received(self) -> Received:
        """What came so far."""
        return Received(self._requests, self._spans, self._not_forwarded, dict(self._refused))

    def _join(self, spans: Iterator[ServerSpan | None]) -> None:
        some = list(islice(spans, SPANS_AT_A_TIME))
        self._joins.add(span for span in some if span is not None)
        if some:
            asyncio.get_running_loop().call_soon(self._join, spans)
