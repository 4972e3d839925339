"""ufwatch's observers inside a PyTorch process: graph compile time and pinned-memory allocation.

``observe()`` writes them to a text file in ``UFWATCH_EXPORT_DIR``, which the ufwatch agent reads. It imports nothing
but the standard library, never torch, and nothing of it may harm the host.
"""

from __future__ import annotations

import os
import threading

from . import graphs, pinned
from .graphs import started
from .textfile import Exporter

_lock = threading.Lock()
_exporter: Exporter | None = None


def observe(directory: str | None = None, role: str = "engine") -> Exporter | None:
    """Begins to observe this process, once; later calls return the same exporter.

    ``directory`` defaults to ``UFWATCH_EXPORT_DIR``; without one nothing is done and None returned. Never raises.
    """
    global _exporter
    try:
        where = directory or os.environ.get("UFWATCH_EXPORT_DIR")
        if not where:
            return None
        with _lock:
            if _exporter is None:
                exporter = Exporter(where, role)
                graphs.install(exporter)
                pinned.install(exporter)
                exporter.start()
                _exporter = exporter
            return _exporter
    except Exception:
        return None


__all__ = ["Exporter", "observe", "started"]
