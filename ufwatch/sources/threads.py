"""Work that may hang for ever: a thread of its own for each piece, which ends with the process.

Not the loop's executor: a name server or file system that does not answer would hold one of its few threads, then hold
up every other target, and at last the end of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(job: Callable[[], T], name: str) -> Future[T]:
    """Begins ``job``; the future is not cancellable, as the thread is not."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future
