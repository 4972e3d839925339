"""The parts of torch that the hooks touch, small and without torch."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class RefusedError(RuntimeError):
    """As torch.AcceleratorError: a text, and CUDA's number in torch >= 2.8."""

    def __init__(self, text: str, error_code: int | None = None) -> None:
        super().__init__(text)
        if error_code is not None:
            self.error_code = error_code


def torch(clock: Clock) -> Any:
    """``torch`` with CUDA initialised. Set ``fails`` to have calls raise or return it; calls are kept in ``calls``."""
    fails: dict[str, Any] = {}
    calls: list[tuple[Any, ...]] = []

    class CUDAGraph:
        """Each call takes a tenth of a second."""

        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> str:
            """Begin capturing."""
            clock.passes(0.1)
            calls.append(("begin", pool, capture_error_mode))
            if "begin" in fails:
                raise fails["begin"]
            return "begun"

        def capture_end(self) -> str:
            """End capturing."""
            clock.passes(0.1)
            if "end" in fails:
                raise fails["end"]
            return "ended"

    class TensorBase:
        def pin_memory(self, device: object = None) -> tuple[Any, ...]:
            """Copies to pinned memory."""
            if "pin" in fails:
                raise fails["pin"]
            return (self, device)

    class Tensor(TensorBase):
        pass

    def host_register(pointer: int, size: int, flags: int = 0) -> int:
        """Registers."""
        calls.append(("register", pointer, size, flags))
        return int(fails.get("register", 0))

    stats: dict[str, float] = {}
    return SimpleNamespace(
        fails=fails,
        calls=calls,
        stats=stats,
        Tensor=Tensor,
        version=SimpleNamespace(cuda="13.0", hip=None),
        cuda=SimpleNamespace(
            CUDAGraph=CUDAGraph,
            _cudart=SimpleNamespace(cudaHostRegister=host_register),
            is_initialized=lambda: True,
            host_memory_stats=lambda: dict(stats),
        ),
    )


def dynamo(clock: Clock) -> Any:
    """``torch._dynamo.utils``; ``events`` of it plays a tree of events, each with its own seconds."""
    times: dict[str, list[float]] = {}

    class ChromiumEventLogger:
        def log_event_start(self, event_name: str, *_: Any, **__: Any) -> str:
            """Logs the start."""
            return f"start {event_name}"

        def log_event_end(self, event_name: str, *_: Any, **__: Any) -> str:
            """Logs the end."""
            return f"end {event_name}"

    module: Any = SimpleNamespace(
        ChromiumEventLogger=ChromiumEventLogger,
        compilation_time_metrics=times,
        counters={"inductor": Counter(), "aot_autograd": Counter()},
    )

    def event(name: str, seconds: float, *inner: Any) -> None:
        """``inner`` run first: further events as tuples, or functions."""
        logger = module.ChromiumEventLogger()
        began = clock.now
        assert logger.log_event_start(name, 0, {}, log=True) == f"start {name}"
        for part in inner:
            if callable(part):
                part()
            else:
                event(*part)
        clock.passes(seconds)
        times.setdefault(name, []).append(clock.now - began)
        assert logger.log_event_end(name, 0, {}, 0) == f"end {name}"

    module.event = event
    return module
