"""The ``vllm.general_plugins`` entry point: vLLM calls it once in each of its processes that was not forked."""

from __future__ import annotations

from . import block_pool, process, stats_guard, worker
from .hooking import when_imported

GUARD = ("vllm.v1.engine.async_llm", stats_guard.install)
HOOKS = (
    ("vllm.v1.core.block_pool", block_pool.install),
    ("vllm.v1.core.sched.scheduler", block_pool.install_rank),
    ("vllm.v1.worker.worker_base", worker.install),
)


def register() -> None:
    """Puts the hooks in place, each by itself. Without ``UFWATCH_EXPORT_DIR`` only what keeps our logger out."""
    try:
        when_imported(*GUARD)
        if process.directory():
            for module, action in HOOKS:
                when_imported(module, action)
    except Exception:
        process.failed("register")
