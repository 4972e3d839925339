"""SM activity from a dcgm-exporter's page. The bodies are made up in the exporter's own form (its README)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ufwatch.decode.dcgm import DcgmKey, DcgmPage, decode, merge
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot
from ufwatch.model import UP, Health, Reason

HEAD = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-604ac76c",device="nvidia0",modelName="NVIDIA A100",Hostname="node-a"} 1410
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
"""
WHOLE = 'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-604AC76C",device="nvidia0",modelName="NVIDIA A100"} 0.254321\n'
PART = (
    'DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",device="nvidia1",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7",'
    'Hostname="node-a",pod="chat-0",namespace="llm"} 0.5 1395066363000\n'
)
A = DcgmKey("gpu-604ac76c", None)


def page(text: str) -> DcgmPage:
    return decode((HEAD + text).encode())


def test_cards_and_instances_are_told_apart() -> None:
    assert page(WHOLE + PART) == DcgmPage(sm_active={A: 0.254321, DcgmKey("gpu-b", 7): 0.5})


def test_it_reads_what_the_reference_parser_reads() -> None:
    families = text_string_to_metric_families(HEAD + WHOLE + PART)
    values = [s.value for f in families for s in f.samples if s.name == "DCGM_FI_PROF_SM_ACTIVE"]
    assert list(page(WHOLE + PART).sm_active.values()) == values


@pytest.mark.parametrize("value", ["140737488355328", "-1", "NaN", "+Inf", "1.2", "9223372036854775792", "x"])
def test_blanks_are_refused_and_counted(value: str) -> None:
    assert page(WHOLE.replace("0.254321", value)) == DcgmPage(rejected=1)


def test_a_series_without_a_uuid_is_refused() -> None:
    assert page('DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.5\n') == DcgmPage(rejected=1)


def test_the_first_of_several_pods_is_taken() -> None:
    assert page(WHOLE + WHOLE.replace("0.254321", "0.3")).sm_active == {A: 0.254321}


def test_braces_and_quotes_in_labels_and_windows_line_ends() -> None:
    line = 'DCGM_FI_PROF_SM_ACTIVE{gpu="0",x="a}\\"b",UUID="GPU-604ac76c"} 5.0e-01\r\n'
    assert page(line).sm_active == {A: 0.5}


def test_a_line_cut_off_is_not_read() -> None:
    assert page(WHOLE[: WHOLE.index("}")]) == DcgmPage()


@pytest.mark.parametrize(
    "body",
    [
        b"DCGM_FI_PROF_SM_ACTIVE{a\n" * 4_000,
        b"DCGM_FI_PROF_SM_ACTIVE{" + b"a" * 100_000 + b"} 1\n",
        b"DCGM_FI_PROF_SM_ACTIVE{a" + b" " * 100_000 + b"} 1\n",
    ],
)
def test_rubbish_takes_no_more_time_than_its_length(body: bytes) -> None:
    began = time.process_time()
    decode(body)
    assert time.process_time() - began < 0.05


@given(st.binary(max_size=300))
def test_any_body_is_a_page(body: bytes) -> None:
    assert isinstance(decode(HEAD.encode() + body + WHOLE.encode()), DcgmPage)


# Merging.


def snapshot(
    reason: Reason, *, health: Health = UP, instance: int | None = None, uuid: str = "GPU-604ac76c"
) -> GpuSnapshot:
    card = CardSnapshot(
        card=CardId(gpu="0", uuid=uuid, mig="" if instance is None else "MIG-1"),
        health=health,
        values={"gpu_busy_ratio": 1.0} if health.up else {},
        missing={"sm_utilization_ratio": reason, "power_watts": Reason.NOT_SUPPORTED} if health.up else {},
        gpu_instance=instance,
    )
    return GpuSnapshot(at_seconds=1.0, health=UP, cards=(card,))


@pytest.mark.parametrize("reason", [Reason.NOT_SUPPORTED, Reason.NO_SOURCE, Reason.PERMISSION])
def test_only_sm_utilization_is_filled_in(reason: Reason) -> None:
    (card,) = merge(snapshot(reason), page(WHOLE)).cards
    assert card.values == {"gpu_busy_ratio": 1.0, "sm_utilization_ratio": 0.254321}
    assert card.missing == {"power_watts": Reason.NOT_SUPPORTED}
    assert card.source_of == {"sm_utilization_ratio": "dcgm"}


def test_an_instance_is_found_by_its_number() -> None:
    (card,) = merge(snapshot(Reason.MIG, instance=7, uuid="GPU-b"), page(PART)).cards
    assert card.values["sm_utilization_ratio"] == 0.5
    before = snapshot(Reason.MIG, instance=6, uuid="GPU-b")
    assert merge(before, page(PART)) == before


@pytest.mark.parametrize(
    "before",
    [
        snapshot(Reason.WARMING_UP),
        snapshot(Reason.OUT_OF_RANGE),
        snapshot(Reason.NOT_SUPPORTED, uuid="GPU-other"),
        snapshot(Reason.LOST, health=Health(up=False, reason=Reason.LOST)),
    ],
)
def test_a_moment_without_gpm_another_card_or_a_lost_one_is_left_alone(before: GpuSnapshot) -> None:
    assert merge(before, page(WHOLE)) == before
