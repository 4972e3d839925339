"""Reading a textfile, and summing counters over writers that come, go, expire and restart."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ufwatch.decode.textfile import (
    KNOWN,
    SeriesKey,
    TextFile,
    TextFileFault,
    TextfileSnapshot,
    TextfileState,
    parse_file,
    step,
)
from ufwatch.model import Reason

HEAD = b"# ufwatch 1700000010 1700000000\n"
ATTEMPTS = SeriesKey("pinned_alloc_attempts_total", ())
BYTES = SeriesKey("pinned_alloc_bytes_total", ())
START = 1000.0


def good(data: bytes) -> TextFile:
    parsed = parse_file(data)
    assert isinstance(parsed, TextFile), parsed
    return parsed


def fault(data: bytes) -> TextFileFault:
    parsed = parse_file(data)
    assert isinstance(parsed, TextFileFault), parsed
    return parsed


def test_every_known_metric_is_read_with_its_kept_labels() -> None:
    labels = {"phase": "capture", "cache": "cold", "code": "2", "engine": "3", "threshold_seconds": "0.8"}
    lines = []
    for metric, known in KNOWN.items():
        units = {"unit": "probe" if metric.startswith("page_table") else "token"}
        pairs = {name: (labels | units)[name] for name in known.labels} | {"pid": "77", "model": "gpt\\"}
        written = ",".join(f'{name}="{value}"' for name, value in pairs.items()).replace("\\", "\\\\")
        lines.append(f"ufwatch_{metric}{{{written}}} 1.5e3")
    parsed = good(HEAD + "\n".join(lines).encode() + b"\n")
    assert parsed.refused == parsed.unknown == 0
    assert {key.metric for key in parsed.values} == set(KNOWN)
    assert set(parsed.values.values()) == {1500.0}
    assert SeriesKey("pinned_alloc_failures_total", (("code", "out_of_memory"),)) in parsed.values
    assert SeriesKey("token_intervals_total", (("engine", "3"), ("unit", "token"))) in parsed.values
    assert (parsed.heartbeat_wall, parsed.start_wall, parsed.sequence) == (1700000010.0, 1700000000.0, None)


def test_comments_blanks_unknown_metrics_and_a_missing_engine() -> None:
    parsed = good(
        HEAD
        + b"# HELP ufwatch_kv_evictions_total Blocks.\n\n"
        + b"ufwatch_kv_evictions_total 4\nufwatch_tomorrow_total 1\nkv_evictions_total 9\nprocess_x 1\n"
    )
    assert parsed.values == {SeriesKey("kv_evictions_total", (("engine", "0"),)): 4.0}
    assert (parsed.unknown, parsed.refused) == (3, 0)


@pytest.mark.parametrize(
    "line",
    [
        "ufwatch_pinned_alloc_attempts_total NaN",
        "ufwatch_pinned_alloc_attempts_total +Inf",
        "ufwatch_pinned_alloc_attempts_total 1e999",
        "ufwatch_pinned_alloc_attempts_total -1",
        "ufwatch_pinned_alloc_attempts_total 1e308",
        "ufwatch_pinned_alloc_attempts_total 1_000",
        "ufwatch_pinned_alloc_attempts_total ٣",
        "ufwatch_pinned_alloc_attempts_total",
        "ufwatch_pinned_alloc_attempts_total 1 1700000000",
        "ufwatch_pinned_alloc_attempts_total{ 1",
        'ufwatch_pinned_alloc_attempts_total{a="1",a="2"} 1',
        'ufwatch_pinned_alloc_attempts_total{a="1"b="2"} 1',
        'ufwatch_graph_compiles_total{phase="link",cache="cold"} 1',
        'ufwatch_graph_compiles_total{cache="cold"} 1',
        'ufwatch_token_intervals_total{unit="probe"} 1',
        'ufwatch_page_table_misses_total{unit="token"} 1',
        'ufwatch_kv_evictions_total{engine="a7"} 1',
        'ufwatch_kv_evictions_total{engine="00"} 1',
        'ufwatch_kv_evictions_total{engine="12345"} 1',
        "\x00\x01",
    ],
)
def test_a_bad_line_is_refused_and_the_others_stay(line: str) -> None:
    parsed = good(HEAD + line.encode() + b"\nufwatch_pinned_alloc_bytes_total 7\n")
    assert parsed.values == {BYTES: 7.0}
    assert parsed.refused == 1


def test_thresholds_are_decimal_numbers_and_equal_ones_one_series() -> None:
    lines = b'ufwatch_ttft_over_total{engine="0",threshold_seconds="0.80"} 3\n'
    parsed = good(HEAD + lines + lines.replace(b"0.80", b"1e3") + lines.replace(b"0.80", b"2.3"))
    labels = (("engine", "0"), ("threshold_seconds", "0.8"))
    assert parsed.values[SeriesKey("ttft_over_total", labels)] == 3
    assert (len(parsed.values), parsed.refused) == (2, 1)


def test_thresholds_that_would_become_one_are_refused() -> None:
    line = b'ufwatch_ttft_over_total{engine="0",threshold_seconds="1000.001"} 3\n'
    parsed = good(HEAD + line + line.replace(b"1000.001", b"1000.002"))
    assert (parsed.values, parsed.refused) == ({}, 2)


def test_what_a_writer_cannot_give_is_kept_with_its_words() -> None:
    parsed = good(
        HEAD + b'# absent ufwatch_a_total: no CUDA\x1b here\n# absent b{c="d"}: e: f\n# absent : g\n#absent h: i\n'
    )
    assert parsed.absent == {"a_total": "no CUDA  here", "b": "e: f"}
    many = b"".join(b"# absent a%d: x\n" % number for number in range(99))
    assert len(good(HEAD + many).absent) == 32
    assert good(HEAD + b"# absent a: " + b"x" * 9999 + b"\n").absent == {"a": "x" * 200}


def test_open_sets_of_codes_and_caches_are_closed() -> None:
    parsed = good(
        HEAD
        + b'ufwatch_pinned_alloc_failures_total{code="999"} 1\n'
        + b'ufwatch_pinned_alloc_failures_total{code="cudaErrorWhatever"} 2\n'
        + b"ufwatch_pinned_alloc_failures_total 4\n"
        + b'ufwatch_pinned_alloc_failures_total{code="invalid_value"} 8\n'
        + b'ufwatch_graph_compiles_total{phase="compile",cache="lukewarm"} 1\n'
    )
    assert parsed.values == {
        SeriesKey("pinned_alloc_failures_total", (("code", "other"),)): 7.0,
        SeriesKey("pinned_alloc_failures_total", (("code", "invalid_value"),)): 8.0,
        SeriesKey("graph_compiles_total", (("phase", "compile"), ("cache", "unknown"))): 1.0,
    }


def test_series_that_differ_in_dropped_labels_fall_together_and_true_duplicates_are_refused() -> None:
    parsed = good(
        HEAD
        + b'ufwatch_pinned_alloc_attempts_total{pid="1"} 3\nufwatch_pinned_alloc_attempts_total{pid="2"} 4\n'
        + b'ufwatch_pinned_alloc_attempts_total{pid="2"} 5\n'
        + b'ufwatch_graph_compile_last_start_seconds{phase="capture",cache="cold",pid="1"} 9\n'
        + b'ufwatch_graph_compile_last_start_seconds{phase="capture",cache="cold",pid="2"} 2\n'
    )
    assert parsed.values[ATTEMPTS] == 7.0
    last_start = SeriesKey("graph_compile_last_start_seconds", (("phase", "capture"), ("cache", "cold")))
    assert parsed.values[last_start] == 9.0
    assert parsed.refused == 1


def test_braces_and_escapes_inside_label_values_do_not_mislead() -> None:
    parsed = good(HEAD + b'ufwatch_pinned_alloc_attempts_total{a="}\\" 9, b=\\"",c="x"} 3\n')
    assert parsed.values == {ATTEMPTS: 3.0}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.TRUNCATED),
        (HEAD + b"ufwatch_pinned_alloc_attempts_total 12", Reason.TRUNCATED),
        (b"ufwatch_pinned_alloc_attempts_total 12\n", Reason.CONTENT),
        (b"# ufwatch now then\n", Reason.CONTENT),
        (b"# ufwatch 1700000000\n", Reason.CONTENT),
        (b"# ufwatch nan nan\n", Reason.CONTENT),
        (HEAD + b"\xff\xfe\n", Reason.CONTENT),
    ],
)
def test_a_file_not_to_be_trusted_is_refused_whole(data: bytes, reason: Reason) -> None:
    assert fault(data).reason is reason


def test_the_form_updated_in_place() -> None:
    head = b"# ufwatch 1700000010.5        1700000000          \n"
    body = b"ufwatch_pinned_alloc_attempts_total 42                  \n"
    even = good(head + b"# seq 00000000000000000044\n" + body)
    assert even.sequence == 44
    assert even.values == {ATTEMPTS: 42.0}
    odd = fault(head + b"# seq 00000000000000000045\n" + body)
    assert odd.torn


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_raise(tail: bytes, headed: bool) -> None:
    parsed = parse_file((HEAD if headed else b"") + tail + b"\n")
    if isinstance(parsed, TextFile):
        assert all(math.isfinite(value) and value >= 0 for value in parsed.values.values())


class Agent:
    """Polls on a clock that the test moves."""

    def __init__(self) -> None:
        self.state = TextfileState()
        self.now = START

    def poll(
        self, files: Mapping[str, TextFile], faults: Mapping[str, TextFileFault] | None = None
    ) -> TextfileSnapshot:
        self.now += 5
        self.state, snapshot = step(self.state, files, agent_start_wall=START, now_wall=self.now, faults=faults)
        return snapshot

    def file(self, attempts: float | None, *, start: float = 500.0, age: float = 1.0, refused: int = 0) -> TextFile:
        values = {} if attempts is None else {ATTEMPTS: attempts}
        return TextFile(heartbeat_wall=self.now + 5 - age, start_wall=start, values=values, refused=refused)


def test_at_first_sight_an_older_writer_is_a_baseline_and_a_younger_one_counts() -> None:
    agent = Agent()
    first = agent.poll({"a-1.prom": agent.file(100), "a-2.prom": agent.file(7, start=START + 1)})
    assert first.totals[ATTEMPTS] == 7.0
    assert first.absolute[ATTEMPTS] == 107.0
    assert first.health.up
    second = agent.poll({"a-1.prom": agent.file(110), "a-2.prom": agent.file(9, start=START + 1)})
    assert second.totals[ATTEMPTS] == 7.0 + 10 + 2


def test_a_restarted_writer_never_lowers_a_total() -> None:
    agent = Agent()
    agent.poll({"a-1.prom": agent.file(100)})
    agent.poll({"a-1.prom": agent.file(130)})
    new_start = agent.poll({"a-1.prom": agent.file(4, start=START + 3)})
    assert new_start.totals[ATTEMPTS] == 34.0
    higher_at_once = agent.poll({"a-1.prom": agent.file(50, start=START + 9)})
    assert higher_at_once.totals[ATTEMPTS] == 84.0
    same_start = agent.poll({"a-1.prom": agent.file(6, start=START + 9)})
    assert same_start.totals[ATTEMPTS] == 90.0
    assert same_start.fallen == 0


def test_a_restart_by_one_counter_is_a_restart_of_the_whole_file() -> None:
    agent = Agent()
    agent.poll({"a-1.prom": TextFile(heartbeat_wall=START, start_wall=1, values={ATTEMPTS: 100.0, BYTES: 10.0})})
    snapshot = agent.poll(
        {"a-1.prom": TextFile(heartbeat_wall=START, start_wall=1, values={ATTEMPTS: 5.0, BYTES: 40.0})}
    )
    assert snapshot.totals == {ATTEMPTS: 5.0, BYTES: 40.0}


def test_a_small_fall_is_no_restart() -> None:
    agent = Agent()
    agent.poll({"a-1.prom": agent.file(1_000_000)})
    fell = agent.poll({"a-1.prom": agent.file(999_999)})
    assert (fell.totals[ATTEMPTS], fell.fallen) == (0.0, 1)
    later = agent.poll({"a-1.prom": agent.file(1_000_500)})
    assert later.totals[ATTEMPTS] == 501.0


def test_an_expired_file_that_comes_back_goes_on() -> None:
    agent = Agent()
    agent.poll({"a-1.prom": agent.file(100)})
    expired = agent.poll({"a-1.prom": agent.file(110, age=15.1)})
    assert expired.health.reason is Reason.STALE
    assert (expired.files, expired.expired, expired.absolute) == (1, 1, {})
    assert expired.heartbeat_age_seconds == pytest.approx(15.1)
    gone = agent.poll({})
    assert gone.health.reason is Reason.NO_SOURCE
    assert gone.heartbeat_age_seconds is None
    back = agent.poll({"a-1.prom": agent.file(125)})
    assert back.health.up
    assert back.totals[ATTEMPTS] == 25.0
    assert back.absolute[ATTEMPTS] == 125.0


def test_two_writers_that_share_a_name_in_turn_are_not_restarts() -> None:
    agent = Agent()
    agent.poll({"a-1.prom": agent.file(1000, start=START + 1)})
    agent.poll({"a-1.prom": agent.file(500, start=START + 2)})
    for turn in range(1, 5):
        agent.poll({"a-1.prom": agent.file(1000 + turn, start=START + 1)})
        snapshot = agent.poll({"a-1.prom": agent.file(500 + turn, start=START + 2)})
    assert snapshot.totals[ATTEMPTS] == 1500 + 8


def test_a_series_that_appears_later_counts_from_zero_unless_its_line_had_been_refused() -> None:
    agent = Agent()
    agent.poll({"a-1.prom": agent.file(None), "a-2.prom": agent.file(None, refused=1)})
    snapshot = agent.poll({"a-1.prom": agent.file(3), "a-2.prom": agent.file(1_000)})
    assert snapshot.totals[ATTEMPTS] == 3.0
    agent.poll({"a-2.prom": agent.file(None, refused=1)})
    assert agent.poll({"a-2.prom": agent.file(1_001)}).totals[ATTEMPTS] == 4.0


def test_a_heartbeat_in_the_future_is_a_fault_and_a_little_skew_is_none() -> None:
    agent = Agent()
    skewed = agent.poll({"a-1.prom": agent.file(5, age=-59)})
    assert (skewed.health.up, skewed.heartbeat_age_seconds) == (True, 0.0)
    future = agent.poll({"a-1.prom": agent.file(9, age=-61)})
    assert future.health.reason is Reason.OUT_OF_RANGE
    assert (future.faults, future.files, future.totals[ATTEMPTS]) == (1, 0, 0.0)
    assert "clock" in future.details[0]
    assert agent.poll({"a-1.prom": agent.file(11)}).totals[ATTEMPTS] == 6.0


def test_a_start_ahead_of_our_clock_proves_nothing() -> None:
    agent = Agent()
    assert agent.poll({"a-1.prom": agent.file(5, start=START + 9_000)}).totals[ATTEMPTS] == 0.0


def test_faults_harm_only_their_own_file() -> None:
    agent = Agent()
    cut = TextFileFault(reason=Reason.TRUNCATED, detail="cut")
    both = agent.poll({"a-1.prom": agent.file(5)}, {"a-2.prom": cut})
    assert (both.health.up, both.faults, both.details) == (True, 1, ("a-2.prom: cut",))
    alone = agent.poll({}, {"a-2.prom": cut})
    assert alone.health.reason is Reason.TRUNCATED


def test_gauges_are_the_largest_of_the_live_files_and_no_totals() -> None:
    agent = Agent()
    key = SeriesKey("graph_compile_last_start_seconds", (("phase", "capture"), ("cache", "cold")))
    files = {
        f"a-{number}.prom": TextFile(heartbeat_wall=START + 5 - age, start_wall=500, values={key: value})
        for number, (age, value) in enumerate([(1, 3.0), (1, 8.0), (99, 70.0)])
    }
    snapshot = agent.poll(files)
    assert snapshot.absolute == {key: 8.0}
    assert snapshot.totals == {}
    assert (snapshot.files, snapshot.expired) == (3, 1)


def test_memory_is_bounded_and_a_forgotten_writer_is_not_counted_twice() -> None:
    agent = Agent()
    agent.poll({"a-old.prom": agent.file(50, start=START + 1)})
    for worker in range(1100):
        agent.poll({f"a-{worker}.prom": agent.file(1, start=START + 2 + worker)})
    assert len(agent.state.writers) == 1024
    assert len(agent.state.latest_start) == 1024
    before = agent.poll({}).totals[ATTEMPTS]
    assert before == 50 + 1100
    assert agent.poll({"a-old.prom": agent.file(51, start=START + 1)}).totals[ATTEMPTS] == before


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans(), st.floats(0, 40)), max_size=40))
def test_totals_never_fall_and_count_each_event_once(moves: list[tuple[int, int, bool, float]]) -> None:
    agent = Agent()
    counts, starts = [0, 0, 0], [START + 1, START + 2, START + 3]
    unseen, truth, last = [0, 0, 0], 0, 0.0
    for who, gained, restart, age in moves:
        if restart:
            truth -= unseen[who]  # what a writer counted after its last poll is gone with it
            counts[who], unseen[who] = 0, 0
            starts[who] = agent.now + 1
        counts[who] += gained
        unseen[who] += gained
        truth += gained
        snapshot = agent.poll({f"a-{who}.prom": agent.file(counts[who], start=starts[who], age=age)})
        unseen[who] = 0
        assert snapshot.totals[ATTEMPTS] >= last
        last = snapshot.totals[ATTEMPTS]
    assert last == truth
