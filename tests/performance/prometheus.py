"""Does a scrape cost us less CPU than Prometheus itself? Run ``python -m tests.performance.prometheus``.

``ufwatch run`` and the ``prometheus`` in PATH scrape the same kind of busy targets at 1 s, in turn and each in a fresh
process: A B A B. Of each, the run that was disturbed least counts. CPU is user and system time of the whole process in
a window after the warm-up (ours begins when the windows of a minute are full); the targets count the scrapes. Ours
also serves its page once in 5 s. The work differs: Prometheus stores every sample of a page, ufwatch reads half of
them, derives its signals and serves those. Objectives are off: Prometheus probes nothing.
The last line is JSON:

- ``cpu_ratio``: our CPU per scrape over Prometheus', on plain asyncio (≤ 1.0); ``cpu_ratio_uvloop``: on uvloop;
- ``us``: microseconds per scrape of each.

Arguments: ``--targets``, ``--rounds``, ``--seconds`` measured per run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.performance.process import cpu_seconds
from tests.performance.targets import busy_targets
from tests.processes import COMMAND, WITHOUT_UVLOOP, Running

WARM_SECONDS = {"ours": 64, "ours_uvloop": 64, "prometheus": 12}
_READ_EVERY_SECONDS = 5


@contextlib.contextmanager
def agent(urls: Sequence[str], folder: Path, *, uvloop: bool = True, objectives: bool = True) -> Iterator[Running]:
    """``ufwatch run`` over these targets at 1 s, with the default objectives or without any."""
    targets = [{"name": f"10.0.0.{at}:8000", "url": url} for at, url in enumerate(urls)]
    file = folder / "ufwatch.yaml"
    settings = {"interval": 1, "gpu": {"enabled": False}, "targets": targets}
    if not objectives:
        settings["slos"] = []
    file.write_text(json.dumps(settings), encoding="utf-8")
    command = COMMAND if uvloop else WITHOUT_UVLOOP
    with Running("--config", str(file), command=(*command, "run")) as running:
        yield running


@contextlib.contextmanager
def prometheus(urls: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Prometheus over these targets at 1 s, everything stored."""
    hosts = [url.removeprefix("http://") for url in urls]
    file = folder / "prometheus.yml"
    scrape = {"job_name": "vllm", "static_configs": [{"targets": hosts}]}
    settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
    file.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = (f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}")
    with subprocess.Popen(["prometheus", *flags, "--log.level=error"]) as server:
        try:
            yield server
        finally:
            server.terminate()


def measured(name: str, targets: int, seconds: int) -> float:
    """CPU microseconds per scrape of one run."""
    warm = WARM_SECONDS[name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = stack.enter_context(busy_targets(targets, pages=warm + seconds + 10))
        read = None
        if name == "prometheus":
            pid = stack.enter_context(prometheus(served.urls, folder)).pid
        else:
            running = stack.enter_context(agent(served.urls, folder, uvloop=name == "ours_uvloop", objectives=False))
            pid, read = running.process.pid, running.page
        time.sleep(warm)
        cpu, scrapes, end = cpu_seconds(pid), served.asked(), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if read is not None:
                read()
            time.sleep(min(left, _READ_EVERY_SECONDS))
        cpu, scrapes = cpu_seconds(pid) - cpu, served.asked() - scrapes
    if scrapes < 0.98 * targets * seconds:
        raise SystemExit(f"{name} made {scrapes} scrapes of {targets * seconds}")
    print(f"{name}, {targets} targets: {cpu / scrapes * 1e6:.0f} µs a scrape", flush=True)
    return cpu / scrapes * 1e6


def main(targets: int, rounds: int, seconds: int) -> None:
    us: dict[str, list[float]] = {name: [] for name in ("ours", "prometheus", "ours_uvloop")}
    for _ in range(rounds):
        for name, each in us.items():
            each.append(measured(name, targets, seconds))

    best = {name: min(each) for name, each in us.items()}
    print(
        json.dumps(
            {
                "cpu_ratio": round(best["ours"] / best["prometheus"], 2),
                "cpu_ratio_uvloop": round(best["ours_uvloop"] / best["prometheus"], 2),
                "us": {name: round(each) for name, each in best.items()},
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Does a scrape cost us less CPU than Prometheus itself?")
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20)
    given = parser.parse_args()
    main(given.targets, given.rounds, given.seconds)
