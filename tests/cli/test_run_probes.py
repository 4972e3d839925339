"""Probes of a real ``ufwatch run``: its page, its reloads, its end, and what it imports."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import openmetrics_families
from tests.processes import Running, finished, one_line, until
from tests.sources.loopback import free_port
from tests.tools import require_tool
from ufwatch.sim.server import SimServer

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
REQUESTS = re.compile(r'ufwatch_probe_requests_total\{target="a",[^}]*\} ([0-9.]+)')


def _config(folder: Path, server: SimServer, *probes: dict[str, object], **more: object) -> Path:
    file = folder / "ufwatch.yaml"
    targets = [{"name": "a", "url": server.url}]
    text = json.dumps({"interval": "1s", "targets": targets, "probes": probes, **more})
    file.write_text(text, encoding="utf-8")
    return file


def _requests(agent: Running) -> float:
    found = REQUESTS.search(agent.page())
    return float(found[1]) if found else -1.0


def test_probes_are_on_the_page_until_the_configuration_drops_them(server: SimServer, tmp_path: Path) -> None:
    file = _config(tmp_path, server, {"target": "a", "interval": "5s"})
    with Running("--config", str(file), "--no-gpu") as agent:
        until(lambda: _requests(agent) >= 1)
        text = agent.page()
        done = subprocess.run(
            [require_tool("promtool"), "check", "metrics"], input=text.encode(), capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        page = agent.get(Accept=OPENMETRICS)[1]
        families = {family.name: family for family in openmetrics_families(page)}
        for name in ("ufwatch_probe_ttft_seconds", "ufwatch_probe_itl_seconds"):
            assert families[name].type == "histogram"
            assert [s for s in families[name].samples if s.exemplar is not None]
        assert "ufwatch_otlp_spans_dropped_total" not in text, "nothing is sent, so nothing can be lost"

        _config(tmp_path, server)
        agent.process.send_signal(signal.SIGHUP)
        agent.logged("configuration reloaded")
        until(lambda: "ufwatch_probe_" not in agent.page())
        _config(tmp_path, server, {"target": "b"})
        agent.process.send_signal(signal.SIGHUP)
        agent.logged("configuration not reloaded", "probes[0].target")
        agent.end()


def test_it_ends_at_once_in_the_middle_of_a_probe_and_with_a_dead_backend(server: SimServer, tmp_path: Path) -> None:
    # A port that nothing listens on, so that spans wait for their end.
    otlp = {"endpoint": f"http://127.0.0.1:{free_port()}"}
    file = _config(tmp_path, server, {"target": "a", "interval": "5s", "max_tokens": 1000}, otlp=otlp)
    with Running("--config", str(file), "--no-gpu") as agent:
        until(lambda: server.live)
        agent.end()
        agent.logged("spans sent")


def test_a_mistake_in_where_traces_go_is_told_before_anything_is_served(server: SimServer, tmp_path: Path) -> None:
    file = _config(tmp_path, server, {"target": "a"})
    wrong = {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://c"}
    done = finished("run", "--config", str(file), "--check-config", env=wrong)
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("OTEL_EXPORTER_OTLP_ENDPOINT: ")
    done = finished("run", "--config", str(file), "--otlp", "ftp://c")
    assert one_line(done.stderr).startswith("--otlp: ")
    # Variables that are somebody else's are no concern of an agent that sends no traces.
    file = _config(tmp_path, server)
    assert finished("run", "--config", str(file), "--check-config", env=wrong).returncode == 0


@pytest.mark.parametrize("probes", [False, True], ids=["without probes", "with probes"])
def test_no_opentelemetry_is_imported_where_no_traces_are_sent(
    server: SimServer, tmp_path: Path, *, probes: bool
) -> None:
    every: list[dict[str, object]] = [{"target": "a", "interval": "5s"}]
    file = _config(tmp_path, server, *(every if probes else []))
    watching = (
        "import atexit, sys; from ufwatch.cli.main import main; "
        "atexit.register(lambda: print('imported', *sorted({m.partition('.')[0] for m in sys.modules} "
        "& {'grpc', 'opentelemetry'}), 'ufwatch.trace.client' in sys.modules)); sys.exit(main())"
    )
    with Running("--config", str(file), "--no-gpu", command=(sys.executable, "-c", watching, "run")) as agent:
        if probes:
            until(lambda: _requests(agent) >= 1)
        else:
            agent.shows('ufwatch_source_up{source="vllm",target="a"}')
        agent.end()
        assert agent.lines("imported") == [f"imported {probes}"]


def test_other_verbs_make_no_requests(server: SimServer, tmp_path: Path) -> None:
    file = _config(tmp_path, server, {"target": "a", "interval": "5s"})
    done = finished("once", "--config", str(file), "--json", "--no-gpu")
    assert done.returncode == 0, done.stderr
    assert server.live == 0
    assert json.loads(done.stdout)["targets"][0]["target"] == "a"
