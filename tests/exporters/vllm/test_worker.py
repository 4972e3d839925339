"""How long warming up took, by the methods of the worker that vLLM calls."""

from __future__ import annotations

import pytest

from tests.exporters.vllm.fake_vllm import FakeVllm

START = "load_general_plugins()\nfrom vllm.v1.worker.gpu_worker import OtherWorker, Worker\n"
PART = 'graph_warmup_last_start_seconds{part="%s"}'


@pytest.mark.parametrize("kind", ["Worker", "OtherWorker"])
def test_parts_of_the_start(fake: FakeVllm, kind: str) -> None:
    """Each of the fake's methods sleeps for a time of its own; nothing is taken twice through ``super()``."""
    got = fake.run(
        f"{START}w = {kind}(config()); w.init_device()\n"
        "made = [w.determine_available_memory(), w.compile_or_warm_up_model()]\n"
        "said(made=[*made, w.model_runner.capture_model.__doc__])"
    )
    assert got == {"made": [11, 7, "Captures."]}
    (series,) = fake.files().values()
    assert series[PART % "profile"] == pytest.approx(0.03, abs=0.015)
    assert series[PART % "warmup"] == pytest.approx(0.02, abs=0.015)
    assert series[PART % "capture"] == pytest.approx(0.05, abs=0.015)


def test_its_own_exception_passes(fake: FakeVllm) -> None:
    fake.ran(
        f"{START}w = Worker(None)\n"
        "try: w.compile_or_warm_up_model()\n"
        "except RuntimeError as error: assert str(error) == 'no memory'\n"
        "else: raise AssertionError"
    )
    assert fake.files()["worker"][PART % "warmup"] > 0


def test_a_fault_of_ours_stays_inside(fake: FakeVllm) -> None:
    got = fake.run(
        "from ufwatch_vllm import worker\ndef broken(*_): raise RuntimeError('broken')\nworker._begin = broken\n"
        f"{START}w = Worker(config()); w.init_device(); said(made=w.compile_or_warm_up_model())"
    )
    assert got == {"made": 7}


def test_a_worker_without_these_methods(fake: FakeVllm) -> None:
    fake.ran(f"{START}from vllm.v1.worker.worker_base import WorkerBase\nWorkerBase(config())")
    assert "exporter_hook_errors_total" not in fake.texts()
