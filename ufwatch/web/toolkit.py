"""The exporter-toolkit's web configuration file: TLS and basic auth, as every Prometheus exporter takes them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import importlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from aiohttp import web

from ufwatch.errors import ConfigError

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_OPTIONAL,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
_HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
_REMEMBERED_LOGINS = 64
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFile:
    """A checked file. ``users`` maps names to bcrypt hashes."""

    where: str
    tls: Tls | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def ssl_context(self) -> ssl.SSLContext | None:
        """A server context that reads its certificate again when the files change; ConfigError when it cannot."""
        if self.tls is None:
            return None
        context = _context(self.tls, self.where)
        _reload_on_change(context, self.tls)
        return context

    def protect(self, app: web.Application) -> None:
        """Puts basic auth and headers in front of every path. Raises ConfigError when bcrypt is not installed."""
        if self.headers:

            async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
                response.headers.update(self.headers)

            app.on_response_prepare.append(add_headers)
        if self.users:
            app.middlewares.insert(0, _basic_auth(self.users, _bcrypt(self.where)))


def load(path: Path) -> WebFile:
    """Reads and checks the file; ConfigError lists every mistake."""
    where = str(path)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(where, ["larger than 1 MiB; this is no web configuration"])
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise ConfigError(where, [f"cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ConfigError(where, [f"{place}not valid YAML"]) from error
    mistakes: list[str] = []
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(where, ["must be a mapping with tls_server_config, http_server_config, basic_auth_users"])
    _unknown(document, ("tls_server_config", "http_server_config", "basic_auth_users"), "", mistakes)
    tls = _tls(document.get("tls_server_config"), path.parent, mistakes)
    users = _users(document.get("basic_auth_users"), mistakes)
    headers = _headers(document.get("http_server_config"), mistakes)
    if mistakes:
        raise ConfigError(where, mistakes)
    return WebFile(where=where, tls=tls, users=users, headers=headers)


def _unknown(block: Mapping[Any, Any], known: tuple[str, ...], path: str, mistakes: list[str]) -> None:
    mistakes += [f"{path}{key}: unknown key; known are {', '.join(known)}" for key in block if key not in known]


def _tls(block: object, base: Path, mistakes: list[str]) -> Tls | None:
    if block is None or block == {}:
        return None
    if not isinstance(block, dict):
        mistakes.append("tls_server_config: must be a mapping")
        return None
    path = "tls_server_config."
    _unknown(block, _TLS_KEYS, path, mistakes)
    files: dict[str, Path] = {}
    for key in ("cert_file", "key_file", "client_ca_file"):
        value = block.get(key)
        if value is None:
            if key != "client_ca_file":
                mistakes.append(f"{path}{key}: must be set")
            continue
        if not isinstance(value, str) or not (base / value).is_file():
            mistakes.append(f"{path}{key}: no such file")
            continue
        files[key] = base / value
    auth = _choice(block, "client_auth_type", _CLIENT_AUTH, ssl.CERT_NONE, mistakes)
    low = _choice(block, "min_version", _VERSIONS, ssl.TLSVersion.TLSv1_2, mistakes)
    high = _choice(block, "max_version", _VERSIONS, ssl.TLSVersion.MAXIMUM_SUPPORTED, mistakes)
    if auth is not ssl.CERT_NONE and "client_ca_file" not in files:
        mistakes.append(f"{path}client_auth_type: needs client_ca_file")
    if "cert_file" not in files or "key_file" not in files:
        return None
    return Tls(
        cert_file=files["cert_file"],
        key_file=files["key_file"],
        client_ca_file=files.get("client_ca_file"),
        client_auth=auth,
        min_version=low,
        max_version=high,
    )


def _choice(block: Mapping[str, Any], key: str, known: Mapping[str, Any], default: Any, mistakes: list[str]) -> Any:
    value = block.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or value not in known:
        mistakes.append(f"tls_server_config.{key}: must be one of {', '.join(known)}")
        return default
    return known[value]


def _users(block: object, mistakes: list[str]) -> Mapping[str, str]:
    if block is None:
        return {}
    if not isinstance(block, dict):
        mistakes.append("basic_auth_users: must map names to bcrypt hashes")
        return {}
    for name, hashed in block.items():
        if not isinstance(name, str) or ":" in name:
            mistakes.append("basic_auth_users: a name must be text without a colon")
        elif not isinstance(hashed, str) or not hashed.startswith(("$2a$", "$2b$", "$2y$")) or len(hashed) != 60:
            mistakes.append(f"basic_auth_users.{name}: must be a bcrypt hash, such as `htpasswd -nbB` makes")
    return dict(block)


def _headers(block: object, mistakes: list[str]) -> Mapping[str, str]:
    if block is None:
        return {}
    if not isinstance(block, dict):
        mistakes.append("http_server_config: must be a mapping")
        return {}
    _unknown(block, ("http2", "headers"), "http_server_config.", mistakes)
    headers = block.get("headers") or {}
    if not isinstance(headers, dict):
        mistakes.append("http_server_config.headers: must be a mapping")
        return {}
    for name, value in headers.items():
        if name not in _HEADERS:
            mistakes.append(f"http_server_config.headers.{name}: must be one of {', '.join(_HEADERS)}")
        elif not isinstance(value, str) or "\n" in value or "\r" in value:
            mistakes.append(f"http_server_config.headers.{name}: must be one line of text")
    return dict(headers)


def _context(tls: Tls, where: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version, context.maximum_version = tls.min_version, tls.max_version
        # The password callback keeps an encrypted key from asking on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: b"")
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = tls.client_auth
    except (OSError, ValueError) as error:
        raise ConfigError(where, [f"tls_server_config: certificate or key cannot be used: {error}"]) from error
    return context


def _reload_on_change(context: ssl.SSLContext, tls: Tls) -> None:
    """At each handshake, looks whether the files changed; a bad new certificate leaves the old one in use."""
    seen = _stamp(tls)

    def hello(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal seen
        now = _stamp(tls)
        if now is None or now == seen:
            return
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: b"")
            connection.context = context
        except (OSError, ValueError):
            return  # half-written files: looked at again at the next handshake
        seen = now

    context.sni_callback = hello


def _stamp(tls: Tls) -> tuple[tuple[int, int, int], ...] | None:
    try:
        stats = [path.stat() for path in (tls.cert_file, tls.key_file)]
    except OSError:
        return None
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def _bcrypt(where: str) -> ModuleType:
    try:
        return importlib.import_module("bcrypt")
    except ImportError as error:
        mistake = "basic_auth_users: needs the bcrypt package: pip install 'ufwatch[web-auth]'"
        raise ConfigError(where, [mistake]) from error


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _basic_auth(users: Mapping[str, str], bcrypt: ModuleType) -> Any:
    """A middleware. bcrypt is slow on purpose, so it runs in a thread, and logins that were right are remembered by a
    keyed digest: a scrape every few seconds must not cost 50 ms each."""
    # A user that does not exist is checked against somebody's hash, so that the time taken tells nothing.
    anybody = next(iter(users.values()))
    remembered: dict[bytes, None] = {}
    secret = bcrypt.gensalt()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        digest = hashlib.blake2b(given.encode(), key=secret[:32]).digest()
        if digest not in remembered:
            if not await _right(given):
                raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Basic realm="ufwatch"'})
            if len(remembered) >= _REMEMBERED_LOGINS:
                remembered.pop(next(iter(remembered)))
            remembered[digest] = None
        return await handler(request)

    async def _right(given: str) -> bool:
        scheme, _, encoded = given.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        if not colon:
            return False
        # bcrypt reads 72 bytes; newer versions of the package refuse more instead of ignoring the rest.
        matches = await asyncio.to_thread(bcrypt.checkpw, password.encode()[:72], users.get(name, anybody).encode())
        return bool(matches) and name in users

    return check
