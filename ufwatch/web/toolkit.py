"""Reads the ``--web.config.file`` format of Prometheus' exporter-toolkit: TLS, response headers and basic auth.

The file that an operator already has for node_exporter works here. What we cannot honour is refused, not ignored.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ufwatch.errors import ConfigError
from ufwatch.web.auth import load_bcrypt
from ufwatch.web.tls import TlsFiles

_T = TypeVar("_T")

_CLIENT_AUTH = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    # Asks for a certificate and believes any: for whoever is let in, the same as not asking.
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_HEADERS: dict[str, re.Pattern[str]] = {
    "Strict-Transport-Security": re.compile(r"[\x20-\x7e]+"),
    "X-Content-Type-Options": re.compile(r"nosniff"),
    "X-Frame-Options": re.compile(r"(?i:deny|sameorigin)"),
    "X-XSS-Protection": re.compile(r"[\x20-\x7e]+"),
    "Content-Security-Policy": re.compile(r"[\x20-\x7e]+"),
}
_BCRYPT = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_DEAREST = 16  # one check at cost 16 takes seconds, at 31 days

_TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
_TLS_UNSUPPORTED = (
    "cert",
    "key",
    "client_ca",
    "client_allowed_sans",
    "cipher_suites",
    "curve_preferences",
    "prefer_server_cipher_suites",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSecurity:
    """A checked web configuration; empty means plain HTTP for everyone."""

    tls: TlsFiles | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """bcrypt hashes by user name; kept out of ``repr`` and of every message."""


def load(path: Path) -> WebSecurity:
    """Reads and checks the file and the certificates it names (relative to itself).

    Raises :class:`ConfigError` with all mistakes at once.
    """
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror or error}"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(str(path), [f"is no valid YAML{where}"]) from error
    reader = _Reader(path.parent)
    security = reader.read(document)
    if reader.mistakes:
        raise ConfigError(str(path), reader.mistakes)
    return security


class _Reader:
    """Collects mistakes while it reads; what it returns counts only if there are none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mistakes: list[str] = []

    def read(self, document: object) -> WebSecurity:
        sections: dict[str, Callable[[str, Mapping[Any, Any]], Any]] = {
            "tls_server_config": self.tls,
            "http_server_config": self.http,
            "basic_auth_users": self.users,
        }
        found: dict[str, Any] = {}
        for key, value in self.mapping("", document).items():
            if key not in sections:
                self.wrong(str(key), f"unknown key; known are {', '.join(sections)}")
            elif value is not None:
                found[key] = sections[key](key, self.mapping(key, value))
        return WebSecurity(
            tls=found.get("tls_server_config"),
            headers=found.get("http_server_config", ()),
            users=found.get("basic_auth_users", {}),
        )

    def tls(self, at: str, given: Mapping[Any, Any]) -> TlsFiles | None:
        if not given:
            return None
        before = len(self.mistakes)
        for key in given:
            if key in _TLS_UNSUPPORTED:
                self.wrong(f"{at}.{key}", "is not supported; remove it")
            elif key not in _TLS_KEYS:
                self.wrong(f"{at}.{key}", f"unknown key; known are {', '.join(_TLS_KEYS)}")
        cert, key_file, ca = (self.file(at, given, key) for key in ("cert_file", "key_file", "client_ca_file"))
        for key, path in (("cert_file", cert), ("key_file", key_file)):
            if path is None and not given.get(key):
                self.wrong(f"{at}.{key}", "is missing")
        auth = self.choice(at, given, "client_auth_type", _CLIENT_AUTH, ssl.CERT_NONE)
        lowest = self.choice(at, given, "min_version", _VERSIONS, ssl.TLSVersion.TLSv1_2)
        highest = self.choice(at, given, "max_version", _VERSIONS, ssl.TLSVersion.MAXIMUM_SUPPORTED)
        if lowest is ssl.TLSVersion.TLSv1_3 and highest is ssl.TLSVersion.TLSv1_2:
            self.wrong(f"{at}.max_version", "is below min_version")
        if auth is not ssl.CERT_NONE and not given.get("client_ca_file"):
            self.wrong(f"{at}.client_ca_file", f"is needed for client_auth_type {given['client_auth_type']}")
        if given.get("client_auth_type") in (None, "", "NoClientCert") and ca is not None:
            self.wrong(
                f"{at}.client_auth_type",
                "must be RequireAndVerifyClientCert or VerifyClientCertIfGiven with a client_ca_file",
            )
        if len(self.mistakes) > before or cert is None or key_file is None:
            return None
        files = TlsFiles(
            cert_file=cert,
            key_file=key_file,
            client_ca_file=ca,
            client_auth=auth,
            min_version=lowest,
            max_version=highest,
        )
        try:
            files.context()
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror or error
            self.wrong(at, f"certificate, key and CA cannot be used together: {why}")
        return files

    def http(self, at: str, given: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
        headers: list[tuple[str, str]] = []
        for key, value in given.items():
            if key == "http2":
                # HTTP/2 is not spoken here, and no reader needs it: true is honoured by the client's fall-back.
                if not isinstance(value, bool):
                    self.wrong(f"{at}.http2", "must be true or false")
            elif key != "headers":
                self.wrong(f"{at}.{key}", "unknown key; known are http2, headers")
            elif value is not None:
                for name, text in self.mapping(f"{at}.headers", value).items():
                    allowed = _HEADERS.get(name)
                    if allowed is None:
                        self.wrong(f"{at}.headers.{name}", f"cannot be set; these can: {', '.join(_HEADERS)}")
                    elif not isinstance(text, str) or not allowed.fullmatch(text):
                        self.wrong(f"{at}.headers.{name}", "has no valid value")
                    else:
                        headers.append((name, text))
        return tuple(headers)

    def users(self, at: str, given: Mapping[Any, Any]) -> dict[str, str]:
        users: dict[str, str] = {}
        for user, hashed in given.items():
            match = _BCRYPT.fullmatch(hashed) if isinstance(hashed, str) else None
            if not isinstance(user, str) or not user or ":" in user:
                self.wrong(f"{at}.{user}", "a user name is text without a colon")
            elif match is None:
                self.wrong(f"{at}.{user}", "must be a bcrypt hash; make one with: htpasswd -nBC 10 ''")
            elif not 4 <= int(match[1]) <= _DEAREST:
                self.wrong(f"{at}.{user}", f"the hash's cost must lie between 4 and {_DEAREST}")
            else:
                users[user] = hashed
        if given:
            try:
                load_bcrypt()
            except ImportError:
                self.wrong(at, "needs bcrypt; install it with: pip install 'ufwatch[web-auth]'")
        return users

    def wrong(self, at: str, what: str) -> None:
        self.mistakes.append(f"{at}: {what}" if at else what)

    def mapping(self, at: str, value: object) -> Mapping[Any, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(at, "must be a mapping of keys to values")
            return {}
        return value

    def file(self, at: str, given: Mapping[Any, Any], key: str) -> Path | None:
        value = given.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self.wrong(f"{at}.{key}", "must be a path")
            return None
        path = self.folder / value
        try:
            path.open("rb").close()
        except OSError as error:
            self.wrong(f"{at}.{key}", f"{path}: {error.strerror or error}")
            return None
        return path

    def choice(self, at: str, given: Mapping[Any, Any], key: str, known: Mapping[str, _T], default: _T) -> _T:
        value = given.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            self.wrong(f"{at}.{key}", f"must be one of {', '.join(filter(None, known))}")
            return default
        return known[value]
