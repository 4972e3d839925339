"""Page-locked (pinned) host memory: attempts, refusals, bytes and seconds, without the C interposer.

What is counted
    * Successes of torch's own pinned allocator, from ``torch.cuda.host_memory_stats()``: driver allocations
      (``num_host_alloc``), their bytes (rounded up to powers of two) and time. Most ``pin_memory()`` calls are served
      from its pool and are no allocation. Complete: ``torch.empty(pin_memory=True)``, DataLoader and C++ included.
    * Refusals of ``Tensor.pin_memory`` (also under a DataLoader's ``pin_memory=True``), which raise.
    * ``torch.cuda.cudart().cudaHostRegister``: attempts, refusals by CUDA's number, bytes, time.

    ``pinned_alloc_attempts_total`` is the sum of those successes and refusals.

What is missed
    Refusals of ``torch.empty/zeros/full(…, pin_memory=True)`` (they cannot be wrapped: it breaks torch.compile), and
    everything that pins without torch's allocator or ``cudart()``: C++ extensions, NCCL, ctypes, other libraries.
    So the success share here is an upper bound. The C interposer (``exporters/pinned``) sees all of it: where it is
    loaded, nothing is exported from here.

Without CUDA, or as long as this process has not initialised it, there are no series but a reason: never "100 %".
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from typing import Any

from .guarded import collecting
from .importing import loaded, poll, when_imported
from .spans import MARK
from .textfile import Exporter

ATTEMPTS = "pinned_alloc_attempts_total"
FAILURES = "pinned_alloc_failures_total"
BYTES = "pinned_alloc_bytes_total"
TIME = "pinned_alloc_seconds_total"

INTERPOSER = "ufwatch_pinned_active"
"""The symbol that the C interposer exports."""

_TEXTS = (
    ("cannot access accelerator device", "no_device"),
    ("no cuda gpus are available", "no_device"),
    ("no cuda-capable device", "no_device"),
    ("found no nvidia driver", "no_device"),
    ("driver version is insufficient", "no_device"),
    ("not compiled with cuda", "no_device"),
    ("already mapped", "already_registered"),
    ("already registered", "already_registered"),
    ("os call failed", "operating_system"),
    ("operation not supported", "not_supported"),
    ("out of memory", "out_of_memory"),
    ("invalid argument", "invalid_value"),
    ("cuda error", "other"),
    ("cuda driver error", "other"),
    ("hip error", "other"),
)
"""Part of an exception's text → ``code``; the first that fits. CUDA's own sentences, as ``cudaGetErrorString`` has."""


def code_of(error: BaseException) -> str | None:
    """The ``code`` of a refused allocation; None for an exception that is none (a wrong argument, a sparse tensor)."""
    number = getattr(error, "error_code", None)  # torch.AcceleratorError, torch >= 2.8
    if isinstance(number, int) and number > 0:
        return str(number)
    text = str(error).lower()
    return next((code for part, code in _TEXTS if part in text), None)


class Pinned:
    """Counts for one exporter. Methods are bodies of hooks: they may raise, ``Exporter.guard`` keeps it."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self._last = (0.0, 0.0, 0.0)
        self._watching = False
        self._calls = threading.local()
        """``level``: calls of ``pin_memory`` within one another; ``counted``: the refusal that passes through them."""

    def watch(self, torch: Any) -> None:
        """Puts functions in front of ``Tensor.pin_memory`` and of cudart's ``cudaHostRegister``."""
        real = torch.Tensor.pin_memory
        if getattr(real, MARK, False):
            self.exporter.absent(ATTEMPTS, "another ufwatch exporter in this process counts them")
            return
        if not hasattr(torch.cuda, "host_memory_stats"):
            # Refusals without the successes would read as 0 %.
            self.exporter.absent(ATTEMPTS, "this PyTorch has no host_memory_stats: successes are not known")
            return
        guard, calls = self.exporter.guard, self._calls

        @functools.wraps(real)
        def pin_memory(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            # Of a subclass of Tensor torch calls us again from within, and one that wraps a tensor pins that one: a
            # refusal passes through each of the calls, and is one.
            level = getattr(calls, "level", 0)
            calls.level = level + 1
            try:
                return real(*args, **kwargs)
            except Exception as error:
                guard("pin_memory", self._refused, error, began)
                raise
            finally:
                calls.level = level
                if level == 0:
                    calls.counted = None

        # The real one is a method of C, which has no module: without these it could no longer be pickled by its name.
        pin_memory.__module__, pin_memory.__qualname__ = "torch", "Tensor.pin_memory"
        setattr(pin_memory, MARK, True)
        # Refusals without the successes would read as 0 %, successes without the refusals as 100 %.
        for hook in ("pin_memory", "cudaHostRegister", collecting(self.collect)):
            self.exporter.rests(hook, (ATTEMPTS, FAILURES, BYTES, TIME))
        torch.Tensor.pin_memory = pin_memory
        self._watching = True
        # Not cudart(): that initialises CUDA.
        cudart = getattr(torch.cuda, "_cudart", None)
        if cudart is not None:
            self._watch_register(cudart)

    def _watch_register(self, cudart: Any) -> None:
        real = cudart.cudaHostRegister
        guard = self.exporter.guard

        @functools.wraps(real)
        def host_register(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = real(*args, **kwargs)
            guard("cudaHostRegister", self._registered, result, began, args, kwargs)
            return result

        setattr(host_register, MARK, True)
        cudart.cudaHostRegister = host_register

    def _refused(self, error: BaseException, began: float) -> None:
        code = code_of(error)
        counted = getattr(self._calls, "counted", None)
        if code is not None and (counted is None or (counted is not error and counted is not error.__cause__)):
            self._count(time.perf_counter() - began, code)
            self._calls.counted = error

    def _registered(self, result: Any, began: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number = int(result)
        self._count(time.perf_counter() - began, str(number) if number else None)
        if number == 0:
            self.exporter.add(BYTES, int(args[1]) if len(args) > 1 else int(kwargs.get("size", 0)))

    def _count(self, seconds: float, code: str | None) -> None:
        self.exporter.add(ATTEMPTS)
        self.exporter.add(TIME, seconds)
        if code is not None:
            self.exporter.add(FAILURES, code=code)

    def collect(self) -> None:
        """Once a turn of the writer: what torch's allocator got since the last turn."""
        poll()
        torch = loaded("torch")
        if torch is None or not self._watching:
            return
        if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
            self.exporter.absent(ATTEMPTS, "this PyTorch has no CUDA: pinned memory is not available")
            return
        if not torch.cuda.is_initialized():
            self.exporter.absent(ATTEMPTS, "CUDA is not initialised in this process")
            return
        stats = torch.cuda.host_memory_stats()
        # Before torch 2.9 allocated_bytes are those handed out, and the allocator's own are reserved_bytes.
        size = stats.get("reserved_bytes.allocated", stats.get("allocated_bytes.allocated", 0))
        now = (float(stats["num_host_alloc"]), float(size), stats.get("host_alloc_time.total", 0) / 1e6)
        # Lower than before: somebody reset torch's statistics, and they count from 0 again.
        before = self._last if now[0] >= self._last[0] else (0.0, 0.0, 0.0)
        self._last = now
        for name, value, last in zip((ATTEMPTS, BYTES, TIME), now, before):
            self.exporter.add(name, value - last)


_installed = False


def install(exporter: Exporter) -> None:
    """Observes this process, once: at once where torch is imported, else as soon as it is. Never raises."""
    global _installed
    try:
        if _installed:
            return
        _installed = True
        process = ctypes.CDLL(None)
        # Its answer is 0 where it has no directory and counts nothing.
        if hasattr(process, INTERPOSER) and getattr(process, INTERPOSER)():
            exporter.absent(ATTEMPTS, "the C interposer of this process has them in its own file")
            return
        exporter.absent(ATTEMPTS, "torch is not imported in this process")
        pinned = Pinned(exporter)
        when_imported("torch", lambda torch: _watch(pinned, torch))
        exporter.collect(pinned.collect)
    except Exception:
        exporter.failed("pinned")


def _watch(pinned: Pinned, torch: Any) -> None:
    try:
        pinned.watch(torch)
    except Exception as error:
        pinned.exporter.failed("watch_pinned")
        pinned.exporter.absent(ATTEMPTS, f"this torch does not have what the hook needs: {error}")
