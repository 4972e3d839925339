"""A dcgm-exporter as a source: fetch its page, and say plainly what its operator has to enable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ufwatch.decode.dcgm import DcgmPage, decode
from ufwatch.model import Health, Reason

Fetch = Callable[[], Awaitable[tuple[Health, bytes | None]]]
"""One GET under its own deadline; the body is None exactly when the health is down."""

_NOT_ENABLED = Health(
    up=False,
    reason=Reason.NOT_SUPPORTED,
    detail="the dcgm-exporter serves no DCGM_FI_PROF_SM_ACTIVE: add it to its counters file (consumer cards have none)",
)
_NOT_DCGM = Health(up=False, reason=Reason.CONTENT, detail="the page has no DCGM_FI_ metrics: is this a dcgm-exporter?")
_NOTHING_USABLE = Health(up=False, reason=Reason.OUT_OF_RANGE, detail="every DCGM_FI_PROF_SM_ACTIVE is blank")


class DcgmSource:
    """Reads one exporter; never raises."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def poll(self) -> tuple[Health, DcgmPage | None]:
        """The page, or why there is none."""
        health, body = await self._fetch()
        if not health.up or body is None:
            return health, None
        page = decode(body)
        if page.sm_active:
            return health, page
        if page.rejected:
            return _NOTHING_USABLE, None
        return (_NOT_ENABLED if b"DCGM_FI_" in body else _NOT_DCGM), None
