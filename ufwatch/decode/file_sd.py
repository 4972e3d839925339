"""Targets of Prometheus' ``file_sd`` form: a list of ``{targets: [host:port, …], labels: {…}}``.

Takes the decoded document, because reading YAML needs a third-party package. Of the labels only these are used, and
every other is ignored: ``__scheme__``, ``__metrics_path__``, ``model_name``, and ``target`` or ``name``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ufwatch.address import host_port, http_url
from ufwatch.config import TargetConfig
from ufwatch.configschema import Block, Report, converted, label, shown, text
from ufwatch.errors import ConfigError


def parse(groups: object, where: str, lines: Mapping[str, int] | None = None) -> tuple[TargetConfig, ...]:
    """Returns the targets in the order of the document. ConfigError lists every mistake.

    ``lines`` maps a value's path to its line. A name given to a group of several targets becomes ``name[host:port]``
    for each of them, because one label must not stand for two servers.
    """
    if not isinstance(groups, list):
        raise ConfigError(where, [f"{shown(groups)} is not a list of groups; write [] for no targets"])
    report = Report(lines)
    found: list[TargetConfig] = []
    for index, value in enumerate(groups):
        found.extend(_group(Block(value, f"[{index}]", report, nullable=False), report))
    report.raise_if_any(where)
    return tuple(found)


def _group(block: Block, report: Report) -> list[TargetConfig]:
    labels = block.block("labels")
    scheme = labels.get("__scheme__", text, "http")
    path = labels.get("__metrics_path__", _path, "")
    model_name = labels.get("model_name", label, None)
    name = labels.get("target", label, None) or labels.get("name", label, None)
    # The labels are not closed: a file written for Prometheus carries others, which are none of our business.
    items = block.items("targets")
    block.close()
    found = []
    for at, value in items:
        url = converted(value, lambda host: _url(host, scheme, path), None, report, at)
        if url is not None:
            default = host_port(url)
            full_name = default if name is None else name if len(items) == 1 else f"{name}[{default}]"
            found.append(TargetConfig(name=full_name, url=url, model_name=model_name))
    return found


def _path(value: object) -> str:
    found = text(value)
    if not found.startswith("/"):
        raise ValueError(f"{shown(found)} is not a path; begin it with /")
    # The page's usual place is what a base address already stands for.
    return "" if found == "/metrics" else found


def _url(value: object, scheme: str, path: str) -> str:
    host = text(value)
    if "/" in host:
        raise ValueError("is not host:port; put the scheme in __scheme__ and the path in __metrics_path__")
    return http_url(f"{scheme}://{host}{path}")
