"""``ufwatch doctor``: what keeps each signal from being exact, with the evidence and what would fix it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ufwatch.agent import Agent
from ufwatch.cli import sampling
from ufwatch.cli.options import flags
from ufwatch.core.advice import Facts, Finding, Verdict, findings
from ufwatch.render.table import plain
from ufwatch.sources.procfs import command_lines, serving

_MARKS = {
    Verdict.GOOD: "ok",
    Verdict.BETTER: "better",
    Verdict.ABSENT: "absent",
    Verdict.FAULT: "FAULT",
    Verdict.UNKNOWN: "unknown",
}


configure = sampling.configure


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when nothing is at fault, 1 when something is, 2 when a target could not be read."""
    given = flags(args)
    found, up = sampling.look_at(given, env, samples=2, look=_examine)
    if given.json:
        sampling.print_json({"targets": [_target(name, lines) for name, lines in found.items()]})
    else:
        print("\n".join(_text(name, lines) for name, lines in found.items()))
    if not up:
        return 2
    return int(any(line.verdict is Verdict.FAULT for lines in found.values() for line in lines))


def _examine(agent: Agent) -> tuple[dict[str, tuple[Finding, ...]], bool]:
    """The findings of each target, and whether every target could be read."""
    found: dict[str, tuple[Finding, ...]] = {}
    commands = command_lines()
    for name, target in agent.targets.items():
        if target.report is not None:
            facts = Facts(
                config=target.config,
                report=target.report,
                readings=(*agent.cards.sm_readings(name), *target.readings()),
                lives=target.lives,
                told_absent=target.told_absent,
                command=serving(target.config.url, commands),
                unknown_gpus=agent.cards.unknown(name),
                gpu_detail=agent.cards.detail(),
                gpu_enabled=agent.cards.enabled,
            )
            found[name] = findings(facts)
    reports = [target.report for target in agent.targets.values()]
    return found, bool(reports) and all(report is not None and report.up for report in reports)


def _target(name: str, lines: tuple[Finding, ...]) -> dict[str, object]:
    return {
        "target": name,
        "findings": [
            {"about": line.about, "verdict": line.verdict.value, "evidence": line.evidence, "fix": line.fix or None}
            for line in lines
        ],
    }


def _text(name: str, lines: tuple[Finding, ...]) -> str:
    text = [plain(name)]
    for line in lines:
        text.append(f"  {_MARKS[line.verdict]:<8}{line.about:<22}{plain(line.evidence)}")
        if line.fix:
            text.append(f"  {'':<30}-> {plain(line.fix)}")
    return "\n".join(text) + "\n"
