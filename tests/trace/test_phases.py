"""From stamps to phases: what happened has a span, what did not has none, and a failure stays where it happened."""

from __future__ import annotations

import pytest

from ufwatch.trace.conventions import Name
from ufwatch.trace.model import Phase
from ufwatch.trace.phases import (
    Ends,
    Mark,
    Moment,
    attempts_of,
    phase_of_failure,
    same_address,
    spans_of,
)

FOUR, SIX = "192.0.2.1", "2001:db8::1"


def mark(moment: Moment, at: float, detail: str = "", number: int = 0) -> Mark:
    return Mark(moment, 100.0 + at, detail, number)


CONNECTED = [
    mark(Moment.DNS_START, 0.0),
    mark(Moment.DNS_END, 0.1),
    mark(Moment.CONNECT, 0.11, FOUR, 1),
    mark(Moment.CONNECTED, 0.2, number=1),
]
WHOLE = [
    *CONNECTED,
    mark(Moment.TLS_START, 0.21),
    mark(Moment.TLS_END, 0.3),
    mark(Moment.READY, 0.31),
    mark(Moment.SENT, 0.32),
    mark(Moment.HEAD, 0.5),
]


def ends(ended: float = 2.0, first: float | None = 1.0, **more: object) -> Ends:
    first_at = None if first is None else 100.0 + first
    fields = {"wanted_at": 100.0, "ended_at": 100.0 + ended, "first_content_at": first_at, "peer": FOUR, **more}
    return Ends(**fields)  # type: ignore[arg-type]


def told(marks: list[Mark], known: Ends) -> dict[Phase, tuple[float, float]]:
    return {span.phase: (round(span.start, 6), round(span.end, 6)) for span in spans_of(marks, known)}


def test_a_whole_request() -> None:
    assert told(WHOLE, ends(tls=True)) == {
        Phase.DNS: (0.0, 0.1),
        Phase.TCP: (0.11, 0.2),
        Phase.TLS: (0.21, 0.3),
        Phase.SEND: (0.31, 0.32),
        Phase.HEADERS: (0.32, 0.5),
        Phase.FIRST_TOKEN: (0.5, 1.0),
        Phase.STREAM: (1.0, 2.0),
    }


def test_a_reused_connection_has_no_phases_of_connecting() -> None:
    marks = [mark(Moment.READY, 0.01, "reused"), *WHOLE[-2:]]
    assert list(told(marks, ends(tls=True))) == [Phase.SEND, Phase.HEADERS, Phase.FIRST_TOKEN, Phase.STREAM]


def test_a_proxy_has_its_round_trip_apart() -> None:
    found = told([*CONNECTED, *(m._replace(at=m.at + 1) for m in WHOLE[4:])], ends(5.0, 4.0, tls=True, proxied=True))
    assert found[Phase.PROXY] == (0.2, 1.21)
    assert Phase.PROXY not in told(WHOLE, ends(proxied=True)), "without TLS there is no CONNECT"


def test_the_end_of_connecting_is_told_by_what_follows_where_the_loop_did_not_say() -> None:
    marks = [m for m in WHOLE if m.moment is not Moment.CONNECTED]
    assert told(marks, ends(tls=True))[Phase.TCP] == (0.11, 0.21)
    plain = [m for m in marks if m.moment not in (Moment.TLS_START, Moment.TLS_END)]
    assert told(plain, ends())[Phase.TCP] == (0.11, 0.31)


def test_without_content_there_is_no_wait_for_it() -> None:
    assert list(told(WHOLE, ends(first=None, tls=True)))[-1] is Phase.HEADERS


def test_an_answer_before_the_request_was_sent() -> None:
    early = [*WHOLE[:7], mark(Moment.HEAD, 0.33), mark(Moment.SENT, 0.4)]
    assert told(early, ends(first=None))[Phase.SEND] == (0.31, 0.33)


def test_a_resumed_session_is_said() -> None:
    resumed = [m._replace(detail="resumed") if m.moment is Moment.TLS_END else m for m in WHOLE]
    seen = [spans_of(marks, ends(tls=True))[2].attributes[Name.TLS_RESUMED] for marks in (WHOLE, resumed)]
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("marks", "phase"),
    [
        ([], None),
        (CONNECTED[:1], Phase.DNS),
        (CONNECTED[:2], Phase.DNS),
        (CONNECTED[:3], Phase.TCP),
        ([*CONNECTED[:3], mark(Moment.CONNECT_FAILED, 0.2, number=1)], Phase.TCP),
        (CONNECTED, Phase.TLS),
        (WHOLE[:5], Phase.TLS),
        (WHOLE[:6], Phase.TLS),
        ([*WHOLE[:5], mark(Moment.TLS_FAILED, 0.25)], Phase.TLS),
        (WHOLE[:7], Phase.SEND),
        (WHOLE[:8], Phase.HEADERS),
        (WHOLE, Phase.FIRST_TOKEN),
    ],
)
def test_where_it_failed(marks: list[Mark], phase: Phase | None) -> None:
    assert phase_of_failure(marks, tls=True, proxied=False, content_begun=False) is phase
    spans = spans_of(marks, ends(0.9, None, tls=True, failed=phase))
    if phase is not None:
        assert spans[-1].phase is phase
        stamped = marks and marks[-1].moment in (Moment.DNS_END, Moment.CONNECT_FAILED, Moment.TLS_FAILED)
        assert spans[-1].end == pytest.approx(marks[-1].at - 100.0 if stamped else 0.9), (
            "when it failed, where that is known"
        )
        assert [span.attributes.get(Name.FAILED, False) for span in spans] == [False] * (len(spans) - 1) + [True]


def test_a_try_that_failed_early_is_not_when_the_other_was_given_up() -> None:
    marks = [
        mark(Moment.CONNECT, 0.1, SIX, 1),
        mark(Moment.CONNECT_FAILED, 0.15, "", 1),
        mark(Moment.CONNECT, 0.2, FOUR, 2),
    ]
    assert told(marks, ends(5.0, None, failed=Phase.TCP, peer=""))[Phase.TCP] == (0.1, 5.0)


def test_where_it_failed_with_other_beginnings() -> None:
    assert phase_of_failure(CONNECTED, tls=True, proxied=True, content_begun=False) is Phase.PROXY
    assert phase_of_failure(CONNECTED, tls=False, proxied=True, content_begun=False) is Phase.SEND
    assert phase_of_failure(WHOLE, tls=True, proxied=False, content_begun=True) is Phase.STREAM


EYEBALLS = [
    mark(Moment.CONNECT, 0.1, SIX, 1),
    mark(Moment.CONNECT, 0.35, FOUR, 2),
    mark(Moment.CONNECTED, 0.4, number=2),
    mark(Moment.CONNECTED, 0.401, number=1),
    mark(Moment.READY, 0.41),
]


def test_the_winner_is_the_one_whose_connection_is_used() -> None:
    assert told(EYEBALLS, ends())[Phase.TCP] == (0.35, 0.4)
    assert [(a.address, round(a.start, 6), a.won) for a in attempts_of(EYEBALLS, 100.0, FOUR)] == [
        (SIX, 0.1, False),
        (FOUR, 0.35, True),
    ]
    assert [a.won for a in attempts_of(EYEBALLS, 100.0, "2001:db8:0::1")] == [True, False]


def test_an_attempt_that_failed_says_why() -> None:
    marks = [EYEBALLS[0], mark(Moment.CONNECT_FAILED, 0.2, "Network is unreachable", 1), *EYEBALLS[1:3]]
    assert [(a.error, a.won) for a in attempts_of(marks, 100.0, "")] == [("Network is unreachable", False), ("", True)]


def test_a_handshake_that_failed_with_one_address_and_went_well_with_the_next() -> None:
    second = [mark(Moment.CONNECT, 0.5, SIX, 2), mark(Moment.CONNECTED, 0.6, number=2)]
    later = [mark(Moment.TLS_START, 0.61), mark(Moment.TLS_END, 0.7), mark(Moment.READY, 0.71)]
    found = told([*CONNECTED, mark(Moment.TLS_START, 0.21), *second, *later], ends(tls=True, peer=SIX))
    assert found[Phase.TCP] == (0.5, 0.6)
    assert found[Phase.TLS] == (0.61, 0.7)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (FOUR, FOUR, True),
        ("2001:db8:0:0::1", SIX, True),
        ("fe80::1%eth0", "fe80::1", True),
        ("::ffff:192.0.2.1", FOUR, True),
        (FOUR, SIX, False),
        ("", "", True),
        ("", FOUR, False),
        ("a name", FOUR, False),
    ],
)
def test_spellings_of_addresses(one: str, other: str, same: bool) -> None:
    assert same_address(one, other) is same
