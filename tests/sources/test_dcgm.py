"""A dcgm-exporter as a source."""

from __future__ import annotations

import asyncio

import pytest

from ufwatch.decode.dcgm import DcgmKey
from ufwatch.model import UP, Health, Reason
from ufwatch.sources.dcgm import DcgmSource

DOWN = Health(up=False, reason=Reason.CONNECT, detail="connection refused")


def poll(health: Health, body: bytes | None) -> tuple[Health, dict[DcgmKey, float] | None]:
    async def fetch() -> tuple[Health, bytes | None]:
        return health, body

    found, page = asyncio.run(DcgmSource(fetch).poll())
    return found, None if page is None else dict(page.sm_active)


def test_a_page_with_sm_activity() -> None:
    assert poll(UP, b'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-a"} 0.5\n') == (UP, {DcgmKey("gpu-a", None): 0.5})


def test_the_fetch_s_own_failure_is_passed_on() -> None:
    assert poll(DOWN, None) == (DOWN, None)


@pytest.mark.parametrize(
    ("body", "reason", "says"),
    [
        (b'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a"} 50\n', Reason.NOT_SUPPORTED, "counters file"),
        (b"vllm:num_requests_running 1\n", Reason.CONTENT, "dcgm-exporter"),
        (b'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-a"} 140737488355328\n', Reason.OUT_OF_RANGE, "blank"),
    ],
)
def test_a_page_without_it_says_what_to_do(body: bytes, reason: Reason, says: str) -> None:
    health, page = poll(UP, body)
    assert page is None
    assert health.reason is reason
    assert says in health.detail
