"""The import hook on real modules of the test's own; and ``observe`` in fresh processes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ufwatch_torch import importing

from tests.exporters.torch.reading import comments, read

SOURCE = str(Path(importing.__file__).parents[1])


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Puts a module where the import system finds it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(importing, "_waiting", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name: str, code: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_a_module_is_handed_over_after_its_own_code(write_module: Callable[[str, str], None]) -> None:
    write_module("ufw_fake_a", "first = 1\nlast = 2\n")
    seen: list[Any] = []
    importing.when_imported("ufw_fake_a", lambda module: seen.append((module, module.last)))
    assert seen == []
    module = importlib.import_module("ufw_fake_a")
    assert seen == [(module, 2)]
    assert type(module.__spec__.loader) is SourceFileLoader  # type: ignore[union-attr]
    assert "exec_module" not in vars(module.__loader__)
    importlib.reload(module)
    assert len(seen) == 1


def test_a_submodule_too(write_module: Callable[[str, str], None]) -> None:
    write_module("ufw_fake_b.__init__", "")
    write_module("ufw_fake_b.inner", "x = 1\n")
    seen: list[Any] = []
    importing.when_imported("ufw_fake_b.inner", seen.append)
    importlib.import_module("ufw_fake_b")
    assert seen == []
    assert seen or importlib.import_module("ufw_fake_b.inner") in seen
    sys.modules.pop("ufw_fake_b")


def test_a_module_that_is_there_is_handed_over_at_once() -> None:
    seen: list[Any] = []
    importing.when_imported("json", seen.append)
    assert seen == [sys.modules["json"]]


def test_an_import_that_fails_fails_as_it_would(write_module: Callable[[str, str], None]) -> None:
    write_module("ufw_fake_c", "raise ValueError('own')\n")
    seen: list[Any] = []
    importing.when_imported("ufw_fake_c", seen.append)
    importing.when_imported("ufw_fake_none", seen.append)
    for _ in range(2):
        with pytest.raises(ValueError, match="own"):
            importlib.import_module("ufw_fake_c")
        with pytest.raises(ModuleNotFoundError, match="ufw_fake_none"):
            importlib.import_module("ufw_fake_none")
    write_module("ufw_fake_c", "x = 'a longer text'\n")
    importlib.invalidate_caches()
    module = importlib.import_module("ufw_fake_c")
    assert seen == [module]


def test_a_callback_that_raises_does_not_fail_the_import(write_module: Callable[[str, str], None]) -> None:
    write_module("ufw_fake_d", "x = 1\n")
    seen: list[Any] = []

    def broken(_: Any) -> None:
        raise ZeroDivisionError

    importing.when_imported("ufw_fake_d", broken)
    importing.when_imported("ufw_fake_d", seen.append)
    assert importlib.import_module("ufw_fake_d").x == 1
    assert len(seen) == 1


@pytest.mark.parametrize("what", ["_call_after", "_hand_over"])
def test_our_own_mistakes_do_not_fail_the_import(
    write_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write_module("ufw_fake_e", "x = 1\n")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    importing.when_imported("ufw_fake_e", lambda _: None)
    monkeypatch.setattr(importing, what, broken)
    assert importlib.import_module("ufw_fake_e").x == 1


def test_another_finder_that_raises_is_the_host_s_matter(
    write_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module("ufw_fake_f", "x = 1\n")

    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "ufw_fake_f":
                raise LookupError("the host's")

    importing.when_imported("ufw_fake_f", lambda _: None)
    monkeypatch.setattr(sys, "meta_path", [sys.meta_path[0], Broken(), *sys.meta_path[1:]])
    with pytest.raises(LookupError, match="the host's"):
        importlib.import_module("ufw_fake_f")


def test_what_came_past_the_finder_is_handed_over_by_poll(
    write_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module("ufw_fake_g", "")
    seen: list[Any] = []
    importing.when_imported("ufw_fake_g", seen.append)
    half: Any = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "ufw_fake_g", half)
    importing.poll()
    assert seen == []
    half.__spec__._initializing = False
    importing.poll()
    importing.poll()
    assert seen == [half]


def _python(code: str, **env: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_without_a_directory_nothing_happens() -> None:
    code = (
        "import sys, threading; before = list(sys.meta_path); import ufwatch_torch.auto, ufwatch_torch\n"
        "print(ufwatch_torch.observe(), threading.active_count(), sys.meta_path == before, 'torch' in sys.modules)"
    )
    assert _python(code).split() == ["None", "1", "True", "False"]


def test_one_import_observes_the_process(tmp_path: Path) -> None:
    code = (
        "import sys, ufwatch_torch.auto, ufwatch_torch\n"
        "print(ufwatch_torch.observe() is ufwatch_torch.observe('/elsewhere'), 'torch' in sys.modules)\n"
        "ufwatch_torch.started()"
    )
    assert _python(code, UFWATCH_EXPORT_DIR=str(tmp_path)).split() == ["True", "False"]
    [path] = tmp_path.glob("engine-*.prom")
    assert read(path).values == {}
    assert [line.removeprefix("# absent ").split(": ")[0] for line in comments(path)] == [
        'graph_compile{phase="capture"}',
        'graph_compile{phase="compile"}',
        "pinned_alloc_attempts_total",
    ]


def test_two_copies_do_not_ask_each_other_for_ever(tmp_path: Path) -> None:
    """This package and the copy within ufwatch-vllm: each one's finder asks the other's."""
    (tmp_path / "torch.py").write_text(
        "import sys\nframe, depth = sys._getframe(), 0\nwhile frame:\n    frame, depth = frame.f_back, depth + 1\n"
    )
    vllm = str(Path(SOURCE).parent / "vllm")
    code = (
        "import ufwatch_torch; from ufwatch_vllm import observers; ufwatch_torch.observe(); observers.observe()\n"
        "import torch; print(torch.depth < 30)"
    )
    path = os.pathsep.join((SOURCE, vllm, str(tmp_path)))
    assert _python(code, UFWATCH_EXPORT_DIR=str(tmp_path / "out"), PYTHONPATH=path).split() == ["True"]


def test_a_torch_imported_later_is_hooked_before_its_importer_goes_on(tmp_path: Path) -> None:
    """A whole small torch package, as real import."""
    package = tmp_path / "lib" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from tests.exporters.torch import fakes\n"
        "_torch = fakes.torch(fakes.Clock())\n"
        "_torch.stats.update({'num_host_alloc': 2, 'allocated_bytes.allocated': 64})\n"
        "globals().update(vars(_torch))\n"
    )
    out = tmp_path / "out"
    code = (
        "import ufwatch_torch.auto, torch\n"
        "graph = torch.cuda.CUDAGraph(); graph.capture_begin(); graph.capture_end()\n"
        "torch.cuda._cudart.cudaHostRegister(4096, 36)"
    )
    root = str(Path(__file__).parents[3])
    _python(code, UFWATCH_EXPORT_DIR=str(out), PYTHONPATH=os.pathsep.join((SOURCE, str(package.parent), root)))
    [path] = out.glob("engine-*.prom")
    found = {key.metric: value for key, value in read(path).values.items()}
    del found["graph_compile_seconds_total"], found["graph_compile_last_start_seconds"]
    del found["pinned_alloc_seconds_total"]
    assert found == {"graph_compiles_total": 1, "pinned_alloc_attempts_total": 3, "pinned_alloc_bytes_total": 100}
