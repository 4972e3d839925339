"""A real Prometheus scrapes a real ``ufwatch run`` that watches two simulated servers: what is stored is what is meant.

The agent's rates are over 60 s. So that a run of half a minute sees full windows, its window is shortened to ten
seconds here; with ``UFWATCH_LONG=1`` nothing is shortened and the run takes two minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.prometheus_server import Prometheus
from tests.processes import COMMAND, Running, series, until
from tests.simulators import Simulators
from tests.sources.loopback import free_port
from tests.tools import require_tool
from ufwatch import catalogue
from ufwatch.catalogue import Provider, Signal
from ufwatch.formula import promql
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import SimServer
from ufwatch.spec import PREFIX

LONG = os.environ.get("UFWATCH_LONG") == "1"
WINDOW = 60 if LONG else 10
RUN_SECONDS = 120 if LONG else 20
EVENTS = bool(importlib.util.find_spec("zmq")) and bool(importlib.util.find_spec("msgspec"))
_SHORTER = (
    f"import sys; from ufwatch import assemble; assemble.WINDOW_SECONDS = {WINDOW}.0; "
    "from ufwatch.cli.main import main; sys.exit(main())"
)
_COMMAND = (*COMMAND, "run") if LONG else (sys.executable, "-W", "error", "-c", _SHORTER, "run")
PAIR = replace(SCENARIOS["two_engines"], arrivals_per_second=8.0, output_tokens=(16, 48))


@dataclass(frozen=True)
class Servers:
    """The two that are watched, and the file that says so."""

    simulators: Simulators
    pair: SimServer
    thrash: SimServer
    events: str
    config: Path

    def configure(self, *names: str) -> None:
        """Writes a configuration of these targets."""
        known: dict[str, dict[str, object]] = {
            "pair": {"url": self.pair.url},
            "thrash": {"url": self.thrash.url, **({"kv_events": {"bind": self.events}} if EVENTS else {})},
        }
        targets = [{"name": name, **known[name]} for name in names]
        self.config.write_text(json.dumps({"interval": "1s", "targets": targets, "gpu": {"enabled": False}}))


@dataclass(frozen=True)
class Watched:
    """Everything that runs."""

    servers: Servers
    agent: Running
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """All of it, once it has run for as long as is asked for."""
    for tool in ("prometheus", "promtool"):
        require_tool(tool)
    work = tmp_path_factory.mktemp("prometheus")
    config = work / "ufwatch.yaml"
    events = f"tcp://127.0.0.1:{free_port()}"
    with Simulators() as simulators:
        pair = simulators.start(PAIR, warm_seconds=20)
        thrash = simulators.start("prefix_thrashing", warm_seconds=20, kv_events=events if EVENTS else None)
        servers = Servers(simulators, pair, thrash, events, config)
        servers.configure("pair", "thrash")
        with (
            Running("--config", str(config), command=_COMMAND) as agent,
            Prometheus(work, agent.address.removeprefix("http://")) as prometheus,
        ):
            begun = time.monotonic()
            until(lambda: time.monotonic() - begun >= RUN_SECONDS, RUN_SECONDS + 5)
            yield Watched(servers, agent, prometheus)
            agent.end()


def test_promtool_has_nothing_to_say_about_the_page(watched: Watched) -> None:
    page = watched.agent.page()
    done = subprocess.run(
        [require_tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # The page is worth checking only if the signals are on it.
    for name in ("token_jitter_seconds", "prefill_decode_ratio", "page_table_miss_ratio", "kv_evictions_per_second"):
        assert f"\n{PREFIX}{name}{{" in page


def test_every_family_is_stored_with_its_type(watched: Watched) -> None:
    page = watched.agent.page()
    shown = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helped = dict(re.findall(r"^# HELP (\S+) (.+)$", page, re.MULTILINE))
    assert len(shown) > 40
    stored = watched.prometheus.api("targets/metadata")
    # Prometheus asks for OpenMetrics, which names a counter's family without its suffix.
    types = {f"{one['metric']}{'_total' * (one['type'] == 'counter')}": one["type"] for one in stored}
    helps = {f"{one['metric']}{'_total' * (one['type'] == 'counter')}": one["help"] for one in stored}
    assert {name: types.get(name) for name in shown} == shown
    assert {name: helps.get(name) for name in helped} == helped


def test_every_series_of_the_page_is_in_prometheus(watched: Watched) -> None:
    # To Prometheus a label without a value is no label.
    shown = {(name, frozenset(pair for pair in labels if pair[1])) for name, labels in series(watched.agent.page())}
    assert len(shown) > 150

    def missing() -> set[tuple[str, frozenset[tuple[str, str]]]]:
        stored = set()
        for labels in watched.prometheus.api("series", match=f'{{__name__=~"{PREFIX}.+"}}'):
            name = labels.pop("__name__")
            assert (labels.pop("job"), labels.pop("instance")) == ("ufwatch", f"127.0.0.1:{watched.agent.port}")
            stored.add((name, frozenset(labels.items())))
        return shown - stored

    until(lambda: not missing())
    assert [value for _, value in watched.prometheus.now("up")] == [1.0]


SIGNALS = [
    (catalogue.PREFILL_DECODE_TOKENS, "prompt_tokens_by_source"),
    (catalogue.PAGE_TABLE_MISS, "prompt_tokens_by_source"),
    (catalogue.KV_EVICTIONS, "kv_events" if EVENTS else "recycles"),
    (catalogue.TOKEN_JITTER, "histogram"),
]


@pytest.mark.parametrize(("signal_", "source"), SIGNALS, ids=[signal_.id for signal_, _ in SIGNALS])
def test_the_live_gauge_and_the_recording_rule_agree(watched: Watched, signal_: Signal, source: str) -> None:
    provider = _provider(signal_, source)
    where = ",".join([f'source="{source}"', *(f'{k}="{v}"' for k, v in signal_.extra if k == "unit")])
    gauge = ",".join([f'source="{source}"', *(f'{k}="{v}"' for k, v in signal_.extra)])
    # One interval more than the live window: Prometheus' range holds one sample less than it is seconds long.
    rule = promql(provider.formula, window=f"{WINDOW + 1}s", by=("target", "engine"), where=where)
    live = f"max by (target, engine) ({PREFIX}{signal_.gauge}{{{gauge}}})"
    end = time.time() - 1
    times = [end - n for n in range(6)]
    by_live, by_rule = watched.prometheus.at(live, times), watched.prometheus.at(rule, times)
    apart: dict[frozenset[tuple[str, str]], list[float]] = {}
    for when in times:
        for labels, value in by_live[when].items():
            apart.setdefault(labels, []).append(abs(by_rule[when][labels] / value - 1))
    engines = {dict(labels)["target"] for labels in apart}
    assert engines == ({"thrash"} if signal_ is catalogue.KV_EVICTIONS else {"pair", "thrash"})
    assert all(len(found) == len(times) for found in apart.values())
    assert {labels: found for labels, found in apart.items() if statistics.median(found) > 0.10} == {}


def _provider(signal_: Signal, source: str) -> Provider:
    (found,) = (provider for provider in signal_.providers if provider.source == source)
    return found


def test_a_dead_servers_gauges_go_stale_at_once_and_its_counters_come_back_without_a_reset(watched: Watched) -> None:
    prometheus = watched.prometheus
    gauge = f'{PREFIX}requests_running{{target="pair",engine="0"}}'
    counter = f'{PREFIX}decode_tokens_total{{target="pair",engine="0"}}'
    other = f'{PREFIX}requests_running{{target="thrash"}}'
    down = f'{PREFIX}engine_state{{target="pair",engine="0",state="down"}}'
    up = f'{PREFIX}source_up{{target="pair",source="vllm"}}'
    watched.servers.simulators.die(watched.servers.pair)
    until(lambda: not prometheus.now(gauge), 4)
    # Its state says so in the same scrape, its counters are still there.
    assert [value for _, value in prometheus.now(down)] == [1.0]
    assert [value for _, value in prometheus.now(up)] == [0.0]
    assert len(prometheus.now(counter)) == 1
    until(lambda: not prometheus.now(counter), 6)
    (gauges,), (counts,) = prometheus.samples(gauge), prometheus.samples(counter)
    # The first failed scrape takes the gauges, the third the counters.
    assert 1.0 <= counts[-1][0] - gauges[-1][0] <= 3.5
    assert len(prometheus.now(down)) == len(prometheus.now(up)) == len(prometheus.now(other)) == 1

    watched.servers.simulators.revive(watched.servers.pair)
    until(lambda: prometheus.now(counter) and prometheus.now(gauge), 6)
    until(lambda: len(prometheus.samples(counter)[0]) >= len(counts) + 3, 8)
    (again,) = prometheus.samples(counter)
    assert again[: len(counts)] == counts
    back = again[len(counts) :]
    assert back[0][1] == counts[-1][1]
    assert back[-1][1] > back[0][1]
    assert [value for _, value in prometheus.now(f"resets({counter}[5m])")] == [0.0]
    assert [value for _, value in prometheus.now(up)] == [1.0]
    for name in {name for name, _ in series(watched.agent.page()) if name.endswith("_total")}:
        assert {value for _, value in prometheus.now(f"resets({name}[5m])")} == {0.0}, name


def test_a_target_that_a_reload_removes_goes_stale_as_a_whole(watched: Watched) -> None:
    prometheus = watched.prometheus
    whole = '{__name__=~"ufwatch_.+",target="thrash"}'
    assert len(prometheus.now(whole)) > 50
    watched.servers.configure("pair")
    watched.agent.process.send_signal(signal.SIGHUP)
    until(lambda: not prometheus.now(whole), 6)
    assert len(prometheus.now('{__name__=~"ufwatch_.+",target="pair"}')) > 50
    watched.servers.configure("pair", "thrash")
    watched.agent.process.send_signal(signal.SIGHUP)
    until(lambda: prometheus.now(f'{PREFIX}requests_running{{target="thrash"}}'), 6)
