"""Where spans go, by OpenTelemetry's variables or by ``--otlp``. Pure: the environment is an argument.

The rules that exporters get wrong in turn: ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` is used as it stands,
``OTEL_EXPORTER_OTLP_ENDPOINT`` gets ``/v1/traces`` over HTTP; over gRPC only host and port count and the scheme alone
decides about TLS (``…_INSECURE`` only where there is none). Without a protocol it is ``http/protobuf``, as the
specification has it, but ``grpc`` for the scheme ``grpc://`` and for port 4317, which nobody uses for HTTP. Time limits
are milliseconds, as specified; Python's SDK takes seconds, so anything below one second counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ufwatch.address import http_url
from ufwatch.errors import ConfigError

HTTP, GRPC = "http/protobuf", "grpc"
_PREFIX = "OTEL_EXPORTER_OTLP_"
_PATH = "/v1/traces"
_GRPC_PORT = 4317
_GRPC_PORTS = (_GRPC_PORT, 14317)
_GRPC_SCHEMES = {"grpc": "http", "grpcs": "https"}
_TIMEOUT_SECONDS = 10.0
_SHORTEST_TIMEOUT_SECONDS, _LONGEST_TIMEOUT_SECONDS = 1.0, 60.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and how spans are sent. ``target`` is the URL over HTTP, ``host:port`` over gRPC."""

    protocol: str
    target: str
    tls: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names in lower case, as gRPC demands. Values are secrets."""
    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    timeout: float = _TIMEOUT_SECONDS
    """Seconds for one answer."""
    gzip: bool = False


class _Given(NamedTuple):
    """A setting and what to call it in a message."""

    value: str
    variable: str


def endpoint_from(environ: Mapping[str, str], flag: str | None = None, *, file: str | None = None) -> Endpoint | None:
    """The endpoint that ``--otlp`` (``flag``), the environment or the configuration (``file``) names; None where none
    does, or where ``OTEL_SDK_DISABLED=true`` or ``OTEL_TRACES_EXPORTER=none`` says not to (a flag is stronger).

    Both are base addresses, to which ``/v1/traces`` is added over HTTP unless they end so. Raises
    :class:`~ufwatch.errors.ConfigError` with one line that names the variable, never its secret.
    """
    if flag is None and _is_off(environ):
        return None
    own, general = environ.get(f"{_PREFIX}TRACES_ENDPOINT", "").strip(), environ.get(f"{_PREFIX}ENDPOINT", "").strip()
    if flag is not None:
        given = _Given(flag.strip(), "--otlp")
    elif own:
        given = _Given(own, f"{_PREFIX}TRACES_ENDPOINT")
    elif general:
        given = _Given(general, f"{_PREFIX}ENDPOINT")
    elif file is not None:
        given = _Given(file.strip(), "otlp.endpoint")
    else:
        return None
    protocol = _protocol(environ, given)
    if protocol == GRPC:
        target, tls = _grpc_target(environ, given)
    else:
        target, tls = _http_target(given, verbatim=flag is None and bool(own))
    return Endpoint(
        protocol=protocol,
        target=target,
        tls=tls,
        headers=_headers(_setting(environ, "HEADERS")),
        ca_file=_path(environ, "CERTIFICATE"),
        client_cert_file=_path(environ, "CLIENT_CERTIFICATE"),
        client_key_file=_path(environ, "CLIENT_KEY"),
        timeout=_timeout(_setting(environ, "TIMEOUT")),
        gzip=_gzip(_setting(environ, "COMPRESSION")),
    )


def _is_off(environ: Mapping[str, str]) -> bool:
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"


def _setting(environ: Mapping[str, str], name: str) -> _Given:
    """The signal's own variable, or the general one; an empty one counts as unset."""
    own = f"{_PREFIX}TRACES_{name}"
    if environ.get(own, "").strip():
        return _Given(environ[own].strip(), own)
    return _Given(environ.get(f"{_PREFIX}{name}", "").strip(), f"{_PREFIX}{name}")


def _wrong(given: _Given, mistake: str) -> ConfigError:
    return ConfigError(given.variable, [mistake])


def _protocol(environ: Mapping[str, str], given: _Given) -> str:
    scheme, separator, _ = given.value.partition("://")
    if separator and scheme.lower() in _GRPC_SCHEMES:
        return GRPC
    asked = _setting(environ, "PROTOCOL")
    if asked.value in (HTTP, GRPC):
        return asked.value
    if asked.value:
        raise _wrong(asked, f'"{asked.value[:40]}" is no protocol that is spoken here; write {GRPC} or {HTTP}')
    if not separator:
        return GRPC
    try:
        return GRPC if urlsplit(given.value).port in _GRPC_PORTS else HTTP
    except ValueError:
        return HTTP


def _checked(given: _Given, url: str) -> str:
    try:
        return http_url(url)
    except ValueError as error:
        told = str(error).replace("basic_auth_file", f"{_PREFIX}HEADERS")
        raise _wrong(given, told) from None


def _http_target(given: _Given, *, verbatim: bool) -> tuple[str, bool]:
    url = _checked(given, given.value)
    if verbatim:
        # The check takes a slash at the end away; this one is meant as it stands.
        url = given.value
    elif not url.endswith(_PATH):
        url += _PATH
    return url, url.lower().startswith("https:")


def _grpc_target(environ: Mapping[str, str], given: _Given) -> tuple[str, bool]:
    scheme, separator, rest = given.value.partition("://")
    if separator:
        scheme = _GRPC_SCHEMES.get(scheme.lower(), scheme.lower())
    else:
        rest = given.value
        insecure = _setting(environ, "INSECURE").value.lower() == "true"
        scheme = "http" if insecure else "https"
    parts = urlsplit(_checked(given, f"{scheme}://{rest}"))
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or _GRPC_PORT}", scheme == "https"


def _headers(given: _Given) -> tuple[tuple[str, str], ...]:
    """``name=value,name=value``, each plain or percent-encoded; a value may hold blanks and ``=``."""
    found: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in given.value.split(","))):
        name, equals, value = entry.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value).strip()
        if not equals or not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise _wrong(given, "an entry is not name=value in printable ASCII; separate entries by commas")
        found[name] = value
    return tuple(found.items())


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    given = _setting(environ, name)
    if not given.value:
        return None
    path = Path(given.value)
    if not path.is_file():
        raise _wrong(given, f"there is no file {path}")
    return path


def _timeout(given: _Given) -> float:
    if not given.value:
        return _TIMEOUT_SECONDS
    try:
        seconds = float(given.value) / 1000
    except ValueError:
        raise _wrong(given, f'"{given.value[:20]}" is no number of milliseconds; write 10000') from None
    if not seconds >= 0:
        raise _wrong(given, f'"{given.value[:20]}" is no number of milliseconds; write 10000')
    return min(max(seconds, _SHORTEST_TIMEOUT_SECONDS), _LONGEST_TIMEOUT_SECONDS)


def _gzip(given: _Given) -> bool:
    if given.value not in ("", "none", "gzip"):
        raise _wrong(given, f'"{given.value[:20]}" is no compression that is used here; write gzip or none')
    return given.value == "gzip"
