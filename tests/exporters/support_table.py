"""The support table of ufwatch-vllm, from the facts of ``support.json``: what each vLLM version gives, or why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Facts = dict[str, Any]
"""Name → file, signature, list of places…; null where this version has no such name."""

YES = "yes"
WORKER = ("WorkerBase.__init__", "Worker.determine_available_memory", "Worker.compile_or_warm_up_model")


def render(stored: Mapping[str, Facts]) -> str:
    """Markdown: a row for each thing given, a column for each version, the reasons below as notes."""
    notes: list[str] = []
    lines = [
        "| what | " + " | ".join(stored) + " |",
        "|---" * (len(stored) + 1) + "|",
    ]
    for what, judge in ROWS.items():
        cells = [_cell(judge(facts), notes) for facts in stored.values()]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"{number}. {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(lines) + "\n"


def _cell(verdict: tuple[str, str | None], notes: list[str]) -> str:
    """``yes`` or ``absent``, with the number of its note."""
    word, note = verdict
    if note is None:
        return word
    if note not in notes:
        notes.append(note)
    return f"{word} ({notes.index(note) + 1})"


def _plugin(facts: Facts) -> str | None:
    """Why no stat logger can be given to this version."""
    if facts["vllm.stat_logger_plugins"] is None:
        return "no `vllm.stat_logger_plugins` group: nothing hands the engine's own intervals to a plugin"
    if facts["vllm.stat_logger_plugins: demands"] != "StatLoggerBase" or facts["StatLoggerBase.record"] is None:
        return "its loader demands another class than `StatLoggerBase`"
    return None


def _listed(facts: Facts, name: str) -> tuple[str, str | None]:
    if (missing := _plugin(facts)) is not None:
        return "absent", missing
    if not facts["IterationStats"].get(name, "").startswith("list[float]"):
        return "absent", f"no list `IterationStats.{name}`"
    return YES, None


def _evictions(facts: Facts) -> tuple[str, str | None]:
    signature = facts["BlockPool._maybe_evict_cached_block"]
    if signature is None or not signature.endswith("-> bool"):
        return "absent", "no `BlockPool._maybe_evict_cached_block` that says whether it evicted"
    if facts["BlockPool: several hashes a block"]:
        return YES, (
            "a block may hold several hashes there (partly filled and hybrid blocks): one eviction then sends one "
            "`BlockRemoved` a hash, so KV events may count more; equal for plain full-attention models"
        )
    return YES, None


def _probes(facts: Facts) -> tuple[str, str | None]:
    signature = facts["BlockPool.get_cached_block"]
    returned = "" if signature is None else signature.rsplit("->", 1)[-1]
    if "None" not in returned and "Optional" not in returned:
        return "absent", "no `BlockPool.get_cached_block` that answers None for a miss"
    return YES, None


def _captures(facts: Facts) -> tuple[str, str | None]:
    if not facts["CUDA graphs captured in"]:
        return "absent", "no CUDA-graph capture through `torch.cuda.CUDAGraph`"
    if facts["captures taken back in"]:
        return YES, (
            "captures made for a memory estimate and thrown away are counted with the rest (at most two a mode, by the "
            "model runner V1, and V2 from 0.32 on); vLLM's own `num_cudagraph_captured` leaves them out"
        )
    return YES, None


def _compile(facts: Facts) -> tuple[str, str | None]:
    missing = [name for name in WORKER if facts[name] is None]
    if missing or "GPU" not in facts["WorkerBase.__init__: reached from"]:
        return "absent", f"no {', '.join(f'`{name}`' for name in missing) or 'way to meet the worker'}"
    return YES, None


def _pinned(facts: Facts) -> tuple[str, str | None]:
    # Nothing of vLLM's is needed: the interposer and torch's own names see every call.
    return (YES, None) if facts["vllm.general_plugins"] is not None else ("absent", "no general plugins")


def _quiet(facts: Facts) -> tuple[str, str | None]:
    if _plugin(facts) is not None:
        return "–", None
    guarded = facts["vllm.stat_logger_plugins: loader by name in async_llm"]
    if facts["vllm.stat_logger_plugins: enables stats"] and not (guarded and "log_stats" in facts["AsyncLLM.__init__"]):
        return "no", "a stat-logger plugin turns statistics on there, and the list of loggers is out of reach"
    return YES, None


ROWS: Mapping[str, Callable[[Facts], tuple[str, str | None]]] = {
    "exact jitter": lambda facts: _listed(facts, "inter_token_latencies_iter"),
    "TTFT counts": lambda facts: _listed(facts, "time_to_first_tokens_iter"),
    "block evictions": _evictions,
    "block-pool probes": _probes,
    "graph captures": _captures,
    "compile and warm-up wall time": _compile,
    "pinned allocations": _pinned,
    "`--disable-log-stats` respected": _quiet,
}
