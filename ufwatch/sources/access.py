"""The files of :class:`~ufwatch.config.HttpAccess` as what a request needs: a TLS context and an Authorization value.

Files are looked at (one ``stat``) at every request and read again when they changed, so rotated ones are picked up.
"""

from __future__ import annotations

import base64
import os
import ssl
import stat
from pathlib import Path

from ufwatch.config import HttpAccess
from ufwatch.model import Reason
from ufwatch.sources.failure import FetchError, own_limit

_SECRET_CAP_BYTES = 65_536

_Stamp = tuple[int, int, int, int]
_TlsKey = tuple[Path | None, Path | None, Path | None, bool, str | None]


class AccessFiles:
    """Credentials and TLS contexts, kept for as long as their files stay as they are."""

    def __init__(self) -> None:
        self._secrets: dict[Path, tuple[_Stamp, str]] = {}
        self._contexts: dict[_TlsKey, tuple[tuple[_Stamp | None, ...], ssl.SSLContext]] = {}

    def authorization(self, access: HttpAccess) -> str | None:
        """The value of the Authorization header, None where there are no credentials. A bearer token wins over basic.

        Raises FetchError: ``no_source`` where the file is missing, ``permission`` where it is no use.
        """
        if access.api_key_file is not None:
            return f"Bearer {self._secret(access.api_key_file, 'api_key_file')}"
        if access.basic_auth_file is not None:
            pair = self._secret(access.basic_auth_file, "basic_auth_file")
            if ":" not in pair:
                raise FetchError(Reason.PERMISSION, f"basic_auth_file {access.basic_auth_file}: no user:password in it")
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        return None

    def secrets(self, access: HttpAccess) -> tuple[str, ...]:
        """Every text that must not be shown, should a server send our own credentials back."""
        kept = [self._secrets.get(path) for path in (access.api_key_file, access.basic_auth_file) if path is not None]
        texts = [entry[1] for entry in kept if entry is not None]
        encoded = [base64.b64encode(text.encode()).decode() for text in texts]
        passwords = [text.partition(":")[2] for text in texts]
        return tuple(text for text in (*texts, *encoded, *passwords) if text)

    def forget(self, access: HttpAccess) -> None:
        """Reads the credentials anew next time: the server refused those we hold."""
        for path in (access.api_key_file, access.basic_auth_file):
            if path is not None:
                self._secrets.pop(path, None)

    def tls(self, access: HttpAccess) -> ssl.SSLContext:
        """The client context for ``access``. A new one, and so new connections, after any of its files changed.

        Raises FetchError: ``no_source`` for a missing file, ``permission`` for an unreadable, ``tls`` for a bad one.
        """
        ca_file = None if access.insecure else access.ca_file
        # By name too: the pool tells connections apart by context, and one checked for a name is good for no other.
        key = (ca_file, access.client_cert_file, access.client_key_file, access.insecure, access.server_name)
        names = ("ca_file", "client_cert_file", "client_key_file")
        stamps = tuple(None if path is None else _stamp(path, name) for path, name in zip(key[:3], names, strict=True))
        kept = self._contexts.get(key)
        if kept is not None and kept[0] == stamps:
            return kept[1]
        context = _client_context(ca_file, access)
        self._contexts[key] = (stamps, context)
        return context

    def _secret(self, path: Path, name: str) -> str:
        stamp = _stamp(path, name)
        kept = self._secrets.get(path)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        text = _one_line(path, name)
        self._secrets[path] = (stamp, text)
        return text


def _stamp(path: Path, name: str) -> _Stamp:
    """What changes when a file is replaced or written to. Only a regular file: opening a pipe could block for ever."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, name, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise FetchError(Reason.PERMISSION, f"{name} {path}: not a regular file")
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _one_line(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_SECRET_CAP_BYTES).decode("utf-8").strip()
    except OSError as error:
        raise _unreadable(path, name, error) from None
    except UnicodeDecodeError:
        raise FetchError(Reason.PERMISSION, f"{name} {path}: not text") from None
    if not text:
        raise FetchError(Reason.PERMISSION, f"{name} {path}: empty")
    if not text.isprintable():
        raise FetchError(Reason.PERMISSION, f"{name} {path}: must hold one line of printable text")
    return text


def _client_context(ca_file: Path | None, access: HttpAccess) -> ssl.SSLContext:
    if access.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except ssl.SSLError:
            raise FetchError(Reason.TLS, f"ca_file {ca_file}: holds no PEM certificate") from None
        except OSError as error:
            raise _unreadable(ca_file, "ca_file", error) from None
    context.set_alpn_protocols(["http/1.1"])
    if access.client_cert_file is not None:
        try:
            # The callback keeps OpenSSL from asking for the password of an encrypted key at the terminal.
            context.load_cert_chain(access.client_cert_file, access.client_key_file, password=lambda: "")
        except ssl.SSLError:
            detail = f"client_cert_file {access.client_cert_file}: not an unencrypted PEM certificate with its own key"
            raise FetchError(Reason.TLS, detail) from None
        except OSError as error:
            # OpenSSL does not say which of the two it was.
            raise _unreadable(access.client_key_file or access.client_cert_file, "client key", error) from None
    return context


def _unreadable(path: Path | None, name: str, error: OSError) -> FetchError:
    reason = Reason.NO_SOURCE if isinstance(error, FileNotFoundError | NotADirectoryError) else Reason.PERMISSION
    if own_limit(error):
        reason = Reason.RESOURCES
    return FetchError(reason, f"{name} {path}: {os.strerror(error.errno or 0)}")
