"""GPM of one card or GPU instance: two samples apart in time make one set of means between them.

GPM is what measures SM utilization (``nvmlDeviceGetUtilizationRates`` does not: one busy SM of 132 reads 100 %). Its
samples are buffers of the driver; two are held per card and used in turn, so memory stays flat. It shares hardware
counters with profilers: while one of them has the counters, GPM answers NotSupported, and it is asked again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ufwatch.model import Reason
from ufwatch.sources.nvml_fields import CARD_LOST, GPM_YIELDS, SESSION_LOST, Failed, Nvml, reason_of

MIN_WINDOW_SECONDS = 0.1
"""NVML refreshes the counters every 100 ms at most: two samples closer than this say nothing (its documentation)."""
MAX_WINDOW_SECONDS = 120.0
"""A mean over a longer gap is no statement about now: the pair starts anew."""
RETRY_SECONDS = 60.0
"""How long "not supported" is believed: a profiler may hold the counters for a while (NVIDIA/DCGM#62)."""


class GpmPair:
    """The previous sample, a spare buffer, and whether GPM is available at all."""

    def __init__(self, nvml: Nvml, supported: Callable[[], bool], take: Callable[[Any], object]) -> None:
        self._nvml = nvml
        self._supported = supported
        self._take = take
        self._buffers: list[Any] = []
        self._query: Any = None
        self._sampled_at: float | None = None
        self._latest: tuple[float, Mapping[int, float | Failed]] | None = None
        self._retry_at = 0.0
        self._absent = Reason.WARMING_UP

    def read(self, now: float) -> tuple[Mapping[int, float | Failed] | None, Reason, float]:
        """The metrics since the previous read, or None and why; then how old they are.

        Raises NVML's own error where the card or the driver is gone; any other failure means "not now".
        """
        if now < self._retry_at:
            return None, self._absent, 0.0
        try:
            return self._read(now)
        except self._nvml.NVMLError as error:
            if error.value in SESSION_LOST or error.value in CARD_LOST:
                raise
            self._give_up(now, reason_of(error.value))
        except (AttributeError, MemoryError):  # a pynvml from before GPM
            self._give_up(now, Reason.NOT_SUPPORTED)
        return None, self._absent, 0.0

    def free(self) -> None:
        """Returns the buffers; after this the pair starts anew."""
        buffers, self._buffers = self._buffers, []
        self._sampled_at, self._latest = None, None
        for buffer in buffers:
            try:
                self._nvml.nvmlGpmSampleFree(buffer)
            except self._nvml.NVMLError:
                continue  # gone with the driver

    def _read(self, now: float) -> tuple[Mapping[int, float | Failed] | None, Reason, float]:
        if not self._buffers:
            if not self._supported():
                self._give_up(now, Reason.NOT_SUPPORTED)
                return None, self._absent, 0.0
            self._buffers = [self._nvml.nvmlGpmSampleAlloc()]
            self._buffers.append(self._nvml.nvmlGpmSampleAlloc())
        window = None if self._sampled_at is None else now - self._sampled_at
        if window is not None and window < MIN_WINDOW_SECONDS:
            if self._latest is None:
                return None, Reason.WARMING_UP, 0.0
            return self._latest[1], Reason.WARMING_UP, now - self._latest[0]
        previous, spare = self._buffers
        self._take(spare)
        self._buffers = [spare, previous]
        self._sampled_at = now
        self._latest = None
        if window is None or window > MAX_WINDOW_SECONDS:
            return None, Reason.WARMING_UP, 0.0
        metrics = self._metrics(previous, spare)
        self._latest = (now, metrics)
        return metrics, Reason.WARMING_UP, 0.0

    def _metrics(self, before: Any, after: Any) -> Mapping[int, float | Failed]:
        if self._query is None:  # 13 KB: one per pair, not one per poll
            self._query = self._nvml.c_nvmlGpmMetricsGet_t()
        query = self._query
        query.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(GPM_YIELDS)
        query.sample1, query.sample2 = before, after
        for position, metric in enumerate(GPM_YIELDS):
            query.metrics[position].metricId = metric
        self._nvml.nvmlGpmMetricsGet(query)
        answers = (query.metrics[position] for position in range(len(GPM_YIELDS)))
        return {
            metric: Failed(answer.nvmlReturn) if answer.nvmlReturn else answer.value
            for metric, answer in zip(GPM_YIELDS, answers, strict=True)
        }

    def _give_up(self, now: float, reason: Reason) -> None:
        self.free()
        self._absent = reason
        if reason in (Reason.NOT_SUPPORTED, Reason.PERMISSION):
            self._retry_at = now + RETRY_SECONDS
