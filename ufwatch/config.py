"""The configuration as values. Reading and checking the file is :mod:`ufwatch.configfile`'s work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_INTERVAL_SECONDS = 5.0
DEFAULT_PORT = 9817
DEFAULT_WINDOW_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One service level objective, the same for every target."""

    id: str
    """The ``slo`` label."""
    metric: str
    """``ttft``, ``itl``, ``tpot``, ``e2e``, ``queue`` (requests), ``jitter`` (slices of 10 s) or ``availability``."""
    ratio: float
    """Share of events that must be good, 0–1."""
    threshold_seconds: float | None = None
    """An event over it is bad; None for ``availability`` alone."""
    window_days: int = DEFAULT_WINDOW_DAYS
    """What the error budget is counted over, rolling: 7, 28 or 30 days."""

    @property
    def definition(self) -> str:
        """What an event and a bad one are: counts under another definition are other counts."""
        return self.metric if self.threshold_seconds is None else f"{self.metric}<={self.threshold_seconds:.12g}"


DEFAULT_OBJECTIVES = (
    Objective(id="ttft", metric="ttft", threshold_seconds=0.8, ratio=0.95),
    Objective(id="patience", metric="ttft", threshold_seconds=2.3, ratio=0.99),
    Objective(id="tpot", metric="tpot", threshold_seconds=0.1, ratio=0.95),
    Objective(id="e2e", metric="e2e", threshold_seconds=30.0, ratio=0.95),
    Objective(id="smoothness", metric="jitter", threshold_seconds=0.08, ratio=0.99),
    Objective(id="availability", metric="availability", ratio=0.999),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """Where vLLM's KV events arrive. Exactly one of ``bind`` and ``connect`` is set; rank r uses port + r."""

    bind: str | None = None
    connect: str | None = None
    ranks: int = 1
    replay: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """How one HTTP source is reached; paths are read at each connection, so rotated files are picked up."""

    ca_file: Path | None = None
    insecure: bool = False
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    api_key_file: Path | None = None
    basic_auth_file: Path | None = None
    """A file holding one line ``user:password``."""
    server_name: str | None = None
    """The name to verify in the certificate and to send as Host, where the URL holds an address found for a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One inference server. ``url`` is its base or its ``/metrics`` address; ``name`` is the ``target`` label."""

    name: str
    url: str
    access: HttpAccess = field(default_factory=HttpAccess)
    model_name: str | None = None
    gpus: tuple[str, ...] | None = None
    """Indexes or UUIDs as text; None lets one target take the only card."""
    textfile: Path | None = None
    kv_events: KvEventsConfig | None = None
    dcgm: str | None = None
    startup_grace_seconds: float = 600.0
    expected_miss: float | None = None
    """The share of prefix look-ups that usually misses, 0–1; None: what was learned of the same hour of other days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryConfig:
    """Targets that come and go: Prometheus ``file_sd`` files (globs) and DNS names with several addresses."""

    file_sd: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    """URLs whose host name stands for all of its addresses, one target each."""
    refresh_seconds: float = 30.0
    access: HttpAccess = field(default_factory=HttpAccess)
    """How every target found is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig:
    """Whether NVML is used, and GPM within it (GPM shares hardware counters with profilers)."""

    enabled: bool = True
    gpm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """What we serve and where; ``config_file`` is an exporter-toolkit web configuration (TLS, basic auth)."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    config_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """A short streamed request to one target, again and again. It costs the server its tokens."""

    target: str
    """The name of the target that is asked; one probe for each."""
    interval_seconds: float = 60.0
    operation: str = "chat"
    """``chat`` or ``completions``."""
    prompt: str | None = field(default=None, repr=False)
    """None: a short one that is new each time, so that no prefix of it is cached."""
    max_tokens: int = 8
    timeout_seconds: float = 30.0
    fresh_connection: bool | None = None
    """Whether each request gets a connection of its own; None: every other one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole, checked configuration."""

    targets: tuple[TargetConfig, ...] = ()
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    web: WebConfig = field(default_factory=WebConfig)
    slos: tuple[Objective, ...] = DEFAULT_OBJECTIVES
    state_dir: Path | None = None
    """Where error budgets and what was learned outlive the agent; None keeps them in memory alone."""
    probes: tuple[ProbeConfig, ...] = ()
    otlp_endpoint: str | None = None
    """Where traces go, as ``--otlp`` takes it; the environment's variables win over it."""
    otlp_receive: bool = False
    """Whether servers may send their spans here, to be passed on there."""
