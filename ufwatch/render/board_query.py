"""Expressions of the boards: every selector carries the variables its family has labels for.

Floor 2: pure. No two sources of one signal are ever added: what has a ``source`` is taken as the maximum over sources.
"""

from __future__ import annotations

from ufwatch import catalogue
from ufwatch.spec import PREFIX

SCRAPED = ("job", "instance")
"""Labels that Prometheus adds."""
RATE_WINDOW = "$__rate_interval"
ON_ENGINE = "{{instance}} {{target}}/{{engine}}"
ON_TARGET = "{{instance}} {{target}}"
ON_CARD = "{{instance}} GPU {{gpu}} {{mig}}"
_VARIABLES = {"target": "target", "model_name": "model"}
_UNITS = (
    ("_bytes_per_second", "binBps"),
    ("_per_second", "cps"),
    ("_per_minute", "cpm"),
    ("_timestamp_seconds", "dateTimeFromNow"),
    ("_time_seconds", "dateTimeFromNow"),
    ("_seconds", "s"),
    ("_ratio", "percentunit"),
    ("_bytes", "bytes"),
    ("_celsius", "celsius"),
    ("_watts", "watt"),
    ("_hertz", "hertz"),
    ("_joules", "joule"),
)
_RATE_UNITS = {"s": "percentunit", "bytes": "binBps", "joule": "watt"}


def unit_of(name: str) -> str:
    """The unit a gauge is shown in, and a counter as its rate, by the base unit its name ends in.

    Seconds per second are a share of time, joules per second are watts; what has no unit is counted.
    """
    rate = name.endswith("_total")
    found = next((unit for end, unit in _UNITS if name.removesuffix("_total").endswith(end)), "")
    return _RATE_UNITS.get(found, "cps") if rate else found or "short"


def select(name: str, *where: str, **equal: str) -> str:
    """A selector of the series of that name, narrowed by the board's variables, by ``where`` and by equal labels."""
    labels = catalogue.SERIES[name]
    matchers = [f'{label}=~"${label}"' for label in SCRAPED]
    matchers += [f'{label}=~"${variable}"' for label, variable in _VARIABLES.items() if label in labels]
    matchers += [*where, *(f'{label}="{value}"' for label, value in equal.items())]
    return f"{PREFIX}{name}{{{','.join(matchers)}}}"


def select_with_own(name: str) -> str:
    """The same, with the series that belong to no target (the agent's own, such as NVML) beside the chosen ones."""
    return select(name).replace('"$target"', '"$target|"')


def labels_of(name: str, *without: str) -> tuple[str, ...]:
    """What tells the series of a family apart once the source is left aside, and ``without``."""
    return (*SCRAPED, *(one for one in catalogue.SERIES[name] if one != "source" and one not in without))


def by(labels: tuple[str, ...]) -> str:
    return f"by ({', '.join(labels)})"


def best(name: str, *where: str, **equal: str) -> str:
    """A gauge, one series for each engine, target or card, whichever source it comes from."""
    return f"max {by(labels_of(name))} ({select(name, *where, **equal)})"


def rate(name: str, *where: str, window: str = RATE_WINDOW, **equal: str) -> str:
    """A counter's growth per second; of two sources within the window, the larger."""
    return f"max {by(labels_of(name))} (rate({select(name, *where, **equal)}[{window}]))"
