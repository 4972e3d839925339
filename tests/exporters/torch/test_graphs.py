"""Captures and the start-up gauge, on a torch of the test's own and a clock in its hand."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ufwatch_torch import graphs as module
from ufwatch_torch.graphs import Graphs
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch import fakes
from tests.exporters.torch.reading import comments, values, write

NONE: dict[str, float] = {
    "graph_compile_seconds_total{'phase': 'capture', 'cache': 'unknown'}": 0.0,
    "graph_compiles_total{'phase': 'capture', 'cache': 'unknown'}": 0.0,
}


@pytest.fixture
def clock() -> fakes.Clock:
    return fakes.Clock()


@pytest.fixture
def graphs(exporter: Exporter, clock: fakes.Clock) -> Graphs:
    return Graphs(exporter, monotonic=clock, clock=clock)


@pytest.fixture
def torch(graphs: Graphs, clock: fakes.Clock) -> Any:
    torch = fakes.torch(clock)
    graphs.watch_captures(torch)
    return torch


@contextlib.contextmanager
def capture(torch: Any, graph: Any = None) -> Iterator[Any]:
    """As ``torch.cuda.graph``: ends the capture also when the body raised."""
    graph = graph or torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        yield graph
    finally:
        graph.capture_end()


def captured(exporter: Exporter) -> tuple[float, Any]:
    """(graphs, seconds) as the agent reads them."""
    write(exporter)
    found = values(exporter.path)
    labels = "{'phase': 'capture', 'cache': 'unknown'}"
    return found[f"graph_compiles_total{labels}"], pytest.approx(found[f"graph_compile_seconds_total{labels}"])


def start_up(exporter: Exporter, phase: str = "capture", cache: str = "unknown") -> float | None:
    write(exporter)
    return values(exporter.path).get(f"graph_compile_last_start_seconds{{'phase': '{phase}', 'cache': '{cache}'}}")


@pytest.mark.usefixtures("torch")
def test_nothing_captured_is_0_not_absent(exporter: Exporter) -> None:
    write(exporter)
    assert values(exporter.path) == NONE
    assert comments(exporter.path) == []


def test_captures_are_counted_from_begin_to_end(exporter: Exporter, torch: Any, clock: fakes.Clock) -> None:
    for seconds in (1.0, 2.0, 3.5):
        with capture(torch):
            clock.passes(seconds)
        clock.passes(100.0)
    assert captured(exporter) == (3, 1.2 + 2.2 + 3.7)


def test_the_host_sees_its_own_function(torch: Any) -> None:
    graph = torch.cuda.CUDAGraph()
    assert graph.capture_begin("pool", capture_error_mode="relaxed") == "begun"
    assert graph.capture_end() == "ended"
    assert torch.calls == [("begin", "pool", "relaxed")]
    assert torch.cuda.CUDAGraph.capture_begin.__doc__ == "Begin capturing."
    assert torch.cuda.CUDAGraph.capture_end.__qualname__.endswith("CUDAGraph.capture_end")
    with pytest.raises(TypeError, match="unexpected keyword"):
        graph.capture_begin(wrong=1)


@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_capture_that_raises_is_no_graph_but_took_its_time(
    exporter: Exporter, torch: Any, clock: fakes.Clock, where: str
) -> None:
    torch.fails[where] = error = fakes.RefusedError("CUDA error: operation not permitted when stream is capturing")
    with pytest.raises(RuntimeError) as caught, capture(torch):
        clock.passes(1.0)
    assert caught.value is error
    assert captured(exporter) == (0, 0.1 if where == "begin" else 1.2)
    torch.fails.clear()
    with capture(torch):
        clock.passes(2.0)
    assert captured(exporter) == (1, (0.1 if where == "begin" else 1.2) + 2.2)


def test_a_capture_whose_body_raises_is_no_graph(exporter: Exporter, torch: Any, clock: fakes.Clock) -> None:
    """CUDA ends it without complaint, but nobody gets the graph."""

    def body() -> None:
        with capture(torch):
            clock.passes(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        body()
    assert captured(exporter) == (0, 1.2)


def test_a_capture_while_the_host_handles_an_exception_is_a_graph(exporter: Exporter, torch: Any) -> None:
    try:
        raise KeyError
    except KeyError:
        with capture(torch):
            pass
    assert captured(exporter) == (1, 0.2)


def test_a_capture_that_never_ends_does_not_touch_later_ones(
    exporter: Exporter, torch: Any, clock: fakes.Clock
) -> None:
    lost = torch.cuda.CUDAGraph()
    for _ in range(200):
        lost.capture_begin()
        clock.passes(50.0)
    with capture(torch):
        clock.passes(1.0)
    with capture(torch, lost):
        clock.passes(2.0)
    assert captured(exporter) == (2, 1.2 + 2.2)


def test_an_end_without_a_begin_is_a_graph_without_a_time(exporter: Exporter, torch: Any) -> None:
    torch.cuda.CUDAGraph().capture_end()
    assert captured(exporter) == (1, 0.0)


def test_nested_captures_share_their_time(exporter: Exporter, torch: Any, clock: fakes.Clock) -> None:
    with capture(torch):
        clock.passes(1.0)
        with capture(torch):
            clock.passes(5.0)
    assert captured(exporter) == (2, 6.4)


def test_each_thread_has_its_own_captures(exporter: Exporter, torch: Any, clock: fakes.Clock) -> None:
    """One begins, the other begins and ends meanwhile: two captures of the same second, both counted."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with capture(torch):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with capture(torch):
        clock.passes(1.0)
    leave.set()
    thread.join()
    assert captured(exporter) == (2, 1.2 + 1.2 + 0.2)


@pytest.mark.parametrize("body", ["_capture_begins", "_capture_ends"])
def test_a_hook_that_raises_does_not_reach_the_host(graphs: Graphs, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    calls = []

    def broken(*args: object) -> None:
        calls.append(args)
        raise ZeroDivisionError

    monkeypatch.setattr(Graphs, body, broken)
    again = fakes.torch(fakes.Clock())
    graphs.watch_captures(again)
    for _ in range(50):
        graph = again.cuda.CUDAGraph()
        assert graph.capture_begin() == "begun"
        assert graph.capture_end() == "ended"
    assert len(calls) == 20


def test_two_exporters_in_a_process_do_not_count_twice(exporter: Exporter, torch: Any) -> None:
    before = torch.cuda.CUDAGraph.capture_begin
    Graphs(exporter).watch_captures(torch)
    assert torch.cuda.CUDAGraph.capture_begin is before
    with capture(torch):
        pass
    assert captured(exporter)[0] == 1
    assert comments(exporter.path) == [
        '# absent graph_compile{phase="capture"}: another ufwatch exporter in this process counts them'
    ]


def test_start_up_ends_when_the_host_says_so(
    exporter: Exporter, graphs: Graphs, torch: Any, clock: fakes.Clock
) -> None:
    with capture(torch):
        clock.passes(1.0)
    graphs.started()
    with capture(torch):
        clock.passes(7.0)
    graphs.collect()
    assert start_up(exporter) == pytest.approx(1.2)
    assert captured(exporter) == (2, 8.4)


def test_start_up_ends_after_a_quiet_minute(exporter: Exporter, graphs: Graphs, torch: Any, clock: fakes.Clock) -> None:
    clock.passes(1000.0)
    graphs.collect()
    assert start_up(exporter) is None
    for _ in range(3):
        with capture(torch):
            pass
        clock.passes(59.0)
        graphs.collect()
    assert start_up(exporter) == pytest.approx(0.6)
    clock.passes(1.0)
    graphs.collect()
    with capture(torch):
        pass
    graphs.collect()
    assert start_up(exporter) == pytest.approx(0.6)
    assert captured(exporter) == (4, 0.8)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_begins_anew(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fakes.torch(fakes.Clock())
    monkeypatch.setattr(module, "_graphs", None)
    monkeypatch.setattr(module, "when_imported", lambda name, call: call(torch) if name == "torch" else None)
    module.install(exporter)
    with capture(torch):
        pass
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with capture(torch):
                pass
            graphs = module._graphs
            assert graphs is not None
            assert len(graphs._start) == 1
            assert captured(exporter)[0] == 1
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert captured(exporter)[0] == 1


def test_a_torch_without_the_class_is_said(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_graphs", None)
    monkeypatch.setattr(module, "when_imported", lambda _, call: call(object()))
    module.install(exporter)
    module.started()
    write(exporter)
    assert values(exporter.path) == {}
    assert [line.split(": ")[0] for line in comments(exporter.path)] == [
        '# absent graph_compile{phase="capture"}',
        '# absent graph_compile{phase="compile"}',
    ]
    assert "ChromiumEventLogger" in comments(exporter.path)[1]
