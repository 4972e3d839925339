"""Sends OTLP requests to a backend over HTTP with protobuf, as the bytes they are."""

from __future__ import annotations

import asyncio
import gzip
import io
import socket
import ssl
from urllib.parse import urlsplit

import aiohttp

from ufwatch.address import host_of, port_of
from ufwatch.errors import ConfigError
from ufwatch.sources.body import media_type, printable, redact
from ufwatch.sources.proxy import ProxyRules, all_local, is_local
from ufwatch.trace.endpoint import Endpoint
from ufwatch.trace.forward import Outcome, Verdict
from ufwatch.trace.wire import PROTOBUF, MalformedError, rejected_in

_RETRYABLE = (429, 502, 503, 504)
_ANSWER_BYTES = 64 * 1024
_PACK_FROM_BYTES = 1024
_WRITTEN_AT_ONCE_BYTES = 2**20


class HttpTransport:
    """One client for the endpoint, made when it is first used."""

    def __init__(self, endpoint: Endpoint, proxies: ProxyRules) -> None:
        """Raises ConfigError where a certificate cannot be used."""
        self._endpoint, self._proxies = endpoint, proxies
        self._tls = tls_context(endpoint) if endpoint.tls else None
        self._secrets = [value for _, value in endpoint.headers]
        self._client: aiohttp.ClientSession | None = None
        self._proxy: str | None = None

    async def send(self, payload: bytes) -> Outcome:
        """See :class:`~ufwatch.trace.forward.Transport`."""
        headers = {**dict(self._endpoint.headers), "content-type": PROTOBUF}
        if self._endpoint.gzip and len(payload) >= _PACK_FROM_BYTES:
            payload, headers["content-encoding"] = gzip.compress(payload, 1), "gzip"
        try:
            client = await self._open()
            # A redirect would turn the POST into a GET and take the headers, which are secrets, elsewhere.
            async with client.post(
                self._endpoint.target,
                # aiohttp warns of long bytes, which it writes in one go.
                data=payload if len(payload) <= _WRITTEN_AT_ONCE_BYTES else io.BytesIO(payload),
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                return await self._answered(response)
        except TimeoutError:
            return Outcome(Verdict.RETRY, why=f"no answer within {self._endpoint.timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Outcome(Verdict.RETRY, why=self._told(f"{type(error).__name__}: {error}".encode()))
        except ValueError as error:
            return Outcome(Verdict.REJECTED, why=self._told(str(error).encode()))

    async def close(self) -> None:
        """Ends the connections."""
        if self._client is not None:
            await self._client.close()

    async def _open(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._proxy = await _proxy_for(self._endpoint.target, self._proxies)
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True, limit=2),
                timeout=aiohttp.ClientTimeout(total=self._endpoint.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "ufwatch"},
            )
        return self._client

    async def _answered(self, response: aiohttp.ClientResponse) -> Outcome:
        status, kind = response.status, media_type(response.headers.get("Content-Type", ""))
        body = await _start_of(response)
        if 200 <= status < 300:
            if kind == "text/html":
                # Some pages answer everything with themselves: spans that go there are gone.
                return Outcome(Verdict.REJECTED, why=f"status {status} with a web page: is this an OTLP address?")
            if kind != PROTOBUF:
                return Outcome(Verdict.DELIVERED)
            try:
                rejected, why = rejected_in(body)
            except MalformedError as error:
                return Outcome(Verdict.REJECTED, why=str(error))
            return Outcome(Verdict.DELIVERED, rejected, why=self._told(why.encode()))
        text = "" if kind == PROTOBUF else f" {self._told(body)}"
        why = f"status {status}{text}".rstrip()
        if status in _RETRYABLE:
            return Outcome(Verdict.RETRY, after=_seconds(response.headers.get("Retry-After", "")), why=why)
        return Outcome(Verdict.TOO_LARGE if status == 413 else Verdict.REJECTED, why=why)

    def _told(self, raw: bytes) -> str:
        return redact(printable(raw), self._secrets)


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """What TLS to the endpoint is checked with. Raises ConfigError where a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        if endpoint.client_cert_file is not None:
            context.load_cert_chain(endpoint.client_cert_file, endpoint.client_key_file, password=lambda: "")
    except OSError as error:
        raise ConfigError(endpoint.target, [f"its certificates cannot be used: {error.strerror or error}"]) from error
    return context


async def _proxy_for(target: str, rules: ProxyRules) -> str | None:
    """The proxy for the endpoint; none for a local one, as everywhere in ufwatch."""
    host, port = host_of(target), port_of(target)
    proxy = rules.proxy_for(urlsplit(target).scheme, host, port)
    if proxy is None or is_local(host):
        return None
    if is_local(host) is None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return proxy  # perhaps only the proxy knows the name
        if all_local([str(address[0]) for *_, address in found]):
            return None
    return proxy


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    """As much of the answer as is ever looked at, however long it is."""
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) >= _ANSWER_BYTES:
            # What has not been read would be waited for otherwise.
            response.close()
            break
    return body[:_ANSWER_BYTES]


def _seconds(text: str) -> float | None:
    """Of ``Retry-After``; a date in it is not worth trusting two clocks."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
