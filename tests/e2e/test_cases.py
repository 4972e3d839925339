"""Known faults of others (``tests/cases``), each through the whole agent: over HTTP, the core and onto our page."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.page_server import PageServer
from tests.pages import CASES
from tests.processes import series
from tests.tools import require_tool
from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.clock import ManualClock
from ufwatch.config import Config, GpuConfig, TargetConfig
from ufwatch.decode.layout import Layouts, PageReader
from ufwatch.render.exposition import Page
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.sources.fetch import Fetcher


def _looked_at(servers: dict[str, PageServer], looks: list[Callable[[], None]], interval: float) -> list[Look]:
    """One look after each of ``looks``, ``interval`` seconds apart by the agent's clock."""

    async def run() -> list[Look]:
        clock = ManualClock()
        fetcher = Fetcher({}, clock=clock)
        sink = PrometheusSink(Page(catalogue.FAMILIES))
        targets = tuple(TargetConfig(name=name, url=server.url) for name, server in servers.items())
        config = Config(targets=targets, interval_seconds=interval, gpu=GpuConfig(enabled=False))
        agent = assemble.agent(config, clock=clock, fetcher=fetcher, sinks=(sink,), whole_run=True)
        await agent.find_targets()
        found = []
        for prepare in looks:
            prepare()
            await asyncio.gather(*(agent.cycle(target) for target in agent.targets.values()))
            found.append(Look(sink.answer(None, None)[0].decode(), agent))
            clock.advance(interval)
        await agent.close()
        await fetcher.close()
        return found

    return asyncio.run(run())


class Look:
    """Our page and our readings after one look."""

    def __init__(self, page: str, agent: Agent) -> None:
        self.page = page
        self.targets: dict[str, Any] = {target["target"]: target for target in agent.readings()["targets"]}

    def value(self, metric: str, **labels: str) -> float | None:
        """The one series of this metric with these labels; None where there is none."""
        lines = [line for line in self.page.splitlines() if line.startswith(f"ufwatch_{metric}{{")]
        lines = [line for line in lines if all(f'{key}="{value}"' in line for key, value in labels.items())]
        assert len(lines) <= 1, lines
        return float(lines[0].rpartition(" ")[2]) if lines else None


def test_a12_an_exemplar_in_the_text_format_is_neither_value_nor_time() -> None:
    reader = PageReader(Layouts(frozenset({b"req_seconds_bucket", b"req_seconds_count", b"other_total"})))
    for _ in range(2):  # the second time through what is remembered of the page
        layout, values = reader.read((CASES / "a12_exemplar_in_text.prom").read_bytes())
        assert [(line.name, dict(line.labels)) for line in layout.lines] == [
            ("req_seconds_bucket", {"le": "0.1"}),
            ("req_seconds_bucket", {"le": "+Inf"}),
            ("req_seconds_count", {}),
            ("other_total", {}),
        ]
        assert (values, layout.faults) == ([4.0, 9.0, 9.0, 17.0], 0)


def test_a16_two_replicas_are_told_apart_and_nothing_is_summed() -> None:
    folder = CASES / "a16_two_replicas"
    expected = json.loads((folder / "expected.json").read_text())
    pages = [(folder / f"replica_{n}.prom").read_bytes() for n in (0, 1)]
    with ExitStack() as stack:
        servers = {f"replica-{n}": stack.enter_context(PageServer(page)) for n, page in enumerate(pages)}
        look = _looked_at(servers, [lambda: None], 10.0)[0]
    for kind, key in (("HELP", "help_lines_per_family"), ("TYPE", "type_lines_per_family")):
        counted = Counter(re.findall(rf"^# {kind} (\S+) ", look.page, re.MULTILINE))
        assert set(counted.values()) == {expected["our_page"][key]}
    of_engines = [(name, dict(labels)) for name, labels in series(look.page) if "engine" in dict(labels)]
    by_target: dict[tuple[Any, ...], set[str]] = {}
    for name, labels in of_engines:
        target = labels.pop("target")
        by_target.setdefault((name, *sorted(labels.items())), set()).add(target)
    assert {name for name, *_ in by_target} >= {"ufwatch_requests_running", "ufwatch_kv_cache_usage_ratio"}
    assert set(map(frozenset, by_target.values())) == {frozenset(servers)}
    promtool = require_tool("promtool")
    done = subprocess.run([promtool, "check", "metrics"], input=look.page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    usage = [look.value("kv_cache_usage_ratio", target=name) for name in servers]
    running = [look.value("requests_running", target=name) for name in servers]
    known = [value for value in usage if value is not None]
    assert (max(known), sum(known) / len(known)) == (expected["kv_usage"]["max"], expected["kv_usage"]["mean"])
    assert expected["kv_usage"]["never"] not in known
    assert sum(value or 0 for value in running) == expected["requests_running_sum"]


def test_a17_a_body_cut_within_a_number_is_a_failed_scrape_and_no_reset() -> None:
    folder = CASES / "a17_cut_body"
    expected = json.loads((folder / "expected.json").read_text())
    bodies = [(folder / name).read_bytes() for name in ("scrape_0.prom", "scrape_1_cut.prom", "scrape_2.prom")]
    with PageServer(b"") as server:

        def serve(body: bytes) -> Callable[[], None]:
            return lambda: setattr(server, "body", body)

        looks = _looked_at({"a": server}, [serve(body) for body in bodies], expected["interval_s"])
        assert server.asked == 3
    first, cut, last = looks
    assert [look.value("source_up", target="a", source="vllm") for look in looks] == [1, 0, 1]
    assert cut.targets["a"]["reason"] == expected["scrape_1"]["reason"]
    assert cut.value("scrape_failures_total", target="a", reason="truncated") == 1
    assert cut.value("requests_running", target="a") is None
    for look, tokens in ((first, (0, 0)), (cut, (0, 0)), (last, _increases(expected["scrape_2"]))):
        assert (look.value("prefill_tokens_total"), look.value("decode_tokens_total")) == tokens
    rates = {e["signal"]: e["value"] for e in last.targets["a"]["signals"] if e["signal"].endswith("_tokens_rate")}
    seconds = 2 * expected["interval_s"]
    assert rates == {"prompt_tokens_rate": 425 / seconds, "generation_tokens_rate": 789 / seconds}


def _increases(expected: Any) -> tuple[float, float]:
    return (
        expected["prompt_tokens_increase_since_scrape_0"],
        expected["generation_tokens_increase_since_scrape_0"],
    )
