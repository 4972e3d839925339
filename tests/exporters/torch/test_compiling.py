"""Compile time from torch's own events: each second once, and cold or warm by the caches' counters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from ufwatch_torch import compiling
from ufwatch_torch.graphs import Graphs
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch import fakes
from tests.exporters.torch.reading import comments, values, write


@pytest.fixture
def clock() -> fakes.Clock:
    return fakes.Clock()


@pytest.fixture
def graphs(exporter: Exporter, clock: fakes.Clock) -> Graphs:
    return Graphs(exporter, monotonic=clock, clock=clock)


@pytest.fixture
def dynamo(graphs: Graphs, clock: fakes.Clock) -> Any:
    dynamo = fakes.dynamo(clock)
    compiling.watch(graphs, dynamo)
    return dynamo


def compiled(exporter: Exporter, phase: str = "compile") -> dict[str, tuple[float, Any]]:
    """cache → (compiles, seconds) as the agent reads them, without the empty ones."""
    write(exporter)
    found = values(exporter.path)
    result = {}
    for cache in ("cold", "warm", "unknown"):
        labels = f"{{'phase': '{phase}', 'cache': '{cache}'}}"
        seconds = found.get(f"graph_compile_seconds_total{labels}", 0.0)
        if seconds:
            result[cache] = (found.get(f"graph_compiles_total{labels}", 0.0), pytest.approx(seconds))
    return result


def test_a_cold_compile_as_torch_2_13_nests_it(exporter: Exporter, dynamo: Any) -> None:
    """The events of a real one; the dict's sum would be 60 s where 12 passed."""
    dynamo.event(
        "dynamo",
        0.1,
        (
            "entire_frame_compile",
            0.1,
            (
                "compile_attempt_0",
                0.2,
                ("bytecode_tracing", 0.1),
                (
                    "OutputGraph.call_user_compiler",
                    2.0,
                    (
                        "create_aot_dispatcher_function",
                        0.1,
                        (
                            "compile_fx.<locals>.fw_compiler_base",
                            0.8,
                            ("inductor_compile", 0.0, ("fx_codegen_and_compile", 1.0, ("compile_file", 7.6))),
                        ),
                    ),
                ),
            ),
        ),
    )
    assert sum(sum(times) for times in dynamo.compilation_time_metrics.values()) > 60
    assert compiled(exporter) == {"cold": (1, 12.0)}


def test_forward_and_backward_are_two_compiles(exporter: Exporter, dynamo: Any) -> None:
    dynamo.event("dynamo", 0.0, ("entire_frame_compile", 2.0, ("fx_codegen_and_compile", 1.0)))
    dynamo.event("entire_backward_compile", 0.5, ("fx_codegen_and_compile", 1.0))
    assert compiled(exporter) == {"cold": (2, 4.5)}


def test_vllm_s_aot_path_has_set_up_outside(exporter: Exporter, dynamo: Any) -> None:
    """Hashing torch's sources is no compile, but its seconds are seconds."""
    dynamo.event("CacheBase.get_system.triton_key", 0.6)
    dynamo.event("inductor_codecache_torch_key", 0.3)
    dynamo.event("fullgraph_capture", 2.0, ("create_aot_dispatcher_function", 3.0, ("fx_codegen_and_compile", 17.0)))
    assert compiled(exporter) == {"cold": (1, 22.0), "unknown": (0, 0.9)}


def test_an_artefact_that_vllm_saved_is_warm_without_a_counter(exporter: Exporter, dynamo: Any) -> None:
    dynamo.event("AOTAutogradCache.inductor_load", 0.4, ("compile_file", 1.0))
    assert compiled(exporter) == {"warm": (1, 1.4)}


def _count(dynamo: Any, group: str, key: str) -> Callable[[], None]:
    def count() -> None:
        dynamo.counters[group][key] += 1

    return count


@pytest.mark.parametrize(
    ("counts", "cache"),
    [
        ([("aot_autograd", "autograd_cache_miss"), ("inductor", "fxgraph_cache_miss")], "cold"),
        ([("inductor", "fxgraph_cache_bypass")], "cold"),
        ([("aot_autograd", "autograd_cache_hit")], "warm"),
        ([("aot_autograd", "autograd_cache_hit"), ("inductor", "fxgraph_cache_hit")], "warm"),
        ([("aot_autograd", "autograd_cache_miss"), ("inductor", "fxgraph_cache_hit")], "warm"),
        ([("inductor", "fxgraph_cache_hit"), ("inductor", "fxgraph_cache_miss")], "cold"),
        ([("aot_autograd", "ok")], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_caches_counters_decide(exporter: Exporter, dynamo: Any, counts: list[tuple[str, str]], cache: str) -> None:
    dynamo.counters["inductor"].update(fxgraph_cache_hit=7, fxgraph_cache_miss=7)
    dynamo.event("entire_frame_compile", 1.0, *(_count(dynamo, *count) for count in counts))
    assert compiled(exporter) == {cache: (1, 1.0)}


def test_each_compile_has_its_own_label(exporter: Exporter, dynamo: Any) -> None:
    for group, key in (("inductor", "fxgraph_cache_miss"), ("aot_autograd", "autograd_cache_hit"), ("frames", "ok")):
        dynamo.counters.setdefault(group, Counter())
        dynamo.event("entire_frame_compile", 1.0, _count(dynamo, group, key))
    assert compiled(exporter) == {"cold": (1, 1.0), "warm": (1, 1.0), "unknown": (1, 1.0)}


def test_counters_that_were_cleared_are_no_trouble(exporter: Exporter, dynamo: Any) -> None:
    dynamo.counters["inductor"]["fxgraph_cache_miss"] = 5
    dynamo.event("entire_frame_compile", 1.0, dynamo.counters.clear)
    assert compiled(exporter) == {"unknown": (1, 1.0)}
    assert dynamo.counters == {}


def test_a_capture_inside_a_compile_is_no_compile_time(
    exporter: Exporter, graphs: Graphs, dynamo: Any, clock: fakes.Clock
) -> None:
    """Inductor's own CUDA graphs are recorded inside an event."""
    torch = fakes.torch(clock)
    graphs.watch_captures(torch)
    graph = torch.cuda.CUDAGraph()
    dynamo.event("CUDAGraphNode.record", 1.0, graph.capture_begin, ("inductor_compile", 4.0), graph.capture_end)
    assert compiled(exporter) == {"unknown": (1, 5.0)}
    assert compiled(exporter, "capture") == {"unknown": (1, 0.2)}


def test_a_lost_end_does_not_swallow_the_next_compile(exporter: Exporter, dynamo: Any) -> None:
    logger = dynamo.ChromiumEventLogger()
    dynamo.event("entire_frame_compile", 1.0, lambda: logger.log_event_start("lost", 0, {}))
    logger.log_event_start("compiled_autograd", 0, {})
    logger.log_event_end("never began", 0, {}, 0)
    dynamo.event("entire_backward_compile", 2.0)
    assert compiled(exporter) == {"unknown": (2, 3.0)}


def _beside(body: Callable[[Callable[[], None]], None], meanwhile: Callable[[], None]) -> None:
    """Runs ``body(wait)`` in a thread, and ``meanwhile`` while it waits."""
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert leave.wait(10)

    thread = threading.Thread(target=body, args=(wait,))
    thread.start()
    assert inside.wait(10)
    meanwhile()
    leave.set()
    thread.join()


def test_helper_threads_work_while_the_first_one_waits(exporter: Exporter, dynamo: Any) -> None:
    """Seen with torch 2.13: 12.9 s of wall time, and 9.1 s more of ``compile_file`` in a pool of threads."""

    def helpers() -> None:
        for name in ("compile_file", "inductor_compile"):
            helper = threading.Thread(target=dynamo.event, args=(name, 3.0, ("fx_codegen_and_compile", 1.0)))
            helper.start()
            helper.join()

    _beside(lambda wait: dynamo.event("entire_frame_compile", 2.0, wait), helpers)
    assert compiled(exporter) == {"unknown": (1, 10.0)}


def test_threads_that_compile_side_by_side_share_the_time(exporter: Exporter, dynamo: Any) -> None:
    _beside(
        lambda wait: dynamo.event("entire_frame_compile", 1.0, wait),
        lambda: dynamo.event("entire_frame_compile", 3.0),
    )
    assert compiled(exporter) == {"unknown": (2, 4.0)}


def test_a_thread_that_goes_on_after_the_first(exporter: Exporter, dynamo: Any, clock: fakes.Clock) -> None:
    """First 0–5 s, second 2–9 s: nine seconds."""
    logger = dynamo.ChromiumEventLogger()

    def second(wait: Callable[[], None]) -> None:
        dynamo.event("entire_backward_compile", 4.0, wait)

    def rest() -> None:
        clock.passes(3.0)
        logger.log_event_end("entire_frame_compile", 0, {}, 0)

    logger.log_event_start("entire_frame_compile", 0, {})
    clock.passes(2.0)
    _beside(second, rest)
    assert compiled(exporter) == {"unknown": (2, 9.0)}


def test_compiles_before_the_hook_are_in_torch_s_own_dict(exporter: Exporter, graphs: Graphs) -> None:
    dynamo = fakes.dynamo(fakes.Clock())
    dynamo.event("entire_frame_compile", 9.0)
    dynamo.compilation_time_metrics = {
        "_compile.compile_inner": [9.0, 2.0],
        "fx_codegen_and_compile": [7.0],
        "backward._backward_impl": [1.0],
        "fullgraph_capture": [5.0],
    }
    compiling.watch(graphs, dynamo)
    assert compiled(exporter) == {"unknown": (4, 17.0)}


def test_a_long_compile_keeps_the_start_up_open(
    exporter: Exporter, graphs: Graphs, dynamo: Any, clock: fakes.Clock
) -> None:
    def minutes() -> None:
        for _ in range(5):
            clock.passes(61.0)
            graphs.collect()

    dynamo.event("entire_frame_compile", 1.0, minutes)
    dynamo.event("entire_frame_compile", 1.0)
    graphs.collect()
    clock.passes(61.0)
    graphs.collect()
    dynamo.event("entire_frame_compile", 100.0)
    graphs.collect()
    write(exporter)
    gauge = "graph_compile_last_start_seconds{'phase': 'compile', 'cache': 'unknown'}"
    assert values(exporter.path)[gauge] == pytest.approx(307.0)
    assert compiled(exporter) == {"unknown": (3, 407.0)}


@pytest.mark.parametrize("body", ["event_starts", "event_ends"])
def test_a_hook_that_raises_does_not_reach_the_host(graphs: Graphs, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    calls = []

    def broken(*args: object) -> None:
        calls.append(args)
        raise ZeroDivisionError

    monkeypatch.setattr(compiling, body, broken)
    dynamo = fakes.dynamo(fakes.Clock())
    compiling.watch(graphs, dynamo)
    for _ in range(50):
        dynamo.event("entire_frame_compile", 1.0)
    assert len(calls) == 20


def test_two_exporters_in_a_process_do_not_count_twice(exporter: Exporter, dynamo: Any) -> None:
    before = dynamo.ChromiumEventLogger.log_event_start
    compiling.watch(Graphs(exporter), dynamo)
    assert dynamo.ChromiumEventLogger.log_event_start is before
    dynamo.event("entire_frame_compile", 1.0)
    assert compiled(exporter) == {"unknown": (1, 1.0)}
    assert comments(exporter.path) == [
        '# absent graph_compile{phase="compile"}: another ufwatch exporter in this process counts them'
    ]
