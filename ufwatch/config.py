"""The configuration as values. Reading and checking the file is :mod:`ufwatch.configfile`'s work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_INTERVAL_SECONDS = 5.0
DEFAULT_PORT = 9817


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
class Config:
    """A whole, checked configuration."""

    targets: tuple[TargetConfig, ...] = ()
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    web: WebConfig = field(default_factory=WebConfig)
