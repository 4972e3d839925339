"""Calls back when torch has been imported, without ever importing it.

A module that is there already is handed over at once. Otherwise a finder at the front of ``sys.meta_path`` lets the
other finders do their work and only has the loader call back after the module's own code ran. Whatever goes wrong in
that, the import takes its usual way; ``poll`` then hands the module over a little later.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_Callback = Callable[[Any], None]

_waiting: dict[str, list[_Callback]] = {}
_lock = threading.RLock()
_looking = threading.local()
"""``names``: those that the finder is looking for in this thread."""


def loaded(name: str) -> Any:
    """The module if its import has ended, else None. Never imports."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def when_imported(name: str, callback: _Callback) -> None:
    """Calls ``callback(module)`` once: now, or right after the import. What it raises is not passed on."""
    with _lock:
        _waiting.setdefault(name, []).append(callback)
        if loaded(name) is None and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    poll()


def poll() -> None:
    """Hands over what was imported meanwhile past the finder."""
    for name in list(_waiting):
        module = loaded(name)
        if module is not None:
            _hand_over(name, module)


def _hand_over(name: str, module: object) -> None:
    with _lock:
        callbacks = _waiting.pop(name, [])
    for callback in callbacks:
        with contextlib.suppress(Exception):
            callback(module)


class _Finder:
    """Answers for awaited names only, with the very spec that the other finders give.

    It stays in ``sys.meta_path``: taking it out while another thread walks the list would have that one skip a finder.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Asked by a finder that we asked: another copy of this package, or another tool that goes round the same way.
        # Without this each would ask the other until the stack is full, and the import would run at its end.
        names: set[str] = vars(_looking).setdefault("names", set())
        if name not in _waiting or name in names:
            return None
        names.add(name)
        try:
            for finder in list(sys.meta_path):
                found = None if finder is self else finder.find_spec(name, path, target)
                if found is not None:
                    _call_after(found, name)
                    return found
        except Exception:
            pass  # the import goes its usual way, and meets the same exception there
        finally:
            names.discard(name)
        return None


def _call_after(spec: ModuleSpec, name: str) -> None:
    """Has the loader hand the module over after running it. The loader stays what it is; one method is put in front."""
    loader: Any = spec.loader
    if loader is None or isinstance(loader, type):
        return  # shared by all built-in modules
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        with contextlib.suppress(Exception):
            vars(loader).pop("exec_module", None)
            _hand_over(name, module)

    with contextlib.suppress(Exception):
        loader.exec_module = exec_module
