"""Reads the configuration file and checks it whole: every mistake is reported at once, each with its path and line."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable
from pathlib import Path

from ufwatch import document, objectivefile
from ufwatch.address import host_of, host_port, http_url, is_ip, zmq_endpoint
from ufwatch.config import (
    DEFAULT_INTERVAL_SECONDS,
    DEFAULT_OBJECTIVES,
    DEFAULT_PORT,
    Config,
    DiscoveryConfig,
    GpuConfig,
    HttpAccess,
    KvEventsConfig,
    Objective,
    TargetConfig,
    WebConfig,
)
from ufwatch.configpairs import check_together, ports
from ufwatch.configprobes import otlp, probes
from ufwatch.configschema import Block, Report, converted, label, number, seconds, shown, text, truth, whole
from ufwatch.core import objectives
from ufwatch.errors import ConfigError

Exists = Callable[[Path], bool]

interval = seconds(1, 60)
port = whole(0, 65535)
"""0 lets the system choose a free port."""

_DAY = 86_400.0
_MAX_RANKS = 256
_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)


def load(path: Path, *, exists: Exists = os.path.isfile) -> Config:
    """Returns the checked configuration of a YAML file; its relative paths start at the file's own folder.

    Raises ConfigError when the file cannot be read, is not YAML, or holds any mistake.
    """
    return parse(document.read_text(path), str(path), base=path.parent, exists=exists)


def parse(source: str, where: str, *, base: Path = Path(), exists: Exists = os.path.isfile) -> Config:
    """Returns the checked configuration of a YAML text. ``where`` names the text in messages.

    ``base`` is put before relative paths; ``exists`` decides whether a file that must be there is. Raises ConfigError.
    """
    read = document.parse(source, where)
    if not isinstance(read.value, dict):
        problem = f"{shown(read.value)} is not a mapping; write keys such as targets:"
        raise ConfigError(where, [f"line {read.lines.get('', 1)}, column 1: {problem}"])
    report = Report(read.lines)
    config = _Reader(report, Files(base, exists)).config(Block(read.value, "", report))
    report.raise_if_any(where, read.mistakes)
    return config


def host(value: object) -> str:
    """A name or address to listen on."""
    found = label(value)
    if "/" in found or " " in found:
        raise ValueError(f"{shown(found)} is not a host; write an address such as 127.0.0.1")
    return found.removeprefix("[").removesuffix("]")


class Files:
    """Converters of paths: relative ones start at ``base``, and those we read at the start must exist."""

    def __init__(self, base: Path, exists: Exists) -> None:
        self._base = base
        self._exists = exists

    def path(self, value: object) -> Path:
        """A path that need not exist yet."""
        found = text(value)
        if not found.isprintable():
            raise ValueError("is not a path; remove the control characters")
        return self._base / found

    def existing(self, value: object) -> Path:
        """The path of a file that exists now."""
        found = self.path(value)
        if not self._exists(found):
            raise ValueError(f"no such file {shown(str(found))}; check the path and its permissions")
        return found

    def secret(self, value: object) -> Path:
        """As :meth:`existing`, but silent about the value: people put the secret itself where its path belongs."""
        found = self.path(value)
        if not self._exists(found):
            raise ValueError("no such file; give the path of a readable file that holds the secret")
        return found


class _Reader:
    def __init__(self, report: Report, files: Files) -> None:
        self._report = report
        self._files = files

    def config(self, top: Block) -> Config:
        blocks = [Block(item, path, self._report, nullable=False) for path, item in top.items("targets")]
        placed = [(block.path, target) for block in blocks if (target := self._target(block)) is not None]
        check_together(placed, self._report)
        otlp_endpoint, otlp_receive = otlp(top.block("otlp"))
        config = Config(
            targets=tuple(target for _, target in placed),
            interval_seconds=top.get("interval", interval, DEFAULT_INTERVAL_SECONDS),
            discovery=self._discovery(top.block("discovery")),
            gpu=self._gpu(top.block("gpu")),
            web=self._web(top.block("web")),
            slos=self._slos(top),
            state_dir=top.get("state_dir", self._files.path, None),
            probes=probes(top, [target.name for _, target in placed]),
            otlp_endpoint=otlp_endpoint,
            otlp_receive=otlp_receive,
        )
        top.close()
        return config

    def _target(self, block: Block) -> TargetConfig | None:
        url = block.required("url", _url, "write url: http://host:port")
        # The placeholder lets the rest of the block be checked; with a mistake noted, no configuration comes out.
        checked = url or "http://unknown"
        target = TargetConfig(
            name=block.get("name", label, host_port(checked)),
            url=checked,
            access=self._access(block),
            model_name=block.get("model_name", label, None),
            gpus=self._gpus(block),
            textfile=block.get("textfile", self._files.path, None),
            kv_events=self._kv_events(block.block("kv_events")),
            dcgm=block.get("dcgm", _url, None),
            startup_grace_seconds=block.get("startup_grace", seconds(0, _DAY), 600.0),
            expected_miss=block.get("expected_miss", number(0, 1, "write 15 % as 0.15"), None),
        )
        block.close()
        return target if url else None

    def _access(self, block: Block) -> HttpAccess:
        access = HttpAccess(
            ca_file=block.get("ca_file", self._files.existing, None),
            insecure=block.get("insecure", truth, False),
            client_cert_file=block.get("client_cert_file", self._files.existing, None),
            client_key_file=block.get("client_key_file", self._files.secret, None),
            api_key_file=block.get("api_key_file", self._files.secret, None),
            basic_auth_file=block.get("basic_auth_file", self._files.secret, None),
        )
        if access.insecure and access.ca_file:
            block.add("insecure", "ca_file has no effect while nothing is verified; drop one of them")
        if access.api_key_file and access.basic_auth_file:
            block.add("basic_auth_file", "api_key_file is given too, and one request carries one of them; drop one")
        if block.has("client_cert_file") != block.has("client_key_file"):
            block.add("client_cert_file", "a client certificate needs its key; give client_key_file with it")
        return access

    def _gpus(self, block: Block) -> tuple[str, ...] | None:
        if not block.has("gpus"):
            return None
        found = block.list_of("gpus", _gpu_name)
        if len(set(found)) < len(found):
            block.add("gpus", "names a card twice; keep one")
        return found

    def _kv_events(self, block: Block) -> KvEventsConfig | None:
        if not block.given:
            return None
        found = KvEventsConfig(
            bind=block.get("bind", _bound, None),
            connect=block.get("connect", _connected, None),
            ranks=block.get("ranks", whole(1, _MAX_RANKS), 1),
            replay=block.get("replay", _connected, None),
            topic=block.get("topic", _topic, ""),
        )
        block.close()
        if block.has("bind") == block.has("connect"):
            both = block.has("bind")
            what = "both bind and connect are given" if both else "neither bind nor connect is given"
            block.note(f"{what}; give exactly one")
        for key, endpoint in (("bind", found.bind), ("connect", found.connect), ("replay", found.replay)):
            if endpoint is None or found.ranks == 1:
                continue
            first = zmq_endpoint(endpoint, bind=key == "bind")[1]
            if first is None:
                block.add(key, "an ipc endpoint serves one rank, because rank r uses port + r; use tcp")
            elif first + found.ranks - 1 > 65535:
                block.add(key, f"port {first} leaves no room for {found.ranks} ranks; choose a lower port")
        if _overlap(found):
            block.add("replay", "its ports, one per rank, overlap those of bind or connect; set them further apart")
        return found

    def _discovery(self, block: Block) -> DiscoveryConfig:
        found = DiscoveryConfig(
            file_sd=tuple(str(path) for path in block.list_of("file_sd", self._files.path)),
            dns=block.list_of("dns", _dns_url),
            refresh_seconds=block.get("refresh", seconds(1, 3600), 30.0),
            access=self._access(block),
        )
        block.close()
        return found

    def _gpu(self, block: Block) -> GpuConfig:
        found = GpuConfig(enabled=block.get("enabled", truth, True), gpm=block.get("gpm", truth, True))
        block.close()
        return found

    def _slos(self, top: Block) -> tuple[Objective, ...]:
        """The objectives: the defaults where none are named, none at all for an empty list."""
        if not top.has("slos"):
            return DEFAULT_OBJECTIVES
        placed: list[tuple[str, Objective]] = []
        for path, item in top.items("slos"):
            if isinstance(item, dict) and list(item) == ["file"]:
                file = converted(item["file"], self._files.existing, None, self._report, f"{path}.file")
                placed += [(path, each) for each in self._from_file(file, path)] if file is not None else []
            else:
                each = converted(objectivefile.named_line(item), objectives.native, None, self._report, path)
                placed += [(path, each)] if each is not None else []
        objectives.check_objectives(placed, self._report)
        return tuple(each for _, each in placed)

    def _from_file(self, file: Path, path: str) -> tuple[Objective, ...]:
        try:
            return objectivefile.load(file)
        except ConfigError as error:
            for mistake in error.mistakes:
                self._report.add(f"{path}.file", f"{file}: {mistake}")
            return ()

    def _web(self, block: Block) -> WebConfig:
        found = WebConfig(
            host=block.get("host", host, "127.0.0.1"),
            port=block.get("port", port, DEFAULT_PORT),
            config_file=block.get("config_file", self._files.existing, None),
        )
        block.close()
        return found


def _url(value: object) -> str:
    return http_url(text(value))


def _dns_url(value: object) -> str:
    url = _url(value)
    if is_ip(host_of(url)):
        raise ValueError("an address stands for itself alone; list it under targets")
    return url


def _bound(value: object) -> str:
    found = text(value)
    zmq_endpoint(found, bind=True)
    return found


def _connected(value: object) -> str:
    found = text(value)
    zmq_endpoint(found, bind=False)
    return found


def _topic(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text; write it in quotes")
    return value


def _gpu_name(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1024:
        return str(value)
    if isinstance(value, str) and (_GPU_UUID.fullmatch(value) or (value.isascii() and value.isdigit())):
        return value
    raise ValueError(f"{shown(value)} names no card; write its index, GPU-… or MIG-…")


def _overlap(events: KvEventsConfig) -> bool:
    live = events.bind or events.connect
    if live is None or events.replay is None:
        return False
    one, other = (zmq_endpoint(endpoint, bind=True)[0] for endpoint in (live, events.replay))
    if one != other and "*" not in (one, other):
        return False
    a, b = ports(live, events.ranks), ports(events.replay, events.ranks)
    return bool(a) and bool(b) and a.start < b.stop and b.start < a.stop
