"""Pinned memory without the interposer, on a torch of the test's own."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from ufwatch_torch import pinned as module
from ufwatch_torch.pinned import Pinned, code_of
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch import fakes
from tests.exporters.torch.reading import comments, values, write


@pytest.fixture
def torch() -> Any:
    torch = fakes.torch(fakes.Clock())
    torch.stats.update({"num_host_alloc": 0, "allocated_bytes.allocated": 0, "host_alloc_time.total": 0})
    return torch


@pytest.fixture
def pinned(exporter: Exporter, torch: Any, monkeypatch: pytest.MonkeyPatch) -> Pinned:
    monkeypatch.setattr(module, "loaded", lambda name: torch if name == "torch" else None)
    pinned = Pinned(exporter)
    pinned.watch(torch)
    return pinned


def seen(exporter: Exporter) -> dict[str, float]:
    """The agent's values without ``pinned_alloc_``, and without the seconds of the real clock."""
    write(exporter)
    return {
        name.removeprefix("pinned_alloc_"): value
        for name, value in values(exporter.path).items()
        if name != "pinned_alloc_seconds_total"
    }


def test_successes_are_torch_s_own(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    torch.stats.update({"num_host_alloc": 3, "allocated_bytes.allocated": 8192, "host_alloc_time.total": 2500})
    pinned.collect()
    pinned.collect()
    torch.stats.update({"num_host_alloc": 4, "allocated_bytes.allocated": 9216, "host_alloc_time.total": 3000})
    pinned.collect()
    assert seen(exporter) == {"attempts_total": 4, "bytes_total": 9216}
    assert values(exporter.path)["pinned_alloc_seconds_total"] == pytest.approx(0.003)


def test_older_torch_names_the_allocator_s_bytes_otherwise(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    torch.stats.update({"num_host_alloc": 1, "allocated_bytes.allocated": 512, "reserved_bytes.allocated": 4096})
    pinned.collect()
    assert seen(exporter) == {"attempts_total": 1, "bytes_total": 4096}


def test_statistics_that_were_reset_count_on(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    torch.stats.update({"num_host_alloc": 3, "allocated_bytes.allocated": 8192})
    pinned.collect()
    torch.stats.update({"num_host_alloc": 1, "allocated_bytes.allocated": 1024})
    pinned.collect()
    assert seen(exporter) == {"attempts_total": 4, "bytes_total": 9216}


def test_refusals_raise_as_before_and_count_as_attempts(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    torch.fails["pin"] = error = fakes.RefusedError("CUDA error: out of memory\nCompile with …", 2)
    torch.stats["num_host_alloc"] = 5
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            torch.Tensor().pin_memory()
        assert caught.value is error
    pinned.collect()
    assert seen(exporter) == {"attempts_total": 7, "bytes_total": 0, "failures_total{'code': 'out_of_memory'}": 2}


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "as the cause of another"])
def test_a_refusal_that_passes_through_two_calls_is_one(
    exporter: Exporter, pinned: Pinned, torch: Any, wrapped: bool
) -> None:
    """A tensor that holds another one pins that one; any subclass of Tensor comes through torch's dispatch twice."""

    class Outer:
        def pin_memory(self) -> None:
            inner = torch.Tensor()
            try:
                torch.Tensor.pin_memory(inner)
            except RuntimeError as error:
                if wrapped:
                    raise fakes.RefusedError("CUDA error: out of memory", 2) from error
                raise

    torch.fails["pin"] = fakes.RefusedError("CUDA error: out of memory", 2)
    pinned.watch(SimpleNamespace(Tensor=Outer, cuda=SimpleNamespace(host_memory_stats=dict)))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            Outer().pin_memory()
    assert seen(exporter) == {"attempts_total": 2, "failures_total{'code': 'out_of_memory'}": 2}


@pytest.mark.usefixtures("pinned")
def test_the_method_keeps_the_name_by_which_it_is_pickled(torch: Any) -> None:
    """The real one is a method of C, without a module of its own."""
    assert (torch.Tensor.pin_memory.__module__, torch.Tensor.pin_memory.__qualname__) == ("torch", "Tensor.pin_memory")


def test_refusals_alone_are_not_left_to_read_as_0_percent(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    torch.fails["pin"] = fakes.RefusedError("CUDA error: out of memory", 2)
    del torch.stats["num_host_alloc"]
    exporter.collect(pinned.collect)
    with pytest.raises(RuntimeError):
        torch.Tensor().pin_memory()
    for _ in range(5):
        exporter._turn()
    with pytest.raises(RuntimeError):
        torch.Tensor().pin_memory()
    assert seen(exporter) == {}
    assert "# absent pinned_alloc_attempts_total: the hook collect:Pinned.collect failed too often" in str(
        comments(exporter.path)
    )


@pytest.mark.parametrize(
    ("text", "number", "code"),
    [
        ("CUDA error: out of memory", None, "out_of_memory"),
        ("CUDA error: invalid argument", None, "invalid_value"),
        ("CUDA error: part or all of the requested memory range is already mapped", None, "already_registered"),
        ("CUDA error: OS call failed or operation not supported on this OS", None, "operating_system"),
        ("CUDA error: operation not supported", None, "not_supported"),
        ("CUDA error: no CUDA-capable device is detected", None, "no_device"),
        ("Cannot access accelerator device when none is available.", None, "no_device"),
        ("Found no NVIDIA driver on your system.", None, "no_device"),
        ("CUDA error: an illegal memory access was encountered", None, "other"),
        ("anything", 712, "712"),
        ("CUDA error: invalid argument", 0, "invalid_value"),
        ("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned", None, None),
        ("unexpected keyword argument", None, None),
    ],
)
def test_cuda_s_words_and_numbers(text: str, number: int | None, code: str | None) -> None:
    assert code_of(fakes.RefusedError(text, number)) == code


def test_a_wrong_call_is_no_attempt(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    with pytest.raises(TypeError):
        torch.Tensor().pin_memory(1, 2, 3)
    torch.fails["pin"] = RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    with pytest.raises(RuntimeError, match="cannot pin"):
        torch.Tensor().pin_memory()
    pinned.collect()
    assert seen(exporter) == {"attempts_total": 0, "bytes_total": 0}


def test_host_register_returns_its_number(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    cudart = torch.cuda._cudart
    assert cudart.cudaHostRegister(4096, 100, 0) == 0
    assert cudart.cudaHostRegister(8192, size=50) == 0
    torch.fails["register"] = 712
    assert cudart.cudaHostRegister(4096, 100, 0) == 712
    torch.fails["register"] = 1
    assert cudart.cudaHostRegister(1, 100, 0) == 1
    assert torch.calls == [
        ("register", 4096, 100, 0),
        ("register", 8192, 50, 0),
        ("register", 4096, 100, 0),
        ("register", 1, 100, 0),
    ]
    pinned.collect()
    assert seen(exporter) == {
        "attempts_total": 4,
        "bytes_total": 150,
        "failures_total{'code': 'already_registered'}": 1,
        "failures_total{'code': 'invalid_value'}": 1,
    }


@pytest.mark.usefixtures("pinned")
def test_the_host_sees_its_own_functions(torch: Any) -> None:
    tensor = torch.Tensor()
    assert tensor.pin_memory("cuda") == (tensor, "cuda")
    assert torch.Tensor.pin_memory.__doc__ == "Copies to pinned memory."
    assert torch.cuda._cudart.cudaHostRegister.__doc__ == "Registers."


@pytest.mark.parametrize("body", ["_refused", "_registered"])
def test_a_hook_that_raises_does_not_reach_the_host(
    exporter: Exporter, torch: Any, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    calls = []

    def broken(*args: object) -> None:
        calls.append(args)
        raise ZeroDivisionError

    monkeypatch.setattr(Pinned, body, broken)
    Pinned(exporter).watch(torch)
    torch.fails["pin"] = error = fakes.RefusedError("CUDA error: out of memory")
    for _ in range(50):
        with pytest.raises(RuntimeError) as caught:
            torch.Tensor().pin_memory()
        assert caught.value is error
        assert torch.cuda._cudart.cudaHostRegister(1, 2) == 0
    assert len(calls) == 20


def _no_cuda(torch: Any) -> None:
    torch.version.cuda = None


def _not_initialised(torch: Any) -> None:
    torch.cuda.is_initialized = lambda: False


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_no_cuda, "this PyTorch has no CUDA: pinned memory is not available"),
        (_not_initialised, "CUDA is not initialised in this process"),
    ],
)
def test_without_cuda_there_is_a_reason_and_no_number(
    exporter: Exporter, pinned: Pinned, torch: Any, change: Any, reason: str
) -> None:
    change(torch)
    pinned.collect()
    assert seen(exporter) == {}
    assert comments(exporter.path) == [f"# absent pinned_alloc_attempts_total: {reason}"]


def test_without_statistics_nothing_is_hooked(exporter: Exporter, torch: Any) -> None:
    del torch.cuda.host_memory_stats
    before = torch.Tensor.pin_memory
    Pinned(exporter).watch(torch)
    assert torch.Tensor.pin_memory is before
    assert seen(exporter) == {}
    assert "successes are not known" in comments(exporter.path)[0]


def test_two_exporters_in_a_process_do_not_count_twice(exporter: Exporter, pinned: Pinned, torch: Any) -> None:
    second = Pinned(exporter)
    second.watch(torch)
    torch.stats["num_host_alloc"] = 3
    second.collect()
    assert seen(exporter) == {}
    pinned.collect()
    assert seen(exporter)["attempts_total"] == 3


@pytest.mark.parametrize("answer", [None, 0, 1, 2])
def test_the_interposer_has_precedence_where_it_counts(
    exporter: Exporter, torch: Any, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    active = bool(answer)
    monkeypatch.setattr(module, "_installed", False)
    names = {} if answer is None else {module.INTERPOSER: lambda: answer}
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(**names))
    monkeypatch.setattr(module, "loaded", lambda _: torch)
    monkeypatch.setattr(module, "when_imported", lambda _, call: call(torch))
    before = torch.Tensor.pin_memory
    module.install(exporter)
    assert (torch.Tensor.pin_memory is before) is active
    torch.stats["num_host_alloc"] = 3
    write(exporter)
    assert seen(exporter) == ({} if active else {"attempts_total": 3, "bytes_total": 0})
    if active:
        assert "interposer" in comments(exporter.path)[0]


def test_a_torch_that_lacks_something_is_said(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_installed", False)
    monkeypatch.setattr(module, "when_imported", lambda _, call: call(SimpleNamespace()))
    module.install(exporter)
    assert seen(exporter) == {}
    assert "no attribute 'Tensor'" in comments(exporter.path)[0]
