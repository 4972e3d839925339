"""What a stream of OpenAI chunks says: when the first token came, how many there were, how it ended.

Pure. A first token is the first delta with content, reasoning, a refusal, a part of a tool call, or text. A role, an
empty delta, usage and a comment are none. A chunk is not a token: how many tokens one brought is known only where the
server says so (running usage, token ids or log probabilities), and the gaps between chunks are gaps between chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ufwatch.trace.chunkjson import as_list, as_text, content_of, error_of, finite, json_object, own_count, usage_of
from ufwatch.trace.model import Chunk, Usage
from ufwatch.trace.sse import Event, EventTooLarge, SseParser

NO_USAGE = Usage()


class Trouble(NamedTuple):
    """What is wrong with an answer: ``error_event``, ``malformed`` or ``cut``, and one line of detail."""

    error_type: str
    detail: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers asked for. Moments are those of the reads; None where there was none."""

    index: int
    first_at: float | None
    first_visible_at: float | None
    """The first content that is not reasoning."""
    last_at: float | None
    chunks: int
    finish_reason: str | None
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole stream, without its words."""

    response_id: str = ""
    response_model: str = ""
    role_at: float | None = None
    """The first chunk that has a choice but no content, where it came before all content."""
    choices: tuple[Choice, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    usage: Usage = NO_USAGE
    metrics: Mapping[str, float] = field(default_factory=dict)
    """vLLM's per-request metrics as they were named, in milliseconds. Trap: its ``time_to_first_token_ms`` is the
    prefill alone."""
    events: int = 0
    done: bool = False
    """``[DONE]`` came."""
    trouble: Trouble | None = None


class _Arrival(NamedTuple):
    """A chunk, and what both ways of counting say of its tokens."""

    position: int
    chunk: Chunk
    by_usage: int | None


class _Tally:
    """One choice while it is read."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.arrivals: list[_Arrival] = []
        self.running = 0
        """Completion tokens at its last chunk."""
        self.finish_reason: str | None = None
        self.refused = False
        self._last_read = -1

    def add(self, position: int, at: float, read: int, body: Mapping[str, object], running: int | None) -> bool:
        """Whether the chunk ``body`` has content for this choice."""
        delta = body.get("delta")
        delta = delta if isinstance(delta, Mapping) else {}
        self.finish_reason = as_text(body.get("finish_reason")) or self.finish_reason
        self.refused = self.refused or bool(delta.get("refusal"))
        content = content_of(body, delta)
        if content is None:
            return False
        by_usage = None
        if running is not None and running >= self.running:
            # Tokens that a parser held back in chunks without content belong to the chunk that shows them.
            by_usage, self.running = running - self.running, running
        chunk = Chunk(
            at, self.index, content.characters, own_count(body), read == self._last_read, visible=content.visible
        )
        self._last_read = read
        self.arrivals.append(_Arrival(position, chunk, by_usage))
        return True

    def choice(self) -> Choice:
        moments = [arrival.chunk.at for arrival in self.arrivals]
        visible = next((arrival.chunk.at for arrival in self.arrivals if arrival.chunk.visible), None)
        first, last = (moments[0], moments[-1]) if moments else (None, None)
        return Choice(self.index, first, visible, last, len(moments), self.finish_reason, self.refused)

    def counted(self, *, usage_is_own: bool) -> list[_Arrival]:
        """The chunks with their tokens. Running usage is believed where it ran from the first chunk to the last: what
        came at the end alone would give all tokens to the last chunk."""
        if not usage_is_own or any(arrival.by_usage is None for arrival in self.arrivals):
            return self.arrivals
        return [arrival._replace(chunk=_counted(arrival.chunk, arrival.by_usage)) for arrival in self.arrivals]


def _counted(chunk: Chunk, tokens: int | None) -> Chunk:
    return Chunk(chunk.at, chunk.choice, chunk.characters, tokens, chunk.coalesced, chunk.visible)


class AnswerReader:
    """Takes events in order; what has gone wrong once stays wrong."""

    def __init__(self) -> None:
        self._tallies: dict[int, _Tally] = {}
        self._contents = 0
        self._response_id = self._model = ""
        self._role_at: float | None = None
        self._usage = NO_USAGE
        self._metrics: dict[str, float] = {}
        self._events = 0
        self._done = False
        self._trouble: Trouble | None = None

    @property
    def over(self) -> bool:
        """Nothing that follows counts: the end mark or an error came."""
        return self._done or self._trouble is not None

    @property
    def begun(self) -> bool:
        """Some choice has content."""
        return self._contents > 0

    def take(self, event: Event, at: float) -> None:
        """``at``: when the read that completed the event arrived."""
        data = event.data.strip()
        if self.over or not data:
            return
        self._events += 1
        if data == "[DONE]":
            self._done = True
            return
        body = json_object(data)
        if body is None:
            if event.ended:  # what is left of a cut stream is no fault of its own
                self._trouble = Trouble("malformed", "an event is not a JSON object")
            return
        error = error_of(body, event.kind)
        if error is not None:
            self._trouble = Trouble("error_event", error)
            return
        self._response_id = self._response_id or as_text(body.get("id"))
        self._model = self._model or as_text(body.get("model"))
        choices = [choice for choice in as_list(body.get("choices")) if isinstance(choice, Mapping)]
        completed = self._take_usage(body)
        for choice in choices:
            self._take_choice(choice, at, event.read, completed if len(choices) == 1 else None)

    def fail(self, trouble: Trouble) -> None:
        """The stream cannot be read on."""
        self._trouble = self._trouble or trouble

    def answer(self, wanted: int = 1) -> Answer:
        """All that was said. ``wanted`` choices were asked for: without an end mark, each must have finished."""
        tallies = [self._tallies[index] for index in sorted(self._tallies)]
        choices = tuple(tally.choice() for tally in tallies)
        finished = len(choices) >= wanted and all(choice.finish_reason is not None for choice in choices)
        trouble = self._trouble
        if trouble is None and not self._done and not finished:
            trouble = Trouble("cut", "the stream ended without [DONE] or a finish reason")
        # Of several choices, some servers count each by itself and some all together.
        own = len(tallies) == 1 or self._usage.completion_tokens == sum(tally.running for tally in tallies)
        arrivals = sorted(arrival for tally in tallies for arrival in tally.counted(usage_is_own=own))
        return Answer(
            response_id=self._response_id,
            response_model=self._model,
            role_at=self._role_at,
            choices=choices,
            chunks=tuple(arrival.chunk for arrival in arrivals),
            usage=self._usage,
            metrics=self._metrics,
            events=self._events,
            done=self._done,
            trouble=trouble,
        )

    def _take_usage(self, body: Mapping[str, object]) -> int | None:
        """Keeps the usage and the metrics of a chunk; its completion tokens, where it says them."""
        metrics, usage = body.get("metrics"), body.get("usage")
        if isinstance(metrics, Mapping):
            numbers = ((str(name), finite(value)) for name, value in metrics.items())
            self._metrics = {name: number for name, number in numbers if number is not None}
        if not isinstance(usage, Mapping):
            return None
        found = usage_of(usage)
        if found != NO_USAGE:
            self._usage = found
        return found.completion_tokens

    def _take_choice(self, body: Mapping[str, object], at: float, read: int, running: int | None) -> None:
        index = body.get("index")
        number = index if isinstance(index, int) and not isinstance(index, bool) else 0
        tally = self._tallies.setdefault(number, _Tally(number))
        if tally.add(self._contents, at, read, body, running):
            self._contents += 1
        elif self._role_at is None and not self.begun and tally.finish_reason is None:
            self._role_at = at


def read_answer(reads: Sequence[tuple[float, bytes]], *, wanted: int = 1) -> Answer:
    """The answer in a body that arrived as ``reads``: moment and bytes each. Nothing is raised."""
    parser, reader = SseParser(), AnswerReader()
    try:
        for at, data in reads:
            for event in parser.feed(data):
                reader.take(event, at)
            if reader.over:
                return reader.answer(wanted)
        for event in parser.close():
            reader.take(event, reads[-1][0])
    except EventTooLarge as error:
        reader.fail(Trouble("malformed", str(error)))
    return reader.answer(wanted)


class FirstContentWatch:
    """Reads along until there is content, only where a deadline for it was asked for."""

    def __init__(self) -> None:
        self._parser, self._reader = SseParser(), AnswerReader()

    def seen(self, part: bytes) -> bool:
        """Whether content came, or what makes it certain that none will."""
        try:
            for event in self._parser.feed(part):
                self._reader.take(event, 0.0)
        except EventTooLarge:
            return True
        return self._reader.begun or self._reader.over
