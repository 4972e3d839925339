"""TLS for what we serve, with certificates that may be replaced while we run."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A checked ``tls_server_config``."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED

    def context(self) -> ssl.SSLContext:
        """A context from the files as they are now. Raises ``OSError`` (``ssl.SSLError`` is one) if they do not do."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version, made.maximum_version = self.min_version, self.max_version
        # The password function keeps OpenSSL from asking for one on the terminal; an encrypted key is refused.
        made.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        if self.client_ca_file is not None:
            made.load_verify_locations(cafile=self.client_ca_file)
        made.verify_mode = self.client_auth
        made.set_alpn_protocols(["http/1.1"])
        return made

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when one of the files does."""
        return tuple(_stamp(path) for path in (self.cert_file, self.key_file, self.client_ca_file) if path is not None)


class ReloadingTls:
    """Looks at the files at each handshake and takes new ones; files that do not do leave the last good ones in use."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ``OSError`` if the files cannot be used now."""
        self._files = files
        self._stamp = files.stamp()
        self._current = files.context()
        self.context = files.context()
        """What to listen with; it only hands each connection on to the newest context."""
        # OpenSSL calls this at each client hello, also where the client names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        stamp = self._files.stamp()
        if stamp != self._stamp:
            # Remembered also when it fails: half-replaced pairs are tried again when the other half comes.
            self._stamp = stamp
            try:
                self._current = self._files.context()
            except OSError as error:
                logger.error("TLS files changed but cannot be used, keeping the last good ones: %s", error)
            else:
                logger.info("TLS files reloaded")
        connection.context = self._current


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
