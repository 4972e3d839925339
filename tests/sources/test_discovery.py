"""Targets that come and go, against real files and a resolver that answers from a table."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from ufwatch.config import DiscoveryConfig, HttpAccess, TargetConfig
from ufwatch.sources.discovery import Discovery, system_resolve


def urls(discovery: Discovery) -> list[str]:
    return [target.url for target in asyncio.run(discovery.poll())]


def of_files(*patterns: Path) -> Discovery:
    return Discovery(DiscoveryConfig(file_sd=tuple(map(str, patterns))), ())


class Names:
    """A resolver that answers from a table; a name without an entry is not found."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if host not in self.answers:
            raise OSError(-2, "Name or service not known")
        return self.answers[host]


def of_names(names: Names, *dns: str) -> Discovery:
    return Discovery(DiscoveryConfig(dns=dns), (), names)


# Files


def test_without_discovery_the_static_targets_are_all() -> None:
    static = (TargetConfig(name="a", url="http://a:1"),)
    discovery = Discovery(DiscoveryConfig(), static)
    assert asyncio.run(discovery.poll()) == static
    assert discovery.faults == ()


def test_files_are_read_in_order_and_static_targets_come_first(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("- targets: ['b:1', 'b:2']")
    (tmp_path / "a.json").write_text('[{"targets": ["a:1"]}]')
    config = DiscoveryConfig(file_sd=(f"{tmp_path}/*.yaml", f"{tmp_path}/*"), access=HttpAccess(insecure=True))
    discovery = Discovery(config, (TargetConfig(name="z", url="http://z:1"),))
    targets = asyncio.run(discovery.poll())
    assert [target.url for target in targets] == ["http://z:1", "http://a:1", "http://b:1", "http://b:2"]
    assert [target.access.insecure for target in targets] == [False, True, True, True]
    assert discovery.faults == ()


def test_a_changed_file_is_read_again_and_a_deleted_one_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("- targets: ['a:1']")
    discovery = of_files(path)
    assert urls(discovery) == ["http://a:1"]
    path.write_text("- targets: ['a:1', 'b:1']")
    assert urls(discovery) == ["http://a:1", "http://b:1"]
    path.unlink()
    assert urls(discovery) == []
    assert discovery.faults == (f"discovery.file_sd: no file matches {path}",)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("- targets: ['a:1']")
    discovery = of_files(path)
    assert urls(discovery) == ["http://a:1"]
    monkeypatch.setattr("ufwatch.document.read_text", lambda _: pytest.fail("read again"))
    assert urls(discovery) == ["http://a:1"]


def test_a_rename_with_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    path, beside = tmp_path / "t.yaml", tmp_path / "new"
    path.write_text("- targets: ['a:1']")
    discovery = of_files(path)
    assert urls(discovery) == ["http://a:1"]
    beside.write_text("- targets: ['b:1']")
    before = path.stat()
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.replace(path)
    assert urls(discovery) == ["http://b:1"]


def test_the_swap_of_a_kubernetes_volume_is_seen(tmp_path: Path) -> None:
    for name, host in (("..1", "a"), ("..2", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.yaml").write_text(f"- targets: ['{host}:1']")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "t.yaml").symlink_to("..data/t.yaml")
    discovery = of_files(tmp_path / "*.yaml")
    assert urls(discovery) == ["http://a:1"]
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert urls(discovery) == ["http://b:1"]


@pytest.mark.parametrize("broken", ["", "- targets: [", "targets: [a]", "- targets: ['http://x']", "\x00", "[{}]\n- a"])
def test_a_broken_file_keeps_its_last_good_targets_until_it_is_mended(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("- targets: ['a:1']")
    discovery = of_files(path)
    assert urls(discovery) == ["http://a:1"]
    path.write_text(broken)
    for _ in range(2):
        assert urls(discovery) == ["http://a:1"]
        (fault,) = discovery.faults
        assert fault.startswith(f"{path}: ")
        assert fault.endswith("; keeping its last good targets")
    path.write_text("- targets: ['b:1']")
    assert urls(discovery) == ["http://b:1"]
    assert discovery.faults == ()


def test_one_broken_file_harms_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- {")
    (tmp_path / "b.yaml").write_text("- targets: ['b:1']")
    os.mkfifo(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").symlink_to("nowhere")
    discovery = of_files(tmp_path / "*.yaml")
    assert urls(discovery) == ["http://b:1"]
    assert [fault.split(": ")[0] for fault in discovery.faults] == [str(tmp_path / "a.yaml"), str(tmp_path / "c.yaml")]
    assert discovery.faults[0].endswith("; no targets from it yet")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_tried_again_until_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("- targets: ['a:1']")
    path.chmod(0)
    discovery = of_files(path)
    assert urls(discovery) == []
    assert "Permission denied" in discovery.faults[0]
    path.chmod(0o600)
    assert urls(discovery) == ["http://a:1"]


# Names


def test_each_address_of_a_name_is_a_target_in_numeric_order() -> None:
    names = Names(**{"vllm.svc": ["10.0.0.10", "10.0.0.9", "10.0.0.10"]})
    config = DiscoveryConfig(dns=("https://vllm.svc/metrics",), access=HttpAccess(insecure=True))
    targets = asyncio.run(Discovery(config, (), names).poll())
    assert [(target.name, target.url) for target in targets] == [
        ("vllm.svc[10.0.0.9]:443", "https://10.0.0.9:443/metrics"),
        ("vllm.svc[10.0.0.10]:443", "https://10.0.0.10:443/metrics"),
    ]
    assert {target.access for target in targets} == {HttpAccess(insecure=True, server_name="vllm.svc")}
    assert names.asked == [("vllm.svc", 443)]


def test_a_dual_stack_name_is_not_counted_twice() -> None:
    names = Names(both=["fd00::1", "10.0.0.1"], six=["fe80::1%eth0", "fd00::2"])
    discovery = of_names(names, "http://both:8000", "http://six:8000")
    assert urls(discovery) == ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]


def test_a_failing_look_up_keeps_the_last_good_answer() -> None:
    names = Names()
    discovery = of_names(names, "http://v:1")
    assert urls(discovery) == []
    assert discovery.faults == ("discovery.dns http://v:1: failed (Name or service not known); no targets from it yet",)
    names.answers["v"] = ["10.0.0.1"]
    assert urls(discovery) == ["http://10.0.0.1:1"]
    bad_answers: list[dict[str, list[str]]] = [{}, {"v": []}, {"v": ["rubbish"]}]
    for answer in bad_answers:
        names.answers = answer
        assert urls(discovery) == ["http://10.0.0.1:1"]
        assert discovery.faults[0].endswith("; keeping the last good targets")


def test_a_resolver_that_breaks_is_a_fault_like_any_other() -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise UnicodeError(f"label too long: {host}:{port}")

    discovery = Discovery(DiscoveryConfig(dns=("http://v:1",)), (), resolve)
    assert urls(discovery) == []
    assert discovery.faults == ("discovery.dns http://v:1: failed (UnicodeError); no targets from it yet",)


def test_a_hanging_look_up_delays_nobody_is_not_repeated_and_is_heard_in_the_end() -> None:
    release, asked = threading.Event(), []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        if host == "slow":
            release.wait(30)
        return ["10.0.0.1" if host == "slow" else "10.0.0.2"]

    config = DiscoveryConfig(dns=("http://slow:1", "http://fast:1"))
    discovery = Discovery(config, (), resolve, patience_seconds=0.5)
    for _ in range(2):
        assert urls(discovery) == ["http://10.0.0.2:1"]
        assert discovery.faults == ("discovery.dns http://slow:1: no answer within 0.5 s; no targets from it yet",)
    assert asked.count(("slow", 1)) == 1
    release.set()
    for _ in range(100):
        if len(urls(discovery)) == 2:
            break
    assert urls(discovery) == ["http://10.0.0.1:1", "http://10.0.0.2:1"]


def test_a_cancelled_poll_leaves_discovery_usable() -> None:
    release = threading.Event()

    def resolve(*_: object) -> list[str]:
        release.wait(30)
        return ["10.0.0.1"]

    discovery = Discovery(DiscoveryConfig(dns=("http://v:1",)), (), resolve, patience_seconds=30)

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(discovery.poll(), 0.01)

    asyncio.run(cancelled())
    release.set()
    assert urls(discovery) == ["http://10.0.0.1:1"]


def test_the_system_resolver_knows_this_machine() -> None:
    assert system_resolve("127.0.0.1", 80) == ["127.0.0.1"]


# Joined


def test_one_server_is_one_target_and_the_configured_one_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- targets: ['s:1', 'a:1', '10.0.0.1:1']")
    (tmp_path / "b.yaml").write_text("- targets: ['a:1']\n  labels: {name: again, __metrics_path__: /metrics}")
    config = DiscoveryConfig(file_sd=(f"{tmp_path}/*.yaml",), dns=("http://v:1",))
    static = (TargetConfig(name="mine", url="http://s:1/metrics"),)
    discovery = Discovery(config, static, Names(v=["10.0.0.1", "10.0.0.2"]))
    targets = asyncio.run(discovery.poll())
    assert [target.name for target in targets] == ["mine", "a:1", "10.0.0.1:1", "v[10.0.0.2]:1"]
    assert discovery.faults == ()


def test_a_name_is_given_to_one_target_only(tmp_path: Path) -> None:
    groups = "- {targets: ['a:1'], labels: {name: x}}\n- {targets: ['b:1'], labels: {name: x}}\n"
    (tmp_path / "t.yaml").write_text(groups + "- {targets: ['c:1'], labels: {name: 'b:1'}}")
    discovery = of_files(tmp_path / "t.yaml")
    assert [target.name for target in asyncio.run(discovery.poll())] == ["x", "b:1", "c:1"]
    assert discovery.faults == (
        "discovery: http://b:1 is named b:1, because the name x is taken",
        "discovery: http://c:1 is named c:1, because the name b:1 is taken",
    )
