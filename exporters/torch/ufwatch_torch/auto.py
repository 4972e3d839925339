"""``import ufwatch_torch.auto`` observes this process if ``UFWATCH_EXPORT_DIR`` is set."""

from __future__ import annotations

from . import observe

observe()
