"""From a configuration to a running agent: which real sources stand behind which protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ufwatch.agent import Agent, Attach, Attached, Sink
from ufwatch.cardwatch import Gpus
from ufwatch.catalogue import WINDOW_SECONDS
from ufwatch.clock import Clock
from ufwatch.config import Config, HttpAccess, TargetConfig
from ufwatch.errors import ConfigError
from ufwatch.history.desk import History
from ufwatch.history.store import Store as HistoryStore
from ufwatch.model import Health
from ufwatch.probes import Kit, Probes
from ufwatch.receiving import Receiving
from ufwatch.slo.desk import Desk
from ufwatch.slo.store import Store
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.health import HealthSource
from ufwatch.sources.scrape import ScrapeSource
from ufwatch.sources.textfile import TextfileSource
from ufwatch.sources.version import VersionSource
from ufwatch.trace.endpoint import endpoint_from

_DCGM_DEADLINE_SECONDS = 2.0


def require_targets(config: Config) -> None:
    """Raises ConfigError when there is nothing to look at."""
    if not config.targets and not config.discovery.file_sd and not config.discovery.dns:
        raise ConfigError(
            "ufwatch", ["no target; give --target http://HOST:PORT, UFWATCH_TARGETS or a config file with targets"]
        )


def attach(fetcher: Fetcher, clock: Clock) -> Attach:
    """Makes a target's sources. Raises SourceError where an extra is missing."""
    started_wall = clock.wall()

    def attach_one(config: TargetConfig) -> Attached:
        texts = TextfileSource(config.textfile, clock, started_wall) if config.textfile is not None else None
        page, health = ScrapeSource(config, fetcher), HealthSource(config, fetcher)
        if config.kv_events is None:
            return Attached(page, texts, health=health)
        from ufwatch.sources.kv_events import KvEventsSource

        kv_events = KvEventsSource(config.kv_events, clock)
        return Attached(page, texts, kv_events, kv_events.run, health)

    return attach_one


def gpus(config: Config, clock: Clock, fetcher: Fetcher) -> Gpus | None:
    """The cards of this machine, with dcgm-exporters filling in where the config names any; None when switched off."""
    if not config.gpu.enabled:
        return None
    from ufwatch.sources.nvml import NvmlSource

    source: Gpus = NvmlSource(clock, gpm=config.gpu.gpm)
    exporters = {t.dcgm: t.access for t in config.targets if t.dcgm is not None}
    if not exporters:
        return source
    from ufwatch.sources.cards import Cards
    from ufwatch.sources.dcgm import DcgmSource, Fetch

    def fetch(url: str, access: HttpAccess) -> Fetch:
        async def get() -> tuple[Health, bytes | None]:
            fetched = await fetcher.get(url, access, deadline_seconds=_DCGM_DEADLINE_SECONDS)
            return fetched.health, fetched.body

        return get

    return Cards(source, [DcgmSource(fetch(url, access)) for url, access in exporters.items()])


def desk(config: Config, clock: Clock) -> Desk:
    """The books of every target's objectives, kept in the state directory where the configuration names one."""
    store = None
    if config.state_dir is not None and config.slos:
        store = Store(config.state_dir, _aside(clock))
    return Desk(config.slos, clock=clock, interval_seconds=config.interval_seconds, store=store)


def history(config: Config, clock: Clock, fetcher: Fetcher) -> History:
    """What is usual for targets and cards, kept in the state directory where the configuration names one."""
    store = HistoryStore(config.state_dir, _aside(clock)) if config.state_dir is not None else None
    return History(clock=clock, identify=VersionSource(fetcher).identify, store=store)


def probes(config: Config, clock: Clock, fetcher: Fetcher, env: Mapping[str, str], otlp: str | None = None) -> Probes:
    """The probes that the configuration names, now or after a reload; their traces go where ``--otlp`` (``otlp``), the
    environment or the configuration says."""

    async def open_kit() -> Kit:
        from ufwatch.trace.kit import open_kit

        endpoint = endpoint_from(env, otlp, file=config.otlp_endpoint)
        return await open_kit(env, clock=clock, fetcher=fetcher, endpoint=endpoint)

    return Probes(open_kit, clock=clock, interval_seconds=config.interval_seconds)


def receiving(config: Config, clock: Clock, env: Mapping[str, str], otlp: str | None = None) -> Receiving | None:
    """The OTLP receiver; None where the configuration wants none. Raises ConfigError for a bad endpoint."""
    if not config.otlp_receive:
        return None
    return Receiving(clock, env, endpoint_from(env, otlp, file=config.otlp_endpoint))


def _aside(clock: Clock) -> str:
    """How the name of a file ends that was found unsound now."""
    return f"corrupt-{int(clock.wall())}"


def agent(
    config: Config,
    *,
    clock: Clock,
    fetcher: Fetcher,
    sinks: Iterable[Sink],
    whole_run: bool = False,
    probes: Probes | None = None,
    receiving: Receiving | None = None,
) -> Agent:
    """An agent over real sources. ``whole_run``: it looks only when told to, over everything since the first time.
    Without ``probes`` it makes no requests of its own, whatever the configuration says."""
    return Agent(
        config,
        attach=attach(fetcher, clock),
        gpus=gpus(config, clock, fetcher),
        sinks=sinks,
        clock=clock,
        discovery=Discovery(config.discovery, config.targets),
        window_seconds=None if whole_run else WINDOW_SECONDS,
        follow=not whole_run,
        slo=None if whole_run else desk(config, clock),
        history=None if whole_run else history(config, clock, fetcher),
        probes=probes,
        receiving=receiving,
    )
