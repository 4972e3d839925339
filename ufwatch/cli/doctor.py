"""``ufwatch doctor``: what keeps each signal from being exact, with the evidence and what would fix it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping

from ufwatch import assemble
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_output_options, add_target_options, flags
from ufwatch.cli.sampling import quiet_level, sampled
from ufwatch.core.advice import Facts, Finding, Verdict, findings
from ufwatch.precedence import log_settings, settle
from ufwatch.sources.procfs import command_lines, serving

_MARKS = {
    Verdict.GOOD: "ok",
    Verdict.BETTER: "better",
    Verdict.ABSENT: "absent",
    Verdict.FAULT: "FAULT",
    Verdict.UNKNOWN: "unknown",
}


def configure(parser: argparse.ArgumentParser) -> None:
    add_target_options(parser)
    add_output_options(parser)
    add_log_options(parser)


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when nothing is at fault, 1 when something is, 2 when a target could not be read."""
    given = flags(args)
    logs = log_settings(env, given)
    setup_logging(quiet_level(logs, given, env), logs.format)
    config = settle(env, given)
    assemble.require_targets(config)
    found: dict[str, tuple[Finding, ...]] = {}
    reached: list[bool] = []

    def look(agent: Agent) -> None:
        commands = command_lines()
        for name, target in agent.targets.items():
            if target.report is None:
                continue
            reached.append(target.report.up)
            facts = Facts(
                config=target.config,
                report=target.report,
                readings=(*agent.sm_readings(name), *target.readings()),
                lives=target.lives,
                command=serving(target.config.url, commands),
                unknown_gpus=agent.unknown_gpus(name),
                gpu_detail=agent.gpu_detail(),
            )
            found[name] = findings(facts)

    asyncio.run(sampled(config, env, samples=2, look=look))
    if given.json:
        json.dump({"targets": [_target(name, lines) for name, lines in found.items()]}, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(_text(name, lines) for name, lines in found.items()))
    if not reached or not all(reached):
        return 2
    return int(any(line.verdict is Verdict.FAULT for lines in found.values() for line in lines))


def _target(name: str, lines: tuple[Finding, ...]) -> dict[str, object]:
    return {
        "target": name,
        "findings": [
            {"about": line.about, "verdict": line.verdict.value, "evidence": line.evidence, "fix": line.fix or None}
            for line in lines
        ],
    }


def _text(name: str, lines: tuple[Finding, ...]) -> str:
    text = [name]
    for line in lines:
        text.append(f"  {_MARKS[line.verdict]:<8}{line.about:<22}{line.evidence}")
        if line.fix:
            text.append(f"  {'':<30}-> {line.fix}")
    return "\n".join(text) + "\n"
