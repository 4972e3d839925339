"""How wrong the phases of a traced request are, against the kernel's stamps of its packets; one line of JSON.

``python -m tests.e2e.trace_truth [REQUESTS]`` as root on Linux; the wire is ``trace_wire``'s. Per event loop, kind of
request and phase: how often, the true median, the median error, and the 90th percentile and maximum of the errors'
sizes, in milliseconds. The bars (issue 5): median 1 ms and p90 2 ms, for the look-up p90 4 ms on asyncio.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import trustme
import uvloop

from tests.e2e.trace_wire import (
    BOTH,
    FAR,
    FIN,
    NAME,
    ONE_WAY_SECONDS,
    PROXY_PORT,
    RST,
    SERVER,
    SYN,
    Packet,
    ended,
    joined,
)
from ufwatch.config import HttpAccess
from ufwatch.trace.client import Tracer
from ufwatch.trace.model import Exchange, Phase
from ufwatch.trace.request import TraceRequest

REQUESTS = 36
MARGIN_NS = 1_000_000


class Measured(NamedTuple):
    """One phase of one request, in seconds."""

    truth: float
    error: float


class Kind(NamedTuple):
    """A kind of request: where to, how, and which phases and failure it must show."""

    url: str
    phases: tuple[Phase, ...]
    failure: str | None = None
    reused: bool = False
    trusted: bool = True


_DIRECT = tuple(phase for phase in Phase if phase is not Phase.PROXY)
KINDS = {
    "cold": Kind(f"https://{NAME}", _DIRECT),
    "warm": Kind(f"https://{NAME}", _DIRECT[3:], reused=True),
    "dead_ipv6": Kind(f"https://{BOTH}", _DIRECT),
    "proxy": Kind(f"https://{FAR}", tuple(Phase)[1:]),
    "nxdomain": Kind("https://gone.test", (Phase.DNS,), "nxdomain"),
    "refused": Kind(f"https://{NAME}:444", (Phase.DNS, Phase.TCP), "refused"),
    "certificate": Kind(f"https://{NAME}", _DIRECT[:3], "certificate", trusted=False),
}


def main(requests: int) -> None:
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "nice": os.nice(0), "one_way_ms": ONE_WAY_SECONDS * 1e3}
    with tempfile.TemporaryDirectory() as folder, joined() as wire, ExitStack() as stack:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(f"{folder}/ca.pem")
        certificate = authority.issue_cert(NAME, BOTH, FAR)
        certificate.private_key_and_cert_chain_pem.write_to_path(f"{folder}/model.pem")
        module = (sys.executable, "-m", "tests.e2e.trace_wire")
        with Path(folder, "packets").open("wb") as packets, Path(folder, "writes").open("wb") as writes:
            for namespace, words, sink in (
                (wire.client, ("capture", wire.client_device), packets.fileno()),
                (wire.server, ("names",), None),
                (wire.server, ("model", f"{folder}/model.pem"), writes.fileno()),
            ):
                stack.callback(ended, wire.run(namespace, *module, *words, stdout=sink))
            time.sleep(3.0)
            for loop in ("asyncio", "uvloop"):
                client = (sys.executable, "-m", __spec__.name, "client", loop, f"{folder}/ca.pem", str(requests))
                with wire.run(wire.client, *client, stdout=subprocess.PIPE) as process:
                    told, _ = process.communicate(timeout=requests * 5 + 60)
                seen = [json.loads(line) for line in told.splitlines()]
                time.sleep(0.5)
                wrote = [tuple(json.loads(line)) for line in Path(folder, "writes").read_text().splitlines()]
                wired = [Packet(*json.loads(line)) for line in Path(folder, "packets").read_text().splitlines()]
                figures[loop] = compared(seen, wired, wrote)
    print(json.dumps(figures))


def compared(
    seen: Sequence[dict[str, Any]], packets: Sequence[Packet], wrote: Sequence[tuple[str, int]]
) -> dict[str, object]:
    """Per kind of request and phase; the check of certificates, which is our own time, beside them."""
    pairs: dict[tuple[str, Phase], list[Measured]] = defaultdict(list)
    wrong: list[str] = []
    checks: list[float] = []
    for one in seen:
        kind, start, end = one["kind"], one["started"] - MARGIN_NS, one["started"] + one["total_ns"] + MARGIN_NS
        if (one["failure"], one["phases"]) != (KINDS[kind].failure, list(KINDS[kind].phases)):
            wrong.append(f"{kind}: {one['failure']} {one['phases']}")
            continue
        within = [packet for packet in packets if start <= packet.at_ns <= end]
        truth = true_phases(within, [entry for entry in wrote if start <= entry[1] <= end], kind)
        for phase, seconds in truth.items():
            pairs[kind, phase].append(Measured(seconds, one["spans"][phase] - seconds))
        if kind == "cold":
            came = [p.at_ns for p in within if p.payload and not p.out and p.protocol == socket.IPPROTO_TCP]
            sent = [p.at_ns for p in within if p.payload and p.out and p.protocol == socket.IPPROTO_TCP]
            checks.append((sent[1] - max(at for at in came if at < sent[1])) / 1e6)
    rtts = [one["min_rtt"] for one in seen if one["min_rtt"]]
    figures: dict[str, object] = {}
    for (kind, phase), measured in pairs.items():
        figures[f"{kind}/{phase}"] = _figures(measured)
    return figures | {
        "certificate_check_ms": round(statistics.median(checks), 3) if checks else None,
        "min_rtt_ms": round(statistics.median(rtts) * 1e3, 3) if rtts else None,
        "loop_lag_p50_ms": round(statistics.median(one["loop_lag"] for one in seen) * 1e3, 3),
        "wrong": wrong,
    }


def true_phases(packets: Sequence[Packet], wrote: Sequence[tuple[str, int]], kind: str) -> dict[Phase, float]:
    """The phases of one request by its packets, in seconds."""
    found: dict[Phase, tuple[int, int]] = {}
    asked, told = (
        [p.at_ns for p in packets if p.protocol == socket.IPPROTO_UDP and p.out is out] for out in (True, False)
    )
    tcp = [p for p in packets if p.protocol == socket.IPPROTO_TCP]
    opened = [p.at_ns for p in tcp if p.out and p.flags & SYN]
    taken = [p.at_ns for p in tcp if not p.out and p.flags & (SYN | RST)]
    closed = [p.at_ns for p in tcp if p.out and p.flags & (FIN | RST)]
    sent, came = ([p.at_ns for p in tcp if p.payload and p.out is out] for out in (True, False))
    if asked and kind != "proxy":
        found[Phase.DNS] = asked[0], told[-1]
    if opened:
        found[Phase.TCP] = opened[0], taken[0]
    if opened and sent:
        if kind == "proxy":
            found[Phase.PROXY] = sent.pop(0), came[0]
        # Up to the client's last word, or its hanging up: it checks the certificate before, which is a part of it.
        found[Phase.TLS] = sent[0], (sent[1:] or closed)[0]
    heads, tokens = ([at for what, at in wrote if what == written] for written in ("head", "token"))
    if heads and tokens:
        head = _arrival(came, heads[0])
        found[Phase.HEADERS] = max(at for at in sent if at < heads[0]), head
        found[Phase.FIRST_TOKEN] = head, _arrival(came, tokens[0])
    return {phase: (end - start) / 1e9 for phase, (start, end) in found.items()}


def _arrival(came: Sequence[int], written_ns: int) -> int:
    """The first packet that can hold what the server wrote then."""
    return min(at for at in came if at >= written_ns + round(ONE_WAY_SECONDS * 0.95e9))


def _figures(measured: Sequence[Measured]) -> dict[str, float]:
    sizes = sorted(abs(one.error) for one in measured)
    return {
        "n": len(measured),
        "truth_ms": round(statistics.median(one.truth for one in measured) * 1e3, 2),
        "error_median_ms": round(statistics.median(one.error for one in measured) * 1e3, 3),
        "error_p90_ms": round(sizes[min(len(sizes) - 1, int(len(sizes) * 0.9))] * 1e3, 3),
        "error_max_ms": round(sizes[-1] * 1e3, 3),
    }


async def client(ca_file: str, requests: int) -> None:
    """Requests of every kind in turn; prints a line for each."""
    direct, proxied = Tracer({}), Tracer({"https_proxy": f"http://{SERVER}:{PROXY_PORT}"})
    try:
        await direct.traced(_request(ca_file, KINDS["warm"]))  # so that there is a connection to be used again
        for number in range(requests):
            for kind, how in KINDS.items():
                if kind == "cold" or number % 3 == 0:
                    tracer = proxied if kind == "proxy" else direct
                    if kind == "warm":
                        await tracer.traced(_request(ca_file, how))
                    _print(kind, await tracer.traced(_request(ca_file, how)))
    finally:
        await direct.close()
        await proxied.close()


def _request(ca_file: str, kind: Kind) -> TraceRequest:
    access = HttpAccess(ca_file=Path(ca_file) if kind.trusted else None)
    return TraceRequest(url=kind.url, model="m", access=access, fresh_connection=not kind.reused, deadline_seconds=20.0)


def _print(kind: str, found: Exchange) -> None:
    shown = {
        "kind": kind,
        "started": found.started_unix_ns,
        "total_ns": round(found.total * 1e9),
        "phases": [span.phase for span in found.spans],
        "spans": {span.phase: span.end - span.start for span in found.spans},
        "min_rtt": found.min_rtt,
        "loop_lag": found.loop_lag,
        "failure": None if found.failure is None else found.failure.error_type,
    }
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["client", loop, ca_file, count]:
            factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(client(ca_file, int(count)))
        case rest:
            main(int(rest[0]) if rest else REQUESTS)
