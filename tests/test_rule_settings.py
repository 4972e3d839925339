"""What is asked of the rules on the command line: units, ranges, and factors that can be reached."""

from __future__ import annotations

import pytest

from ufwatch.errors import ConfigError
from ufwatch.rule_forms import RuleOptions
from ufwatch.rule_settings import settle
from ufwatch.thresholds import Thresholds


def test_nothing_asked_is_the_default() -> None:
    assert settle() == RuleOptions()


def test_every_threshold_has_a_unit() -> None:
    typed = {
        "jitter": ("80ms", 0.08),
        "miss": ("20%", 0.2),
        "turnover": ("2", 2),
        "kv_usage": ("0.95", 0.95),
        "pinned_success": ("99.5%", 0.995),
        "compile": ("3m", 180),
        "sm_utilization": ("5%", 0.05),
        "prefill_decode": ("4", 4),
        "burn_fast": ("10", 10),
        "burn_slow": ("2", 2),
        "stale": ("2m", 120),
        "breaker_trips": ("5", 5),
        "ageing": ("10%", 0.1),
    }
    assert set(typed) == set(Thresholds.__dataclass_fields__)
    found = settle(sets=[f"{name}={text}" for name, (text, _) in typed.items()])
    for name, (_, value) in typed.items():
        assert getattr(found.thresholds, name) == pytest.approx(value)


@pytest.mark.parametrize("interval", ["1s", "15", "60s", "1m", "2.5s"])
def test_intervals(interval: str) -> None:
    assert 1 <= settle(interval=interval).interval_seconds <= 60


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"interval": "61s"}, '--interval: "61s" leaves too few samples'),
        ({"interval": "0s"}, "--interval: 0 s is not from 1 to 60 s"),
        ({"interval": "x"}, '--interval: "x" is not a duration'),
        ({"job": "a\nb"}, "--job: "),
        ({"grafana_url": "grafana"}, "--grafana-url: "),
        ({"grafana_url": "http://u:p@g"}, "--grafana-url: the URL holds credentials"),
        ({"runbook_url": "http://r/{{x}}"}, "--runbook-url: holds a character"),
        ({"sets": ["ageing=5"]}, "--set ageing: "),
        ({"sets": ["jiter=1s"]}, "--set jiter: is no threshold; choose from ageing, "),
        ({"sets": ["jitter"]}, '--set: "jitter" is not NAME=VALUE'),
        ({"sets": ["jitter="]}, '--set: "jitter=" is not NAME=VALUE'),
        ({"sets": ["jitter=fast"]}, '--set jitter: "fast" is not a duration'),
        ({"sets": ["jitter=80"]}, "--set jitter: 80 s is not from 0.001 to 60 s"),
        ({"sets": ["miss=120%"]}, "--set miss: 1.2 is not from"),
        ({"sets": ["miss=x%"]}, "--set miss: "),
        ({"sets": ["miss=nan"]}, "--set miss: "),
        ({"sets": ["jitter=1s", "jitter=2s"]}, "--set jitter: is given twice; keep one"),
        ({"sets": ["burn_fast=20"]}, "burn_fast: 20 can never be reached (ttft at 95 % burns at most 20; tpot"),
        ({"objectives": ["batch=90%"]}, "burn_fast: 14.4 can never be reached (batch at 90 % burns at most 10)"),
        ({"objectives": ["a=100%"]}, '--objective a: "100%" leaves nothing to measure'),
        ({"objectives": ["a=0"]}, '--objective a: "0" leaves nothing to measure'),
        ({"objectives": ["a"]}, '--objective: "a" is not NAME=VALUE; write such as --objective ttft=95%'),
    ],
)
def test_each_mistake_is_one_line(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settle(**given)  # type: ignore[arg-type]
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"ufwatch alerts: {says}"), line


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        settle(interval="2m", sets=["x=1", "jitter=0"], grafana_url="g")
    assert len(str(raised.value).splitlines()) == 4


def test_objectives_replace_the_default_ones() -> None:
    assert settle(sets=["burn_fast=50"], objectives=["a=99%"]).thresholds.burn_fast == 50
