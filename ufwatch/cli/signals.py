"""``ufwatch signals``: what each target offers, from which source and how exact it can be."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ufwatch import catalogue
from ufwatch.agent import Agent
from ufwatch.cli import sampling
from ufwatch.cli.options import flags
from ufwatch.model import Quality, Reading
from ufwatch.render.table import plain

configure = sampling.configure


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when every target was up, otherwise 2."""
    given = flags(args)
    offers, up = sampling.look_at(given, env, samples=2, look=_offers)
    if given.json:
        sampling.print_json({"targets": [{"target": name, "signals": rows} for name, rows in offers.items()]})
    else:
        for name, rows in offers.items():
            print(plain(name))
            for row in rows:
                labels = " ".join((row["signal"], *(f"{key}={value}" for key, value in row["labels"].items())))
                now = row["reason"] or "has a value"
                print(f"  {plain(labels):<58}{row['source'] or '-':<25}{row['quality'] or '-':<9}{now}")
    return 0 if up else 2


def _offers(agent: Agent) -> tuple[dict[str, list[dict[str, Any]]], bool]:
    offers = {n: offered((*agent.cards.sm_readings(n), *target.readings())) for n, target in agent.targets.items()}
    reports = [target.report for target in agent.targets.values()]
    return offers, bool(reports) and all(report is not None and report.up for report in reports)


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
