"""A real ``vllm serve``, started as ``vllm_cpu.sh`` starts it, with the truth plugin on its path."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

HOST = "127.0.0.1"
_HERE = Path(__file__).parent
_ENTRY_POINTS = "[vllm.stat_logger_plugins]\nufwatch_truth = ufwatch_truth:TruthLogger\n"
_METADATA = "Metadata-Version: 2.1\nName: ufwatch-truth\nVersion: 0\n"


class Server:
    """One server in a session of its own. ``work`` takes its log, its plugin's description and the plugin's sums."""

    def __init__(self, directory: Path, port: int, flags: Sequence[str], work: Path, *, plugin: bool) -> None:
        self.url = f"http://{HOST}:{port}"
        self.truth = work / "truth"
        self.log = work / "vllm.log"
        self._directory = directory
        self._command = [
            *("venv/bin/vllm", "serve", "./tiny", "--served-model-name", "tiny", "--host", HOST, "--port", str(port)),
            *("--max-model-len", "2048", "--dtype", "bfloat16", *flags),
        ]
        self._env = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # Several engines, or another program, on the machine would otherwise all be bound to its first core.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "UFWATCH_TRUTH_DIR": str(self.truth),
        }
        self._env.pop("PYTHONPATH", None)
        if plugin:
            self._env["PYTHONPATH"] = os.pathsep.join((str(_HERE / "stat_logger"), str(_describe(work))))
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, deadline_seconds: float = 400.0) -> float:
        """Returns after how many seconds /health answered. Raises RuntimeError when it does not."""
        self.truth.mkdir(parents=True, exist_ok=True)
        for old in self.truth.glob("*.json"):
            old.unlink()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begun = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while time.monotonic() - begun < deadline_seconds and self._process.poll() is None:
                try:
                    async with session.get(f"{self.url}/health", ssl=False) as answer:
                        if answer.status == 200:
                            return time.monotonic() - begun
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(0.5)
        raise RuntimeError(f"vLLM did not start; see {self.log}")

    def scrapes(self) -> int:
        """How often its metrics were asked for, by its own log."""
        return self.log.read_bytes().count(b'"GET /metrics')

    def engine_pids(self) -> list[int]:
        """The engine-core processes, by the title vLLM gives them, among our session only."""
        assert self._process is not None
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    os.getsid(int(entry.name)) == self._process.pid
                    and b"EngineCore" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
        return sorted(found)

    def kill(self) -> None:
        """Kills every process of its group at once, without a word. It can be started again."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    async def stop(self) -> None:
        """Ends the server and whatever is left of its session."""
        process = self._process
        if process is None:
            return
        process.terminate()
        for _ in range(40):
            if process.poll() is not None:
                break
            await asyncio.sleep(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None


def _describe(work: Path) -> Path:
    """What an installer would leave: the entry point by which vLLM finds the plugin."""
    site = work / "site"
    info = site / "ufwatch_truth-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(_METADATA)
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return site
