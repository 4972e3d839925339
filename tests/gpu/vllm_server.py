"""What ``plugin_vllm_gpu.py`` starts: ``vllm serve`` with or without ufwatch in it, and the agent beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.gpu.vllm_load import MODEL

ROOT = Path(__file__).resolve().parents[2]
PORT, EVENTS, AGENT = 8431, 5931, 9831
FLAGS = ("--dtype", "bfloat16", "--max-model-len", "2048", "--num-gpu-blocks-override", "700", "--load-format", "dummy")
CPU_FLAGS = (
    *("--dtype", "bfloat16", "--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "24"),
    *("--load-format", "dummy"),
)
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "DO_NOT_TRACK": "1"}
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HOME")


class Place(NamedTuple):
    """What every start shares: folders, the interpreter of vLLM, and what is put before it."""

    work: Path
    out: Path
    site: Path
    plugins: Path
    python: str
    agent_python: str
    cpu: bool
    interposer: Path | None


class Server:
    """One ``vllm serve`` in a session of its own."""

    def __init__(self, place: Place, name: str, extra: dict[str, str], *, bare: bool) -> None:
        folder = place.work / name
        self.exports, self.witness, self.log = folder / "exports", folder / "witness", folder / "vllm.log"
        for path in (self.exports, self.witness):
            path.mkdir(parents=True)
        self.python = place.python
        self.url = f"http://127.0.0.1:{PORT}"
        caches = {variable: str(place.work / "cache" / variable) for variable in CACHES}
        env = {**os.environ, **QUIET, **caches, **extra, "PYTHONPATH": f"{place.plugins}:{place.site}"}
        env.pop("LD_PRELOAD", None)
        if bare:
            env["VLLM_PLUGINS"] = "none"
        else:
            env |= {"UFWATCH_EXPORT_DIR": str(self.exports), "UFWATCH_WITNESS_DIR": str(self.witness)}
            if place.interposer is not None:
                env["LD_PRELOAD"] = str(place.interposer)
        if place.cpu:
            env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://127.0.0.1:{EVENTS}",
            "topic": "kv",
        }
        command = [
            *(self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(place.work / MODEL)),
            *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(PORT)),
            *(CPU_FLAGS if place.cpu else FLAGS),
            *("--kv-events-config", json.dumps(events)),
        ]
        self.begun = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, limit_seconds: float) -> float:
        """Returns the seconds until /health answered. Raises RuntimeError when it does not in time."""
        while time.monotonic() - self.begun < limit_seconds:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {self.process.returncode}")
            with contextlib.suppress(OSError):
                get(f"{self.url}/health")
                return time.monotonic() - self.begun
            time.sleep(0.5)
        raise RuntimeError(f"vLLM not ready after {limit_seconds:.0f} s")

    def load(self, streams: int, seconds: float) -> dict[str, Any]:
        """What the client saw, and the CPU seconds of the whole server meanwhile."""
        before = cpu_seconds(self.process.pid)
        client = [self.python, str(Path(__file__).with_name("vllm_load.py")), self.url, str(streams), str(seconds)]
        done = subprocess.run(client, capture_output=True, text=True, timeout=seconds + 60, check=False)
        if done.returncode:
            raise RuntimeError(f"client: {done.stderr[-300:]}")
        seen: dict[str, Any] = json.loads(done.stdout)
        spent = cpu_seconds(self.process.pid) - before
        return seen | {"server_cpu_us_per_token": round(1e6 * spent / max(1, seen["tokens"]), 1)}


def start_agent(place: Place, server: Server, *what: str) -> subprocess.Popen[bytes]:
    """ufwatch itself, on the page and the folder of the server: ``run``, or another command with JSON to its pipe."""
    config = place.work / "ufwatch.yaml"
    target = {"name": "gpu", "url": server.url, "textfile": str(server.exports)}
    config.write_text(json.dumps({"interval": "2s", "targets": [target]}))
    command = what or ("run", "--port", str(AGENT))
    with (place.out / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [place.agent_python, "-m", "ufwatch", command[0], "--config", str(config), *command[1:]],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if what else log,
            stderr=log,
            start_new_session=True,
        )


def readings(once: subprocess.Popen[bytes], signals: Sequence[str]) -> list[dict[str, Any]]:
    """What ``ufwatch once --json`` says of some signals. Raises where it says nothing."""
    try:
        out, _ = once.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        end(once)
        raise
    wanted = ("signal", "labels", "value", "source", "quality", "reason")
    return [
        {key: reading[key] for key in wanted if reading.get(key)}
        for reading in json.loads(out)["targets"][0]["signals"]
        if reading["signal"] in signals
    ]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process gently, then whatever is left of its session."""
    with contextlib.suppress(OSError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def cpu_seconds(session: int) -> float:
    """User and system time of all processes of a session."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == session:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            continue
    return total / os.sysconf("SC_CLK_TCK")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
