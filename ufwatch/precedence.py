"""Settles where each setting comes from: flag > environment > file > default.

Flags and variables arrive as the text that was typed, so that all their mistakes are reported at once, each under the
name of the flag or variable that holds it.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ufwatch import configfile
from ufwatch.address import host_port, http_url
from ufwatch.config import Config, DiscoveryConfig, GpuConfig, HttpAccess, TargetConfig, WebConfig
from ufwatch.configfile import Exists, Files
from ufwatch.configpairs import check_together
from ufwatch.configschema import Report, choice, converted, label, truth

T = TypeVar("T")

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_WHERE = "ufwatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was given on the command line, as typed; None, False and () mean: not given."""

    targets: tuple[str, ...] = ()
    """Each a URL or ``name=URL``."""
    config: str | None = None
    json: bool = False
    interval: str | None = None
    host: str | None = None
    port: str | None = None
    web_config_file: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    api_key_file: str | None = None
    basic_auth_file: str | None = None
    model: str | None = None
    no_gpu: bool = False
    no_gpm: bool = False
    state_dir: str | None = None
    otlp: str | None = None
    log_level: str | None = None
    log_format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How our own log is written: one of ``LOG_LEVELS`` and one of ``LOG_FORMATS``."""

    level: str = "info"
    format: str = "text"


def settle(env: Mapping[str, str], flags: Flags, *, exists: Exists = os.path.isfile) -> Config:
    """Returns the whole configuration, reading the file that ``--config`` or ``UFWATCH_CONFIG`` names.

    Raises ConfigError; the file's mistakes come first and alone, because what overrides it is checked against it.
    """
    path = flags.config or env.get("UFWATCH_CONFIG")
    return from_sources(configfile.load(Path(path), exists=exists) if path else None, env, flags, exists=exists)


def from_sources(
    file: Config | None, env: Mapping[str, str], flags: Flags, *, exists: Exists = os.path.isfile
) -> Config:
    """Returns ``file``, or the defaults, overridden by the environment and then by the flags. Raises ConfigError.

    Targets given by flag or variable replace the file's targets and its discovery: who names a target means that one.
    How targets are reached (``--ca-file``, …) and ``--model`` apply to every target, wherever it came from.
    """
    config = file or Config()
    report = Report()
    pick = _Picker(env, report)
    files = Files(Path(), exists)
    given = _targets(flags, env, report)
    if given is not None:
        config = replace(config, targets=given, discovery=DiscoveryConfig(access=config.discovery.access))

    reach = _Reach(
        ca_file=pick("--ca-file", flags.ca_file, "UFWATCH_CA_FILE", files.existing),
        # A --ca-file asks for verification, so it also outranks the variable that turns verification off.
        insecure=pick(
            "--insecure", "true" if flags.insecure else "false" if flags.ca_file else None, "UFWATCH_INSECURE", truth
        ),
        api_key_file=pick("--api-key-file", flags.api_key_file, "UFWATCH_API_KEY_FILE", files.secret),
        basic_auth_file=pick("--basic-auth-file", flags.basic_auth_file, None, files.secret),
    )
    if flags.insecure and flags.ca_file:
        report.add("--insecure", "--ca-file has no effect while nothing is verified; drop one of them")
    elif reach.insecure and reach.ca_file and not flags.insecure:
        report.add("UFWATCH_INSECURE", "UFWATCH_CA_FILE has no effect while nothing is verified; drop one of them")
    if flags.api_key_file and flags.basic_auth_file:
        report.add("--basic-auth-file", "--api-key-file is given too, and one request carries one; drop one of them")
    model = pick("--model", flags.model, None, label)
    interval = pick("--interval", flags.interval, "UFWATCH_INTERVAL", configfile.interval)
    web = WebConfig(
        host=pick("--host", flags.host, "UFWATCH_HOST", configfile.host) or config.web.host,
        port=_or(pick("--port", flags.port, "UFWATCH_PORT", configfile.port), config.web.port),
        config_file=pick("--web.config.file", flags.web_config_file, "UFWATCH_WEB_CONFIG_FILE", files.existing)
        or config.web.config_file,
    )
    state_dir = pick("--state-dir", flags.state_dir, "UFWATCH_STATE_DIR", files.path)
    report.raise_if_any(_WHERE)
    return Config(
        targets=tuple(
            replace(target, access=reach.over(target.access), model_name=model or target.model_name)
            for target in config.targets
        ),
        interval_seconds=_or(interval, config.interval_seconds),
        discovery=replace(config.discovery, access=reach.over(config.discovery.access)),
        gpu=GpuConfig(enabled=config.gpu.enabled and not flags.no_gpu, gpm=config.gpu.gpm and not flags.no_gpm),
        web=web,
        slos=config.slos,
        state_dir=state_dir or config.state_dir,
        probes=config.probes,
        otlp_endpoint=config.otlp_endpoint,
        otlp_receive=config.otlp_receive,
    )


def log_settings(env: Mapping[str, str], flags: Flags) -> LogSettings:
    """Returns how to log. Apart from :func:`settle`, because its errors are already to be logged so."""
    report = Report()
    pick = _Picker(env, report)
    level = pick("--log-level", flags.log_level, "UFWATCH_LOG_LEVEL", choice(*LOG_LEVELS))
    form = pick("--log-format", flags.log_format, "UFWATCH_LOG_FORMAT", choice(*LOG_FORMATS))
    report.raise_if_any(_WHERE)
    default = LogSettings()
    return LogSettings(level=level or default.level, format=form or default.format)


@dataclass(frozen=True, slots=True)
class _Reach:
    ca_file: Path | None
    insecure: bool | None
    api_key_file: Path | None
    basic_auth_file: Path | None

    def over(self, access: HttpAccess) -> HttpAccess:
        """Returns ``access`` overridden; what excludes an overriding setting gives way to it."""
        if self.ca_file:
            access = replace(access, ca_file=self.ca_file, insecure=False)
        if self.insecure is not None:
            access = replace(access, insecure=self.insecure, ca_file=None if self.insecure else access.ca_file)
        if self.api_key_file:
            access = replace(access, api_key_file=self.api_key_file, basic_auth_file=None)
        if self.basic_auth_file:
            access = replace(access, basic_auth_file=self.basic_auth_file, api_key_file=None)
        return access


class _Picker:
    """Takes a flag, else its variable, and converts it; a mistake is noted under the name of the one taken."""

    def __init__(self, env: Mapping[str, str], report: Report) -> None:
        self._env = env
        self._report = report

    def __call__(self, flag: str, typed: str | None, variable: str | None, convert: Callable[[object], T]) -> T | None:
        if typed is not None:
            return converted(typed, convert, None, self._report, flag)
        # A variable that is set but empty is how templates write "not set".
        value = self._env.get(variable, "") if variable else ""
        if not value or (variable == "UFWATCH_PORT" and value.startswith("tcp://")):
            # Kubernetes sets UFWATCH_PORT=tcp://10.0.0.1:9817 in every pod beside a Service named "ufwatch".
            return None
        return converted(value, convert, None, self._report, variable or flag)


def _targets(flags: Flags, env: Mapping[str, str], report: Report) -> tuple[TargetConfig, ...] | None:
    name, typed = "--target", flags.targets
    if not typed:
        name, typed = (
            "UFWATCH_TARGETS",
            tuple(part for part in env.get("UFWATCH_TARGETS", "").split(",") if part.strip()),
        )
    if not typed:
        return None
    paths = [name if len(typed) == 1 else f"{name}[{index}]" for index in range(len(typed))]
    found = [
        (path, target)
        for path, value in zip(paths, typed, strict=True)
        if (target := converted(value.strip(), _target, None, report, path)) is not None
    ]
    check_together(found, report)
    return tuple(target for _, target in found)


def _target(value: object) -> TargetConfig:
    typed = str(value)
    name, equals, url = typed.partition("=")
    if not equals or "://" in name:
        name, url = "", typed
    checked = http_url(url)
    return TargetConfig(name=label(name) if equals and name else host_port(checked), url=checked)


def _or(value: T | None, default: T) -> T:
    # Unlike the operator, keeps a port of 0.
    return default if value is None else value
