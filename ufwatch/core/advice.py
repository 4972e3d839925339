"""What keeps each signal from being exact, and the flag that would change it: verdicts with their evidence.

Pure. Where the evidence does not reach, the verdict is ``cannot tell`` and says what hides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ufwatch import metrics
from ufwatch.config import TargetConfig
from ufwatch.core.sources import Life
from ufwatch.core.target import TargetReport
from ufwatch.core.track import EngineTrack
from ufwatch.model import Quality, Reading, Reason

_ITL = metrics.HISTOGRAM_INDEX["itl"]
DEFAULT_ITL_EDGES = 20
"""vLLM's own inter-token histogram has 19 finite edges in every version from 0.8.5 to 0.32."""

KV_EVENTS_FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://127.0.0.1:5557","topic":"kv"}\''
)
_PLUGIN = "install exporters/vllm (exporters/torch for another engine) where the server runs"
_TEXTFILE = "set UFWATCH_EXPORT_DIR for the server and textfile: for the target to one folder"
_EXPORTERS = {
    "graph_compile": (_PLUGIN, "graph_compile"),
    "pinned_alloc_success": (f"{_PLUGIN}, or preload exporters/pinned", "pinned_alloc"),
}
"""What gives the signal, and how its metrics begin."""


class Verdict(StrEnum):
    GOOD = "good"
    """As exact as it can be."""
    BETTER = "could be better"
    ABSENT = "absent"
    FAULT = "fault"
    """Something is broken or dangerous."""
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``doctor``: about what, the verdict, what shows it, and what to do (empty when nothing)."""

    about: str
    verdict: Verdict
    evidence: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one target. ``command`` is its server's command line, None where that cannot be seen."""

    config: TargetConfig
    report: TargetReport
    readings: Sequence[Reading]
    lives: Mapping[str, Life]
    command: Sequence[str] | None
    told_absent: Mapping[str, str] = field(default_factory=dict)
    """What exporters inside the server say they cannot give, by metric, and why."""
    unknown_gpus: Sequence[str] = ()
    gpu_detail: str = ""
    gpu_enabled: bool = True


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Every finding of one target: reachability first, then the seven signals in their order."""
    found = [*_reach(facts), *_flags(facts)]
    if not facts.report.up:
        return tuple(found)
    tracks = [engine.track for engine in facts.report.engines if engine.track is not None]
    by_signal: dict[str, list[Reading]] = {}
    for reading in facts.readings:
        by_signal.setdefault(reading.signal, []).append(reading)
    found += _sm(facts, by_signal.get("sm_utilization", []))
    found += _page_table(tracks, by_signal.get("page_table_miss", []))
    found += _process("graph_compile", facts, by_signal.get("graph_compile", []))
    found += _process("pinned_alloc_success", facts, by_signal.get("pinned_alloc_success", []))
    found += _jitter(facts, tracks, by_signal.get("token_jitter", []))
    found += _prefill_decode(tracks, by_signal.get("prefill_decode", []))
    found += _evictions(facts, tracks, by_signal.get("kv_evictions", []))
    return tuple(found)


_REACH = {
    Reason.CONNECT: "start the server, or correct the address and port",
    Reason.TLS: "give the server's CA with ca_file, or https:// where http:// stands; insecure: true skips the check",
    Reason.TIMEOUT: "look at the server's load; a page over a slow line may need a longer interval",
    Reason.STATUS: "see what the address serves; a prefix (--root-path) belongs into the url",
    Reason.PERMISSION: "set api_key_file or basic_auth_file to what the proxy in front asks for",
    Reason.CONTENT: "the address does not serve a metrics page; correct the url",
    Reason.TRUNCATED: "the body is cut: look for a proxy with a size or time limit",
    Reason.RESOURCES: "raise the agent's own limits (ulimit -n); the server was not even asked",
}


def _reach(facts: Facts) -> Iterable[Finding]:
    report = facts.report
    if not report.up:
        reason = report.reason or Reason.CONNECT
        fix = _REACH.get(reason, _REACH[Reason.CONNECT])
        yield Finding("target", Verdict.FAULT, report.detail or reason.value, fix)
    elif report.reason is Reason.STATS_DISABLED:
        evidence = "the page has http families and not one vllm: family"
        yield Finding("target", Verdict.FAULT, evidence, "start vLLM without --disable-log-stats")
    elif report.reason is Reason.NOT_AN_ENGINE:
        evidence = "the page has no engine family of vLLM"
        yield Finding(
            "target", Verdict.FAULT, evidence, "point the url at the engine itself, not at a router or exporter"
        )
    else:
        state = report.state.value if report.state is not None else "unknown"
        yield Finding("target", Verdict.GOOD, f"answers, {state}, {len(report.engines)} engine(s)")


def _flags(facts: Facts) -> Iterable[Finding]:
    """OTLP traces with statistics off end vLLM at its first finished request (seen in 0.32: ``req_state.stats``)."""
    if facts.command is None:
        if facts.report.reason is Reason.STATS_DISABLED:
            evidence = "the server's command line cannot be seen from here"
            fix = "make sure that --otlp-traces-endpoint is not set: with --disable-log-stats it ends the server"
            yield Finding("server flags", Verdict.UNKNOWN, evidence, fix)
        return
    given = {word.split("=", 1)[0] for word in facts.command}
    if {"--disable-log-stats", "--otlp-traces-endpoint"} <= given:
        evidence = "its command line has --otlp-traces-endpoint and --disable-log-stats"
        fix = "drop one: together they end the server at the first finished request"
        yield Finding("server flags", Verdict.FAULT, evidence, fix)


_SM_FIX = {
    Reason.NOT_MAPPED: "name the target's cards with gpus: [0, …]",
    Reason.PERMISSION: "let the agent read GPM: run it with CAP_SYS_ADMIN or set NVreg_RestrictProfilingToAdminUsers=0",
    Reason.NOT_SUPPORTED: "set dcgm: to a dcgm-exporter that serves DCGM_FI_PROF_SM_ACTIVE",
    Reason.NO_SOURCE: "run the agent where NVML is (in a container: NVIDIA_VISIBLE_DEVICES=all, capability utility)",
    Reason.MIG: "name the MIG instance in gpus:",
    Reason.LOST: "the card has fallen off the bus: drain the host and reset it",
    Reason.DRIVER: "look at the driver on the host; the agent tries again by itself",
}


def _sm(facts: Facts, readings: Sequence[Reading]) -> Iterable[Finding]:
    for name in facts.unknown_gpus:
        yield Finding("sm_utilization", Verdict.FAULT, f"gpus: {name} is no card here", "correct gpus: of this target")
    known = [reading for reading in readings if reading.value is not None]
    if any(reading.source == "dcgm" for reading in known):
        evidence = "from a dcgm-exporter, averaged over its own interval"
        yield Finding("sm_utilization", Verdict.BETTER, evidence, "GPM (Hopper and newer) is exact")
    elif known:
        yield Finding("sm_utilization", Verdict.GOOD, f"GPM of {len(known)} card(s)")
    else:
        reason = next((r.reason for r in readings if r.reason is not None), Reason.NO_SOURCE)
        if reason is Reason.WARMING_UP:
            yield Finding("sm_utilization", Verdict.UNKNOWN, "a second GPM sample is still to come", "look again")
            return
        if not facts.gpu_enabled:
            # Somebody's wish, and no fault to be mended.
            yield Finding("sm_utilization", Verdict.ABSENT, "reading cards is switched off (--no-gpu, gpu.enabled)")
            return
        evidence = facts.gpu_detail or f"no reading: {reason.value}"
        yield Finding("sm_utilization", Verdict.ABSENT, evidence, _SM_FIX.get(reason, ""))


def _page_table(tracks: Sequence[EngineTrack], readings: Sequence[Reading]) -> Iterable[Finding]:
    caches = [track.shape.cache for track in tracks if track.shape.cache]
    if caches and all(cache.get("enable_prefix_caching") == "False" for cache in caches):
        evidence = "prefix caching is off: every look-up misses, by design"
        yield Finding("page_table_miss", Verdict.BETTER, evidence, "start vLLM with --enable-prefix-caching")
        return
    block = next((cache["block_size"] for cache in caches if "block_size" in cache), None)
    blocks = f"; blocks of {block} tokens, so shorter shared prefixes never hit" if block else ""
    sources = {reading.source for reading in readings}
    if "prompt_tokens_by_source" in sources:
        evidence = f"prompt_tokens_by_source counts each prompt token once{blocks}"
        yield Finding("page_table_miss", Verdict.GOOD, evidence)
    elif "prefix_cache" in sources:
        evidence = "vLLM before 0.16: look-ups of waiting and preempted requests are counted again"
        yield Finding("page_table_miss", Verdict.BETTER, evidence, "upgrade vLLM to 0.16 or newer")
    else:
        yield Finding(
            "page_table_miss", Verdict.ABSENT, "no prefix-cache family on the page", "vLLM's V1 engine has it"
        )


def _process(signal: str, facts: Facts, readings: Sequence[Reading]) -> Iterable[Finding]:
    if any(reading.value is not None for reading in readings):
        yield Finding(signal, Verdict.GOOD, "counted inside the process, read from its text file")
        return
    reason = next((r.reason for r in readings if r.reason is not None), Reason.NO_SOURCE)
    life = facts.lives.get("textfile")
    exporter, metrics_begin = _EXPORTERS[signal]
    told = _told(facts, metrics_begin)
    fix = f"{exporter}; {_TEXTFILE}"
    if life is None:
        yield Finding(signal, Verdict.ABSENT, "it exists only inside the process, and no textfile: is set", fix)
    elif not life.health.up:
        yield Finding(signal, Verdict.FAULT, life.health.detail or reason.value, fix)
    elif reason is Reason.NOTHING_ATTEMPTED:
        yield Finding(signal, Verdict.GOOD, "counted inside the process: nothing was attempted, so there is no rate")
    elif told is not None:
        yield Finding(signal, Verdict.ABSENT, f"the exporter inside the server says: {told}")
    else:
        yield Finding(signal, Verdict.ABSENT, "the text files are alive but have no such counter", fix)


def _told(facts: Facts, begin: str) -> str | None:
    """Why an exporter inside the server does not give the metrics that begin so, in its words."""
    return next((why for metric, why in sorted(facts.told_absent.items()) if metric.startswith(begin)), None)


def _jitter(facts: Facts, tracks: Sequence[EngineTrack], readings: Sequence[Reading]) -> Iterable[Finding]:
    sources = {reading.source for reading in readings}
    step = any(track.step_unit for track in tracks)
    unit = "; one observation is an engine step of several tokens" if step else ""
    if "plugin" in sources:
        yield Finding("token_jitter", Verdict.GOOD, f"every interval is counted inside the server{unit}")
    elif "histogram" in sources:
        edges = max((len(b.edges) for t in tracks if (b := t.shape.buckets[_ITL]) is not None), default=0)
        evidence = f"bounded by a histogram of {edges - 1} edges{unit}"
        told = _told(facts, "token_interval")
        if told is not None:
            evidence += f"; the exporter inside the server says: {told}"
        fix = f"exact with the stat logger of exporters/vllm (vLLM 0.11 and newer); {_TEXTFILE}"
        if edges <= DEFAULT_ITL_EDGES:
            fix += "; --custom-histogram-buckets (0.32) with finer inter_token_latency edges narrows the bounds"
        yield Finding("token_jitter", Verdict.BETTER, evidence, fix)
    else:
        yield Finding("token_jitter", Verdict.ABSENT, "no inter-token histogram on the page", "")


def _prefill_decode(tracks: Sequence[EngineTrack], readings: Sequence[Reading]) -> Iterable[Finding]:
    sources = {reading.source for reading in readings}
    if "prompt_tokens_by_source" in sources:
        preempting = any(reading.quality is Quality.ESTIMATE for reading in readings)
        if preempting:
            evidence = "requests were preempted: the work redone for them is on no counter"
            yield Finding("prefill_decode", Verdict.BETTER, evidence, "give the KV cache more room")
        else:
            yield Finding("prefill_decode", Verdict.GOOD, "computed prompt tokens are told apart from cached ones")
    elif "prompt_tokens" in sources:
        evidence = "vLLM before 0.16: prompt tokens include those found in the prefix cache"
        yield Finding("prefill_decode", Verdict.BETTER, evidence, "upgrade vLLM to 0.16 or newer")
    elif tracks:
        yield Finding("prefill_decode", Verdict.ABSENT, "no token counters on the page yet", "send a first request")


def _evictions(facts: Facts, tracks: Sequence[EngineTrack], readings: Sequence[Reading]) -> Iterable[Finding]:
    sources = {reading.source for reading in readings}
    life = facts.lives.get("kv_events")
    if life is not None and not life.health.up:
        evidence = life.health.detail or "the KV-event socket has no publisher"
        fix = f"start vLLM with {KV_EVENTS_FLAG}; for an endpoint without * vLLM connects, and we must bind:"
        yield Finding("kv_evictions", Verdict.FAULT, evidence, fix)
    elif sources & {"kv_events", "plugin"}:
        lost = any(reading.quality is Quality.BOUNDED for reading in readings)
        if lost:
            yield Finding(
                "kv_evictions", Verdict.BETTER, "event batches were lost", "set kv_events.replay to fetch them"
            )
        else:
            how = "inside the engine" if "plugin" in sources else "as a BlockRemoved event"
            yield Finding("kv_evictions", Verdict.GOOD, f"every eviction is counted {how}")
    elif "recycles" in sources:
        evidence = "vLLM's sampled count of re-used blocks, cached or not (its sampling rate is not on the page)"
        yield Finding("kv_evictions", Verdict.BETTER, evidence, f"start vLLM with {KV_EVENTS_FLAG} and set kv_events:")
    elif tracks:
        evidence = "the page has no eviction family, and preemptions are not evictions"
        yield Finding("kv_evictions", Verdict.ABSENT, evidence, f"start vLLM with {KV_EVENTS_FLAG} and set kv_events:")
