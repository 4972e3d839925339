"""A real torch on the CPU: a cold and a warm compile beside wall time.

Needs a python with torch, named by ``UFWATCH_TORCH_PYTHON``, and half a minute of a C++ compiler's time.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ufwatch_torch import textfile

from tests.exporters.torch.reading import comments, read, values

PYTHON = os.environ.get("UFWATCH_TORCH_PYTHON")

pytestmark = pytest.mark.skipif(PYTHON is None, reason="UFWATCH_TORCH_PYTHON is not set: no torch to try")

CODE = """
import json, pickle, sys, time
import ufwatch_torch
ufwatch_torch.observe()
import torch, torch._dynamo
torch.set_num_threads(1)
def f(x, w):
    return torch.nn.functional.relu(x @ w).sin() * 2
x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
wall = []
def timed(call):
    began = time.perf_counter()
    result = call()
    wall.append(time.perf_counter() - began)
    return result
compiled = torch.compile(f)  # imports Inductor, which is no compile
eager = torch.compile(lambda x: x + 1, backend="eager")
y = timed(lambda: compiled(x, w))
timed(lambda: y.sum().backward())
timed(lambda: eager(x))
refused = []
assert pickle.loads(pickle.dumps(torch.Tensor.pin_memory)) is torch.Tensor.pin_memory
class Sub(torch.Tensor):
    pass
try:
    x.as_subclass(Sub).pin_memory()
except RuntimeError as error:
    refused.append(str(error))
print(json.dumps({"wall": wall, "refused": refused, "cuda": torch.version.cuda}))
"""


def _compile(directory: Path, cache: Path) -> tuple[dict[str, Any], Path]:
    assert PYTHON is not None
    done = subprocess.run(
        ["nice", "-n", "19", PYTHON, "-c", CODE],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(Path(textfile.__file__).parents[1]),
            "UFWATCH_EXPORT_DIR": str(directory),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    [path] = directory.glob("engine-*.prom")
    said: dict[str, Any] = json.loads(done.stdout)
    return said, path


def test_cold_then_warm_beside_wall_time(tmp_path: Path) -> None:
    for label, compiles in (("cold", 2), ("warm", 1)):
        (tmp_path / label).mkdir()
        said, path = _compile(tmp_path / label, tmp_path / "cache")
        assert read(path).unknown == 0
        found = values(path)
        ahead, back, eager = said["wall"]

        def of(what: str, cache: str, found: dict[str, float] = found) -> float:
            return found.get(f"graph_compile{what}{{'phase': 'compile', 'cache': '{cache}'}}", 0.0)

        assert of("s_total", label) == compiles
        assert of("s_total", "unknown") == 1
        # The warm backward compiles nothing; its wall time is the backward itself.
        whole = ahead + back + eager
        seconds = of("_seconds_total", label) + of("_seconds_total", "unknown")
        assert 0.9 * whole < seconds <= whole
        if label == "cold":
            assert seconds > 0.98 * whole
        assert of("_last_start_seconds", label) == of("_seconds_total", label)
        if said["cuda"] is None:
            assert said["refused"] == ["Cannot access accelerator device when none is available."]
            assert found["pinned_alloc_attempts_total"] == 1
            assert found["pinned_alloc_failures_total{'code': 'no_device'}"] == 1
            assert comments(path) == []
