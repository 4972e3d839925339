"""The agent: every target on its own timer, the cards on theirs, one page for all readers.

Floor 4. A slow or dead source delays nobody else: each target is a task of its own, spread over the interval, and the
page is put together from what is known when a source has answered, never when it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import resource
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import ufwatch
from ufwatch.cardwatch import CardWatch, Gpus
from ufwatch.catalogue import WINDOW_SECONDS
from ufwatch.clock import Clock
from ufwatch.config import Config, TargetConfig
from ufwatch.core.schedule import next_due, offset
from ufwatch.decode.layout import Layouts
from ufwatch.errors import UfwatchError
from ufwatch.history.desk import History
from ufwatch.metrics import WANTED_SAMPLES
from ufwatch.model import EngineState, Exemplars, Reading, Reason, Sample
from ufwatch.pipeline import KvEvents, Page, Target, Texts
from ufwatch.probes import Probes
from ufwatch.receiving import Receiving
from ufwatch.render.readings import target_json
from ufwatch.slo.book import Book
from ufwatch.slo.desk import Desk
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.health import PROBE_SECONDS, Probe

if TYPE_CHECKING:
    from ufwatch.trace.model import Exchange

_LOG = logging.getLogger("ufwatch.agent")
_DEADLINE_SHARE = 0.9
"""Of the interval: a scrape that takes longer is given up, so that the next one is on time."""
_MAX_DEADLINE_SECONDS = 10.0


class Sink(Protocol):
    """Where samples go, by owner; an owner's new samples replace all of its old ones."""

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None: ...

    def forget(self, owner: str) -> None: ...


class Wellness(Protocol):
    """Where a target's health is asked for."""

    async def poll(self, deadline_seconds: float) -> Probe: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Attached:
    """The sources of one target, and what must run and be closed for them."""

    page: Page
    texts: Texts | None = None
    kv_events: KvEvents | None = None
    background: Callable[[], Coroutine[Any, Any, None]] | None = None
    health: Wellness | None = None


Attach = Callable[[TargetConfig], Attached]


class Agent:
    """``attach`` makes a target's sources; ``gpus`` is None where no card is looked at.

    With ``follow`` False nothing runs by itself: the caller calls ``poll_gpus`` and ``cycle``. ``slo`` counts what the
    objectives ask for, ``history`` what is usual for targets and cards; None where nobody does. ``probes`` make
    requests of our own; None where none are made, whatever the configuration says.
    """

    def __init__(
        self,
        config: Config,
        *,
        attach: Attach,
        gpus: Gpus | None,
        sinks: Iterable[Sink],
        clock: Clock,
        discovery: Discovery,
        window_seconds: float | None = WINDOW_SECONDS,
        follow: bool = True,
        slo: Desk | None = None,
        history: History | None = None,
        probes: Probes | None = None,
        receiving: Receiving | None = None,
    ) -> None:
        self.config = config
        self.targets: dict[str, Target] = {}
        self.cards = CardWatch(gpus, clock)
        self.reload_succeeded = True
        self._attach, self._sinks, self._clock = attach, tuple(sinks), clock
        self._discovery = discovery
        self._window_seconds, self._follows = window_seconds, follow
        self._slo, self._history, self._probes, self._receiving = slo, history, probes, receiving
        self._layouts = Layouts(WANTED_SAMPLES)
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._arrivals = 0
        self._began = 0.0
        """When the first target arrived: what every target's moments are counted from."""
        self._finding = asyncio.Lock()
        """A look that is under way would bring back targets that a reload has just taken away."""
        self._faults: tuple[str, ...] = ()

    async def run(self) -> None:
        """Looks at everything, each on its own timer, until cancelled."""
        kept = [desk for desk in (self._slo, self._history) if desk is not None]
        if self._probes is not None:
            await self._probes.prepare(self.config.probes)
        for desk in kept:
            await desk.start()
        await self.find_targets()
        async with asyncio.TaskGroup() as group:
            for desk in kept:
                group.create_task(desk.run(), name=type(desk).__name__.lower())
            if self.cards.enabled:
                group.create_task(self._every(self.config.interval_seconds, self.poll_gpus, "gpu"), name="gpus")
            group.create_task(self._every(self.config.discovery.refresh_seconds, self.find_targets), name="discovery")
            group.create_task(self._every(self.config.interval_seconds, self._publish_self, "agent"), name="self")
            try:
                await asyncio.Event().wait()
            finally:
                await self.stop_targets(list(self._tasks))

    async def close(self) -> None:
        """Ends what the sources hold."""
        await self.stop_targets(list(self._tasks))
        for desk in (self._slo, self._history):
            if desk is not None:
                await desk.finish()
        if self._probes is not None:
            await self._probes.close(self)
        await self.cards.close()

    async def reconfigure(self, config: Config, discovery: Discovery) -> None:
        """Takes a new, checked configuration: targets that did not change go on untouched, and so does the interval.

        Raises UfwatchError, with everything as it was, when a target's sources, or what probes need, cannot be made.
        """
        if self._probes is not None:
            await self._probes.prepare(config.probes)
        async with self._finding:
            before = self.config, self._discovery
            self.config = replace(config, interval_seconds=self.config.interval_seconds)
            self._discovery = discovery
            try:
                await self._find_targets()
            except UfwatchError:
                self.config, self._discovery = before
                raise

    async def find_targets(self) -> None:
        """Asks discovery, starts targets that are new or changed and ends those that are gone."""
        async with self._finding:
            await self._find_targets()

    async def _find_targets(self) -> None:
        found = {config.name: config for config in await self._discovery.poll()}
        for fault in set(self._discovery.faults) - set(self._faults):
            _LOG.warning("discovery", extra={"fields": {"fault": fault}})
        self._faults = self._discovery.faults
        gone = [name for name, target in self.targets.items() if found.get(name) != target.config]
        # Made before anything is ended: where one cannot be, the old targets go on.
        fresh = {n: self._attach(c) for n, c in found.items() if n not in self.targets or n in gone}
        await self.stop_targets(gone)
        for name, attached in fresh.items():
            self._start_target(found[name], attached)
        self._map_cards()
        if self._probes is not None:
            await self._probes.settle(self.config.probes, found, self, self._began)

    def _start_target(self, config: TargetConfig, attached: Attached) -> None:
        book = self._slo.open(config.name) if self._slo is not None else None
        misses = self._history.open(config) if self._history is not None else None
        target = self.targets[config.name] = Target(
            config,
            page=attached.page,
            texts=attached.texts,
            kv_events=attached.kv_events,
            clock=self._clock,
            layouts=self._layouts,
            interval_seconds=self.config.interval_seconds,
            window_seconds=self._window_seconds,
            judges=[judge for judge in (book, misses) if judge is not None],
        )
        if self._arrivals == 0:
            self._began = self._clock.monotonic()
        first = self._began + offset(self._arrivals, self.config.interval_seconds)
        self._arrivals += 1
        tasks = self._tasks[config.name] = []
        if attached.background is not None:
            tasks.append(asyncio.create_task(attached.background(), name=f"background {config.name}"))
        if self._follows:
            tasks.append(asyncio.create_task(self._follow(target, first), name=f"target {config.name}"))
        if self._follows and book is not None and book.probes and attached.health is not None:
            probing = self._probe(book, attached.health, first)
            tasks.append(asyncio.create_task(probing, name=f"health {config.name}"))

    async def stop_targets(self, names: Sequence[str]) -> None:
        """Ends these targets' tasks, their probes', and takes their series off the page."""
        if self._probes is not None:
            await self._probes.stop(names, self)
        for name in names:
            self.targets.pop(name, None)
            tasks = self._tasks.pop(name, [])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.forget(f"target:{name}")
            if self._slo is not None:
                self._slo.close(name)
            if self._history is not None:
                self._history.close(name)

    async def _follow(self, target: Target, first_seconds: float) -> None:
        owner = f"target:{target.config.name}"
        await self._every(self.config.interval_seconds, lambda: self.cycle(target), owner, first_seconds)

    async def _probe(self, book: Book, health: Wellness, first_seconds: float) -> None:
        async def once() -> None:
            book.probed(await health.poll(PROBE_SECONDS))

        try:
            await self._every(PROBE_SECONDS, once, first_seconds=first_seconds)
        finally:
            health.close()

    async def cycle(self, target: Target) -> None:
        """One round of one target, onto the page."""
        name = target.config.name
        report = await target.cycle(self.deadline_seconds(), self.cards.over(name, target.report))
        if self._history is not None:
            self._history.scraped(report, self._clock.monotonic())
        self.publish(f"target:{name}", target.samples(self.cards.sm_utilization(name)))

    def model_of(self, target: str) -> str | None:
        """The model a target serves, empty where that is not known; None until it has been looked at once."""
        report = self.targets[target].report if target in self.targets else None
        return None if report is None else report.model_name

    def asleep(self, target: str) -> bool:
        """Whether the target is in sleep mode."""
        report = self.targets[target].report if target in self.targets else None
        return report is not None and report.state is EngineState.ASLEEP

    def asked(self, target: str, exchange: Exchange) -> None:
        """Lets the target's objectives count a request of our own, where its page does not."""
        if self._slo is not None and target in self.targets:
            from ufwatch.trace.probing import asked_of

            self._slo.books[target].asked(asked_of(exchange))

    def deadline_seconds(self) -> float:
        """How long a source may take."""
        return min(_MAX_DEADLINE_SECONDS, _DEADLINE_SHARE * self.config.interval_seconds)

    async def _every(
        self,
        interval_seconds: float,
        work: Callable[[], Coroutine[Any, Any, None]],
        owner: str = "",
        first_seconds: float | None = None,
    ) -> None:
        """Runs ``work`` at even times; a round that fails is logged, and the next one is made all the same.

        What ``owner`` had on the page is taken off then: it would look as if it had just been measured.
        """
        now = self._clock.monotonic()
        due = next_due(now if first_seconds is None else first_seconds, interval_seconds, now)
        while True:
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            try:
                await work()
            except Exception:
                _LOG.exception("a round failed; this is a bug in ufwatch, please report it")
                self.forget(owner)
            due = next_due(due + interval_seconds, interval_seconds, self._clock.monotonic())

    async def poll_gpus(self) -> None:
        """One round of the cards, onto the page."""
        if not self.cards.enabled:
            return
        samples, changed = await self.cards.poll(self.deadline_seconds())
        if changed:
            self._map_cards()
        drifts = self._history.polled(self.cards.snapshot) if self._history is not None and self.cards.snapshot else ()
        self.publish("gpu", [*samples, *drifts, *self.cards.life(self._clock.monotonic())])

    def _map_cards(self) -> None:
        self.cards.map([target.config for target in self.targets.values()])
        snapshot = self.cards.snapshot
        if self._history is not None and snapshot is not None:
            self._history.mapped(self.cards.mapping, {card.card: card.name for card in snapshot.cards})

    async def _publish_self(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        labels = (("version", ufwatch.__version__), ("python", platform.python_version()))
        samples = [
            Sample("build_info", labels, 1.0),
            Sample("targets", (), float(len(self.targets))),
            Sample("config_reload_success", (), float(self.reload_succeeded)),
            Sample("agent_cpu_seconds_total", (), usage.ru_utime + usage.ru_stime),
        ]
        resident = _resident_bytes()
        if resident is not None:
            samples.append(Sample("agent_resident_memory_bytes", (), resident))
        for desk in (self._slo, self._history):
            if desk is not None:
                samples += desk.samples()
        if self._receiving is not None:
            samples += self._receiving.samples()
        if self._probes is not None:
            samples += self._probes.samples()
            self._probes.publish(self)
        self.publish("agent", samples)

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        """Gives every sink what ``owner`` shows from now on."""
        self._each_sink(owner, lambda sink: sink.publish(owner, samples, exemplars))

    def forget(self, owner: str) -> None:
        """Takes what ``owner`` shows from every sink."""
        self._each_sink(owner, lambda sink: sink.forget(owner))

    def _each_sink(self, owner: str, work: Callable[[Sink], None]) -> None:
        for sink in self._sinks:
            try:
                work(sink)
            except Exception:
                _LOG.exception("a sink failed", extra={"fields": {"sink": type(sink).__name__, "owner": owner}})

    def readings(self) -> dict[str, Any]:
        """The JSON object of ``once`` and of ``/api/v1/readings``."""
        targets = []
        for name, target in self.targets.items():
            report = target.report
            targets.append(
                target_json(
                    name,
                    up=report.up if report is not None else False,
                    state=report.state if report is not None else None,
                    reason=report.reason if report is not None else Reason.WARMING_UP,
                    readings=(*self.cards.sm_readings(name), *target.readings(), *self._learned(name)),
                )
            )
        return {"targets": targets}

    def _learned(self, target: str) -> tuple[Reading, ...]:
        return self._history.readings(target) if self._history is not None else ()

    def slos(self) -> dict[str, Any]:
        """The JSON object of ``/api/v1/slo``."""
        return self._slo.report() if self._slo is not None else {"targets": []}

    def ready(self) -> tuple[bool, str]:
        """Whether every target has been looked at once."""
        waiting = [name for name, target in self.targets.items() if target.report is None]
        return (not waiting, f"not looked at yet: {', '.join(waiting[:5])}" if waiting else "")


def _resident_bytes() -> float | None:
    """Resident memory of this process; None where there is no /proc."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as statm:
        return float(statm.read().split()[1]) * resource.getpagesize()
    return None
