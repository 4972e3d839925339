"""What servers said of requests, kept for a while and found again by trace id or request id.

Bounded whatever comes in: so many requests, each of a bounded size, and none for longer than a minute. vLLM sends its
spans in batches up to 5 s after the request ended, so whoever asks usually waits: :meth:`JoinTable.wait_for`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from ufwatch.trace.server_spans import (
    ModelLoad,
    ServerSpan,
    is_load_phase,
    is_native_child,
    is_request,
    load_of,
    request_key,
)

_MOST_REQUESTS = 4096
_KEPT_SECONDS = 60.0
_MOST_LOADS, _MOST_LOAD_SPANS = 8, 512
_MOST_WAITING = 1024


class JoinTable:
    """Requests' spans by both keys, the parents of native children, and model loads.

    ``now`` gives monotonic seconds. Not thread-safe: everything happens in one event loop.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        most_requests: int = _MOST_REQUESTS,
        kept_seconds: float = _KEPT_SECONDS,
    ) -> None:
        self._now, self._most, self._kept = now, most_requests, kept_seconds
        self._arrived: OrderedDict[str, tuple[float, ServerSpan]] = OrderedDict()
        self._by_trace: dict[str, list[ServerSpan]] = {}
        self._by_request: dict[str, list[ServerSpan]] = {}
        self._natives: OrderedDict[str, None] = OrderedDict()
        self._loads: OrderedDict[str, list[ServerSpan]] = OrderedDict()
        self._waiting: dict[asyncio.Future[ServerSpan], tuple[str, str]] = {}
        self.forgotten = 0
        """Requests' spans that gave way before their time, because there were too many."""

    def __len__(self) -> int:
        """How many requests' spans are kept."""
        return len(self._arrived)

    def add(self, spans: Iterable[ServerSpan]) -> None:
        """Takes what has been received; spans of other kinds are passed over, a span that comes twice counts once."""
        self._expire()
        for span in spans:
            if is_request(span.name):
                self._add_request(span)
            elif is_native_child(span.name):
                self._natives[span.parent_id] = None
                if len(self._natives) > self._most:
                    self._natives.popitem(last=False)
            elif is_load_phase(span.name):
                self._add_load(span)

    def get(self, span_id: str) -> ServerSpan | None:
        """The request's span of this id, where it has come and is kept yet."""
        arrived = self._arrived.get(span_id)
        return None if arrived is None else arrived[1]

    def has_native(self, span_id: str) -> bool:
        """Whether vLLM itself sent children of this span."""
        return span_id in self._natives

    def find(self, trace_id: str, request_id: str = "") -> ServerSpan | None:
        """The span of a request: by the trace, within it by the request's id where several have come; where the trace
        was lost, by the request's id alone, which may be the client's or the one in the answer. None also where it
        would be a guess."""
        self._expire()
        key = request_key(request_id)
        here = self._by_trace.get(trace_id, [])
        named = [span for span in here if key and span.request_id == key]
        if named or len(here) == 1:
            return (named or here)[0]
        if here or not key:
            return None
        elsewhere = self._by_request.get(key, [])
        return elsewhere[-1] if elsewhere else None

    async def wait_for(self, trace_id: str, request_id: str, timeout: float) -> ServerSpan | None:
        """As :meth:`find`, as soon as it has come; None after ``timeout`` seconds."""
        found = self.find(trace_id, request_id)
        if found is not None or timeout <= 0 or len(self._waiting) >= _MOST_WAITING:
            return found
        coming: asyncio.Future[ServerSpan] = asyncio.get_running_loop().create_future()
        self._waiting[coming] = (trace_id, request_id)
        try:
            async with asyncio.timeout(timeout):
                return await coming
        except TimeoutError:
            return None
        finally:
            del self._waiting[coming]

    @property
    def loads(self) -> tuple[ModelLoad, ...]:
        """The model loads that have ended, the latest last."""
        return tuple(load for spans in self._loads.values() if (load := load_of(spans)) is not None)

    def _add_request(self, span: ServerSpan) -> None:
        if span.span_id in self._arrived:
            return
        while len(self._arrived) >= self._most:
            self._forget_oldest()
            self.forgotten += 1
        self._arrived[span.span_id] = (self._now(), span)
        self._by_trace.setdefault(span.trace_id, []).append(span)
        if span.request_id:
            self._by_request.setdefault(span.request_id, []).append(span)
        if self._waiting:
            self._tell(span)

    def _tell(self, span: ServerSpan) -> None:
        """Wakes whoever waits for this span."""
        for coming, (trace_id, request_id) in self._waiting.items():
            if span.trace_id != trace_id and span.request_id != request_key(request_id):
                continue
            found = self.find(trace_id, request_id)
            if found is not None and not coming.done():
                coming.set_result(found)

    def _add_load(self, span: ServerSpan) -> None:
        spans = self._loads.setdefault(span.trace_id, [])
        if len(spans) < _MOST_LOAD_SPANS and all(known.span_id != span.span_id for known in spans):
            spans.append(span)
        if len(self._loads) > _MOST_LOADS:
            self._loads.popitem(last=False)

    def _expire(self) -> None:
        oldest_allowed = self._now() - self._kept
        while self._arrived and next(iter(self._arrived.values()))[0] < oldest_allowed:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, span) = self._arrived.popitem(last=False)
        for table, key in ((self._by_trace, span.trace_id), (self._by_request, span.request_id)):
            if key in table:
                table[key].remove(span)
                if not table[key]:
                    del table[key]
