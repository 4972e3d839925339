"""The examples are what they say: each is checked as far as that goes without its runtime."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools import require_tool
from ufwatch import configfile
from ufwatch.cli import options
from ufwatch.config import DEFAULT_INTERVAL_SECONDS, DEFAULT_PORT, Config
from ufwatch.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FILES = sorted(path for path in EXAMPLES.rglob("*") if path.is_file())
VERB_FLAGS = {"--check-config"}
"""Flags that a single verb adds to the ones alike everywhere."""


def flags_alike_everywhere() -> set[str]:
    parser = argparse.ArgumentParser()
    options.add_target_options(parser)
    options.add_serve_options(parser)
    options.add_log_options(parser)
    options.add_output_options(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def check_arguments(arguments: list[str]) -> options.Flags:
    """Parses the arguments after ``ufwatch`` of a verb that serves."""
    assert arguments[0] == "run"
    parser = options.Parser(prog="ufwatch run")
    options.add_target_options(parser)
    options.add_serve_options(parser)
    options.add_log_options(parser)
    return options.flags(parser.parse_args(arguments[1:]))


def read(name: str) -> str:
    return (EXAMPLES / name).read_text(encoding="utf-8")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(read(name)))


def parse_config(text: str) -> Config:
    return configfile.parse(text, "ufwatch.yaml", base=Path("/etc/ufwatch"), exists=lambda _: True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_each_example_says_how_far_it_is_validated(path: Path) -> None:
    header = "".join(line for line in path.read_text(encoding="utf-8").splitlines(True)[:12] if line.startswith("#"))
    assert "Validated: " in header


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_each_flag_of_ours_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for command in re.findall(r"ufwatch run ([^\n)]*)", text):
        used = set(re.findall(r"(?<!\S)--[a-z][a-z.-]*", command))
        assert used <= flags_alike_everywhere() | VERB_FLAGS


def test_the_annotated_configuration_is_valid_and_shows_every_key() -> None:
    text = read("ufwatch.yaml")
    config = parse_config(text)
    assert [target.name for target in config.targets] == ["chat-a", "chat-b"]
    assert config.interval_seconds == DEFAULT_INTERVAL_SECONDS
    assert config.web.port == DEFAULT_PORT
    # An unknown key's message lists all that are known, which is the one place that has them all.
    wrong = "zzzz: 1\ntargets: [{url: 'http://a', zzzz: 1, kv_events: {bind: 'tcp://*:1', zzzz: 1}}]\n" + "".join(
        f"{block}: {{zzzz: 1}}\n" for block in ("discovery", "gpu", "web", "otlp")
    )
    wrong += "probes: [{target: x, zzzz: 1}]\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(wrong)
    known = {key for mistake in caught.value.mistakes if "zzzz" in mistake for key in keys_named(mistake)}
    assert {"targets", "bind", "expected_miss", "gpm", "max_tokens", "endpoint"} <= known
    shown = set(re.findall(r"^[\s#-]*([a-z_]+):", text, re.MULTILINE))
    assert known - shown == set()


def keys_named(mistake: str) -> list[str]:
    found = re.search(r"known are ([a-z_, ]+)", mistake)
    assert found
    return found[1].strip().split(", ")


def test_prometheus_accepts_its_configuration() -> None:
    command = [str(require_tool("promtool")), "check", "config", str(EXAMPLES / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_smallest_configuration_is_good_as_it_stands() -> None:
    from ufwatch.cli.main import main

    assert main(["run", "--config", str(EXAMPLES / "minimal.yaml"), "--check-config"], {}) == 0


def test_prometheus_scrapes_our_port() -> None:
    (config,) = documents("prometheus.yml")
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "ufwatch"
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{DEFAULT_PORT}"]}]


def instructions() -> list[tuple[str, str]]:
    text = "\n".join(line for line in read("Containerfile").splitlines() if not line.lstrip().startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in lines) if word]


def test_the_image_runs_the_agent_itself_as_nobody_and_sees_cards() -> None:
    found = instructions()
    assert {word for word, _ in found} <= {"FROM", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert [rest.split()[0] for word, rest in found if word == "FROM"] == ["python:3.11-slim", "python:3.11-slim"]
    last = dict(found)
    assert last["USER"] == "65534:65534"
    assert last["EXPOSE"] == str(DEFAULT_PORT)
    environment = " ".join(rest for word, rest in found if word == "ENV").split()
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} <= set(environment)
    # JSON, that is exec form: no shell becomes process 1 and swallows SIGTERM.
    assert yaml.safe_load(last["ENTRYPOINT"]) == ["ufwatch"]
    assert check_arguments(yaml.safe_load(last["CMD"])) == options.Flags(host="0.0.0.0")


def unit_lines() -> Iterator[tuple[str, str]]:
    for line in read("systemd/ufwatch.service").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            yield key, value


def test_the_unit_starts_the_agent_and_is_hardened() -> None:
    unit = dict(unit_lines())
    program, *arguments = shlex.split(unit["ExecStart"])
    assert Path(program).name == "ufwatch"
    assert check_arguments(arguments).config == "/etc/ufwatch/ufwatch.yaml"
    for setting in ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces"):
        assert unit[setting] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    # Either would hide the cards.
    assert "PrivateDevices" not in unit
    assert "ProcSubset" not in unit


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "ufwatch.service"
    unit.write_text(read("systemd/ufwatch.service").replace("/opt/ufwatch/bin/ufwatch", sys.executable))
    command = [analyze, "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "ufwatch.service" in line]
    assert (done.returncode, complaints) == (0, [])


def sidecar_pod() -> dict[str, Any]:
    pod = documents("kubernetes/sidecar.yaml")[1]["spec"]["template"]
    assert isinstance(pod, dict)
    return pod


def container(name: str) -> dict[str, Any]:
    (found,) = [each for each in sidecar_pod()["spec"]["containers"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def test_the_sidecar_runs_without_rights_and_claims_no_card() -> None:
    agent = container("ufwatch")
    security = agent["securityContext"]
    assert security["runAsNonRoot"] is True
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == dict(instructions())["USER"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "nvidia.com/gpu" not in str(agent["resources"])
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in agent["env"]
    assert sidecar_pod()["spec"]["enableServiceLinks"] is False


def test_the_sidecar_is_probed_and_scraped_on_our_port() -> None:
    agent = container("ufwatch")
    assert agent["ports"] == [{"name": "metrics", "containerPort": DEFAULT_PORT}]
    assert agent["startupProbe"]["httpGet"] == {"path": "/-/ready", "port": "metrics"}
    assert agent["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": "metrics"}
    # The agent's trouble must not take the engine out of its Service.
    assert "readinessProbe" not in agent


def test_the_sidecar_reads_a_valid_configuration_and_vllms_files() -> None:
    config_map = documents("kubernetes/sidecar.yaml")[0]
    agent, vllm = container("ufwatch"), container("vllm")
    flags = check_arguments(agent["args"])
    mounts = {mount["name"]: mount for mount in agent["volumeMounts"]}
    assert flags.config is not None
    assert str(Path(flags.config).parent) == mounts["config"]["mountPath"]
    assert "subPath" not in mounts["config"]
    (target,) = parse_config(config_map["data"][Path(flags.config).name]).targets
    assert target.url == f"http://127.0.0.1:{vllm['ports'][0]['containerPort']}"
    assert target.textfile is not None
    assert target.textfile.is_relative_to(mounts["textfile"]["mountPath"])
    assert mounts["textfile"]["readOnly"] is True
    assert {mount["mountPath"] for mount in vllm["volumeMounts"]} >= {mounts["textfile"]["mountPath"]}
    volumes = {volume["name"]: volume for volume in sidecar_pod()["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == config_map["metadata"]["name"]
    assert "emptyDir" in volumes["textfile"]


def test_the_pod_monitor_selects_the_sidecars_port() -> None:
    (monitor,) = documents("kubernetes/podmonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == sidecar_pod()["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == container("ufwatch")["ports"][0]["name"]
    assert endpoint["path"] == "/metrics"
