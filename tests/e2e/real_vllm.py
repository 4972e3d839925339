"""ufwatch against a real vLLM, by hand: ``python tests/e2e/real_vllm.py --vllm-dir DIR [--only NAME]``.

DIR is what ``vllm_cpu.sh`` made. Each scenario starts a server of its own, loads it, and compares what ufwatch says
with what it does not know: a stat logger inside the server, the KV events counted from the publisher's replay, the page
as prometheus_client reads it, and the usage that clients were told. The server is idle at both ends of the window, so
both sides speak of the very same tokens. One line a check with both figures, one JSON line last; exit 1 if one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from tests.e2e.arrangement import PORT, events_flag
from tests.e2e.checks import Checks, Scenario
from tests.e2e.death import killed
from tests.e2e.load import Load
from tests.e2e.server import Server
from tests.e2e.windows import measured, without_stats

TINY = ("--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "24", "--enforce-eager")
LIGHT = Load(requests=24, at_once=4, prompt=(20, 400), tokens=(20, 90), prefix=256)
HEAVY = Load(requests=30, at_once=6, prompt=(60, 200), tokens=(80, 150))
ENDLESS = Load(requests=400, at_once=4, prompt=(20, 100), tokens=(150, 200))

SCENARIOS = (
    Scenario("base", (), LIGHT, measured, evicts=False),
    Scenario("tiny-kv", TINY, HEAVY, measured),
    Scenario("api-servers-2", (*TINY, "--api-server-count", "2"), HEAVY, measured),
    Scenario("dp-2-api-1", (*TINY, "--data-parallel-size", "2", "--api-server-count", "1"), HEAVY, measured, ranks=2),
    Scenario("dp-2", (*TINY, "--data-parallel-size", "2"), HEAVY, measured, ranks=2),
    Scenario("no-stats", (*TINY, "--disable-log-stats"), HEAVY, without_stats, plugin=False),
    Scenario("killed", TINY, ENDLESS, killed),
)


async def _run(scenario: Scenario, directory: Path, work: Path) -> Checks:
    checks = Checks(scenario.name)
    flags = (*scenario.flags, *events_flag())
    server = Server(directory, PORT, flags, work, plugin=scenario.plugin)
    try:
        checks.figures["start_seconds"] = round(await server.start(), 1)
        await scenario.run(scenario, server, work, checks)
    except Exception as error:
        checks.that(False, "runs to its end", repr(error), "no exception")
    finally:
        await server.stop()
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-dir", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--logs", type=Path, help="keep the servers' logs in this folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # ufwatch says which sources come and go
    results = []
    for scenario in SCENARIOS:
        if args.only and scenario.name not in args.only:
            continue
        work = Path(tempfile.mkdtemp(prefix=f"ufwatch-{scenario.name}-"))
        try:
            results.append(asyncio.run(_run(scenario, args.vllm_dir.resolve(), work)))
            if args.logs:
                args.logs.mkdir(parents=True, exist_ok=True)
                shutil.copy(work / "vllm.log", args.logs / f"{scenario.name}.log")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    failed = [what for checks in results for what in checks.failed]
    print(json.dumps({"passed": not failed, "failed": failed, "scenarios": {c.name: c.figures for c in results}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
