"""External programs that some tests need: absent means skipped, unless UFWATCH_REQUIRE_TOOLS=1 makes it a failure."""

from __future__ import annotations

import os
import shutil

import pytest


def require_tool(name: str) -> str:
    """The program's path; without it the test is skipped with a reason, or fails where tools are required."""
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"the program {name} is not installed"
    if os.environ.get("UFWATCH_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
