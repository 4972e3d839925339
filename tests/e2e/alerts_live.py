"""Each of the twelve from a provoked condition to a page at a webhook and back to resolved, on real servers.

    python -m tests.e2e.alerts_live             # all twelve: 1 s scrapes, every duration of the rules a twentieth
    python -m tests.e2e.alerts_live --true      # jitter alone at 15 s scrapes, with the rules as they are committed

A real Prometheus scrapes a page in the form of the agent's, on which each alert has a target of its own; the rules and
the Alertmanager configuration are the generated ones. Prints one JSON object; exits 1 when anything did not come.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.alertmanager_server import Alertmanager, Webhook
from tests.e2e.prometheus_server import Prometheus
from tests.page_server import PageServer
from ufwatch.render.rules import rule_files
from ufwatch.rule_forms import RuleOptions
from ufwatch.thresholds import Thresholds

ACCELERATION = 20
WARM_SECONDS = 20.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OUTAGE = ("UfwatchSloBurnFast", "outage")

TARGETS = {
    "UfwatchTokenJitterHigh": "jitter",
    "UfwatchPageTableMissHigh": "miss",
    "UfwatchKvThrashing": "thrash",
    "UfwatchPinnedAllocFailing": "pinned",
    "UfwatchGraphCompileSlow": "compile",
    "UfwatchEngineStalled": "stalled",
    "UfwatchPrefillDecodeImbalance": "prefill",
    "UfwatchSloBurnFast": "fast",
    "UfwatchSloBurnSlow": "slow",
    "UfwatchTelemetryStale": "silent",
    "UfwatchMemoryBreakerOpen": "breaker",
    "UfwatchGpuHardwareAgeing": "",
}


class World:
    """Counters and gauges of every target, moved on by the clock; ``bad`` says which conditions are provoked."""

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self._since: dict[str, float] = {}
        self._counters: dict[str, float] = {}
        self._lock = threading.Lock()

    def provoke(self, *targets: str) -> None:
        with self._lock:
            self.bad |= set(targets)
            self._since |= dict.fromkeys(targets, time.time())

    def heal(self, target: str) -> None:
        with self._lock:
            self.bad.discard(target)

    def page(self, seconds: float) -> bytes:
        """The page after ``seconds`` more."""
        with self._lock:
            lines: list[str] = []
            for target in (*filter(None, TARGETS.values()), "outage"):
                self._target(lines, target, seconds, target in self.bad)
            remap = float("card" in self.bad)
            lines.append(f'ufwatch_gpu_row_remap_pending{{gpu="0",uuid="GPU-a",mig=""}} {remap}')
            return ("\n".join(lines) + "\n").encode()

    def _target(self, lines: list[str], target: str, seconds: float, bad: bool) -> None:
        who = f'target="{target}",model_name="m"'
        engine = f'{who},engine="0"'

        def gauge(name: str, labels: str, value: float) -> None:
            lines.append(f"ufwatch_{name}{{{labels}}} {value}")

        def counter(name: str, labels: str, per_second: float) -> None:
            key = f"ufwatch_{name}{{{labels}}}"
            self._counters[key] = self._counters.get(key, 0.0) + per_second * seconds
            lines.append(f"{key} {self._counters[key]}")

        deviation = 0.09 if target == "jitter" and bad else 0.02
        counter("token_intervals_total", f'{engine},unit="token",source="histogram"', 50)
        counter("token_interval_seconds_total", f'{engine},source="histogram"', 50 * 0.03)
        for bound in ("low", "high"):
            name = f"token_interval_squared_{bound}_total"
            counter(name, f'{engine},source="histogram"', 50 * (deviation**2 + 0.03**2))
        counter("page_table_lookups_total", f'{engine},unit="block",source="engine"', 500)
        missed = 400.0 if target == "miss" and bad else 5.0
        counter("page_table_misses_total", f'{engine},unit="block",source="engine"', missed)
        thrash = target == "thrash" and bad
        counter("kv_evictions_total", f'{engine},source="recycles"', 100 if thrash else 1)
        counter("preemptions_total", engine, 1.0 if thrash else 0.0)
        gauge("kv_blocks", f'{engine},source="vllm"', 1000)
        counter("pinned_alloc_attempts_total", f'{who},source="textfile"', 10)
        counter(
            "pinned_alloc_failures_total", f'{who},code="memory",source="textfile"', 2.0 * (target == "pinned" and bad)
        )
        counter(
            "graph_compile_seconds_total",
            f'{who},phase="compile",cache="cold",source="textfile"',
            10.0 * (target == "compile" and bad),
        )
        gauge("engine_start_time_seconds", engine, time.time() - 7200)
        state = (
            "stalled"
            if target == "stalled" and bad
            else "down"
            if target in ("silent", "outage") and bad
            else "serving"
        )
        for name in ("starting", "serving", "idle", "stalled", "asleep", "down"):
            gauge("engine_state", f'{engine},state="{name}"', float(name == state))
        counter(
            "prefill_seconds_total", f'{engine},source="request_seconds"', 8.0 if target == "prefill" and bad else 0.5
        )
        counter("decode_seconds_total", f'{engine},source="request_seconds"', 1.0)
        gone = target in ("silent", "outage") and bad
        gauge(
            "source_age_seconds", f'source="vllm",target="{target}"', time.time() - self._since[target] if gone else 0.5
        )
        gauge("memory_breaker_open", f'{who},kind="device"', float(target == "breaker" and bad))
        counter("memory_breaker_trips_total", f'{who},kind="device"', 0.0)
        self._objectives(target, bad, gauge, counter)

    def _objectives(self, target: str, bad: bool, gauge: Callable[..., None], counter: Callable[..., None]) -> None:
        """Of ``prefill``'s events a tenth are bad, of ``slow``'s a fifth, of ``fast``'s most, of an outage's all."""
        slo, share = {
            "prefill": ("ttft", 0.1),
            "slow": ("ttft", 0.2),
            "fast": ("ttft", 0.8),
            "outage": ("availability", 1.0),
        }.get(target, ("", 0.0))
        if not slo:
            return
        who = f'target="{target}",model_name="m",slo="{slo}"'
        gauge("slo_objective_ratio", f'slo="{slo}"', 0.95 if slo == "ttft" else 0.999)
        # Healed, so many good events come that the long windows forget the bad ones within this run.
        events = 10.0 if bad or target not in self._since else 100000.0
        counter("slo_events_total", who, events)
        counter("slo_bad_events_total", f'{who},bound="low"', events * share if bad else 0.0)


def accelerated(text: str, by: float) -> str:
    """The rules with every duration of a minute and more divided; scrapes stay what they are."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * _UNITS[found[3]]
        return found[0] if seconds < 60 else f"{found[1]}{round(1000 * seconds / by)}ms"

    return re.sub(r"(\[|offset |for: |interval: )([0-9]+)([smhd])\b", shorter, text)


def quick_routes(text: str, hook: str, *, quick: bool) -> str:
    """The Alertmanager configuration with our webhook and, for a quick run, without its waits."""
    text = re.sub(r"http://127\.0\.0\.1:9095", hook, text)
    if quick:
        text = re.sub(r"group_wait: \w+", "group_wait: 1s", text)
        text = re.sub(r"group_interval: \w+", "group_interval: 2s", text)
    return text


def run(*, true_timing: bool) -> dict[str, Any]:
    """Everything started, provoked, healed and stopped; the times in seconds since each was provoked or healed."""
    every = 15.0 if true_timing else 1.0
    options = RuleOptions(interval_seconds=every, thresholds=Thresholds() if true_timing else Thresholds(stale=3))
    files = rule_files(options)
    wanted = {"UfwatchTokenJitterHigh"} if true_timing else set(TARGETS)
    with tempfile.TemporaryDirectory() as folder, PageServer(b"") as server, Webhook() as hook:
        work = Path(folder)
        for name in ("recording.yml", "alerts.yml"):
            text = files[name] if true_timing else accelerated(files[name], ACCELERATION)
            (work / name).write_text(text, encoding="utf-8")
        routes = quick_routes(files["alertmanager.yml"], hook.url, quick=not true_timing)
        world, stop = World(), threading.Event()

        def move() -> None:
            last = time.monotonic()
            while not stop.is_set():
                now = time.monotonic()
                server.body = world.page(now - last)
                last = now
                stop.wait(0.25)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            with Alertmanager(work, routes) as alertmanager:
                rules = [work / "recording.yml", work / "alerts.yml"]
                with Prometheus(
                    work,
                    server.url.removeprefix("http://"),
                    rules=rules,
                    alertmanager=alertmanager.url,
                    seconds=every,
                ):
                    return _drive(world, hook, alertmanager, wanted, true_timing=true_timing)
        finally:
            stop.set()
            mover.join()


def _drive(
    world: World, hook: Webhook, alertmanager: Alertmanager, wanted: set[str], *, true_timing: bool
) -> dict[str, Any]:
    time.sleep(60 if true_timing else WARM_SECONDS)
    early = _pages(hook)
    keys = {(name, TARGETS[name]) for name in wanted}
    conditions = {TARGETS[name] or "card" for name in wanted}
    if not true_timing:
        keys.add(_OUTAGE)
        conditions.add("outage")
    begun = time.time()
    world.provoke(*conditions)
    fired: dict[tuple[str, str], float] = {}
    healed: dict[tuple[str, str], float] = {}
    resolved: dict[tuple[str, str], float] = {}
    texts: dict[tuple[str, str], str] = {}
    inhibited = False
    end = begun + (900 if true_timing else 480)
    while len(resolved) < len(keys) and time.time() < end:
        time.sleep(0.1)
        for (name, target, status), (when, alert) in _pages(hook).items():
            key = name, target
            if key not in keys or when < begun:
                continue
            if status == "firing" and key not in fired:
                fired[key] = when - begun
                texts[key] = alert["annotations"]["summary"]
            if status == "resolved" and key in healed and key not in resolved and when > healed[key]:
                resolved[key] = when - healed[key]
        for key in fired.keys() - healed.keys():
            if key == _OUTAGE:
                # It lasts until the target's own alert is there to be silenced.
                states = alertmanager.states()
                inhibited = ("UfwatchTelemetryStale", "outage", "suppressed") in {
                    (labels["alertname"], labels.get("target", ""), state) for labels, state in states
                }
                if not inhibited:
                    continue
            healed[key] = time.time()
            world.heal(key[1] or "card")
    outage = [key for key in _pages(hook) if key[1] == "outage" and key[2] == "firing"]
    return {
        "scrape_seconds": 15 if true_timing else 1,
        "durations_divided_by": 1 if true_timing else ACCELERATION,
        "pages_before_anything_was_provoked": len(early),
        "alerts": {
            (name if target != "outage" else f"{name} (outage)"): {
                "page_after_seconds": round(fired[name, target], 1) if (name, target) in fired else None,
                "resolved_after_seconds": round(resolved[name, target], 1) if (name, target) in resolved else None,
                "summary": texts.get((name, target)),
            }
            for name, target in sorted(keys)
        },
        "pages_of_the_outage": [name for name, _, _ in outage],
        "target_down_was_silenced_by_the_outage": inhibited,
        "complete": len(resolved) == len(keys) and not early and (true_timing or (inhibited and len(outage) == 1)),
    }


def _pages(hook: Webhook) -> dict[tuple[str, str, str], tuple[float, Mapping[str, Any]]]:
    """By alert, target and status, the first time it came to the pager or as a ticket, and the alert."""
    found: dict[tuple[str, str, str], tuple[float, Mapping[str, Any]]] = {}
    for when, _, body in list(hook.got):
        for alert in body["alerts"]:
            key = alert["labels"]["alertname"], alert["labels"].get("target", ""), alert["status"]
            found.setdefault(key, (when, alert))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--true", action="store_true", dest="true_timing")
    result = run(true_timing=parser.parse_args().true_timing)
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["complete"] else 1)
