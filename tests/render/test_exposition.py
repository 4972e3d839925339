"""The page against prometheus_client (bytes and parsers), promtool, and itself written anew."""

from __future__ import annotations

import gzip
import random
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ClientExemplar

from tests.tools import require_tool
from ufwatch.model import Exemplar, Sample
from ufwatch.render.exposition import Drop, Format, Page
from ufwatch.spec import PREFIX, Kind, MetricSpec

USAGE = MetricSpec(name="kv_usage_ratio", kind=Kind.GAUGE, labels=("target",), help='Share of "blocks" in use, a\\b.')
TOKENS = MetricSpec(name="tokens_total", kind=Kind.COUNTER, labels=("engine", "target"), help="Tokens\nmade.")
UP = MetricSpec(name="agent_up", kind=Kind.GAUGE, labels=(), help="Always 1.")
WAIT = MetricSpec(name="wait_seconds", kind=Kind.HISTOGRAM, labels=("target",), help="Waited.")
FAMILIES = (USAGE, TOKENS, UP, WAIT)
EDGES = ("0.1", "1.0", "+Inf")


def usage(target: str, value: float) -> Sample:
    return Sample("kv_usage_ratio", (("target", target),), value)


def tokens(target: str, value: float, engine: str = "0") -> Sample:
    return Sample("tokens_total", (("engine", engine), ("target", target)), value)


class Reference(Collector):
    """The same samples through prometheus_client's own families."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def collect(self) -> Iterator[Metric]:
        for spec in FAMILIES:
            if spec.kind is Kind.HISTOGRAM:
                continue
            made = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
            family = made(PREFIX + spec.name, spec.help, labels=spec.labels)
            for sample in self.samples:
                if sample.metric == spec.name:
                    family.add_metric([value for _, value in sample.labels], sample.value)
            if family.samples:
                yield family


def reference(samples: Sequence[Sample]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Reference(samples))
    return registry


def read(parser: Any, page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser(page.decode())
        for sample in family.samples
    }


def page_of(*samples: Sample) -> Page:
    page = Page(FAMILIES)
    page.put("one", samples)
    return page


TARGETS = st.text(max_size=12)
VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [0.0, 1.0, -1.0, 1e5, 999999.0, 1e6, 12345678.0, 1234567.25, 1e15, 1e16, 2.5e16, 1e-7, 2**53 + 0.0]
    ),
)


@given(st.lists(st.tuples(TARGETS, VALUES), unique_by=lambda pair: pair[0], max_size=20))
@settings(deadline=None)
def test_bytes_equal_those_of_prometheus_client(pairs: list[tuple[str, float]]) -> None:
    samples = [usage(target, value) for target, value in pairs]
    samples += [tokens(target, abs(value)) for target, value in pairs]
    page = page_of(*samples)
    assert page.text() == generate_latest(reference(samples))
    assert page.openmetrics() == generate_openmetrics(reference(samples))  # type: ignore[no-untyped-call]
    expected = {(PREFIX + s.metric, frozenset(s.labels)): s.value for s in samples}
    assert read(parse_text, page.text()) == expected
    assert read(parse_openmetrics, page.openmetrics()) == expected


def waited(target: str, counts: Sequence[float], total: float) -> list[Sample]:
    labels = (("target", target),)
    buckets = [
        Sample("wait_seconds_bucket", (*labels, ("le", le)), count) for le, count in zip(EDGES, counts, strict=True)
    ]
    return [*buckets, Sample("wait_seconds_count", labels, counts[-1]), Sample("wait_seconds_sum", labels, total)]


def test_a_histogram_and_its_exemplars_are_prometheus_clients_bytes() -> None:
    class Waits(Collector):
        def collect(self) -> Iterator[Metric]:
            family = HistogramMetricFamily("ufwatch_wait_seconds", "Waited.", labels=["target"])
            exemplar = ClientExemplar({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}, 0.67, 1520879607.789)
            bare = ClientExemplar({"trace_id": "a"}, 3.0)
            family.add_metric(["a"], [("0.1", 1.0), ("1.0", 3.0, exemplar), ("+Inf", 4.0, bare)], 4.75)
            family.add_metric(["b"], [("0.1", 0.0), ("1.0", 0.0), ("+Inf", 0.0)], 0.0)
            yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Waits())
    page = Page(FAMILIES)
    shown = [*waited("a", (1.0, 3.0, 4.0), 4.75), *waited("b", (0.0, 0.0, 0.0), 0.0)]
    page.put("probe", shown)
    assert page.text() == generate_latest(registry)
    with_none = page.openmetrics()
    page.put(
        "probe",
        shown,
        {
            shown[1][:2]: Exemplar("4bf92f3577b34da6a3ce929d0e0e4736", 0.67, 1520879607.789),
            shown[2][:2]: Exemplar("a", 3.0),
            ("wait_seconds_bucket", (("target", "gone"), ("le", "1.0"))): Exemplar("b", 1.0),
        },
    )
    assert page.openmetrics() == generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    assert page.text() == generate_latest(registry)
    page.put("probe", shown)
    assert page.openmetrics() == with_none


def test_a_histogram_has_three_names_and_only_those() -> None:
    page = page_of(Sample("wait_seconds", (("target", "a"),), 1.0))
    assert page.text() == b""
    with pytest.raises(ValueError, match="same name"):
        Page((WAIT, MetricSpec(name="wait_seconds_count", kind=Kind.GAUGE, labels=(), help="Clash.")))


def test_openmetrics_names_counters_without_total_and_ends_once() -> None:
    page = page_of(tokens("a", 3.0), usage("a", 0.5)).openmetrics().decode()
    assert "# TYPE ufwatch_tokens counter\n" in page
    assert 'ufwatch_tokens_total{engine="0",target="a"} 3.0\n' in page
    assert page.endswith("\n# EOF\n")
    assert page.count("# EOF") == 1
    assert "_created" not in page


def test_an_empty_page_is_a_valid_one() -> None:
    page = Page(FAMILIES)
    assert page.text() == b""
    assert page.openmetrics() == b"# EOF\n"
    page.put("one", [])
    assert page.text() == b""


def test_a_family_is_declared_only_while_it_has_samples() -> None:
    page = page_of(usage("a", 0.5), tokens("a", 1.0))
    page.put("one", [tokens("a", 1.0)])
    assert b"kv_usage_ratio" not in page.text()
    page.drop("one")
    assert page.text() == b""
    page.drop("never seen")


def test_families_of_several_owners_are_declared_once_and_stay_together() -> None:
    page = Page(FAMILIES)
    for target in ("a", "b", "c"):
        page.put(f"target:{target}", [tokens(target, 1.0), usage(target, 0.5)])
    lines = page.text().decode().splitlines()
    names = [line.split("{")[0] for line in lines if not line.startswith("#")]
    assert names == ["ufwatch_kv_usage_ratio"] * 3 + ["ufwatch_tokens_total"] * 3
    assert sum(line.startswith("# TYPE") for line in lines) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), None, "12", b"1", 10**400, [], 1j])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_number_is_left_out_and_counted(bad: object, place: int) -> None:
    good = [usage("a", 0.25), usage("b", 0.5)]
    samples = [*good[:place], usage("bad", cast(float, bad)), *good[place:]]
    page = page_of(*good, usage("bad", 0.75))
    page.text()
    for round_ in (1, 2):
        page.put("one", samples)
        assert page.text() == page_of(*good).text()
        assert page.dropped[Drop.VALUE] == page.dropped_total == round_
    page.put("one", [*good, usage("bad", 0.75)])
    assert b'target="bad"} 0.75' in page.text()


def test_integers_and_booleans_are_numbers() -> None:
    page = page_of(usage("a", 3), usage("b", True), usage("c", 12_000_000))
    assert page.text().decode().splitlines()[2:] == [
        'ufwatch_kv_usage_ratio{target="a"} 3.0',
        'ufwatch_kv_usage_ratio{target="b"} 1.0',
        'ufwatch_kv_usage_ratio{target="c"} 1.2e+07',
    ]


def test_a_sum_that_overflows_drops_nothing() -> None:
    page = page_of(usage("a", 1.7e308), usage("b", 1.7e308))
    assert page.text().count(b"1.7e+308") == 2
    assert page.dropped_total == 0


def test_unknown_metrics_and_wrong_labels_are_left_out_and_counted() -> None:
    wrong = [
        Sample("no_such", (), 1.0),
        Sample("kv_usage_ratio", (), 1.0),
        Sample("kv_usage_ratio", (("tgt", "a"),), 1.0),
        Sample("kv_usage_ratio", (("target", "a"), ("target", "b")), 1.0),
        Sample("kv_usage_ratio", cast(Any, (("target", 7),)), 1.0),
        Sample("kv_usage_ratio", cast(Any, (1, 2)), 1.0),
    ]
    page = page_of(usage("a", 0.5), *wrong)
    assert page.text() == page_of(usage("a", 0.5)).text()
    assert +page.dropped == {Drop.METRIC: 1, Drop.LABELS: 5}
    page.put("one", [usage("a", 0.75), *(sample._replace(value=2.0) for sample in wrong)])
    assert page.text() == page_of(usage("a", 0.75)).text()
    assert page.dropped_total == 12


def test_labels_are_written_in_the_familys_order() -> None:
    page = page_of(Sample("tokens_total", (("target", "a"), ("engine", "0")), 1.0))
    assert b'{engine="0",target="a"} 1.0' in page.text()


def test_a_series_shown_twice_stays_with_its_first_owner() -> None:
    page = Page(FAMILIES)
    page.put("one", [usage("a", 0.25)])
    page.put("two", [usage("a", 0.5), usage("b", 0.5)])
    assert page.text().decode().splitlines()[2:] == [
        'ufwatch_kv_usage_ratio{target="a"} 0.25',
        'ufwatch_kv_usage_ratio{target="b"} 0.5',
    ]
    page.openmetrics()
    assert +page.dropped == {Drop.DUPLICATE: 1}
    page.put("two", [usage("a", 0.75), usage("b", 0.75)])
    assert b'target="a"} 0.25' in page.text()
    page.drop("one")
    assert b'target="a"} 0.75' in page.text()
    assert +page.dropped == {Drop.DUPLICATE: 2}


def test_label_values_that_break_pages_elsewhere() -> None:
    names = ["C:\\", 'quote"', "line\nfeed", "back\\nslash", "tab\t", "é😀", "cut \ud83d", "", "a,b}", "cr\r"]
    page = page_of(*(usage(name, 1.0) for name in names))
    shown = {labels for _, labels in read(parse_text, page.text())}
    assert shown == {frozenset({("target", name.replace("\ud83d", "?"))}) for name in names}
    assert page.text().count(b"\n") == len(names) + 2


def test_bodies_are_made_once_per_change() -> None:
    page = page_of(usage("a", 0.5), usage("b", 0.5))
    text, zipped, generation = page.text(), page.body(Format.TEXT, gzip=True), page.generation
    assert gzip.decompress(zipped) == text
    page.put("one", [usage("a", 0.5), usage("b", 0.5)])
    assert page.generation == generation
    assert page.text() is text
    assert page.body(Format.TEXT, gzip=True) is zipped
    page.put("one", [usage("a", 0.5), usage("b", 0.75)])
    assert page.generation > generation
    assert gzip.decompress(page.body(Format.TEXT, gzip=True)) == page.text() != text


def test_two_families_of_one_name_are_refused() -> None:
    clash = MetricSpec(name="tokens", kind=Kind.GAUGE, labels=(), help="Clashes in OpenMetrics.")
    with pytest.raises(ValueError, match="same name"):
        Page((TOKENS, clash))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happened_the_page_equals_one_written_anew(seed: int) -> None:
    rng = random.Random(seed)
    page = Page(FAMILIES)
    shown: dict[str, list[Sample]] = {}
    for _ in range(60):
        owner = rng.choice("pqr")
        action = rng.random()
        samples = list(shown.get(owner, ()))
        if action < 0.1:
            page.drop(owner)
            shown.pop(owner, None)
        elif action < 0.4:
            size = rng.randint(0, 6)
            samples = [usage(f"{owner}{at}", rng.random()) for at in range(size)]
            samples += [tokens(f"{owner}{at}", float(rng.randint(0, 10**8))) for at in range(size)]
        else:
            share = rng.choice([0.0, 0.2, 1.0])
            samples = [
                sample._replace(value=rng.choice([rng.random(), 1e7 * rng.random()]))
                if rng.random() < share
                else sample
                for sample in samples
            ]
        if action >= 0.1:
            page.put(owner, samples)
            shown[owner] = samples
        if rng.random() < 0.6:
            anew = Page(FAMILIES)
            for name, kept in shown.items():
                anew.put(name, kept)
            assert page.text() == anew.text()
            assert page.openmetrics() == anew.openmetrics()
    assert page.dropped_total == 0


def test_promtool_accepts_the_page() -> None:
    promtool = require_tool("promtool")
    page = page_of(
        usage("ends with \\", 0.5), usage("line\nfeed", 12345678.0), tokens("é", 3.0), Sample("agent_up", (), 1.0)
    )
    done = subprocess.run([promtool, "check", "metrics"], input=page.text(), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode(), done.stdout.decode()) == (0, "", "")
