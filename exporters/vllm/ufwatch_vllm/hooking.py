"""Replacing a function of the engine, now or once its module is imported, without the engine noticing.

Nothing is imported here that the engine would not import itself: a hook waits for its module. Whatever goes wrong
leaves the engine's own function in place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import process
from .observers import importing

_MARK = "__ufwatch__"


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """``owner.name`` becomes ``make(owner.name)``, once, with name and signature kept. False where there is no such.

    Of a class only methods are replaced: in the place of a static one, a function would get an argument too many.
    """
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    if isinstance(owner, type) and isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod)):
        return False
    if not hasattr(original, _MARK):
        wrapped = functools.wraps(original)(make(original))
        setattr(wrapped, _MARK, True)
        setattr(owner, name, wrapped)
    return True


def when_imported(module: str, action: Callable[[ModuleType], None]) -> None:
    """Runs ``action(module)`` at once where the module is loaded already, else right after its import."""

    def imported(loaded: ModuleType) -> None:
        try:
            action(loaded)
        except Exception:
            process.failed(f"import:{module}")

    importing.when_imported(module, imported)
