"""The agent as a user runs it, watched by a Prometheus and an Alertmanager with the committed files.

The webhook listens where the committed Alertmanager configuration sends to, so that no byte of any file is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.alertmanager_server import Alertmanager, Webhook
from tests.e2e.prometheus_server import Prometheus
from tests.processes import Running
from tests.sources.loopback import free_port

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "alerts"
SCRAPE_SECONDS = 15.0
WEBHOOK_PORT = 9095
_COMMITTED_WEBHOOK = f"http://127.0.0.1:{WEBHOOK_PORT}"
_END_SECONDS = 15.0


class Agent:
    """``ufwatch run`` with a configuration file, replayed cards, and one address for all of its lives."""

    def __init__(self, work: Path, config: str, cards: Path) -> None:
        self._work, self._port = work, free_port()
        self._file = work / "ufwatch.yaml"
        self._file.write_text(config, encoding="utf-8")
        self._command = (sys.executable, "-W", "error", "-m", "tests.e2e.replayed_cards", str(cards), "run")
        self._running: Running | None = None

    @property
    def address(self) -> str:
        """Host and port, as Prometheus wants it."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it answers."""
        self._running = Running("--config", str(self._file), command=self._command, cwd=ROOT, port=self._port)
        self._running.serves_at(f"http://{self.address}")

    def stop(self) -> None:
        """By SIGTERM, in peace; what it said is added to ``agent.log``."""
        running, self._running = self._running, None
        if running is None:
            return
        with running:
            try:
                running.end(within=_END_SECONDS)
            finally:
                with (self._work / "agent.log").open("a", encoding="utf-8") as log:
                    log.write(running.log())


@dataclass(frozen=True)
class Watchers:
    """The three that stand behind an agent, ready."""

    prometheus: Prometheus
    alertmanager: Alertmanager
    hook: Webhook


@contextlib.contextmanager
def watchers(work: Path, address: str) -> Iterator[Watchers]:
    """Everything that watches the agent at this address: committed rules and routes, a scrape every 15 s.

    Where another such run has the webhook's port, that one address in the routes is changed.
    """
    rules = [ALERTS / "recording.yml", ALERTS / "alerts.yml"]
    with (
        _webhook() as hook,
        Alertmanager(work, _routes(hook)) as alertmanager,
        Prometheus(work, address, rules, alertmanager=alertmanager.url, seconds=SCRAPE_SECONDS) as prometheus,
    ):
        yield Watchers(prometheus, alertmanager, hook)


def _webhook() -> Webhook:
    try:
        return Webhook(WEBHOOK_PORT)
    except OSError:
        return Webhook()


def _routes(hook: Webhook) -> str:
    return (ALERTS / "alertmanager.yml").read_text(encoding="utf-8").replace(_COMMITTED_WEBHOOK, hook.url)


@dataclass
class Notices:
    """What reached the webhook. A page is a notification to the pager with an alert that was not firing before."""

    pages: list[dict[str, Any]] = field(default_factory=list)
    tickets: list[dict[str, Any]] = field(default_factory=list)
    repeated: list[dict[str, Any]] = field(default_factory=list)
    resolved: list[dict[str, Any]] = field(default_factory=list)


def notices(hook: Webhook, since: float) -> Notices:
    """Sorted by kind, with times in seconds after ``since``."""
    found = Notices()
    known: set[tuple[str, str]] = set()
    for when, path, body in list(hook.got):
        firing = [alert for alert in body["alerts"] if alert["status"] == "firing"]
        fresh = {(alert["fingerprint"], alert["startsAt"]) for alert in firing} - known
        known |= fresh
        entry = {
            "at_seconds": round(when - since, 1),
            "path": path,
            "firing": [_named(alert) for alert in firing],
            "resolved": [_named(alert) for alert in body["alerts"] if alert["status"] == "resolved"],
        }
        if fresh:
            (found.pages if path == "/pager" else found.tickets).append(entry)
        elif firing:
            found.repeated.append(entry)
        if entry["resolved"]:
            found.resolved.append(entry)
    return found


def ever(prometheus: Prometheus, state: str, window: str) -> dict[str, int]:
    """Each alert that was in this state at any evaluation of the window, and at how many."""
    found: dict[str, int] = {}
    for labels, pairs in prometheus.raw(f'ALERTS{{alertstate="{state}"}}', window):
        name = _named({"labels": labels})
        found[name] = found.get(name, 0) + len(pairs)
    return found


def states(prometheus: Prometheus, target: str, window: str, since: float) -> list[tuple[str, float]]:
    """The target's states in turn, each with the seconds after ``since`` at which a scrape first showed it.

    Whether an engine that answers is serving or idle is not told apart.
    """
    seen = sorted(
        (when, "answering" if labels["state"] in ("serving", "idle") else labels["state"])
        for labels, pairs in prometheus.raw(f'ufwatch_engine_state{{target="{target}"}}', window)
        for when, value in pairs
        if value == 1
    )
    turns: list[tuple[str, float]] = []
    for when, state in seen:
        if not turns or turns[-1][0] != state:
            turns.append((state, round(when - since, 1)))
    return turns


def highest(prometheus: Prometheus, expression: str, *labels: str) -> dict[str, float]:
    """The highest value of each series of an instant query, named by some of its labels."""
    found: dict[str, float] = {}
    for series, value in prometheus.now(expression):
        name = "/".join(series.get(label, "") for label in labels)
        found[name] = round(max(value, found.get(name, value)), 4)
    return found


def say(what: str, began: float) -> None:
    """One line of what happens, for whoever watches."""
    print(f"{time.time() - began:7.1f} s  {what}", file=sys.stderr, flush=True)


def by_hand(name: str, text: str | None, run: Callable[[Path, Path], Coroutine[Any, Any, dict[str, Any]]]) -> int:
    """The door of a script on a real vLLM: ``run`` gets its folder and one to work in (see :func:`played`)."""
    parser = parser_of(text)
    parser.add_argument("--vllm-dir", type=Path, required=True)
    args = parser.parse_args()
    return played(name, args.logs, lambda work: asyncio.run(run(args.vllm_dir.resolve(), work)))


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """What every such script is asked with."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes in this folder")
    return parser


def played(name: str, logs: Path | None, run: Callable[[Path], dict[str, Any]]) -> int:
    """The exit code of a run, whose result is printed and tells under ``passed`` how it ended; 2 when there is none."""
    work = Path(tempfile.mkdtemp(prefix=f"ufwatch-{name}-"))
    try:
        result = run(work)
    except (AssertionError, RuntimeError, OSError, ExceptionGroup) as error:
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        print(f"the run did not come about: {'; '.join(map(str, causes))}", file=sys.stderr)
        return 2
    finally:
        if logs is not None:
            with contextlib.suppress(OSError):
                shutil.copytree(work, logs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("tsdb"))
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(result, indent=1))
    return 0 if result["passed"] else 1


def _named(alert: dict[str, Any]) -> str:
    """An alert by its name and the labels that tell it from others of that name."""
    labels = alert["labels"]
    parts = [f"{key}={labels[key]}" for key in ("target", "slo", "reason", "source", "kind", "gpu") if key in labels]
    return f"{labels['alertname']}({', '.join(parts)})"
