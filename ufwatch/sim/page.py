"""The text of ``/metrics`` as prometheus_client writes it for vLLM, fast.

Everything but the numbers is prepared once per process and version; a histogram's text is kept until it is observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from ufwatch.sim.exposition import Block, Histograms, Scalars, Static, Touched, head, labels, number
from ufwatch.sim.layout import Family, PageLayout
from ufwatch.sim.scenario import Scenario
from ufwatch.sim.stats import CUSTOM_EDGES, EngineStats, Histogram
from ufwatch.sim.values import ENGINE_V1_SINCE, Read, reader

_HANDLER = ("handler", "/v1/completions")
_HTTP_LABELS: dict[str, tuple[tuple[str, str], ...]] = {
    "http_requests_total": (_HANDLER, ("method", "POST"), ("status", "2xx")),
    "http_request_size_bytes": (_HANDLER,),
    "http_response_size_bytes": (_HANDLER,),
    "http_request_duration_seconds": (_HANDLER, ("method", "POST")),
    "http_request_duration_highr_seconds": (),
}
_MULTIPROCESS_ORDER = ("summary", "histogram", "counter", "gauge")
_REQUEST_BYTES = 560
"""Per request; the page says nothing about engines with it."""


class PageWriter:
    """Writes the page of one process in one version's form.

    ``stats`` has one entry per engine; ``process_start`` and ``created`` are Unix times in seconds.
    """

    def __init__(
        self,
        layout: PageLayout,
        scenario: Scenario,
        stats: Sequence[EngineStats],
        *,
        process_start: float,
        created: float,
    ) -> None:
        self._scenario = scenario
        self._stats = tuple(stats)
        self._layout = layout
        self._v1 = layout.version >= ENGINE_V1_SINCE
        if not self._v1 and len(self._stats) > 1:
            raise ValueError("engine V0 has no data parallelism")
        # V0 always ran its metrics in multiprocess form; V1 does with several API servers.
        self._multiprocess = not self._v1 or scenario.api_servers > 1
        self._process_start = process_start
        self._created = created
        self._created_steps = count(1)
        self._age = 0.0
        chosen = [family for family in layout.families if self._is_on_page(family)]
        if self._multiprocess and self._v1:
            chosen.sort(key=lambda family: _MULTIPROCESS_ORDER.index(family.type))
        self._blocks = [self._block(family) for family in chosen]

    def render(self, process_age: float) -> bytes:
        """The page, when the process is this many seconds old."""
        self._age = process_age
        return "".join([block.text() for block in self._blocks]).encode()

    def _is_on_page(self, family: Family) -> bool:
        name, scenario = family.name, self._scenario
        if name.startswith("vllm:"):
            if not scenario.log_stats:
                return False
            if name.startswith("vllm:spec_decode_"):
                return scenario.spec_tokens > 0
            return scenario.kv_cache_metrics or not name.startswith("vllm:kv_block_")
        return not (self._multiprocess and name.startswith(("process_", "python_")))

    def _block(self, family: Family) -> Block:
        top = head(family.name, family.help, family.type)
        if family.lines:
            return Static(top + "".join(f"{line}\n" for line in family.lines))
        if family.type == "histogram":
            return self._histogram(family, top)
        if family.name == "vllm:cache_config_info":
            return Static(top + "".join(self._cache_config(family)))
        samples = self._http(family) if family.name in _HTTP_LABELS else self._scalars(family)
        sample_labels = [prefix.removeprefix(family.name).rstrip() for prefix, _ in samples]
        if family.type == "summary":
            sample_labels = [labels(_HTTP_LABELS[family.name])]
        created = self._created_lines(family, sample_labels)
        if not self._v1 and family.type == "counter":
            # Engine V0 makes its series when they are first used.
            stats = self._stats[0]
            return Touched(
                top, tuple(samples), "", "", lambda: stats.generation_tokens, nonzero_only=family.label is not None
            )
        if family.name in _HTTP_LABELS:
            return Touched(top, tuple(samples), created, self._unused(top), self._answered)
        return Scalars(top, tuple(samples), created)

    def _unused(self, top: str) -> str:
        """A family with labels, none of which has been seen: files have no word of it, memory has its head."""
        return "" if self._multiprocess else top

    def _answered(self) -> float:
        return sum(sum(stats.finished.values()) for stats in self._stats)

    def _scalars(self, family: Family) -> list[tuple[str, Read]]:
        if family.name.startswith("process_"):
            return [(f"{family.name} ", self._process(family.name))]
        if family.name == "vllm:lora_requests_info":
            pairs = [("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")]
            return [(f"{family.name}{labels(pairs)} ", lambda: self._process_start + self._age)]
        values: tuple[str | None, ...] = family.values or (None,)
        if family.label == "position":
            values = tuple(str(position) for position in range(self._scenario.spec_tokens))
        engines = range(len(self._stats)) if family.engine else range(1)
        return [
            (
                f"{family.name}{labels(self._labels(family, engine, value))} ",
                reader(family.name, value or "", self._stats[engine], self._layout.version),
            )
            for value in values
            for engine in engines
        ]

    def _labels(self, family: Family, engine: int, value: str | None) -> list[tuple[str, str]]:
        pairs = [("model_name", self._scenario.model_name)]
        if family.engine:
            pairs.append(("engine", str(engine)))
        if family.label is not None and value is not None:
            pairs.append((family.label, value))
        return pairs

    def _process(self, name: str) -> Read:
        fixed = {
            "process_virtual_memory_bytes": 2.1e10,
            "process_resident_memory_bytes": 1.4e9,
            "process_start_time_seconds": self._process_start,
            "process_open_fds": 48.0,
            "process_max_fds": 65536.0,
        }
        if name in fixed:
            return lambda: fixed[name]
        return lambda: round(9.5 + self._age * 0.05, 2)

    def _http(self, family: Family) -> list[tuple[str, Read]]:
        requests = self._answered
        inner = labels(_HTTP_LABELS[family.name])
        if family.type == "counter":
            return [(f"{family.name}{inner} ", requests)]
        size = _REQUEST_BYTES if family.name == "http_request_size_bytes" else 0
        return [(f"{family.name}_count{inner} ", requests), (f"{family.name}_sum{inner} ", lambda: requests() * size)]

    def _histogram(self, family: Family, top: str) -> Histograms:
        custom = self._scenario.itl_edges if family.name in CUSTOM_EDGES else None
        edges = family.edges_for(self._scenario.max_model_len) if custom is None else custom
        bounds = [*map(str, map(float, edges)), "+Inf"]
        sets: list[tuple[Sequence[tuple[str, str]], tuple[Histogram, ...]]]
        if family.name in _HTTP_LABELS:
            sets = [(_HTTP_LABELS[family.name], tuple(stats.histograms[family.name] for stats in self._stats))]
        else:
            sets = [
                (self._labels(family, engine, None), (stats.histograms[family.name],))
                for engine, stats in enumerate(self._stats)
            ]
        series = []
        for pairs, histograms in sets:
            buckets = tuple(f"{family.name}_bucket{labels([*pairs, ('le', bound)])} " for bound in bounds)
            own = labels(pairs)
            series.append((buckets, f"{family.name}_count{own} ", f"{family.name}_sum{own} ", histograms))
        sample_labels = [labels(pairs) for pairs, _ in sets]
        unused = self._unused(top) if family.name == "http_request_duration_seconds" else None
        return Histograms(
            top,
            tuple(series),
            self._created_lines(family, sample_labels),
            sum_first=self._multiprocess,
            unused=unused if self._v1 else "",
        )

    def _created_lines(self, family: Family, sample_labels: Sequence[str]) -> str:
        """The ``_created`` gauges that prometheus_client puts behind every family that counts."""
        if self._multiprocess or family.type == "gauge" or family.name.startswith("process_"):
            return ""
        name = f"{family.name.removesuffix('_total') if family.type == 'counter' else family.name}_created"
        lines = [
            f"{name}{sample} {number(self._created + next(self._created_steps) * 1.7e-5)}\n" for sample in sample_labels
        ]
        return head(name, family.help, "gauge") + "".join(lines)

    def _cache_config(self, family: Family) -> Iterable[str]:
        scenario = self._scenario
        tokens = (scenario.num_gpu_blocks - 1) * scenario.block_size
        own = {
            "block_size": str(scenario.block_size),
            "effective_attention_block_size": str(scenario.block_size),
            "num_gpu_blocks": str(scenario.num_gpu_blocks),
            "num_gpu_blocks_override": "None",
            "gpu_memory_utilization": str(scenario.gpu_memory_utilization),
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": str(tokens / scenario.max_model_len),
        }
        for engine in range(len(self._stats)):
            config = {key: own.get(key, value) for key, value in self._layout.cache_config.items()}
            if family.engine or self._v1:
                config["engine"] = str(engine)
            yield f"{family.name}{labels(config.items())} 1.0\n"
