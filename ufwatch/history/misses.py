"""One target's look-ups in its page table, hour by hour, and what share of them usually misses at this hour."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ufwatch.core.baseline import DAYS, HOUR_SECONDS, Baseline, HourCount, Hours
from ufwatch.core.target import TargetReport
from ufwatch.core.track import COLUMN
from ufwatch.decode.textfile import TextfileSnapshot
from ufwatch.model import Labels, Quality, Reading, Reason, Samples

FOLD_SECONDS = 60.0
_LATE_SECONDS = 3 * FOLD_SECONDS
"""What grew over longer than this grew in hours that nobody can tell: it counts in none."""
_MOST_UNSAVED = 24 * DAYS
_LOOKUPS, _MISSES = COLUMN["page_table_lookups_total"], COLUMN["page_table_misses_total"]
SIGNAL = "page_table_miss_baseline"
_NONE = Samples()
_UNKNOWN = Baseline(None, 0)


class MissBook:
    """For the event loop's thread only. ``expected`` is the configuration's word, which goes before what was learned.

    Between two minutes a scrape costs one comparison.
    """

    __slots__ = ("_counted", "_due", "_folded", "_now", "expected", "hours", "name", "unsaved", "usual")

    def __init__(self, name: str, now: Callable[[], float], expected: float | None = None) -> None:
        self.name, self.expected = name, expected
        self._now = now
        self.hours = Hours(int(now() // HOUR_SECONDS))
        self.usual = _UNKNOWN
        self.unsaved: dict[int, HourCount] = {}
        """Hours that are not on disk as they are here."""
        self._counted: dict[str, tuple[float, float]] = {}
        self._folded: float | None = None
        self._due = 0.0

    def new_process(self) -> None:
        """The target's totals begin at 0 again (its configuration changed)."""
        self._counted, self._folded, self._due = {}, None, 0.0

    def scraped(self, report: TargetReport, texts: TextfileSnapshot | None, at_seconds: float) -> None:  # noqa: ARG002
        """Counts once a minute, and at the end of an hour, what was looked up since."""
        if at_seconds >= self._due:
            self._fold(report, at_seconds)

    def _fold(self, report: TargetReport, at_seconds: float) -> None:
        now = self._now()
        since = at_seconds - self._folded if self._folded is not None else 0.0
        # At the end of an hour what grew is that hour's.
        hour = int((now - min(since, FOLD_SECONDS) / 2) // HOUR_SECONDS)
        lookups = misses = 0.0
        for engine in report.engines:
            track = engine.track
            if track is None or not engine.fresh:
                continue
            totals = track.totals[_LOOKUPS], track.totals[_MISSES]
            before = self._counted.get(engine.engine, (0.0, 0.0))
            self._counted[engine.engine] = totals
            if totals[0] < before[0]:
                before = (0.0, 0.0)  # another engine under that number
            lookups += totals[0] - before[0]
            misses += totals[1] - before[1]
        if lookups > 0 and since < _LATE_SECONDS:
            self.hours.count(hour, lookups, misses)
            self.unsaved[self.hours.hour] = self.hours.now()
            if len(self.unsaved) > _MOST_UNSAVED:
                del self.unsaved[min(self.unsaved)]
        self._folded = at_seconds
        self._due = at_seconds + min(FOLD_SECONDS, HOUR_SECONDS - now % HOUR_SECONDS)
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Looks up what is usual at ``now``."""
        self.hours.count(int(now // HOUR_SECONDS), 0.0, 0.0)
        self.usual = self.hours.baseline()

    def all_unsaved(self) -> None:
        """Everything is to be saved again."""
        self.unsaved = {each.hour: each for each in (*self.hours.kept(), self.hours.now())}

    @property
    def ratio(self) -> float | None:
        """The baseline; None while it is not known."""
        return self.expected if self.expected is not None else self.usual.ratio

    def samples(self, model_name: str) -> Samples:
        """The baseline's series where it is known: the agent's own, so it stays while the target is gone."""
        ratio = self.ratio
        return _NONE if ratio is None else Samples(_series(self.name, model_name), (ratio,))

    def reading(self) -> Reading:
        """The baseline as a reading, or why there is none."""
        ratio = self.ratio
        if ratio is None:
            return Reading(SIGNAL, (), None, source="history", reason=Reason.WARMING_UP)
        if self.expected is not None:
            return Reading(SIGNAL, (), ratio, source="config", quality=Quality.EXACT)
        return Reading(SIGNAL, (), ratio, source="history", quality=Quality.ESTIMATE)


@lru_cache(maxsize=4096)
def _series(target: str, model_name: str) -> tuple[tuple[str, Labels], ...]:
    return ((f"{SIGNAL}_ratio", (("target", target), ("model_name", model_name))),)
