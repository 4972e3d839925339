"""HTTP basic authentication against bcrypt hashes, without paying for bcrypt at every scrape."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

_BCRYPT_BYTES = 72  # bcrypt reads no further; newer libraries raise instead of cutting


def load_bcrypt() -> Callable[[bytes, bytes], bool]:
    """``bcrypt.checkpw``. Raises ``ImportError`` where the extra ``web-auth`` is not installed."""
    from bcrypt import checkpw

    return checkpw


class BasicAuth:
    """Tells whether a request may pass. Each right password is checked with bcrypt once, in a thread, then remembered.

    What is remembered is a digest under a key of this process, one per user, so it neither grows nor can be used
    elsewhere. Wrong passwords always pay, one at a time: they cannot keep the machine busy, nor those who are known.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        """``users`` maps names to bcrypt hashes, at least one. Raises ``ImportError`` without bcrypt."""
        self._checkpw = load_bcrypt()
        self._hashes = {user: hashed.encode() for user, hashed in users.items()}
        self._any_hash = next(iter(self._hashes.values()))
        self._passed: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)
        self._one_at_a_time = asyncio.Lock()

    async def allows(self, authorization: str | None) -> bool:
        """Whether this ``Authorization`` header names a user with the right password."""
        credentials = _credentials(authorization)
        if credentials is None:
            return False
        user, password = credentials
        digest = hmac.digest(
            self._key, f"{len(user)}:{user}:{password}".encode("utf-8", "surrogateescape"), hashlib.sha256
        )
        if hmac.compare_digest(self._passed.get(user, b""), digest):
            return True
        # An unknown user costs the same time, so that the time tells no names.
        hashed = self._hashes.get(user, self._any_hash)
        async with self._one_at_a_time:
            right = await asyncio.to_thread(self._check, password.encode("utf-8", "surrogateescape"), hashed)
        if right and user in self._hashes:
            self._passed[user] = digest
            return True
        return False

    def _check(self, password: bytes, hashed: bytes) -> bool:
        try:
            return self._checkpw(password[:_BCRYPT_BYTES], hashed)
        except ValueError:  # a NUL in the password, a hash that is none
            return False


def middleware(auth: BasicAuth) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Lets only those requests through that ``auth`` allows, whatever their path; the others get 401."""

    @web.middleware
    async def require(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if await auth.allows(request.headers.get("Authorization")):
            return await handler(request)
        return web.Response(
            status=401,
            text="A user name and a password are needed.\n",
            headers={"WWW-Authenticate": 'Basic realm="ufwatch", charset="UTF-8"'},
        )

    return require


def _credentials(authorization: str | None) -> tuple[str, str] | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
