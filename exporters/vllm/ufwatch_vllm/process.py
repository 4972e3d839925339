"""This process: its one exporter, and which of vLLM's processes it is.

vLLM starts its processes by fork or by spawn. After a fork the plugin is not loaded again and the hooks are inherited,
so the role is settled by the hook that first has something to say in a process, and a process without one (launcher,
model registry, coordinator) has no file.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
from collections.abc import Sequence

from .observers.textfile import Exporter

LOG = logging.getLogger("ufwatch")

DIRECTORY = "UFWATCH_EXPORT_DIR"

_ROLES = (("apiserver", "api"), ("enginecore", "engine"), ("dpenginecore", "engine"), ("vllmworker", "worker"))
"""How vLLM's process names begin (``EngineCore_DP0``, ``VllmWorker-0``, ``ApiServer_1``), in lower case."""

_exporter: Exporter | None = None
_pid = 0
"""Whose exporter it is: a forked child makes its own."""
_absent: dict[str, str] = {}
_failed: set[str] = set()


def directory() -> str:
    """Where the text files go; empty where none is given: then there is nothing to do."""
    return os.environ.get(DIRECTORY, "").strip()


def begin(role: str) -> Exporter | None:
    """This process's exporter, running. ``role`` counts where the process's name does not say what it is."""
    global _exporter, _pid
    if _pid != os.getpid():
        if not directory():
            return None
        _log_with_vllm()
        _exporter = Exporter(directory(), role_of(multiprocessing.current_process().name, role))
        _pid = os.getpid()
        for metric, reason in _absent.items():
            _exporter.absent(metric, reason)
        _exporter.start()
        LOG.info("ufwatch: process %d exports to %s", _pid, _exporter.path)
    return _exporter


def role_of(process_name: str, otherwise: str) -> str:
    """The role by vLLM's name for the process; the main one has none (one process may be all of them)."""
    name = process_name.lower().replace("_", "")
    for prefix, role in _ROLES:
        if name.startswith(prefix):
            return role
    return otherwise


def rank_of(process_name: str) -> str:
    """The data-parallel rank in an engine core's process name (0.9: ``EngineCore_1``); "0" where there is none."""
    matched = re.match(r"EngineCore_(?:DP)?(\d+)", process_name)
    return matched[1] if matched else "0"


def absent(metric: str, reason: str) -> None:
    """Says why a metric is not there, in this process's file and log, once it has something to say at all."""
    _absent[metric] = reason
    if _exporter is not None and _pid == os.getpid():
        _exporter.absent(metric, reason)


def give_up(hook: str, metrics: Sequence[str], **labels: str) -> None:
    """``hook`` has failed too often: its metrics leave the file, where they would read as nothing happening."""
    if _exporter is not None and _pid == os.getpid():
        _exporter.rests(hook, metrics, **labels)
        _exporter.give_up(hook)


def say(text: str, *args: object) -> None:
    """One line in the log, from a process that may have no file."""
    _log_with_vllm()
    LOG.info(text, *args)


def failed(hook: str) -> None:
    """Call in an ``except`` block of a hook: counted in the file, the first time of each in the log. Never raises."""
    try:
        if _exporter is not None and _pid == os.getpid():
            _exporter.failed(hook)
        elif hook not in _failed and directory():
            _failed.add(hook)
            LOG.warning("ufwatch: %s failed, the process is not affected", hook, exc_info=True)
    except Exception:
        pass


def _log_with_vllm() -> None:
    """Lets our few lines go where vLLM's go: it gives handlers to its own logger only."""
    theirs = logging.getLogger("vllm")
    if not LOG.handlers and not logging.getLogger().handlers:
        for handler in theirs.handlers:
            LOG.addHandler(handler)
        if LOG.handlers:
            LOG.propagate = False
            LOG.setLevel(LOG.level or theirs.getEffectiveLevel())
