"""Which families a version of vLLM has, in which order and form: read from package data taken off real pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of a page, without its ``_created`` companion."""

    name: str
    type: str
    help: str
    engine: bool
    """Whether its series carry the ``engine`` label."""
    label: str | None
    values: tuple[str, ...]
    """The label, if any, besides ``engine`` and ``model_name``, and the values it always has."""
    edges: tuple[float, ...]
    by_model_len: bool
    """Its edges are 1, 2, 5, 10, … up to the model's length, and ``edges`` is empty."""
    lines: tuple[str, ...]
    """Ready sample lines, of families that say nothing about the engine."""

    def edges_for(self, max_model_len: int) -> tuple[float, ...]:
        """The finite bucket edges of a server started with this ``--max-model-len``."""
        return one_two_five(max_model_len) if self.by_model_len else self.edges


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """A page of one version."""

    version: tuple[int, ...]
    families: tuple[Family, ...]
    cache_config: Mapping[str, str]
    """Labels of ``cache_config_info`` on the recorded page; the scenario's own values replace some."""


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to a limit: how vLLM makes the edges of its token histograms."""
    edges: list[float] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > limit:
                return tuple(edges)
            edges.append(float(step * scale))
        scale *= 10


def parse_version(text: str) -> tuple[int, ...]:
    """``"0.10.2"`` as ``(0, 10, 2)``. ValueError for anything that is no dotted number."""
    return tuple(int(part) for part in text.split("."))


def versions() -> tuple[str, ...]:
    """The versions whose pages are known, oldest first."""
    return tuple(sorted(_data()["pages"], key=parse_version))


@cache
def page_layout(version: str) -> PageLayout:
    """The page of a version, or of the newest known one before it. ValueError for one older than all."""
    wanted = parse_version(version)
    known = [name for name in versions() if parse_version(name) <= wanted]
    if not known:
        raise ValueError(f"no page is known of vLLM {version}; the oldest is {versions()[0]}")
    data, table = _data(), families()
    return PageLayout(
        version=wanted,
        families=tuple(table[index] for index in data["pages"][known[-1]]),
        cache_config=data["cache_config"][known[-1]],
    )


@cache
def families() -> tuple[Family, ...]:
    """Every family of every version; the same name may occur with another help text or other label values."""
    return tuple(
        Family(
            name=entry["name"],
            type=entry["type"],
            help=entry["help"],
            engine=entry.get("engine", False),
            label=entry.get("label"),
            values=tuple(entry.get("values", ())),
            edges=() if entry.get("edges") == "one_two_five" else tuple(entry.get("edges", ())),
            by_model_len=entry.get("edges") == "one_two_five",
            lines=tuple(entry.get("lines", ())),
        )
        for entry in _data()["families"]
    )


@cache
def _data() -> Any:
    return json.loads(files("ufwatch.sim").joinpath("data", "vllm_pages.json").read_text(encoding="utf-8"))
