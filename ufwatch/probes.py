"""Every probe on its own timer, between the scrapes and never two of one at a time.

Floor 4. A target that hangs holds up its own probe alone, and no longer than that probe's timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ufwatch.clock import Clock
from ufwatch.config import ProbeConfig, TargetConfig
from ufwatch.core.schedule import between, next_due, offset
from ufwatch.model import Exemplars, Sample, Samples

if TYPE_CHECKING:  # an agent without probes does not import their client
    from ufwatch.trace.model import Exchange

_LOG = logging.getLogger("ufwatch.probe")
_LOOK_SECONDS = 0.05
"""How often a probe looks whether its target has been looked at for the first time."""


class Asks(Protocol):
    """One probe: :class:`ufwatch.trace.probing.Probe`."""

    @property
    def config(self) -> ProbeConfig: ...

    @property
    def target(self) -> TargetConfig: ...

    async def once(self, model: str) -> Exchange: ...

    def samples(self, model_name: str) -> Samples: ...

    def exemplars(self, model_name: str) -> Exemplars: ...


class Kit(Protocol):
    """What probes share: :class:`ufwatch.trace.kit.ProbeKit`."""

    def probe(self, config: ProbeConfig, target: TargetConfig) -> Asks: ...

    def export(self, exchange: Exchange) -> None: ...

    def samples(self) -> Samples: ...

    async def close(self) -> None: ...


class Around(Protocol):
    """What the agent is to its probes."""

    def model_of(self, target: str) -> str | None:
        """The model a target serves, empty where that is not known; None until it has been looked at once."""
        ...

    def asleep(self, target: str) -> bool:
        """Whether it would be wrong to ask now: a request may wake an engine in sleep mode, or end it."""
        ...

    def asked(self, target: str, exchange: Exchange) -> None:
        """Tells those who judge a target of a request that has ended."""
        ...

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None: ...

    def forget(self, owner: str) -> None: ...


@dataclass(slots=True)
class _Running:
    probe: Asks
    index: int
    """How many probes came before it: where in its interval it is due."""
    task: asyncio.Task[None] | None = None
    failing: str = ""
    """What went wrong last time, so that it is told once."""


class Probes:
    """The probes of one agent. For the event loop's thread only; ``open_kit`` is awaited when the first one comes."""

    def __init__(self, open_kit: Callable[[], Awaitable[Kit]], *, clock: Clock, interval_seconds: float) -> None:
        """``interval_seconds``: between two scrapes."""
        self._open_kit, self._clock, self._interval_seconds = open_kit, clock, interval_seconds
        self._kit: Kit | None = None
        self._running: dict[str, _Running] = {}
        self._arrivals = 0
        self._lone: frozenset[str] = frozenset()

    async def prepare(self, configs: Iterable[ProbeConfig]) -> None:
        """Makes what probes share where there are any. Raises ConfigError, with nothing changed."""
        if self._kit is None and any(True for _ in configs):
            self._kit = await self._open_kit()

    async def settle(
        self, configs: Iterable[ProbeConfig], targets: Mapping[str, TargetConfig], around: Around, began: float
    ) -> None:
        """Ends probes that are gone or changed and starts new ones; the others go on. ``began``: of the scrapes' grid.

        A probe whose target is not there, because a flag replaced the file's, waits until it is.
        """
        wanted = {config.target: config for config in configs}
        alone = frozenset(wanted.keys() - targets.keys())
        for name in sorted(alone - self._lone):
            _LOG.warning("a probe has no target", extra={"fields": {"target": name}})
        self._lone = alone
        stays = {
            name
            for name, running in self._running.items()
            if (running.probe.config, running.probe.target) == (wanted.get(name), targets.get(name))
        }
        await self.stop(self._running.keys() - stays, around)
        if self._kit is None:
            return
        for name, config in wanted.items():
            if name in targets and name not in self._running:
                running = self._running[name] = _Running(self._kit.probe(config, targets[name]), self._arrivals)
                self._arrivals += 1
                running.task = asyncio.create_task(self._follow(running, around, began), name=f"probe {name}")

    async def stop(self, names: Iterable[str], around: Around) -> None:
        """Ends these probes, in the middle of a request too, and takes their series off the page."""
        gone = [self._running.pop(name) for name in list(names) if name in self._running]
        tasks = [running.task for running in gone if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for running in gone:
            around.forget(_owner(running))

    async def close(self, around: Around) -> None:
        """Ends all, and sends what traces still wait."""
        await self.stop(list(self._running), around)
        kit, self._kit = self._kit, None
        if kit is not None:
            await kit.close()

    def publish(self, around: Around) -> None:
        """Puts every probe on the page as it stands now: what is too old leaves it without a request."""
        for running in self._running.values():
            self._publish(running, around)

    def samples(self) -> Samples:
        """What became of our traces."""
        return Samples() if self._kit is None else self._kit.samples()

    def _publish(self, running: _Running, around: Around) -> None:
        model, probe = around.model_of(running.probe.target.name), running.probe
        if model is not None:
            around.publish(_owner(running), probe.samples(model), probe.exemplars(model))

    async def _follow(self, running: _Running, around: Around, began: float) -> None:
        name, interval = running.probe.target.name, running.probe.config.interval_seconds
        while around.model_of(name) is None:
            await asyncio.sleep(_LOOK_SECONDS)
        self._publish(running, around)  # counters begin at 0, and are seen to
        now = self._clock.monotonic()
        grid = next_due(began + offset(running.index, interval), interval, now)
        while True:
            due = between(max(grid, self._clock.monotonic()), began, self._interval_seconds)
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            try:
                await self._round(running, around)
            except Exception:
                _LOG.exception("a probe failed; this is a bug in ufwatch, please report it")
            grid = next_due(grid + interval, interval, self._clock.monotonic())

    async def _round(self, running: _Running, around: Around) -> None:
        name = running.probe.target.name
        if around.asleep(name):
            return
        exchange = await running.probe.once(around.model_of(name) or "")
        if self._kit is not None:
            self._kit.export(exchange)
        around.asked(name, exchange)
        self._tell(running, exchange)
        self._publish(running, around)

    @staticmethod
    def _tell(running: _Running, exchange: Exchange) -> None:
        """Logs that a probe begins to fail, fails otherwise, or succeeds again."""
        failure, fields = exchange.failure, {"target": running.probe.target.name}
        before, running.failing = running.failing, "" if failure is None else failure.error_type
        if failure is not None and before != failure.error_type:
            told = {**fields, "phase": failure.where, "error": failure.error_type, "detail": failure.detail}
            _LOG.warning("probe failed", extra={"fields": told})
        elif failure is None and before:
            _LOG.info("probe succeeds again", extra={"fields": fields})


def _owner(running: _Running) -> str:
    return f"probe:{running.probe.target.name}"
