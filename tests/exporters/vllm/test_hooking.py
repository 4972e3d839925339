"""Replacing, and waiting for an import (the waiting itself is :mod:`ufwatch_torch.importing`)."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ufwatch_vllm import hooking, process


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"ufwatch_probe_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def doubled(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: 2 * original(*args, **kwargs)


class Owner:
    def size(self, of: int, *, more: int = 0) -> int:
        """Says how large."""
        return of + more


def test_replaced_once_with_name_and_signature_kept() -> None:
    owner: Any = type("Copy", (), dict(vars(Owner)))
    before = inspect.signature(owner.size)
    assert hooking.replace(owner, "size", doubled)
    assert hooking.replace(owner, "size", doubled)
    assert owner().size(3, more=1) == 8
    assert (owner.size.__name__, owner.size.__doc__) == ("size", "Says how large.")
    assert inspect.signature(owner.size) == before


@pytest.mark.parametrize("name", ["missing", "number"])
def test_nothing_to_replace(name: str) -> None:
    owner = types.SimpleNamespace(number=3)
    assert not hooking.replace(owner, name, doubled)
    assert vars(owner) == {"number": 3}


def test_a_static_or_class_method_is_left_alone() -> None:
    """A vLLM that makes one of its methods static: our function in its place would get the object, too."""

    class Drifted:
        @staticmethod
        def size(of: int) -> int:
            return of

        @classmethod
        def kind(cls) -> str:
            return cls.__name__

    assert not hooking.replace(Drifted, "size", doubled)
    assert not hooking.replace(Drifted, "kind", doubled)
    assert (Drifted().size(3), Drifted().kind()) == (3, "Drifted")


def test_after_the_import(module_name: str) -> None:
    seen: list[int] = []
    hooking.when_imported(module_name, lambda module: seen.append(module.value))
    hooking.when_imported(module_name, lambda module: seen.append(module.value + 1))
    assert seen == []
    module = importlib.import_module(module_name)
    assert seen == [1, 2]
    importlib.reload(module)
    assert seen == [1, 2]


def test_at_once_where_it_is_loaded(module_name: str) -> None:
    importlib.import_module(module_name)
    seen: list[int] = []
    hooking.when_imported(module_name, lambda module: seen.append(module.value))
    assert seen == [1]


def test_an_action_that_fails_does_not_fail_the_import(module_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    monkeypatch.setattr(process, "failed", failures.append)
    seen: list[int] = []
    hooking.when_imported(module_name, lambda _: 1 / 0)  # type: ignore[arg-type]
    hooking.when_imported(module_name, lambda module: seen.append(module.value))
    importlib.import_module(module_name)
    assert failures == [f"import:{module_name}"]
    assert seen == [1]
