"""``ufwatch run`` with a wall clock that somebody sets: for :mod:`tests.performance.endurance`.

``python -m tests.performance.watched_agent CONFIG SECONDS FOLDER…`` answers each line of its input with what windows
say, and then writes a text file into each folder.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

JUMPS = ((0.3, 3600.0), (0.6, -3600.0))
"""When, as a share of the whole run, and to how many seconds beside the true time the wall clock is set."""


class JumpingClock:
    """The machine's clocks, with a wall time that somebody sets."""

    began = time.monotonic()
    run_seconds = math.inf

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        share = (time.monotonic() - self.began) / self.run_seconds
        return time.time() + next((by for since, by in reversed(JUMPS) if share >= since), 0.0)


def watch(config: str, run_seconds: float, folders: list[str]) -> int:
    """``ufwatch run`` with the jumping clock, which writes its text files and tells its rates by the way."""
    from ufwatch import assemble
    from ufwatch.cli import main, run

    JumpingClock.run_seconds = run_seconds
    made: list[Any] = []

    def agent(*args: Any, _make: Any = assemble.agent, **kwargs: Any) -> Any:
        made.append(_make(*args, **kwargs))
        return made[0]

    def tell() -> None:
        clock, begun = JumpingClock(), JumpingClock().wall()
        for writes, _ in enumerate(sys.stdin):
            print(json.dumps({"rates": list(rates(made[0])), "attempts": 3 * writes}), flush=True)
            # The next growth must not be on the page before it is told, so it is written afterwards.
            for folder in folders:
                write_textfile(Path(folder), clock.wall(), begun, attempts=3 * (writes + 1), failures=writes + 1)

    with mock.patch.object(run, "SystemClock", JumpingClock), mock.patch.object(assemble, "agent", agent):
        threading.Thread(target=tell, daemon=True).start()
        return main.main(["run", "--config", config, "--port", "0"])


def write_textfile(folder: Path, now: float, begun: float, *, attempts: int, failures: int) -> None:
    new = folder / "worker-1.new"
    new.write_text(
        f"# ufwatch {now} {begun}\n"
        f"ufwatch_pinned_alloc_attempts_total {attempts}\n"
        f'ufwatch_pinned_alloc_failures_total{{code="out_of_memory"}} {failures}\n'
    )
    new.rename(folder / "worker-1.prom")


def rates(agent: Any) -> Iterator[dict[str, Any]]:
    """What each engine's full window says, and between which two scrapes it lies."""
    for name, target in agent.targets.items():
        for engine in target.report.engines if target.report is not None else ():
            rate = next(r.value for r in engine.readings if r.signal == "generation_tokens_rate")
            span = engine.track.span() if engine.track is not None and rate is not None else None
            if span is None:
                continue
            ends = engine.track.history.ends()
            yield {
                "target": name,
                "engine": engine.engine,
                "ends": [at for at, _ in ends],
                "decode_tokens": rate * span.seconds,
                "interval_square_sum_low": span.increase("token_interval_squared_low_total"),
                "interval_square_sum_high": span.increase("token_interval_squared_high_total"),
            }


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
