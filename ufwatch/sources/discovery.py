"""Targets that come and go: ``file_sd`` files and host names with several addresses, joined to the configured ones.

A file that breaks and a name that cannot be looked up keep their last good targets, and are reported. A file that is
deleted takes its targets with it. Nothing here waits for a slow file system or name server longer than its patience.
"""

from __future__ import annotations

import asyncio
import glob
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ufwatch import document
from ufwatch.address import host_of, host_port, is_ip, port_of, same_place, with_host
from ufwatch.config import DiscoveryConfig, HttpAccess, TargetConfig
from ufwatch.decode import file_sd
from ufwatch.errors import ConfigError
from ufwatch.sources.threads import in_thread

T = TypeVar("T")

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the IP addresses of (host, port). Blocks, in a thread of its own; raises OSError when the look-up fails."""

Signature = tuple[int, ...]

PATIENCE_SECONDS = 5.0
_FILES = "files"


def system_resolve(host: str, port: int) -> list[str]:
    """Returns the host's addresses as the system's resolver gives them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


@dataclass(frozen=True, slots=True)
class _File:
    signature: Signature
    targets: tuple[TargetConfig, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Files:
    known: Mapping[str, _File] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


class Discovery:
    """Finds the present targets whenever :meth:`poll` is called; one poll at a time, some thirty seconds apart."""

    def __init__(
        self,
        config: DiscoveryConfig,
        static: tuple[TargetConfig, ...],
        resolve: Resolve = system_resolve,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._config = config
        self._static = static
        self._resolve = resolve
        self._patience_seconds = patience_seconds
        self._files = _Files()
        self._addresses: dict[str, tuple[str, ...]] = {}
        # A look-up that hangs is not started again beside itself; its late answer serves the next poll.
        self._pending: dict[str, Future[object]] = {}
        self.faults: tuple[str, ...] = ()
        """What went wrong at the last poll, one line each, without credentials; equal faults read equally."""

    async def poll(self) -> tuple[TargetConfig, ...]:
        """Returns all targets: the configured ones, then those of files, then those of names, in a stable order.

        Two targets of one server are one, and the earlier wins; so is a name given to only one target. Never raises
        for a fault of a file or of a name.
        """
        faults: list[str] = []
        await self._look(faults)
        found = [replace(target, access=self._config.access) for target in _targets_of(self._files)]
        for url in self._config.dns:
            found.extend(_one_per_address(url, self._addresses.get(url, ()), self._config.access))
        targets = _joined(self._static, found, faults)
        self.faults = tuple(faults)
        return targets

    async def _look(self, faults: list[str]) -> None:
        jobs: dict[str, Callable[[], object]] = {}
        if self._config.file_sd:
            jobs[_FILES] = partial(_read_files, self._config.file_sd, self._files.known)
        for url in self._config.dns:
            jobs[url] = partial(_look_up, self._resolve, url)
        for key, job in jobs.items():
            if key not in self._pending:
                self._pending[key] = in_thread(job, "ufwatch-discovery")
        await _settled(self._pending.values(), self._patience_seconds)
        for key in jobs:
            self._take(key, faults)

    def _take(self, key: str, faults: list[str]) -> None:
        """Takes over one job's answer; the last good one stays when there is none."""
        kept = "keeping the last good targets" if key == _FILES or key in self._addresses else "no targets from it yet"
        what = "discovery.file_sd" if key == _FILES else f"discovery.dns {key}"
        future = self._pending[key]
        if not future.done():
            faults.append(f"{what}: no answer within {self._patience_seconds:g} s; {kept}")
            return
        del self._pending[key]
        error = future.exception()
        if error is not None:
            detail = getattr(error, "strerror", None) or type(error).__name__
            faults.append(f"{what}: failed ({detail}); {kept}")
            return
        answer = future.result()
        if isinstance(answer, _Files):
            self._files = answer
            faults.extend(answer.faults)
        elif isinstance(answer, tuple):
            self._addresses[key] = answer


async def _settled(futures: Iterable[Future[T]], patience_seconds: float) -> None:
    waiting = [asyncio.wrap_future(future) for future in futures]
    if not waiting:
        return
    try:
        await asyncio.wait(waiting, timeout=patience_seconds)
    finally:
        for future in waiting:
            if future.done() and not future.cancelled():
                future.exception()  # marks it as seen: the caller reads the thread's own future
            # Detaches from the loop; a running thread's future does not let itself be cancelled.
            future.cancel()


def _look_up(resolve: Resolve, url: str) -> tuple[str, ...]:
    """Returns the sorted addresses of the URL's host; OSError when it has none. Blocks."""
    # A scoped address (fe80::1%eth0) means nothing inside a URL.
    found = {address for address in resolve(host_of(url), port_of(url)) if is_ip(address) and "%" not in address}
    # One family only: in a dual-stack cluster a server has an address of each, and would be counted twice.
    of_v4 = [address for address in found if ":" not in address]
    if of_v4:
        return tuple(sorted(of_v4, key=socket.inet_aton))
    if not found:
        raise OSError(0, "the name has no address")
    return tuple(sorted(found, key=lambda address: socket.inet_pton(socket.AF_INET6, address)))


def _one_per_address(url: str, addresses: tuple[str, ...], access: HttpAccess) -> list[TargetConfig]:
    host = host_of(url)
    # The URL holds the address, so that each server keeps its own connection; the name is still what its certificate
    # and a name-based proxy in front of it go by.
    access = replace(access, server_name=host)
    return [
        TargetConfig(name=f"{host}[{address}]:{port_of(url)}", url=with_host(url, address), access=access)
        for address in addresses
    ]


def _joined(
    static: tuple[TargetConfig, ...], found: Sequence[TargetConfig], faults: list[str]
) -> tuple[TargetConfig, ...]:
    joined = list(static)
    servers = {same_place(target.url) for target in static}
    names = {target.name for target in static}
    for target in found:
        server = same_place(target.url)
        if server in servers:
            continue
        if target.name in names:
            other = host_port(target.url)
            if other in names:
                faults.append(f"discovery: {target.url} is left out, because the name {target.name} is taken")
                continue
            faults.append(f"discovery: {target.url} is named {other}, because the name {target.name} is taken")
            target = replace(target, name=other)
        servers.add(server)
        names.add(target.name)
        joined.append(target)
    return tuple(joined)


def _targets_of(files: _Files) -> list[TargetConfig]:
    return [target for path in sorted(files.known) for target in files.known[path].targets]


def _read_files(patterns: Sequence[str], known: Mapping[str, _File]) -> _Files:
    """Returns the state of all files that match, re-reading those that changed since ``known``. Blocks."""
    state: dict[str, _File] = {}
    faults: list[str] = []
    for pattern in patterns:
        paths = sorted(glob.glob(pattern))
        if not paths:
            faults.append(f"discovery.file_sd: no file matches {pattern}")
        for path in paths:
            if path in state:
                continue
            read = _read_file(path, known.get(path))
            if read is not None:
                state[path] = read
                faults.extend([read.fault] if read.fault else [])
    return _Files(state, tuple(faults))


def _read_file(path: str, known: _File | None) -> _File | None:
    """Returns the file's present state; None when it was deleted meanwhile."""
    kept = known.targets if known else ()
    what_then = "keeping its last good targets" if kept else "no targets from it yet"
    signature: Signature = ()
    try:
        # Follows symlinks, so that the swap of a Kubernetes volume's ..data shows as another inode.
        found = os.stat(path)
        # ctime too: a file rewritten with its old mtime restored still differs, and so does one made readable.
        signature = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
        if known is not None and known.signature == signature:
            return known
        read = document.parse(document.read_text(Path(path)), path)
        if read.mistakes:
            raise ConfigError(path, read.mistakes)
        return _File(signature, file_sd.parse(read.value, path, read.lines))
    except FileNotFoundError:
        return None
    except OSError as error:
        return _File(signature, kept, f"{path}: cannot be read ({error.strerror}); {what_then}")
    except ConfigError as error:
        more = f" (and {len(error.mistakes) - 1} more)" if len(error.mistakes) > 1 else ""
        # A failed read may pass without the file changing, a mistake in the text cannot.
        again = isinstance(error.__cause__, OSError)
        return _File(() if again else signature, kept, f"{path}: {error.mistakes[0]}{more}; {what_then}")
