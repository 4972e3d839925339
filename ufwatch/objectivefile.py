"""Reads a file of objectives: OpenSLO v1 (one document or several), Sloth ``prometheus/v1``, or our own lines.

Our own form is a mapping with ``slos``, a list of lines such as ``ttft < 800ms, 95%``.
"""

from __future__ import annotations

from pathlib import Path

from ufwatch import document
from ufwatch.config import Objective
from ufwatch.configschema import Block, Report, converted
from ufwatch.core import objectives, openslo
from ufwatch.errors import ConfigError


def load(path: Path) -> tuple[Objective, ...]:
    """The objectives of a file. Raises ConfigError with every mistake of it."""
    return parse(document.read_text(path), str(path))


def parse(source: str, where: str) -> tuple[Objective, ...]:
    """As :func:`load`, from text; ``where`` names it in messages."""
    documents = [document.parse(source, where)] if where.endswith(".json") else document.parse_all(source, where)
    reports = [Report(each.lines) for each in documents]
    blocks = [Block(d.value, "", r, nullable=False) for d, r in zip(documents, reports, strict=True)]
    first = documents[0].value
    if isinstance(first, dict) and "slos" in first and "version" not in first and "apiVersion" not in first:
        placed = _lines(blocks[0])
    elif isinstance(first, dict) and str(first.get("version", "")).startswith("prometheus/"):
        placed = openslo.sloth(blocks[0])
    else:
        placed = openslo.read(blocks)
    whole = Report()
    objectives.check_objectives(placed, whole)
    mistakes = [mistake for each in documents for mistake in each.mistakes]
    for report in (*reports, whole):
        mistakes += report.mistakes
    if mistakes:
        raise ConfigError(where, mistakes)
    return tuple(each for _, each in placed)


def named_line(value: object) -> object:
    """YAML reads ``patience: ttft < 2.3s, 99%`` as a mapping of one key; this is the line again."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, line),) = value.items()
        return f"{name}: {line}" if isinstance(line, str) else value
    return value


def _lines(block: Block) -> list[tuple[str, Objective]]:
    found = []
    for path, item in block.items("slos"):
        each = converted(named_line(item), objectives.native, None, block.report, path)
        found += [(path, each)] if each is not None else []
    block.close()
    return found
