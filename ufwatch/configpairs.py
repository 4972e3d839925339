"""What is wrong between targets, each of which is right by itself."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence

from ufwatch.address import same_place, zmq_endpoint
from ufwatch.config import KvEventsConfig, TargetConfig
from ufwatch.configschema import Report, shown


def check_together(placed: Sequence[tuple[str, TargetConfig]], report: Report) -> None:
    """Notes what is wrong between targets, given as (path, target).

    Equal names, equal servers, equal bound ports, and one source of counts for two targets.
    """
    names: dict[str, str] = {}
    servers: dict[str, str] = {}
    bound: dict[int, str] = {}
    folders: dict[str, str] = {}
    streams: dict[tuple[str, int | None], str] = {}
    for path, target in placed:
        server = same_place(target.url)
        if server in servers:
            report.add(path, f"the same server as {servers[server]}; remove one of them")
        elif target.name in names:
            report.add(path, f"the same name {shown(target.name)} as {names[target.name]}; give each a name of its own")
        names.setdefault(target.name, path)
        servers.setdefault(server, path)
        for taken in _bound_ports(target):
            if taken in bound and bound[taken] != path:
                report.add(path, f"kv_events binds port {taken}, as {bound[taken]} does; choose another")
                break
            bound[taken] = path
        if target.textfile is not None:
            # Links followed: two names of one folder are one set of counts.
            folder = folders.setdefault(os.path.realpath(target.textfile), path)
            if folder != path:
                report.add(path, f"the same textfile folder as {folder}; counts would be taken twice: use two folders")
        for stream in _streams(target.kv_events):
            other = streams.setdefault(stream, path)
            if other != path:
                report.add(path, f"the same kv_events endpoint as {other}; counts would be taken twice: drop one")
                break


def ports(endpoint: str, ranks: int) -> range:
    """The ports of an endpoint, one per rank; none of an ``ipc`` one."""
    first = zmq_endpoint(endpoint, bind=True)[1]
    return range(0) if first is None else range(first, first + ranks)


def _bound_ports(target: TargetConfig) -> range:
    if target.kv_events is None or target.kv_events.bind is None:
        return range(0)
    return ports(target.kv_events.bind, target.kv_events.ranks)


def _streams(events: KvEventsConfig | None) -> Iterator[tuple[str, int | None]]:
    """Where events come from: what is connected to, and the paths that are bound (bound ports are checked as such)."""
    endpoint = None if events is None else events.connect or events.bind
    if events is None or endpoint is None:
        return
    host, port = zmq_endpoint(endpoint, bind=True)
    if port is None:
        yield host, None
    elif events.connect is not None:
        for each in ports(endpoint, events.ranks):
            yield host.lower(), each
