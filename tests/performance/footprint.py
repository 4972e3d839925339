"""What the agent takes before it has done anything useful. Run ``python -m tests.performance.footprint``.

Two ``ufwatch run`` processes, over 1 and over 101 busy targets at 1 s, are looked at when every window of a minute is
full and the page has been read. The last line is JSON:

- ``rss_over_bare_mb``: resident memory with one target over that of ``python -c 'time.sleep'`` (≤ 40);
- ``mb_per_target``: how much each further target takes (≤ 0.25);
- ``first_scrape_cpu_s``: CPU from exec to the first scrape done, the least disturbed of five starts (≤ 0.5);
- ``forbidden_imports``: of the modules that a running agent must not load, those that it has loaded ([]).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.performance.process import cpu_seconds, resident_mb
from tests.performance.prometheus import agent
from tests.performance.targets import busy_targets
from tests.processes import Running

FORBIDDEN = ("grpc", "opentelemetry", "grafanalib", "numpy", "torch", "prometheus_client")
FURTHER = 100
_FULL_SECONDS = 68
_STARTS = 5
_SHOWING_IMPORTS = (
    *(sys.executable, "-c"),
    "import sys; from ufwatch.cli.main import main; main(); print('loaded', *sys.modules)",
)


def bare_mb() -> float:
    """Resident memory of an interpreter that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        time.sleep(1.0)
        found = resident_mb(process.pid)
        process.kill()
    return found


def full_mb(urls: Sequence[str]) -> tuple[float, float]:
    """Resident memory with the first of these targets, and with all of them, when all windows are full."""
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as every,
        agent(urls[:1], Path(one)) as alone,
        agent(urls, Path(every)) as many,
    ):
        time.sleep(_FULL_SECONDS)
        for running, targets in ((alone, 1), (many, len(urls))):
            if running.page().count("\nufwatch_token_jitter_seconds{") != targets:
                raise SystemExit("a window is not full")
        return resident_mb(alone.process.pid), resident_mb(many.process.pid)


def first_scrape_cpu(url: str) -> float:
    """CPU seconds of a fresh agent when it logs that its only target answered."""
    with tempfile.TemporaryDirectory() as folder, agent([url], Path(folder)) as running:
        while "source up" not in running.log():
            time.sleep(0.002)
        return cpu_seconds(running.process.pid)


def loaded(url: str) -> list[str]:
    """The forbidden modules in an agent that has scraped, served its page and been stopped."""
    with Running("--target", url, command=(*_SHOWING_IMPORTS, "run")) as running:
        running.logged("source up")
        running.page()
        running.process.terminate()
        running.process.wait()
        (line,) = running.lines("loaded", "asyncio")
    return sorted({module.split(".")[0] for module in line.split()}.intersection(FORBIDDEN))


def main() -> None:
    # Two agents ask the first target, so it needs pages for both.
    with busy_targets(1 + FURTHER, pages=2 * _FULL_SECONDS + 40) as served:
        alone, many = full_mb(served.urls)
    with busy_targets(1, pages=_STARTS * 10) as served:
        cpu = min(first_scrape_cpu(served.urls[0]) for _ in range(_STARTS))
        forbidden = loaded(served.urls[0])
    bare = bare_mb()
    print(f"bare {bare:.1f} MB, one target {alone:.1f} MB, {1 + FURTHER} targets {many:.1f} MB")
    print(
        json.dumps(
            {
                "rss_over_bare_mb": round(alone - bare, 1),
                "mb_per_target": round((many - alone) / FURTHER, 3),
                "first_scrape_cpu_s": round(cpu, 2),
                "forbidden_imports": forbidden,
            }
        )
    )


if __name__ == "__main__":
    main()
