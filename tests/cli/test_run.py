"""``ufwatch run`` as a daemon: it ends when told, keeps going when it can, and says in one line what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import COMMAND, WITHOUT_UVLOOP, Running, finished, one_line, until
from tests.simulators import BUSY, Simulators
from tests.tools import require_tool
from ufwatch.sim.server import SimServer

NOBODY = 65534


@pytest.fixture
def hanging(simulators: Simulators) -> SimServer:
    found = simulators.start("idle")
    found.fault = "hang"
    return found


def _half_sent(agent: Running) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", agent.port), timeout=10)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: ")
    return connection


both_loops = pytest.mark.parametrize("command", [COMMAND, WITHOUT_UVLOOP], ids=["uvloop", "asyncio"])


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_it_ends_at_once_while_nothing_happens(server: SimServer, signals: tuple[int, ...]) -> None:
    with Running("--target", f"a={server.url}") as agent:
        agent.shows('ufwatch_source_up{source="vllm",target="a"}')
        agent.end(*signals)
        assert agent.lines("msg=stopped")


@both_loops
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_it_ends_at_once_in_the_middle_of_a_scrape_and_of_a_request(
    hanging: SimServer, signals: tuple[int, ...], command: tuple[str, ...]
) -> None:
    given = ("--target", f"a={hanging.url}", "--interval", "30s")
    with Running(*given, command=(*command, "run")) as agent, _half_sent(agent):
        until(lambda: hanging.scrapes)
        agent.end(*signals)


@both_loops
def test_signals_sent_until_it_is_gone_do_not_change_how_it_ends(server: SimServer, command: tuple[str, ...]) -> None:
    with Running("--target", server.url, command=(*command, "run")) as agent:
        agent.shows("ufwatch_targets")
        while agent.process.poll() is None:
            agent.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        agent.end()


def test_it_ends_at_once_while_a_name_is_being_looked_up() -> None:
    slow = (
        "import socket, sys, time; sys.modules['uvloop'] = None; from ufwatch.cli.main import main; "
        "real = socket.getaddrinfo; socket.getaddrinfo = lambda host, *more, **named: "
        "(time.sleep(20) or []) if host == 'slow.test' else real(host, *more, **named); sys.exit(main())"
    )
    with Running("--target", "a=http://slow.test:1", command=(sys.executable, "-c", slow, "run")) as agent:
        agent.shows("ufwatch_targets")
        agent.end()


def test_a_name_nobody_knows_is_down_and_the_agent_lives(server: SimServer) -> None:
    targets = ("--target", "lost=http://no-such-host.invalid:8000", "--target", f"a={server.url}")
    with Running(*targets, "--interval", "1s") as agent:
        agent.shows('ufwatch_source_up{source="vllm",target="a"}')
        agent.shows('ufwatch_source_up{source="vllm",target="lost"}', 0.0)
        agent.logged("source down", "target=lost", "reason=connect")
        agent.end()


def test_another_process_on_the_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = finished("run", "--target", "http://127.0.0.1:9", "--port", str(port))
    assert done.returncode == 2
    assert one_line(done.stderr).startswith(f"ufwatch: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in done.stderr


def test_an_address_of_another_machine_is_one_line() -> None:
    done = finished("run", "--target", "http://127.0.0.1:9", "--host", "192.0.2.1")
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("ufwatch: cannot listen on 192.0.2.1:9817: ")


def test_it_listens_on_ipv6(server: SimServer) -> None:
    if not socket.has_ipv6 or not _binds("::1"):
        pytest.skip("this machine has no IPv6 loopback")
    with Running("--target", server.url, host="::1") as agent:
        assert agent.address == f"http://[::1]:{agent.port}"
        agent.shows("ufwatch_targets")
        agent.end()


def test_every_address_means_both_families(server: SimServer) -> None:
    if not socket.has_ipv6 or not _binds("::"):
        pytest.skip("this machine has no IPv6")
    with Running("--target", server.url, host="::") as agent:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, agent.port), timeout=10) as connection:
                connection.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.0 200")
        agent.end()


def _binds(host: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def test_a_dead_proxy_is_not_asked_for_a_local_target(server: SimServer) -> None:
    dead = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    with Running("--target", f"a={server.url}", env=dead) as agent:
        agent.shows('ufwatch_source_up{source="vllm",target="a"}')
        agent.end()


def _config(folder: Path, *servers: tuple[str, str], **more: object) -> Path:
    """A file of these targets, each with ``more``."""
    targets = [{"name": name, "url": url, **more} for name, url in servers]
    file = folder / "ufwatch.yaml"
    file.write_text(json.dumps({"interval": "1s", "targets": targets}), encoding="utf-8")
    return file


def test_a_reload_takes_good_files_and_refuses_bad_ones(
    simulators: Simulators, server: SimServer, tmp_path: Path
) -> None:
    other = simulators.start("idle")
    up_a, up_b = (f'ufwatch_source_up{{source="vllm",target="{name}"}}' for name in "ab")
    file = _config(tmp_path, ("a", server.url))
    with Running("--config", str(file)) as agent:
        agent.shows(up_a)
        before = server.scrapes
        _config(tmp_path, ("a", server.url), ("b", other.url))
        agent.process.send_signal(signal.SIGHUP)
        agent.shows(up_b)
        agent.shows("ufwatch_targets", 2.0)

        file.write_text("targets:\n  - {name: a}\n  - {name: b, url: ftp://x, colour: red}\ninterval: 0s\n")
        agent.process.send_signal(signal.SIGHUP)
        agent.shows("ufwatch_config_reload_success", 0.0)
        refused = agent.logged("configuration not reloaded")
        assert [word for word in ("url", "colour", "interval") if not any(word in line for line in refused)] == []
        assert all("level=error" in line and f'mistake="{file}' in line for line in refused)
        assert len(refused) == 4
        file.write_text("targets: [")
        agent.process.send_signal(signal.SIGHUP)
        agent.logged("configuration not reloaded", "not YAML")
        file.unlink()
        agent.process.send_signal(signal.SIGHUP)
        agent.logged("configuration not reloaded", "No such file")
        assert len(agent.lines("configuration not reloaded")) == 6
        seen = server.scrapes, other.scrapes
        until(lambda: server.scrapes > seen[0] and other.scrapes > seen[1])
        assert agent.value(up_a) == agent.value(up_b) == 1.0

        _config(tmp_path, ("b", other.url))
        agent.process.send_signal(signal.SIGHUP)
        agent.shows("ufwatch_config_reload_success")
        agent.shows("ufwatch_targets", 1.0)
        assert 'target="a"' not in agent.page()
        assert agent.value(up_b) == 1.0
        assert server.scrapes > before
        assert len(agent.lines("configuration reloaded")) == 2
        agent.end()


def test_a_reload_that_needs_a_missing_extra_keeps_the_old_configuration(server: SimServer, tmp_path: Path) -> None:
    file = _config(tmp_path, ("a", server.url))
    without = "import sys; sys.modules['zmq'] = None; from ufwatch.cli.main import main; sys.exit(main())"
    with Running("--config", str(file), command=(sys.executable, "-c", without, "run")) as agent:
        agent.shows('ufwatch_source_up{source="vllm",target="a"}')
        _config(tmp_path, ("a", server.url), kv_events={"bind": "tcp://127.0.0.1:5557"})
        agent.process.send_signal(signal.SIGHUP)
        agent.shows("ufwatch_config_reload_success", 0.0)
        assert len(agent.lines("configuration not reloaded", "kv-events")) == 1
        seen = server.scrapes
        until(lambda: server.scrapes > seen)
        assert agent.value('ufwatch_source_up{source="vllm",target="a"}') == 1.0
        agent.end()


def test_check_config_says_yes_or_every_mistake(server: SimServer, tmp_path: Path) -> None:
    file = _config(tmp_path, ("a", server.url), ("b", "http://127.0.0.1:9"))
    good = finished("run", "--config", str(file), "--check-config")
    assert (good.returncode, good.stderr) == (0, "")
    assert one_line(good.stdout) == "ufwatch: the configuration is good: 2 targets"
    file.write_text("targets:\n  - {name: a}\nintervall: 5s\n")
    bad = finished("run", "--config", str(file), "--check-config")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert [line.startswith(f"{file}: ") for line in bad.stderr.splitlines()] == [True, True]


def test_without_a_target_it_says_how_to_give_one() -> None:
    done = finished("run")
    assert done.returncode == 2
    text = "ufwatch: no target; give --target http://HOST:PORT, UFWATCH_TARGETS or a config file with targets"
    assert one_line(done.stderr) == text


def test_the_log_is_json_and_tells_changes_only(simulators: Simulators) -> None:
    own = simulators.start(BUSY)
    with Running("--target", f"a={own.url}", "--interval", "1s", "--log-format", "json", "--no-gpu") as agent:
        until(lambda: own.scrapes >= 3)
        simulators.die(own)
        agent.logged('"source down"')
        simulators.revive(own)
        agent.logged('"source up"', times=2)
        agent.end()
        events = [json.loads(line) for line in agent.log().splitlines()]
    assert all({"ts", "level", "msg"} <= event.keys() for event in events)
    told = [(event["msg"], event.get("state") or event.get("reason")) for event in events]
    assert told == [
        ("serving", None),
        ("error budgets are not persisted; give --state-dir to keep them over restarts", None),
        ("source up", None),
        ("state", "serving"),
        ("source down", "connect"),
        ("state", "down"),
        ("source up", None),
        ("state", "serving"),
        ("stopped", None),
    ]


def test_nothing_is_written_and_no_privilege_needed(server: SimServer) -> None:
    setpriv, unshare = require_tool("setpriv"), require_tool("unshare")
    mounted = 'mount --make-rprivate / && mount -o remount,bind,ro / && exec "$@"'
    user = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
    sandbox = (unshare, "--mount", "sh", "-c", mounted, "sh", *user)
    if os.geteuid() != 0 or subprocess.run([*sandbox, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can become another user and mount the file system read-only")
    # Nor is there any other place to write to, such as /dev/shm, that anybody would be told of.
    env = {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"}
    with Running("--target", f"a={server.url}", command=(*sandbox, *COMMAND, "run"), env=env) as agent:
        agent.shows('ufwatch_source_up{source="vllm",target="a"}')
        process = Path(f"/proc/{agent.process.pid}")
        assert f"Uid:\t{NOBODY}\t" in (process / "status").read_text()
        # The log was opened before; everything else it holds can only be read.
        written = [
            os.readlink(f)
            for f in (process / "fd").iterdir()
            if os.readlink(f).startswith("/") and f.name not in "12" and _writable(process, f.name)
        ]
        assert [path for path in written if path != os.devnull] == []
        agent.end()


def _writable(process: Path, descriptor: str) -> bool:
    flags = re.search(r"flags:\s*(\d+)", (process / "fdinfo" / descriptor).read_text())
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
