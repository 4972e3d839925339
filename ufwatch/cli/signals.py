"""``ufwatch signals``: what each target offers, from which source and how exact it can be."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_output_options, add_target_options, flags
from ufwatch.cli.sampling import quiet_level, sampled
from ufwatch.model import Quality, Reading
from ufwatch.precedence import log_settings, settle


def configure(parser: argparse.ArgumentParser) -> None:
    add_target_options(parser)
    add_output_options(parser)
    add_log_options(parser)


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when every target was up, otherwise 2."""
    given = flags(args)
    logs = log_settings(env, given)
    setup_logging(quiet_level(logs, given, env), logs.format)
    config = settle(env, given)
    assemble.require_targets(config)
    offers: dict[str, list[dict[str, Any]]] = {}
    up: list[bool] = []

    def look(agent: Agent) -> None:
        for name, target in agent.targets.items():
            up.append(target.report is not None and target.report.up)
            offers[name] = offered((*agent.sm_readings(name), *target.readings()))

    asyncio.run(sampled(config, env, samples=2, look=look))
    if given.json:
        json.dump({"targets": [{"target": n, "signals": o} for n, o in offers.items()]}, sys.stdout, indent=1)
        print()
    else:
        for name, rows in offers.items():
            print(name)
            for row in rows:
                labels = " ".join((row["signal"], *(f"{k}={v}" for k, v in row["labels"].items())))
                now = row["reason"] or "has a value"
                print(f"  {labels:<58}{row['source'] or '-':<25}{row['quality'] or '-':<9}{now}")
    return 0 if up and all(up) else 2


def offered(readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """One row per reading of the seven signals: its source, that source's best quality, and why it is null now."""
    rows: list[dict[str, Any]] = []
    for reading in readings:
        if reading.signal not in catalogue.SEVEN:
            continue
        quality = reading.quality or best_quality(reading)
        rows.append(
            {
                "signal": reading.signal,
                "labels": dict(reading.labels),
                "source": reading.source,
                "quality": quality.value if quality is not None else None,
                "reason": reading.reason.value if reading.reason is not None else None,
            }
        )
    return rows


def best_quality(reading: Reading) -> Quality | None:
    """What the reading's source gives when it has data."""
    for signal in catalogue.SIGNALS:
        if signal.id == reading.signal:
            for provider in signal.providers:
                if provider.source == reading.source:
                    return provider.quality
    return None
