"""Which target uses which card."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ufwatch.config import TargetConfig
from ufwatch.core.gpu import TargetGpus, mapping, mapping_samples
from ufwatch.decode.gpu import CardId
from ufwatch.model import Reason, Sample

A = CardId(gpu="0", uuid="GPU-aa")
B = CardId(gpu="1", uuid="GPU-bb")
PART = CardId(gpu="0", uuid="GPU-aa", mig="MIG-11")
OTHER_PART = CardId(gpu="0", uuid="GPU-aa", mig="MIG-22")
NONE = TargetGpus(reason=Reason.NOT_MAPPED)


def target(name: str = "chat", gpus: tuple[str, ...] | None = None) -> TargetConfig:
    return TargetConfig(name=name, url="http://127.0.0.1:8000", gpus=gpus)


def cards_of(cards: Sequence[CardId], gpus: tuple[str, ...] | None) -> TargetGpus:
    return mapping([target(gpus=gpus)], cards)["chat"]


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ([A], TargetGpus(cards=(A,))),
        ([A, B], NONE),
        ([], NONE),
        ([A, PART], TargetGpus(cards=(PART,))),
        ([A, PART, OTHER_PART], NONE),
        ([A, B, PART], NONE),
    ],
)
def test_one_target_takes_the_only_card(cards: list[CardId], expected: TargetGpus) -> None:
    assert cards_of(cards, None) == expected


def test_of_two_targets_only_the_one_that_names_a_card_has_one() -> None:
    mapped = mapping([target("a", ("0",)), target("b")], [A])
    assert mapped == {"a": TargetGpus(cards=(A,)), "b": NONE}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (("0",), (A,)),
        (("1", "0"), (B, A)),
        (("GPU-bb",), (B,)),
        (("gpu-BB",), (B,)),
        (("MIG-11",), (PART,)),
        (("0", "GPU-aa"), (A,)),
    ],
)
def test_cards_are_named_by_index_or_uuid(gpus: tuple[str, ...], expected: tuple[CardId, ...]) -> None:
    assert cards_of([A, PART, B], gpus) == TargetGpus(cards=expected)


def test_an_entry_that_names_no_card_is_reported() -> None:
    assert cards_of([A], ("0", "7", "GPU-zz")) == TargetGpus(cards=(A,), unknown=("7", "GPU-zz"))
    assert cards_of([A], ("7",)) == TargetGpus(reason=Reason.NOT_MAPPED, unknown=("7",))
    assert cards_of([A], ("",)) == TargetGpus(reason=Reason.NOT_MAPPED, unknown=("",))
    assert cards_of([A], ()) == NONE


def test_a_shared_card_has_one_info_series_per_target() -> None:
    mapped = mapping([target("a", ("0",)), target("b", ("MIG-11", "0"))], [A, PART])
    labels = (("gpu", "0"), ("uuid", "GPU-aa"))
    assert mapping_samples(mapped) == (
        Sample("target_gpu_info", (("target", "a"), *labels, ("mig", "")), 1.0),
        Sample("target_gpu_info", (("target", "b"), *labels, ("mig", "MIG-11")), 1.0),
        Sample("target_gpu_info", (("target", "b"), *labels, ("mig", "")), 1.0),
    )
